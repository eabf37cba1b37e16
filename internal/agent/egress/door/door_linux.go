package door

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// talkTime bounds the talk between inside and outside.
	talkTime = 30 * time.Second
	// backlog is how many connections wait to be taken; the kernel may allow fewer.
	backlog = 1024
)

// reply is what the inside is told once its doors were taken.
type reply struct {
	Error string `json:"error,omitempty"`
}

// Take is the outside's part of the talk: it has the process at the other end of c
// open the doors wanted, and hands them to serve, which closes them whatever it
// returns. The other end waits for the answer.
func Take(c *net.UnixConn, wanted []Door, serve func([]*os.File) error) error {
	err := c.SetDeadline(time.Now().Add(talkTime))
	said := json.NewEncoder(c)
	if err == nil {
		err = said.Encode(wanted)
	}
	var opened []*os.File
	if err == nil {
		opened, err = receive(c)
	}
	if err == nil {
		err = serve(opened)
	}
	var answer reply
	if err != nil {
		answer.Error = err.Error()
	}
	if cause := errors.Join(said.Encode(answer), c.SetDeadline(time.Time{})); err == nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("take the turn's doors: %w", err)
	}
	return nil
}

// Give is the inside's part: it opens, in the network namespace of the calling thread,
// the doors it is asked for through c, and returns once they were taken. It takes the
// right to open ports below 1024.
func Give(c *net.UnixConn) error {
	if err := c.SetDeadline(time.Now().Add(talkTime)); err != nil {
		return err
	}
	heard := json.NewDecoder(c)
	var wanted []Door
	if err := heard.Decode(&wanted); err != nil {
		return fmt.Errorf("ask which doors to open: %w", err)
	}
	opened, err := open(wanted)
	if err != nil {
		return err
	}
	defer Close(opened)
	if err := send(c, opened); err != nil {
		return fmt.Errorf("pass the doors out: %w", err)
	}
	var answer reply
	if err := heard.Decode(&answer); err != nil {
		return fmt.Errorf("wait for the doors to be taken: %w", err)
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return c.SetDeadline(time.Time{})
}

func open(doors []Door) ([]*os.File, error) {
	var out []*os.File
	for _, d := range doors {
		f, err := d.open()
		if err != nil {
			Close(out)
			return nil, fmt.Errorf("open %s %s: %w", d.Network, d.Address, err)
		}
		out = append(out, f)
	}
	return out, nil
}

func (d Door) open() (*os.File, error) {
	if !d.Address.Addr().Is4() {
		return nil, errors.New("is no door")
	}
	kind := unix.SOCK_STREAM
	if d.Network == Datagram {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(d.Address.Port()), Addr: d.Address.Addr().As4()})
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), d.Network), nil
}

// Check says whether f is the door d, in another network namespace than this process
// is in: a door there would let the whole machine through.
func (d Door) Check(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var bad error
	if err := raw.Control(func(fd uintptr) { bad = d.check(int(fd)) }); err != nil {
		return err
	}
	return bad
}

func (d Door) check(fd int) error {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return err
	}
	at, ok := name.(*unix.SockaddrInet4)
	if !ok || netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port)) != d.Address || (kind == unix.SOCK_DGRAM) != (d.Network == Datagram) {
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

// send and receive carry the descriptors in one message.
func send(c *net.UnixConn, doors []*os.File) error {
	fds := make([]int, len(doors))
	for i, f := range doors {
		fds[i] = int(f.Fd())
	}
	_, _, err := c.WriteMsgUnix([]byte{'\n'}, unix.UnixRights(fds...), nil)
	return err
}

func receive(c *net.UnixConn) ([]*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4*Max))
	_, n, flags, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, err
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
		err = errors.New("more doors than there can be")
	}
	if err != nil {
		Close(out)
		return nil, err
	}
	return out, nil
}
