//go:build amd64 || arm64

package confine

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/egress/door"
	"turnpike/internal/agent/procs"
)

// argv[0] of the two stages.
const (
	rootStage  = "turnpike-confine-root"
	agentStage = "turnpike-confine-agent"
)

func entry() {
	if len(os.Args) != 1 {
		return
	}
	switch os.Args[0] {
	case rootStage:
		// Capabilities, no_new_privs and securebits are the thread's; fork and execve
		// keep those of the thread that calls them.
		runtime.LockOSThread()
		err := becomeRoot(procs.FirstPassed)
		procs.Report(os.NewFile(4, "setup"), err)
	case agentStage:
		runtime.LockOSThread()
		setup := os.NewFile(3, "setup")
		if err := becomeAgent(procs.FirstPassed-2, setup); err != nil {
			procs.Report(setup, err)
			break
		}
		os.Exit(0) // a dry run
	default:
		return
	}
	os.Exit(standInStatus)
}

// becomeRoot is the first stage: pid 1 of the new namespaces, where there are any,
// with the capabilities to arrange them. It gives those up before it becomes the root
// that ends the turn's processes, which therefore has none on any thread.
func becomeRoot(policyFD int) error {
	var p policy
	if err := procs.Unseal(policyFD, &p); err != nil {
		return fmt.Errorf("read the policy: %w", err)
	}
	if p.Namespaces {
		if err := build(p.layout, p.TmpBytes); err != nil {
			return err
		}
	}
	if p.Loopback {
		if err := loopbackUp(); err != nil {
			return procs.NewFailure("bring up the loopback interface", err, agent.ErrUnsupported)
		}
	}
	if p.Doors {
		if err := giveDoors(policyFD + 1); err != nil {
			return procs.NewFailure("open the way out", err, agent.ErrUnsupported)
		}
	}
	whole, err := giveUpEverywhere()
	if err != nil {
		return err
	}
	return procs.NewFailure("become the root", procs.Become(whole), agent.ErrUnsupported)
}

// giveUp drops every privilege there is, and those that execve could give.
func giveUp() error {
	if err := dropCapabilities(); err != nil {
		return procs.NewFailure("drop capabilities", err, agent.ErrUnsupported)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return procs.NewFailure("no_new_privs", err, agent.ErrUnsupported)
	}
	return nil
}

// becomeAgent is the second stage: it holds itself to the rest of the policy and
// executes the agent. The order matters: each step takes away what the next ones
// no longer need.
func becomeAgent(policyFD int, setup *os.File) error {
	var p policy
	if err := procs.Unseal(policyFD, &p); err != nil {
		return fmt.Errorf("read the policy: %w", err)
	}
	members := policyFD + 1
	if p.Doors {
		members++ // the way out lies between
	}
	if err := joinGroups(members, p.Groups); err != nil {
		return procs.NewFailure("join the control groups", err, agent.ErrUnsupported)
	}
	for _, l := range p.Limits {
		// Not unix.Setrlimit: only syscall's keeps execve from restoring the number
		// of open files this process began with.
		if err := syscall.Setrlimit(l.Resource, &syscall.Rlimit{Cur: l.Value, Max: l.Value}); err != nil {
			return procs.NewFailure(fmt.Sprintf("limit resource %d to %d", l.Resource, l.Value), err, agent.ErrUnsupported)
		}
	}
	var r restrictor
	if p.Landlock {
		var err error
		if r, err = newRestrictor(p.Rules, p.Families.Inet); err != nil {
			return procs.NewFailure("landlock", err, agent.ErrUnsupported)
		}
	}
	if err := unix.Chdir(p.Dir); err != nil {
		return procs.NewFailure("enter "+p.Dir, err, agent.ErrUnready)
	}
	if err := giveUp(); err != nil {
		return err
	}
	if p.Landlock {
		if err := r.enforce(); err != nil {
			return procs.NewFailure("landlock", err, agent.ErrUnsupported)
		}
	}
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return procs.NewFailure("close descriptors", err, agent.ErrUnsupported)
	}
	if err := installFilter(p.Families); err != nil {
		return procs.NewFailure("seccomp", err, agent.ErrUnsupported)
	}
	if err := procs.Ready(setup); err != nil {
		return procs.NewFailure("tell the worker", err, agent.ErrUnready)
	}
	if p.Dry {
		return nil
	}
	return procs.NewFailure("execute "+p.Path, syscall.Exec(p.Path, p.Args, p.Env), agent.ErrUnready)
}

// giveDoors opens the turn's way out and has the worker at the other end of the socket
// fd serve it. The socket stays, because the next stage is passed it, but nobody
// listens to it any more, and it is closed when the agent is executed.
func giveDoors(fd int) error {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(dup), "way out")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return err
	}
	defer c.Close()
	return door.Give(c.(*net.UnixConn))
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return err
	}
	// glibc's resolver, asked for addresses of IPv4 that are of use here, finds none on
	// a machine whose only address is 127.0.0.1. So there is another, which is as local.
	more, err := unix.NewIfreq("lo:more")
	if err != nil {
		return err
	}
	if err := more.SetInet4Addr([]byte{127, 127, 255, 254}); err != nil {
		return err
	}
	return unix.IoctlIfreq(fd, unix.SIOCSIFADDR, more)
}
