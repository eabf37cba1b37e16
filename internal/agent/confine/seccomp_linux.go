//go:build amd64 || arm64

package confine

import (
	"golang.org/x/sys/unix"
)

// families are the kinds of socket a turn may open.
type families struct {
	Inet, Unix bool
}

// refused are the system calls that no turn gets, on every architecture: they
// reach into other processes, change what the turn sees of the machine, or are
// machinery whose faults have let processes out. archRefused has the rest.
var refused = []uint32{
	// Other processes.
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD,
	unix.SYS_KCMP, unix.SYS_PROCESS_MADVISE,
	// System calls that pass by this filter or the kernel's own checks.
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_USERFAULTFD, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	// Mounts, roots and namespaces.
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
	unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	unix.SYS_UNSHARE, unix.SYS_SETNS,
	// Files by handle instead of by path.
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
	// The machine.
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_REBOOT,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_SYSLOG, unix.SYS_VHANGUP,
	unix.SYS_LOOKUP_DCOOKIE, unix.SYS_NFSSERVCTL,
}

const (
	// Where struct seccomp_data keeps what a filter reads. The low halves of the
	// arguments are what the kernel reads of every argument tested here.
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16

	newNamespace = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME

	tiocLinux = 0x541c // TIOCLINUX; x/sys does not name it

	socketTypeMask = 0xf
)

func argument(n uint32) uint32 { return dataArgs + 8*n }

func errnoAction(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// filter is the seccomp program of a turn.
func filter(f families) ([]unix.SockFilter, error) {
	var a assembler
	a.op(bpfLoad, dataArch)
	a.branch(bpfEqual, auditArch, next, "kill")
	a.op(bpfLoad, dataNumber)
	if foreignNumbers != 0 {
		a.branch(bpfAtLeast, foreignNumbers, "absent", next)
	}
	// Its flags lie behind a pointer, where no filter reads; libraries fall back
	// to clone.
	a.branch(bpfEqual, unix.SYS_CLONE3, "absent", next)
	for _, table := range [][]uint32{refused, archRefused} {
		for _, nr := range table {
			a.branch(bpfEqual, nr, "refuse", next)
		}
	}
	a.branch(bpfEqual, unix.SYS_CLONE, "clone", next)
	a.branch(bpfEqual, unix.SYS_IOCTL, "ioctl", next)
	a.branch(bpfEqual, unix.SYS_SOCKET, "socket", next)
	a.branch(bpfEqual, unix.SYS_SENDTO, "send", next)
	a.branch(bpfEqual, unix.SYS_SENDMMSG, "send", next)
	a.branch(bpfEqual, unix.SYS_SENDMSG, "sendmsg", "allow")

	a.label("clone")
	a.op(bpfLoad, argument(0))
	a.branch(bpfAnyBit, newNamespace, "refuse", "allow")

	// Typing into a terminal that another process reads.
	a.label("ioctl")
	a.op(bpfLoad, argument(1))
	a.branch(bpfEqual, unix.TIOCSTI, "refuse", next)
	a.branch(bpfEqual, tiocLinux, "refuse", "allow")

	a.label("socket")
	a.op(bpfLoad, argument(0))
	inet, local := "family", "family"
	if f.Inet {
		inet = "inet"
	}
	if f.Unix {
		local = "allow"
	}
	a.branch(bpfEqual, unix.AF_UNIX, local, next)
	a.branch(bpfEqual, unix.AF_NETLINK, "allow", next)
	a.branch(bpfEqual, unix.AF_INET, inet, next)
	a.branch(bpfEqual, unix.AF_INET6, inet, "family")
	a.label("family")
	a.op(bpfReturn, errnoAction(unix.EAFNOSUPPORT))

	// Of the others only some are held by Landlock or known to firewalls.
	a.label("inet")
	a.op(bpfLoad, argument(2))
	a.branch(bpfEqual, unix.IPPROTO_IP, "type", next)
	a.branch(bpfEqual, unix.IPPROTO_TCP, "type", next)
	a.branch(bpfEqual, unix.IPPROTO_UDP, "type", next)
	a.op(bpfReturn, errnoAction(unix.EPROTONOSUPPORT))
	a.label("type")
	a.op(bpfLoad, argument(1))
	a.op(bpfAnd, socketTypeMask)
	a.branch(bpfEqual, unix.SOCK_RAW, "refuse", "allow")

	// A send that connects: Landlock does not see it.
	a.label("send")
	a.op(bpfLoad, argument(3))
	a.branch(bpfAnyBit, unix.MSG_FASTOPEN, "refuse", "allow")
	a.label("sendmsg")
	a.op(bpfLoad, argument(2))
	a.branch(bpfAnyBit, unix.MSG_FASTOPEN, "refuse", "allow")

	a.label("allow")
	a.op(bpfReturn, unix.SECCOMP_RET_ALLOW)
	a.label("refuse")
	a.op(bpfReturn, errnoAction(unix.EPERM))
	a.label("absent")
	a.op(bpfReturn, errnoAction(unix.ENOSYS))
	a.label("kill")
	a.op(bpfReturn, unix.SECCOMP_RET_KILL_PROCESS)
	return a.assemble()
}
