//go:build amd64 || arm64

package confine

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/egress/door"
	"turnpike/internal/agent/procs"
)

// rootStage is argv[0] of the stage.
const rootStage = "turnpike-confine-root"

func entry() {
	if len(os.Args) == 1 && os.Args[0] == rootStage {
		// Capabilities, no_new_privs and securebits are the thread's; fork and execve
		// keep those of the thread that calls them.
		runtime.LockOSThread()
		err := becomeRoot(procs.FirstPassed)
		procs.Report(os.NewFile(4, "setup"), err)
		os.Exit(standInStatus)
	}
	procs.EntryFor(prepareAgent)
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
	return procs.NewFailure("become the root", procs.Become(whole, prepareAgent), agent.ErrUnsupported)
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

// prepareAgent gives the system calls by which the process that the root forks holds
// itself to the rest of the policy and executes the agent. The order matters: each
// takes away what the next ones no longer need.
func prepareAgent(policyFD int) ([]procs.Call, error) {
	var p policy
	if err := procs.Unseal(policyFD, &p); err != nil {
		return nil, fmt.Errorf("read the policy: %w", err)
	}
	var calls []procs.Call
	add := func(step string, kind error, keep any, number uintptr, args ...uintptr) {
		c := procs.Call{Step: step, Kind: kind, Number: number, Keep: keep}
		copy(c.Args[:], args)
		calls = append(calls, c)
	}
	members := policyFD + 1
	if p.Doors {
		members++ // the way out lies between
	}
	for i := range p.Groups {
		zero := []byte("0") // whoever writes it
		add("join the control groups", agent.ErrUnsupported, zero, unix.SYS_WRITE, uintptr(members+i), uintptr(unsafe.Pointer(&zero[0])), 1)
	}
	for _, l := range p.Limits {
		both := &unix.Rlimit{Cur: l.Value, Max: l.Value}
		add(fmt.Sprintf("limit resource %d to %d", l.Resource, l.Value), agent.ErrUnsupported, both,
			unix.SYS_PRLIMIT64, 0, uintptr(l.Resource), uintptr(unsafe.Pointer(both)))
	}
	dir, err := unix.BytePtrFromString(p.Dir)
	if err != nil {
		return nil, procs.NewFailure("enter "+p.Dir, err, agent.ErrUnready)
	}
	add("enter "+p.Dir, agent.ErrUnready, dir, unix.SYS_CHDIR, uintptr(unsafe.Pointer(dir)))
	// The root has neither privileges nor a way to any; what is certain is said twice.
	head, none := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, new([2]unix.CapUserData)
	add("drop capabilities", agent.ErrUnsupported, []any{head, none}, unix.SYS_CAPSET, uintptr(unsafe.Pointer(head)), uintptr(unsafe.Pointer(none)))
	add("no_new_privs", agent.ErrUnsupported, nil, unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1)
	if p.Landlock {
		r, err := newRestrictor(p.Rules, p.Families.Inet)
		if err != nil {
			return nil, procs.NewFailure("landlock", err, agent.ErrUnsupported)
		}
		add("landlock", agent.ErrUnsupported, nil, unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(r.fd))
	}
	add("close descriptors", agent.ErrUnsupported, nil, unix.SYS_CLOSE_RANGE, 3, uintptr(^uint32(0)), unix.CLOSE_RANGE_CLOEXEC)
	program, err := filter(p.Families)
	if err != nil {
		return nil, procs.NewFailure("seccomp", err, agent.ErrUnsupported)
	}
	held := &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	add("seccomp", agent.ErrUnsupported, held, unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(held)))
	if p.Dry {
		add("end", agent.ErrUnsupported, nil, unix.SYS_EXIT_GROUP)
		return calls, nil
	}
	path, err := unix.BytePtrFromString(p.Path)
	var argv, env []*byte
	if err == nil {
		argv, err = syscall.SlicePtrFromStrings(p.Args)
	}
	if err == nil {
		env, err = syscall.SlicePtrFromStrings(p.Env)
	}
	if err != nil {
		return nil, procs.NewFailure("execute "+p.Path, err, agent.ErrUnready)
	}
	add("execute "+p.Path, agent.ErrUnready, []any{path, argv, env}, unix.SYS_EXECVE,
		uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&env[0])))
	return calls, nil
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
