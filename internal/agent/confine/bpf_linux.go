//go:build amd64 || arm64

package confine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// The instructions of classic BPF that the filter needs.
const (
	bpfLoad    = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	bpfAnd     = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	bpfEqual   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	bpfAtLeast = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	bpfAnyBit  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	bpfReturn  = unix.BPF_RET | unix.BPF_K
)

// next is the label of the following instruction.
const next = ""

// assembler puts a BPF program together. A jump names where it goes; offsets
// are counted once everything is known.
type assembler struct {
	program []unix.SockFilter
	jumps   []jump
	labels  map[string]int
}

type jump struct {
	at      int
	yes, no string
}

func (a *assembler) op(code uint16, k uint32) {
	a.program = append(a.program, unix.SockFilter{Code: code, K: k})
}

// branch goes to yes when the comparison holds and to no when not.
func (a *assembler) branch(code uint16, k uint32, yes, no string) {
	a.jumps = append(a.jumps, jump{len(a.program), yes, no})
	a.op(code, k)
}

func (a *assembler) label(name string) {
	if a.labels == nil {
		a.labels = make(map[string]int)
	}
	a.labels[name] = len(a.program)
}

func (a *assembler) assemble() ([]unix.SockFilter, error) {
	offset := func(at int, name string) (uint8, error) {
		if name == next {
			return 0, nil
		}
		to, ok := a.labels[name]
		if !ok || to >= len(a.program) {
			return 0, fmt.Errorf("bpf: no instruction is called %q", name)
		}
		// BPF only jumps forward, at most as far as a byte counts.
		if d := to - at - 1; d >= 0 && d <= 0xff {
			return uint8(d), nil
		}
		return 0, fmt.Errorf("bpf: %q is out of reach of instruction %d", name, at)
	}
	for _, j := range a.jumps {
		var err error
		if a.program[j.at].Jt, err = offset(j.at, j.yes); err != nil {
			return nil, err
		}
		if a.program[j.at].Jf, err = offset(j.at, j.no); err != nil {
			return nil, err
		}
	}
	return a.program, nil
}
