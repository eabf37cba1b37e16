package container

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
)

// lineSocket is the name of the line's socket in the directory that is bound.
const lineSocket = "line"

// plan is what a stage executes, and what it must find around itself before.
type plan struct {
	Path string
	Args []string
	Env  []string
	Dir  string // the working directory inside
	// Workspace is what Dir must be; zero is anything.
	Workspace agent.Pin
	UID, GID  int
	Places    []place
	Limits    agent.Limits
	Until     time.Duration // by procs.Monotonic, for the kernel is one; zero is no end
	Alone     bool          // there is no interface but loopback
	Doors     bool          // the ways out are opened and passed out
}

// place is one bind as it must be inside.
type place struct {
	Path          string
	Write         bool
	Device, Inode uint64
}

// order is what the worker says to the stage.
type order struct {
	Do string        `json:"do"`
	At time.Duration `json:"at,omitempty"` // of until: as plan.Until
}

// The orders there are.
const (
	doTerminate = "terminate"
	doFreeze    = "freeze"
	doThaw      = "thaw"
	doUntil     = "until"
)

// news is what the stage says to the worker.
type news struct {
	Failed  *procs.Failure `json:"failed,omitempty"`
	Running bool           `json:"running,omitempty"`
	Did     string         `json:"did,omitempty"` // an order, with an error if it failed
	Error   string         `json:"error,omitempty"`
	Exit    *agent.Exit    `json:"exit,omitempty"`
}

// listen makes the line's socket in dir. Its address is short although dir's path may
// be long: it is bound through a descriptor of dir.
func listen(dir string) (*net.UnixListener, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", fd, lineSocket)})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	// The name it was bound by means something else as soon as fd is closed.
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(filepath.Join(dir, lineSocket), 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// dial is the stage's side. It changes the directory, for the same reason.
func dial(path string) (*net.UnixConn, error) {
	if err := os.Chdir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: filepath.Base(path)})
}

// handOver gives the stage the agent's streams and the plan.
func handOver(c *net.UnixConn, p []byte, streams ...*os.File) error {
	sealed, err := procs.Seal("turnpike-box", p)
	if err != nil {
		return err
	}
	defer sealed.Close()
	var fds []int
	for _, f := range append(streams, sealed) {
		fds = append(fds, int(f.Fd()))
	}
	_, _, err = c.WriteMsgUnix([]byte{'\n'}, unix.UnixRights(fds...), nil)
	return err
}

// takeOver receives what handOver gave: three streams and the plan.
func takeOver(c *net.UnixConn) (streams []*os.File, p plan, err error) {
	const count = 4
	oob := make([]byte, unix.CmsgSpace(4*count))
	_, n, flags, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, p, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, p, err
	}
	var fds []int
	for _, m := range messages {
		more, err := unix.ParseUnixRights(&m)
		if err != nil {
			return nil, p, err
		}
		fds = append(fds, more...)
	}
	if len(fds) != count || flags&unix.MSG_CTRUNC != 0 {
		return nil, p, fmt.Errorf("%d descriptors were handed over instead of %d", len(fds), count)
	}
	for i, fd := range fds[:count-1] {
		unix.CloseOnExec(fd)
		streams = append(streams, os.NewFile(uintptr(fd), [...]string{"stdin", "stdout", "stderr"}[i]))
	}
	err = procs.Unseal(fds[count-1], &p)
	_ = unix.Close(fds[count-1]) // it was only read
	return streams, p, err
}
