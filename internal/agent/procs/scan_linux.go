package procs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// parseStat reads /proc/PID/stat. The name in parentheses may hold anything,
// parentheses too, so what counts follows the last one.
func parseStat(b []byte) (process, error) {
	var p process
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return p, errors.New("stat: no name")
	}
	f := bytes.Fields(b[end+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return p, errors.New("stat: too short")
	}
	var err1, err2, err3 error
	p.pid, err1 = strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	p.state = f[0][0]
	p.ppid, err2 = strconv.Atoi(string(f[1]))
	p.start, err3 = strconv.ParseUint(string(f[19]), 10, 64) // field 22
	return p, errors.Join(err1, err2, err3)
}

func stat(pid int) (process, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, err
	}
	return parseStat(b)
}

// table lists the processes /proc shows.
func table() ([]process, error) {
	pids, err := pids()
	if err != nil {
		return nil, err
	}
	return those(pids)
}

func pids() ([]int, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var out []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			out = append(out, pid)
		}
	}
	return out, nil
}

// open gives a pidfd of exactly p, or an error that notFound knows when p is gone.
func (p process) open() (int, error) {
	fd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return -1, err
	}
	// Read after opening: while the descriptor's process lives, the pid is its own.
	now, err := stat(p.pid)
	if err == nil && (now.start != p.start || now.dead()) {
		err = unix.ESRCH
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// signal signals exactly p; one that is gone is no error.
func (p process) signal(sig unix.Signal) error {
	fd, err := p.open()
	if err == nil {
		defer unix.Close(fd)
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
	if err != nil && !notFound(err) {
		return fmt.Errorf("%v to process %d: %w", sig, p.pid, err)
	}
	return nil
}

// dies returns nil once p is dead, whoever reaps it.
func (p process) dies(ctx context.Context) error {
	fd, err := p.open()
	if notFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	err = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 && err == nil
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("process %d has not ended: %w", p.pid, context.Cause(ctx))
	}
	return err
}

// bootID tells this boot of the machine from every other.
var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
})

// bears says whether the environment pid was executed with has a variable that
// begins with prefix. One that cannot be read is another user's.
func bears(pid int, prefix []byte) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.HasPrefix(v, prefix) {
			return true
		}
	}
	return false
}

// socketpair makes two joined sockets that close on exec.
func socketpair() ([2]int, error) {
	return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
}
