package confine

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_AARCH64
	// foreignNumbers is zero: this architecture has one system call table.
	foreignNumbers = 0
)

// archRefused are the refused system calls that other architectures lack.
var archRefused = []uint32{}
