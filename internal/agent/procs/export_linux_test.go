package procs

import (
	"cmp"
	"time"

	"turnpike/internal/agent"
)

// Patience sets how long a root may take to get ready and to answer; zero is as ever.
func Patience(setup, answer time.Duration) {
	setupBound, answerBound = cmp.Or(setup, time.Minute), cmp.Or(answer, 2*stopBound)
}

// ParseStat is parseStat for the tests outside.
func ParseStat(b []byte) (pid, ppid int, state byte, start uint64, err error) {
	p, err := parseStat(b)
	return p.pid, p.ppid, p.state, p.start, err
}

// Same says whether a process with this pid and start time is the one who names.
func Same(pid int, start uint64, who agent.Identity) bool {
	return same(process{pid: pid, start: start, state: 'S'}, who)
}

// Row is one process of a made-up table.
type Row struct{ PID, PPID int }

// Below gives the pids beneath root in a made-up table.
func Below(root int, rows []Row) []int {
	all := []process{{pid: root, state: 'S'}}
	for _, r := range rows {
		all = append(all, process{pid: r.PID, ppid: r.PPID, state: 'S'})
	}
	found, _ := below(process{pid: root}, all)
	var out []int
	for _, p := range found {
		out = append(out, p.pid)
	}
	return out
}

// Kin is one process of a made-up table, of a system with groups and markers.
type Kin struct {
	PID, Parent, Group int
	Start              uint64
	Marked             bool
}

// Family gives who is found to belong to the first process of the first table, table
// after table.
func Family(tables ...[]Kin) [][]int {
	first := tables[0][0]
	f := family{known: map[int]uint64{first.PID: first.Start}, groups: map[int]bool{}, marker: []byte("m")}
	var out [][]int
	for _, kin := range tables {
		var all []process
		marked := map[int]bool{}
		for _, k := range kin {
			all = append(all, process{pid: k.PID, ppid: k.Parent, group: k.Group, start: k.Start, state: 'S'})
			marked[k.PID] = k.Marked
		}
		var pids []int
		for _, p := range f.among(all, func(pid int, _ []byte) bool { return marked[pid] }) {
			pids = append(pids, p.pid)
		}
		out = append(out, pids)
	}
	return out
}
