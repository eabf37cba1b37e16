package procs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What sys/proc.h calls the states of a process.
const (
	stateStopped = 4
	stateZombie  = 5
)

// line gives what the kernel says of one process in this package's words. Its start is
// in microseconds since 1970.
func line(k *unix.KinfoProc) process {
	p := process{
		pid: int(k.Proc.P_pid), ppid: int(k.Eproc.Ppid), group: int(k.Eproc.Pgid), state: 'R',
		start: uint64(k.Proc.P_starttime.Sec)*1e6 + uint64(k.Proc.P_starttime.Usec),
	}
	switch k.Proc.P_stat {
	case stateStopped:
		p.state = 'T'
	case stateZombie:
		p.state = 'Z'
	}
	return p
}

func stat(pid int) (process, error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if errors.Is(err, unix.EIO) { // the answer was empty
		err = unix.ESRCH
	}
	if err != nil {
		return process{}, err
	}
	return line(k), nil
}

// table lists every process there is.
func table() ([]process, error) {
	all, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, fmt.Errorf("process table: %w", err)
	}
	out := make([]process, 0, len(all))
	for i := range all {
		out = append(out, line(&all[i]))
	}
	return out, nil
}

// signal signals exactly p; one that is gone is no error. There are no handles on
// processes here: between the look and the signal a pid would have to come round.
func (p process) signal(sig unix.Signal) error {
	now, err := stat(p.pid)
	if err == nil && (now.start != p.start || now.dead()) {
		return nil
	}
	if err == nil {
		err = unix.Kill(p.pid, sig)
	}
	if err != nil && !notFound(err) {
		return fmt.Errorf("%v to process %d: %w", sig, p.pid, err)
	}
	return nil
}

// dies returns nil once p is dead, whoever reaps it.
func (p process) dies(ctx context.Context) error {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		now, err := stat(p.pid)
		if notFound(err) || err == nil && (now.start != p.start || now.dead()) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("process %d has not ended: %w", p.pid, context.Cause(ctx))
		}
	}
}

// bootID tells this boot of the machine from every other.
var bootID = sync.OnceValues(func() (string, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(id), nil
})

// bears says whether the environment pid was executed with has a variable that
// begins with prefix. One that cannot be read is another user's.
func bears(pid int, prefix []byte) bool {
	// The count of arguments, the path, the arguments and the environment, each text
	// ended by a NUL: the prefix is long enough to be found by itself.
	text, err := unix.SysctlRaw("kern.procargs2", pid)
	return err == nil && bytes.Contains(text, append([]byte{0}, prefix...))
}

// socketpair makes two joined sockets that close on exec.
func socketpair() ([2]int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	return fds, err
}
