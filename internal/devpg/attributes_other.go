//go:build !linux

package devpg

import "syscall"

// attributes keeps the server out of reach of the terminal's interrupt. Without
// Linux's parent-death signal a killed caller leaves it running; the next start
// finds its postmaster.pid and says so.
func attributes(owner *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: owner, Setpgid: true}
}
