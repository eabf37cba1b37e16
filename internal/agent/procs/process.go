//go:build linux || darwin

package procs

import "golang.org/x/sys/unix"

// process is one line of the process table.
type process struct {
	pid, ppid int
	state     byte
	start     uint64
	group     int // where parents alone do not tell (macOS); else zero
}

// dead says that nothing of the process runs any more.
func (p process) dead() bool { return p.state == 'Z' || p.state == 'X' || p.state == 'x' }

// stopped says that the process makes no progress.
func (p process) stopped() bool { return p.dead() || p.state == 'T' || p.state == 't' }

// below picks the descendants of root from a table, and who is in a group one of them
// leads; the dead are left out. found says whether the table holds root itself and not
// another process with its pid.
func below(root process, all []process) (out []process, found bool) {
	children := make(map[int][]process)
	for _, p := range all {
		if p.pid == root.pid {
			found = p.start == root.start
			continue
		}
		children[p.ppid] = append(children[p.ppid], p)
		if p.group != p.ppid && p.group != p.pid && p.group != 0 {
			children[p.group] = append(children[p.group], p)
		}
	}
	if !found {
		return nil, false
	}
	// The table is no snapshot: a pid may be reused while it is read.
	seen := map[int]bool{root.pid: true}
	for queue := []int{root.pid}; len(queue) > 0; queue = queue[1:] {
		for _, p := range children[queue[0]] {
			if seen[p.pid] {
				continue
			}
			seen[p.pid] = true
			queue = append(queue, p.pid)
			if !p.dead() {
				out = append(out, p)
			}
		}
	}
	return out, true
}

// descendants lists what lives beneath p; its error is one notFound knows when p
// itself is gone.
func (p process) descendants() ([]process, error) {
	all, err := table()
	if err != nil {
		return nil, err
	}
	out, found := below(p, all)
	if !found {
		return nil, unix.ESRCH
	}
	return out, nil
}
