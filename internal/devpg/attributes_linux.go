package devpg

import "syscall"

// attributes has the server end with its caller, and out of reach of the
// terminal's interrupt: it is stopped in order, after its clients.
func attributes(owner *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: owner, Setpgid: true, Pdeathsig: syscall.SIGINT}
}
