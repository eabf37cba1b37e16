package procs

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
)

// A program that must hold itself to something before it is executed could be given a
// stage: one more execution of the launcher. That costs as much as all the rest. But
// whatever has to happen between fork and execve is a list of system calls, whose
// arguments the root can prepare; so the forked process makes those calls, and nothing
// of the Go runtime runs in it.

// Call is one system call of a process that is to become a program.
type Call struct {
	Step   string // what it is for, as a Failure says it
	Kind   error  // what its failure is
	Number uintptr
	Args   [6]uintptr
	// Keep is what Args points to.
	Keep any
}

// Prepare gives the calls that lead to a program, execve last. The files a Launch
// passed are open from fd on; the calls are made with the root's own descriptors.
type Prepare func(fd int) ([]Call, error)

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

//go:linkname afterForkInChild syscall.runtime_AfterForkInChild
func afterForkInChild()

// reached is what a forked process tells before its last call.
const reached = ^uint32(0)

// forkCalls forks a process that makes calls, in a session of its own, and returns once
// it is a program. What a call failed of is a Failure.
func forkCalls(calls []Call) (int, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, NewFailure("fork", err, agent.ErrUnready)
	}
	defer r.Close()
	// It puts the number of open files this process began with back, which the runtime
	// raised; nothing is executed.
	_ = syscall.Exec("", nil, nil)
	syscall.ForkLock.Lock()
	pid, errno := fork(calls, w.Fd())
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(calls)
	w.Close()
	if errno != 0 {
		return 0, NewFailure("fork", errno, agent.ErrUnready)
	}
	var told [3]uint32 // reached, and then perhaps the last call and its error
	for i := range told {
		var b [4]byte
		if n, _ := r.Read(b[:]); n != len(b) {
			break // it was executed, or is no more
		}
		told[i] = binary.NativeEndian.Uint32(b[:])
	}
	failed, why := told[0], told[1]
	if failed == reached {
		failed, why = told[1], told[2]
	}
	if why != 0 && int(failed) < len(calls) {
		c := calls[failed]
		return pid, NewFailure(c.Step, syscall.Errno(why), c.Kind)
	}
	if told[0] != reached {
		return pid, NewFailure("fork", fmt.Errorf("process %d ended before it became a program", pid), agent.ErrUnready)
	}
	return pid, nil
}

// fork forks this thread. In the child it never returns, and calls nothing that could
// need another thread: those are not there.
//
//go:norace
//go:nosplit
func fork(calls []Call, tell uintptr) (int, syscall.Errno) {
	var told [2]uint32
	beforeFork()
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		afterFork()
		return int(pid), errno
	}
	afterForkInChild()
	_, _, _ = syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	for i := range calls {
		c := &calls[i]
		if i == len(calls)-1 {
			told[0] = reached
			_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, tell, uintptr(unsafe.Pointer(&told)), 4)
		}
		_, _, errno = syscall.RawSyscall6(c.Number, c.Args[0], c.Args[1], c.Args[2], c.Args[3], c.Args[4], c.Args[5])
		if errno != 0 {
			told[0], told[1] = uint32(i), uint32(errno)
			_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, tell, uintptr(unsafe.Pointer(&told)), 8)
			break
		}
	}
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 126, 0, 0)
	}
}
