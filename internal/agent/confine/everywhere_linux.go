//go:build amd64 || arm64

package confine

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
)

// giveUpEverywhere gives up the privileges of every thread of this process, and says
// whether it could: with cgo the runtime does not know all of them. Then only this
// thread's are given up, and execve must end the others.
//
// The bounding set is emptied on this thread alone. It is the one that the agent is
// forked from, and no_new_privs leaves the set of the others without a use.
func giveUpEverywhere() (bool, error) {
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0)
	if errno == syscall.ENOTSUP {
		return false, giveUp()
	}
	if errno != 0 {
		return false, procs.NewFailure("no_new_privs", errno, agent.ErrUnsupported)
	}
	if err := giveUp(); err != nil {
		return false, err
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno = syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&none[0])), 0)
	if errno != 0 {
		return false, procs.NewFailure("drop capabilities", fmt.Errorf("capset: %w", errno), agent.ErrUnsupported)
	}
	return true, nil
}
