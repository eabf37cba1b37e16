//go:build linux

package egress_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"turnpike/internal/agent/egress"
	"turnpike/internal/agent/egress/door"
)

// argv[0] of the copies of this test that live in network namespaces of their own.
const (
	// insideName plays a turn: it gives its doors, and then connects where it is told to,
	// and gives the connections, too.
	insideName = "turnpike-inside"
	// worldName runs tests in a world whose loopback has addresses of the internet.
	worldName = "turnpike-world"
)

// The addresses of the world.
const (
	worldOwn     = "198.41.0.1" // with it, all that begins alike is local
	worldPublic  = "198.41.0.4"
	worldPrivate = "10.9.8.7"
)

func TestMain(m *testing.M) {
	switch os.Args[0] {
	case insideName:
		loopback()
		inside()
	case worldName:
		loopback(worldOwn, worldPrivate)
	}
	goleak.VerifyTestMain(m)
}

// loopback brings up the loopback interface of a new namespace, with more addresses.
func loopback(more ...string) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	for i, a := range append([]string{""}, more...) {
		name := "lo"
		if i > 0 {
			name = fmt.Sprintf("lo:%d", i)
		}
		var ifr *unix.Ifreq
		if err == nil {
			ifr, err = unix.NewIfreq(name)
		}
		if err != nil {
			break
		}
		if i == 0 {
			ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
			err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
			continue
		}
		at := netip.MustParseAddr(a).As4()
		if err = ifr.SetInet4Addr(at[:]); err == nil {
			err = unix.IoctlIfreq(fd, unix.SIOCSIFADDR, ifr)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loopback:", err)
		os.Exit(1)
	}
	unix.Close(fd)
}

// apart has cmd run in a network namespace of its own.
func apart(cmd *exec.Cmd) {
	cmd.Path = "/proc/self/exe"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
}

// attempt is a connection to make inside.
type attempt struct{ Network, Address string }

func inside() {
	var conns [2]*net.UnixConn // what is said through one must not be heard through the other
	for i := range conns {
		c, err := net.FileConn(os.NewFile(uintptr(3+i), "worker"))
		if err != nil {
			os.Exit(1)
		}
		conns[i] = c.(*net.UnixConn)
	}
	if err := door.Give(conns[0]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	worker := conns[1]
	var dialer net.Dialer
	dialer.SetMultipathTCP(false)
	for in := json.NewDecoder(worker); ; {
		var a attempt
		if err := in.Decode(&a); err != nil {
			os.Exit(0)
		}
		conn, err := dialer.Dial(a.Network, a.Address)
		if err != nil {
			_, _, err = worker.WriteMsgUnix([]byte(err.Error()), nil, nil)
		} else {
			var made *os.File
			made, err = conn.(interface{ File() (*os.File, error) }).File()
			if err == nil {
				_, _, err = worker.WriteMsgUnix([]byte("made"), unix.UnixRights(int(made.Fd())), nil)
				made.Close()
			}
			conn.Close()
		}
		if err != nil {
			os.Exit(1)
		}
	}
}

// turn is a network namespace whose doors a proxy serves.
type turn struct {
	c *net.UnixConn
	p *egress.Proxy
}

// enter begins a turn under rules.
func enter(t *testing.T, r egress.Rules) *turn {
	t.Helper()
	p, err := egress.New(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	giving, gives := pair(t)
	c, theirs := pair(t)
	cmd := &exec.Cmd{Args: []string{insideName}, Stderr: os.Stderr, ExtraFiles: []*os.File{file(t, gives), file(t, theirs)}}
	apart(cmd)
	err = cmd.Start()
	door.Close(cmd.ExtraFiles)
	theirs.Close()
	gives.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		c.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if err := p.Attach(giving); err != nil {
		t.Fatal(err)
	}
	return &turn{c, p}
}

// pair are two unix sockets that are joined.
func pair(t *testing.T) (near, far *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

func file(t *testing.T, c *net.UnixConn) *os.File {
	t.Helper()
	f, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// dial connects inside.
func (n *turn) dial(t *testing.T, network, address string) (net.Conn, error) {
	t.Helper()
	if err := json.NewEncoder(n.c).Encode(attempt{network, address}); err != nil {
		t.Fatal(err)
	}
	text, oob := make([]byte, 1024), make([]byte, unix.CmsgSpace(4))
	k, o, _, _, err := n.c.ReadMsgUnix(text, oob)
	if err != nil {
		t.Fatal(err)
	}
	if o == 0 {
		return nil, errors.New(string(text[:k]))
	}
	messages, err := unix.ParseSocketControlMessage(oob[:o])
	if err != nil {
		t.Fatal(err)
	}
	made, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(made[0]), address)
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, nil
}

// reach connects inside to what a name stands for.
func (n *turn) reach(t *testing.T, name string, port uint16) net.Conn {
	t.Helper()
	at, code := n.lookup(t, "udp", name)
	if code != dnsmessage.RCodeSuccess {
		t.Fatalf("%s: %v", name, code)
	}
	c, err := n.dial(t, "tcp", netip.AddrPortFrom(at, port).String())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return c
}

// lookup asks the turn's own resolver.
func (n *turn) lookup(t *testing.T, network, name string) (netip.Addr, dnsmessage.RCode) {
	t.Helper()
	c, err := n.dial(t, network, "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	q := query(t, name, dnsmessage.TypeA)
	if network == "tcp" {
		q = append([]byte{byte(len(q) >> 8), byte(len(q))}, q...)
	}
	if _, err := c.Write(q); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 1024)
	k, err := c.Read(answer)
	if network == "tcp" && err == nil {
		size := int(answer[0])<<8 | int(answer[1])
		if k < 2+size {
			var more int
			more, err = io.ReadFull(c, answer[k:2+size])
			k += more
		}
		answer = answer[2:]
		k -= 2
	}
	if err != nil {
		t.Fatal(err)
	}
	return address(t, answer[:k])
}

func query(t testing.TB, name string, kind dnsmessage.Type) []byte {
	t.Helper()
	n, err := dnsmessage.NewName(name + ".")
	if err != nil {
		t.Fatal(err)
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: kind, Class: dnsmessage.ClassINET}},
	}
	text, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// address is the first one of an answer, if it has any.
func address(t testing.TB, answer []byte) (netip.Addr, dnsmessage.RCode) {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(answer); err != nil {
		t.Fatal(err)
	}
	if !m.Response || m.ID != 7 {
		t.Fatalf("got %+v", m.Header)
	}
	for _, a := range m.Answers {
		if a, ok := a.Body.(*dnsmessage.AResource); ok {
			return netip.AddrFrom4(a.A), m.RCode
		}
	}
	return netip.Addr{}, m.RCode
}
