//go:build amd64 || arm64

package confine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
)

// Limits that no rlimit can hold are held by control groups, made where this process
// may make some. A group holds the agent and all it starts, but not the root, which
// must be able to end them. The root removes it at the end; one whose worker and root
// both died is found by the lock that they held, and removed by the next start.

// homeName is the directory that the groups lie in. It stays: only in one of the
// worker's own can a root without capabilities remove its group.
const homeName = "turnpike"

// place is a directory in which groups with some controller can be made.
type place struct {
	dir     string
	unified bool // version 2: one group can have all controllers
}

func (p place) home() string { return filepath.Join(p.dir, homeName) }

// places finds one for each controller that has one.
func places() map[string]place {
	// Without either file there is none.
	own, _ := os.ReadFile("/proc/self/cgroup")
	table, _ := os.ReadFile("/proc/self/mountinfo")
	return findPlaces(own, table, usable)
}

// findPlaces finds in the texts of /proc/self/cgroup and mountinfo where groups could
// be made, and keeps what usable confirms.
func findPlaces(own, table []byte, usable func(place, string) bool) map[string]place {
	out := make(map[string]place)
	for line := range bytes.Lines(own) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		names := strings.Split(f[1], ",")
		mount, top := mountOf(table, names)
		within, err := filepath.Rel(top, f[2])
		if mount == "" || err != nil || strings.HasPrefix(within, "..") || strings.HasPrefix(f[2], "/..") {
			continue // this process' group is not to be seen here
		}
		dir := filepath.Join(mount, within)
		candidates := []place{{dir: dir}}
		if f[1] == "" {
			// Where only leaves have processes, the groups lie beside this process' own.
			candidates = []place{{dir, true}}
			if within != "." {
				candidates = append(candidates, place{filepath.Dir(dir), true})
			}
		}
		for _, c := range []string{"memory", "pids", "cpu"} {
			if f[1] != "" && !slices.Contains(names, c) {
				continue
			}
			for _, p := range candidates {
				if _, have := out[c]; !have && usable(p, c) {
					out[c] = p
				}
			}
		}
	}
	return out
}

// mountOf gives where a hierarchy is mounted, and what of it.
func mountOf(table []byte, controllers []string) (mount, top string) {
	for line := range bytes.Lines(table) {
		before, after, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(kind) < 3 {
			continue
		}
		if controllers[0] == "" && kind[0] == "cgroup2" ||
			kind[0] == "cgroup" && slices.Contains(strings.Split(kind[2], ","), controllers[0]) {
			return unescape(f[4]), unescape(f[3])
		}
	}
	return "", ""
}

// usable says whether a group with a controller can be made at p. It makes one.
func usable(p place, controller string) bool {
	if p.unified {
		on, err := os.ReadFile(filepath.Join(p.dir, "cgroup.subtree_control"))
		if err != nil || !slices.Contains(strings.Fields(string(on)), controller) {
			return false
		}
	}
	if err := os.Mkdir(p.home(), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return false
	}
	if p.unified && os.WriteFile(filepath.Join(p.home(), "cgroup.subtree_control"), []byte("+"+controller), 0) != nil {
		return false
	}
	g, err := makeGroup(p.home())
	if err != nil {
		return false
	}
	defer g.close()
	defer g.remove()
	_, err = os.Stat(filepath.Join(p.home(), g.Name, limitFiles(p.unified, controller, agent.Limits{})[0].name))
	return err == nil
}

// limitFile is a file of a group, and what is written to it.
type limitFile struct {
	name, value string
	optional    bool // its absence takes nothing away
}

// limitFiles are the files that hold a controller's part of l.
func limitFiles(unified bool, controller string, l agent.Limits) []limitFile {
	const period = 100_000 // µs, the kernel's own
	quota := strconv.FormatInt(int64(l.CPUs*period), 10)
	memory := strconv.FormatInt(l.MemoryBytes, 10)
	switch {
	case controller == "pids":
		return []limitFile{{"pids.max", strconv.Itoa(l.Processes), false}}
	case controller == "memory" && unified:
		return []limitFile{{"memory.max", memory, false}, {"memory.swap.max", "0", noSwap()}}
	case controller == "memory":
		return []limitFile{{"memory.limit_in_bytes", memory, false}, {"memory.memsw.limit_in_bytes", memory, noSwap()}}
	case unified:
		return []limitFile{{"cpu.max", quota + " " + strconv.Itoa(period), false}}
	}
	return []limitFile{{"cpu.cfs_period_us", strconv.Itoa(period), false}, {"cpu.cfs_quota_us", quota, false}}
}

