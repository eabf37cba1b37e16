//go:build amd64 || arm64

package confine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// noRoot makes uid 0 a user like any other, for this thread and all it executes:
// no capabilities from execve or setuid, and none kept or raised.
const noRoot = 1<<0 | 1<<1 | // SECBIT_NOROOT and its lock
	1<<2 | 1<<3 | // SECBIT_NO_SETUID_FIXUP and its lock
	1<<5 | // the lock of SECBIT_KEEP_CAPS
	1<<6 | 1<<7 // SECBIT_NO_CAP_AMBIENT_RAISE and its lock

// dropCapabilities empties every capability set of this thread. It says so if one
// is left.
func dropCapabilities() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	// Without CAP_SETPCAP neither can be changed, and neither gives anything: with
	// no_new_privs execve adds nothing to an empty permitted set.
	if caps[0].Effective&(1<<unix.CAP_SETPCAP) != 0 {
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL {
				return fmt.Errorf("bounding set: %w", err)
			}
		}
		// Capabilities this program does not know are refused by their number.
		for c := uintptr(unix.CAP_LAST_CAP + 1); c < 64; c++ {
			if unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) != nil {
				break
			}
		}
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, noRoot, 0, 0, 0); err != nil {
			return fmt.Errorf("securebits: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("ambient set: %w", err)
	}
	caps = [2]unix.CapUserData{}
	if err := unix.Capset(&head, &caps[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	if caps != [2]unix.CapUserData{} {
		return fmt.Errorf("capabilities are left: %x", caps)
	}
	return nil
}

// opensPorts says whether the root stage may open ports below 1024 in a network
// namespace of the turn's own. Whoever makes a user namespace may.
func opensPorts() bool {
	if !privileged() {
		return true
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return unix.Capget(&head, &caps[0]) == nil && caps[0].Effective&(1<<unix.CAP_NET_BIND_SERVICE) != 0
}

// privileged says whether this process may make namespaces and mounts by itself.
func privileged() bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return unix.Getuid() == 0 && unix.Capget(&head, &caps[0]) == nil &&
		caps[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}
