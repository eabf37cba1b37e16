//go:build amd64 || arm64

package confine

import (
	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
)

// policy is what the root and its stage are told, through a sealed memory file.
type policy struct {
	layout
	// Namespaces says that the stages are in namespaces of the turn's own, in which the
	// layout is put together.
	Namespaces bool
	// Loopback brings up the loopback interface of a network namespace that has no
	// other. Doors opens doors in it, for the worker to serve (package egress/door).
	Loopback, Doors bool
	TmpBytes        int64

	// Landlock says that Rules are enforced; only the worker's owner may do without.
	Landlock bool
	Rules    []rule
	Families families
	Limits   []limit
	// Groups is how many control groups the agent joins; shares are what they hold.
	Groups int
	shares []share

	// Dry ends before the program is executed: everything could be enforced.
	Dry  bool
	Path string
	Args []string
	Env  []string
	Dir  string
}

// limit is one resource limit.
type limit struct {
	Resource int
	Value    uint64
}

// limitsOf gives the resource limits that enforce their part of l. counted says that
// processes are counted for the turn alone; where they are not, and for what no rlimit
// holds, there are control groups.
func limitsOf(l agent.Limits, counted bool) ([]limit, error) {
	out := []limit{{unix.RLIMIT_CORE, 0}}
	for _, n := range []int64{l.MemoryBytes, int64(l.Processes), int64(l.OpenFiles), l.FileBytes} {
		if n < 0 {
			return nil, unsupported("a limit below zero")
		}
	}
	if l.CPUs < 0 || l.CPUs != 0 && l.CPUs < 0.01 {
		return nil, unsupported("a limit of %g CPUs", l.CPUs)
	}
	for resource, n := range map[int]int64{
		unix.RLIMIT_NPROC: int64(l.Processes), unix.RLIMIT_NOFILE: int64(l.OpenFiles), unix.RLIMIT_FSIZE: l.FileBytes,
	} {
		if n != 0 && (counted || resource != unix.RLIMIT_NPROC) {
			out = append(out, limit{resource, uint64(n)})
		}
	}
	return out, nil
}
