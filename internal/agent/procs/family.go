//go:build linux || darwin

package procs

// family is who belongs to a program, where the kernel does not say (macOS). A member
// is who was one at an earlier look, the child of a member, who is in a group of
// members, and who lost its parent but bears the marker. It only ever grows by
// looking, so a daemon that changed its parent, its group and its environment
// between two looks is not in it.
type family struct {
	known  map[int]uint64 // pid to start
	groups map[int]bool
	marker []byte
}

// among looks for members in a table and gives those that live.
func (f *family) among(all []process, bears func(pid int, marker []byte) bool) []process {
	byPID := make(map[int]process, len(all))
	groups := make(map[int]bool)
	for _, p := range all {
		byPID[p.pid] = p
		groups[p.group] = true
	}
	member := func(pid int) bool {
		start, known := f.known[pid]
		return known && byPID[pid].pid == pid && byPID[pid].start == start
	}
	// A number that nobody bears any more is free to become somebody else's.
	for pid := range f.known {
		if !member(pid) {
			delete(f.known, pid)
		}
	}
	for g := range f.groups {
		if !groups[g] {
			delete(f.groups, g)
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if member(p.pid) {
				f.groups[p.group] = true
				continue
			}
			lost := p.ppid == 1 && len(f.marker) > 0 && bears(p.pid, f.marker)
			if member(p.ppid) || f.groups[p.group] || lost {
				f.known[p.pid] = p.start
				grown = true
			}
		}
	}
	var out []process
	for _, p := range all {
		if member(p.pid) && !p.dead() {
			out = append(out, p)
		}
	}
	return out
}
