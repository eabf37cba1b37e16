//go:build linux && (amd64 || arm64)

package confine_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"turnpike/internal/agent/confine"
)

// call is what the kernel shows a filter of one system call.
type syscallData struct {
	nr, arch uint32
	args     [6]uint64
}

// interpret runs a filter as the kernel does and gives its verdict.
func interpret(program []unix.SockFilter, d syscallData) (uint32, error) {
	var data [64]byte
	binary.LittleEndian.PutUint32(data[0:], d.nr)
	binary.LittleEndian.PutUint32(data[4:], d.arch)
	for i, a := range d.args {
		binary.LittleEndian.PutUint64(data[16+8*i:], a)
	}
	var acc uint32
	for pc := 0; pc < len(program); pc++ {
		in := program[pc]
		var taken bool
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			if in.K%4 != 0 || in.K > 60 {
				return 0, fmt.Errorf("%d: load of %d", pc, in.K)
			}
			acc = binary.LittleEndian.Uint32(data[in.K:])
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= in.K
			continue
		case unix.BPF_RET | unix.BPF_K:
			return in.K, nil
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			taken = acc == in.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			taken = acc >= in.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			taken = acc&in.K != 0
		default:
			return 0, fmt.Errorf("%d: instruction %#x", pc, in.Code)
		}
		if taken {
			pc += int(in.Jt)
		} else {
			pc += int(in.Jf)
		}
	}
	return 0, fmt.Errorf("fell off the end")
}

const allowed = uint32(unix.SECCOMP_RET_ALLOW)

func errno(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// judge says what the filter must do, in Go.
func judge(inet, local bool, d syscallData) uint32 {
	low := func(n int) uint32 { return uint32(d.args[n]) }
	if d.arch != confine.AuditArch {
		return unix.SECCOMP_RET_KILL_PROCESS
	}
	if confine.Foreign != 0 && d.nr >= confine.Foreign || d.nr == unix.SYS_CLONE3 {
		return errno(unix.ENOSYS)
	}
	if slices.Contains(confine.Refused, d.nr) {
		return errno(unix.EPERM)
	}
	refuse := false
	switch d.nr {
	case unix.SYS_CLONE:
		refuse = low(0)&(unix.CLONE_NEWNS|unix.CLONE_NEWCGROUP|unix.CLONE_NEWUTS|unix.CLONE_NEWIPC|
			unix.CLONE_NEWUSER|unix.CLONE_NEWPID|unix.CLONE_NEWNET|unix.CLONE_NEWTIME) != 0
	case unix.SYS_IOCTL:
		refuse = low(1) == unix.TIOCSTI || low(1) == 0x541c
	case unix.SYS_SENDTO, unix.SYS_SENDMMSG:
		refuse = low(3)&unix.MSG_FASTOPEN != 0
	case unix.SYS_SENDMSG:
		refuse = low(2)&unix.MSG_FASTOPEN != 0
	case unix.SYS_SOCKET:
		switch f := low(0); {
		case f == unix.AF_NETLINK, f == unix.AF_UNIX && local:
		case (f == unix.AF_INET || f == unix.AF_INET6) && inet:
			if p := low(2); p != 0 && p != unix.IPPROTO_TCP && p != unix.IPPROTO_UDP {
				return errno(unix.EPROTONOSUPPORT)
			}
			refuse = low(1)&0xf == unix.SOCK_RAW
		default:
			return errno(unix.EAFNOSUPPORT)
		}
	}
	if refuse {
		return errno(unix.EPERM)
	}
	return allowed
}

func TestFilter(t *testing.T) {
	numbers := []uint32{
		unix.SYS_CLONE, unix.SYS_IOCTL, unix.SYS_SENDTO, unix.SYS_SENDMMSG, unix.SYS_SENDMSG, unix.SYS_SOCKET,
		unix.SYS_READ, unix.SYS_EXECVE, unix.SYS_CLONE3, 0x40000000,
	}
	numbers = append(numbers, confine.Refused...)
	interesting := []uint64{
		0, 1, 2, 3, 6, 10, 16, 17, 40, 132, 262, unix.SOCK_RAW | unix.SOCK_CLOEXEC, unix.SOCK_STREAM | unix.SOCK_NONBLOCK,
		unix.TIOCSTI, unix.TIOCSTI | 1<<40, 0x541c, unix.MSG_FASTOPEN, unix.MSG_FASTOPEN | 0x40,
		unix.CLONE_NEWUSER, unix.CLONE_NEWNET | 17, unix.CLONE_VM | unix.CLONE_VFORK | 17,
	}
	rapid.Check(t, func(t *rapid.T) {
		inet, local := rapid.Bool().Draw(t, "inet"), rapid.Bool().Draw(t, "unix")
		program, err := confine.Filter(inet, local)
		if err != nil {
			t.Fatal(err)
		}
		d := syscallData{arch: confine.AuditArch}
		d.nr = rapid.OneOf(rapid.SampledFrom(numbers), rapid.Uint32Range(0, 600), rapid.Uint32()).Draw(t, "number")
		if rapid.IntRange(0, 9).Draw(t, "foreign") == 0 {
			d.arch = rapid.Uint32().Draw(t, "arch")
		}
		for i := range d.args {
			d.args[i] = rapid.OneOf(rapid.SampledFrom(interesting), rapid.Uint64()).Draw(t, "argument")
		}
		got, err := interpret(program, d)
		if err != nil {
			t.Fatal(err)
		}
		if want := judge(inet, local, d); got != want {
			t.Fatalf("%+v: %#x, want %#x", d, got, want)
		}
	})
}

func TestAssembler(t *testing.T) {
	if err := confine.Jump(255, "end"); err != nil {
		t.Error(err)
	}
	if err := confine.Jump(256, "end"); err == nil {
		t.Error("a jump that no byte can count was assembled")
	}
	if err := confine.Jump(1, "nowhere"); err == nil {
		t.Error("a jump to nowhere was assembled")
	}
}

// A kernel of Debian 12 has ABI 2: there the open network would give abstract sockets away.
func TestAbstractSocketsNeedScopes(t *testing.T) {
	for abi, want := range map[int]bool{0: false, 1: false, 5: false, 6: true, 9: true} {
		if confine.KeepsAbstract(abi) != want {
			t.Errorf("ABI %d: %t", abi, !want)
		}
	}
}