// noSwap says that this machine has none, so that none need be limited.
func noSwap() bool {
	text, err := os.ReadFile("/proc/swaps")
	return err == nil && bytes.Count(text, []byte("\n")) <= 1
}

// group is a control group of a turn, and what holds it.
type group struct {
	procs.Group
	members *os.File // takes those who join
}

var groupNumber atomic.Int64

// makeGroup makes an empty group in dir, and holds it.
func makeGroup(dir string) (*group, error) {
	parent, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	g := &group{Group: procs.Group{Parent: parent}}
	g.Name = fmt.Sprintf("%d-%d", os.Getpid(), groupNumber.Add(1))
	path := filepath.Join(dir, g.Name)
	if err := os.Mkdir(path, 0o755); err != nil {
		g.close()
		return nil, err
	}
	if g.Dir, err = os.Open(path); err == nil {
		// Shared with the root, which inherits this very file.
		err = unix.Flock(int(g.Dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		g.members, err = os.OpenFile(filepath.Join(path, "cgroup.procs"), os.O_WRONLY, 0)
	}
	if err != nil {
		g.remove()
		g.close()
		return nil, err
	}
	return g, nil
}

// remove removes the group, of which nothing may be left.
func (g *group) remove() {
	// What cannot be removed now the next start will.
	_ = unix.Unlinkat(int(g.Parent.Fd()), g.Name, unix.AT_REMOVEDIR)
}

func (g *group) close() {
	for _, f := range []*os.File{g.Parent, g.Dir, g.members} {
		if f != nil {
			f.Close()
		}
	}
}

// makeGroups makes the groups that hold what p leaves to them.
func makeGroups(p policy) (out []*group, err error) {
	defer func() {
		if err != nil {
			dropGroups(out)
			out, err = nil, fmt.Errorf("%w: control group: %w", agent.ErrUnready, err)
		}
	}()
	for _, s := range p.shares {
		sweepGroups(s.at.home())
		g, err := makeGroup(s.at.home())
		if err != nil {
			return out, err
		}
		out = append(out, g)
		for _, f := range s.files {
			err := os.WriteFile(filepath.Join(s.at.home(), g.Name, f.name), []byte(f.value), 0)
			if err != nil && !(f.optional && errors.Is(err, fs.ErrNotExist)) {
				return out, err
			}
		}
	}
	return out, nil
}

// dropGroups removes groups that nobody joined.
func dropGroups(groups []*group) {
	for _, g := range groups {
		g.remove()
		g.close()
	}
}

// sweepGroups removes the groups in dir that nobody holds any more.
func sweepGroups(dir string) {
	left, err := filepath.Glob(filepath.Join(dir, "*-*"))
	if err != nil {
		return
	}
	for _, path := range left {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			continue // it is gone, another user's, or no group
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			procs.KillGroup(f)
			_ = unix.Rmdir(path) // until the next time, if somebody is still in it
		}
		f.Close()
	}
}

// share is what a group at one place holds.
type share struct {
	at    place
	files []limitFile
}

// sharesOf gives the groups that hold the part of l that rlimits do not, or refuses.
// counted says that rlimits hold the number of processes.
func sharesOf(l agent.Limits, counted bool, places func() map[string]place) ([]share, error) {
	var out []share
	for _, want := range []struct {
		controller, what string
		asked            bool
	}{
		{"memory", "memory", l.MemoryBytes != 0},
		{"pids", "processes", l.Processes != 0 && !counted},
		{"cpu", "CPUs", l.CPUs != 0},
	} {
		if !want.asked {
			continue
		}
		p, ok := places()[want.controller]
		if !ok {
			return nil, unsupported("a limit of %s needs a control group with the %s controller, and this worker may make none: run it as a service with Delegate=yes and DelegateSubgroup=worker, as root with /sys/fs/cgroup writable, or use a container", want.what, want.controller)
		}
		files := limitFiles(p.unified, want.controller, l)
		if i := slices.IndexFunc(out, func(s share) bool { return s.at == p }); i >= 0 {
			out[i].files = append(out[i].files, files...)
		} else {
			out = append(out, share{p, files})
		}
	}
	return out, nil
}
