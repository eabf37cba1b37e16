package egress

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// enterTime bounds the talk between a container's entrance and its worker.
const enterTime = 30 * time.Second

// Open opens doors in the network namespace of the calling thread. It takes the right
// to open ports below 1024.
func Open(doors []Door) ([]*os.File, error) {
	var out []*os.File
	for _, d := range doors {
		f, err := d.open()
		if err != nil {
			closeAll(out)
			return nil, fmt.Errorf("open %s %s: %w", d.Network, d.Address, err)
		}
		out = append(out, f)
	}
	return out, nil
}

func (d Door) open() (*os.File, error) {
	kind := unix.SOCK_STREAM
	if d.Network == "udp4" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), d.Network)
	if kind == unix.SOCK_STREAM {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(d.Address.Port()), Addr: d.Address.Addr().As4()})
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, maxConnections)
	}
	if err != nil {
		closeAll([]*os.File{f})
		return nil, err
	}
	return f, nil
}

// check says whether f is the door d, in another network namespace than this one: a
// door of the worker's own would let the whole machine through.
func (d Door) check(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var bad error
	if err := raw.Control(func(fd uintptr) { bad = d.checkSocket(int(fd)) }); err != nil {
		return err
	}
	return bad
}

func (d Door) checkSocket(fd int) error {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return err
	}
	at, ok := name.(*unix.SockaddrInet4)
	if !ok || netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port)) != d.Address || (kind == unix.SOCK_DGRAM) != (d.Network == "udp4") {
		return errors.New("is another socket")
	}
	theirs, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	own, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	ours, err := unix.GetsockoptUint64(own, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if theirs == ours {
		return errors.New("was opened in the worker's own network namespace")
	}
	return nil
}

// Send passes opened doors to the other end of the unix socket fd.
func Send(fd int, doors []*os.File) error {
	fds := make([]int, len(doors))
	for i, f := range doors {
		fds[i] = int(f.Fd())
	}
	if err := unix.Sendmsg(fd, []byte{0}, unix.UnixRights(fds...), nil, 0); err != nil {
		return fmt.Errorf("pass the doors on: %w", err)
	}
	return nil
}

// Receive takes what Send passed on, without waiting longer than c's deadline.
func Receive(c *net.UnixConn) ([]*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4*(maxHosts+4)))
	_, n, flags, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, fmt.Errorf("take the doors: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	var out []*os.File
	for _, m := range messages {
		fds, cause := unix.ParseUnixRights(&m)
		err = errors.Join(err, cause)
		for _, fd := range fds {
			out = append(out, os.NewFile(uintptr(fd), "door"))
		}
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = errors.New("more than there can be")
	}
	if err != nil {
		closeAll(out)
		return nil, fmt.Errorf("take the doors: %w", err)
	}
	return out, nil
}

// entrance is what a container is told once its doors were taken.
type entrance struct {
	Error string `json:"error,omitempty"`
}

// Admit serves the turn that enters through l, which is waited for until ctx ends. It
// is called once, and l is closed when it returns.
func (p *Proxy) Admit(ctx context.Context, l *net.UnixListener) error {
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	c, err := l.AcceptUnix()
	if err != nil {
		return fmt.Errorf("wait for the turn: %w", errors.Join(context.Cause(ctx), err))
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(enterTime)); err != nil {
		return fmt.Errorf("admit the turn: %w", err)
	}
	if err := json.NewEncoder(c).Encode(p.Doors()); err != nil {
		return fmt.Errorf("admit the turn: %w", err)
	}
	opened, err := Receive(c)
	if err == nil {
		err = p.Attach(opened)
	}
	var told entrance
	if err != nil {
		told.Error = err.Error()
	}
	if err := errors.Join(err, json.NewEncoder(c).Encode(told)); err != nil {
		return fmt.Errorf("admit the turn: %w", err)
	}
	return nil
}

// Enter opens, in this network namespace, the doors that the worker behind the unix
// socket at path asks for, passes them out and becomes the program argv names, in this
// process. It returns only if it fails; argv was not executed then.
func Enter(path string, argv, env []string) error {
	if err := enter(path); err != nil {
		return fmt.Errorf("enter by %s: %w", path, err)
	}
	return os.NewSyscallError("execve "+argv[0], syscall.Exec(argv[0], argv, env))
}

func enter(path string) error {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(enterTime)); err != nil {
		return err
	}
	said := json.NewDecoder(bufio.NewReader(c))
	var wanted []Door
	if err := said.Decode(&wanted); err != nil {
		return err
	}
	opened, err := Open(wanted)
	if err != nil {
		return err
	}
	defer closeAll(opened)
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = Send(int(fd), opened) }); err != nil {
		return err
	}
	var told entrance
	if err := errors.Join(sent, said.Decode(&told)); err != nil {
		return err
	}
	if told.Error != "" {
		return errors.New(told.Error)
	}
	return nil
}
