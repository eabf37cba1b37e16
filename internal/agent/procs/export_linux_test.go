package procs

import "turnpike/internal/agent"

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
