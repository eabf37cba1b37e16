//go:build amd64 || arm64

package confine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"turnpike/internal/agent"
)

// step is one mount of a turn's own root.
type step struct {
	// Source is the path on the host, empty for a mask and for a file with a Text of
	// its own. Target is the path inside.
	Source, Target string
	Text           string
	// Pin is the file the host had at Source or, for a mask, what it covers.
	Pin   agent.Pin
	Dir   bool
	Write bool
}

func (s step) mask() bool { return s.Source == "" && s.Text == "" }

// link is a symbolic link of a turn's own root.
type link struct{ Path, Target string }

// layout is what a turn sees of the host, in the order it is put together.
type layout struct {
	Steps []step
	Links []link
}

// own are the places of a turn's root that are never the host's.
var own = []string{"/proc", "/sys", "/dev"}

// arrange says how c is put together out of mounts. It reads the host and refuses
// whatever cannot be mounted as it was asked.
func arrange(c agent.Confinement, around surroundings) (layout, error) {
	var l layout
	for _, m := range c.Mounts {
		if err := checkAccess(m); err != nil {
			return l, err
		}
		if err := checkPath(m.Path); err != nil {
			return l, err
		}
		if err := around.admit(m.Path, c.Denied); err != nil {
			return l, err
		}
		s, err := grant(c, m)
		if err != nil {
			return l, err
		}
		i := slices.IndexFunc(l.Steps, func(o step) bool { return o.Target == s.Target })
		if i >= 0 && l.Steps[i].Write != s.Write {
			return l, unsupported("mount %s is granted both ro and rw", m.Path)
		}
		if i < 0 {
			l.Steps = append(l.Steps, s)
		}
	}
	if err := l.addSystem(c); err != nil {
		return l, err
	}
	slices.SortFunc(l.Steps, func(a, b step) int { return cmp.Compare(a.Target, b.Target) })
	if err := l.addMetadata(c); err != nil {
		return l, err
	}
	if err := l.addMasks(c.Denied); err != nil {
		return l, err
	}
	return l, nil
}

func checkAccess(m agent.Mount) error {
	if m.Access != agent.ReadOnly && m.Access != agent.ReadWrite {
		return unsupported("mount %s has access %q", m.Path, m.Access)
	}
	return nil
}

// grant pins m and compares it with the pin it was verified with.
func grant(c agent.Confinement, m agent.Mount) (step, error) {
	p, dir, err := pin(m.Path)
	if err != nil {
		return step{}, err
	}
	for _, was := range c.Pins {
		if was.Path == p.Path && was != p {
			return step{}, fmt.Errorf("%w: %s is not what was verified", agent.ErrPolicyChanged, m.Path)
		}
	}
	return step{Source: m.Path, Target: m.Path, Pin: p, Dir: dir, Write: m.Access == agent.ReadWrite}, nil
}

// addSystem adds the system paths with what their symbolic links lead to. They
// add to what is granted: they never narrow it.
func (l *layout) addSystem(c agent.Confinement) error {
	system := slices.Clone(c.System)
	slices.SortFunc(system, func(a, b agent.Mount) int { return cmp.Compare(a.Path, b.Path) })
	var found []agent.Mount
	for _, m := range system {
		if err := checkAccess(m); err != nil {
			return err
		}
		if !filepath.IsAbs(m.Path) || filepath.Clean(m.Path) != m.Path || m.Path == "/" {
			return unsupported("system path %q", m.Path)
		}
		for _, dir := range own {
			if agent.Inside(m.Path, dir) {
				return unsupported("system path %s: a turn has a %s of its own", m.Path, dir)
			}
		}
		real, links, err := trace(m.Path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // nothing is there to be reached
		}
		if err != nil {
			return unsupported("system path %s: %v", m.Path, err)
		}
		for _, ln := range links {
			if !slices.Contains(l.Links, ln) {
				l.Links = append(l.Links, ln)
			}
		}
		found = append(found, agent.Mount{Path: real, Access: m.Access})
	}
	slices.SortFunc(found, func(a, b agent.Mount) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(b.Access, a.Access)) // "rw" before "ro"
	})
	for _, m := range found {
		if over, ok := l.deciding(m.Path); ok && (over.Write || m.Access == agent.ReadOnly) {
			continue
		}
		s, err := grant(c, m)
		if err != nil {
			return err
		}
		l.Steps = slices.DeleteFunc(l.Steps, func(o step) bool { return o.Target == s.Target })
		l.Steps = append(l.Steps, s)
	}
	// A link whose place a mount shows is there already.
	l.Links = slices.DeleteFunc(l.Links, func(ln link) bool {
		_, shown := l.deciding(ln.Path)
		return shown
	})
	return nil
}

// trace resolves path and gives every symbolic link on the way, so that the same
// names lead to the same files inside.
func trace(path string) (real string, links []link, err error) {
	rest := strings.Split(strings.TrimPrefix(path, "/"), "/")
	real = "/"
	for hops := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			real = filepath.Dir(real)
			continue
		}
		at := filepath.Join(real, name)
		target, err := os.Readlink(at)
		if errors.Is(err, syscall.EINVAL) {
			real = at
			continue
		}
		if err != nil {
			return "", nil, err
		}
		if hops++; hops > 40 {
			return "", nil, &fs.PathError{Op: "resolve", Path: path, Err: syscall.ELOOP}
		}
		links = append(links, link{at, target})
		if filepath.IsAbs(target) {
			real = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return real, links, nil
}

// deciding is the innermost mount, masks left out, that path lies in.
func (l *layout) deciding(path string) (step, bool) {
	var inner step
	found := false
	for _, s := range l.Steps {
		if !s.mask() && agent.Inside(path, s.Target) && (!found || len(s.Target) >= len(inner.Target)) {
			inner, found = s, true
		}
	}
	return inner, found
}

// addMetadata keeps version control metadata read-only where it could be written.
func (l *layout) addMetadata(c agent.Confinement) error {
	metadata := slices.Clone(c.ReadOnlyMetadata)
	slices.Sort(metadata)
	for _, path := range metadata {
		s, err := grant(c, agent.Mount{Path: path, Access: agent.ReadOnly})
		if err != nil {
			return fmt.Errorf("metadata: %w", err)
		}
		if over, ok := l.deciding(path); ok && over.Write {
			l.Steps = append(l.Steps, s)
		}
		// A writable grant inside metadata would undo it; the metadata, mounted
		// last, covers it.
	}
	return nil
}

// addMasks covers denied paths, what they lead to, and every other name of the
// same files in the directories that hold them.
func (l *layout) addMasks(denied []string) error {
	files := make(map[agent.Pin]bool) // by device and inode alone
	dirs := make(map[string]bool)
	masks := make(map[string]step)
	for _, path := range denied {
		if !filepath.IsAbs(path) {
			return unsupported("denied path %q is not absolute", path)
		}
		real, links, err := trace(filepath.Clean(path))
		if errors.Is(err, fs.ErrNotExist) {
			continue // and where it could be made, it is the turn's own
		}
		if err != nil {
			return unsupported("denied path %s: %v", path, err)
		}
		info, err := os.Lstat(real)
		if err != nil {
			return unsupported("denied path %s: %v", path, err)
		}
		s := step{Target: real, Dir: info.IsDir(), Pin: identity(info)}
		masks[real] = s
		if !s.Dir {
			files[s.Pin] = true
		}
		dirs[filepath.Dir(real)] = true
		for _, ln := range links {
			dirs[filepath.Dir(ln.Path)] = true
		}
	}
	for dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return unsupported("other names of denied files in %s: %v", dir, err)
		}
		for _, e := range entries {
			if e.Type()&(fs.ModeDir|fs.ModeSymlink) != 0 {
				continue
			}
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return unsupported("other names of denied files in %s: %v", dir, err)
			}
			if id := identity(info); files[id] {
				real, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name()))
				if err != nil {
					return unsupported("denied file %s: %v", e.Name(), err)
				}
				masks[real] = step{Target: real, Pin: id}
			}
		}
	}
	targets := make([]string, 0, len(masks))
	for t := range masks {
		targets = append(targets, t)
	}
	slices.Sort(targets)
	var covered []string
	for _, t := range targets {
		inMask := slices.ContainsFunc(covered, func(dir string) bool { return agent.Inside(t, dir) })
		if _, shown := l.deciding(t); !shown || inMask {
			continue
		}
		if masks[t].Dir {
			covered = append(covered, t)
		}
		l.Steps = append(l.Steps, masks[t])
	}
	return nil
}

// identity is a file's device and inode.
func identity(info fs.FileInfo) agent.Pin {
	st := info.Sys().(*syscall.Stat_t)
	return agent.Pin{Device: st.Dev, Inode: st.Ino}
}

// moveWorkspace shows the workspace, with all that is mounted in it, at workDir too.
func (l *layout) moveWorkspace(workspace, workDir string) error {
	over, ok := l.deciding(workspace)
	if !ok {
		return unsupported("the workspace %s lies in no mount", workspace)
	}
	if workDir == workspace {
		return nil
	}
	if !filepath.IsAbs(workDir) || filepath.Clean(workDir) != workDir || workDir == "/" {
		return unsupported("working directory %q", workDir)
	}
	for _, taken := range append(append(l.places(), "/tmp"), own...) {
		if agent.Inside(workDir, taken) || agent.Inside(taken, workDir) {
			return unsupported("the workspace cannot be shown at %s: %s is there", workDir, taken)
		}
	}
	p, dir, err := pin(workspace)
	if err != nil {
		return err
	}
	if !dir {
		return unsupported("the workspace %s is no directory", workspace)
	}
	moved := []step{{Source: workspace, Target: workDir, Pin: p, Dir: true, Write: over.Write}}
	for _, s := range l.Steps {
		if agent.Inside(s.Target, workspace) && (s.Target != workspace || s.mask()) {
			s.Target = workDir + strings.TrimPrefix(s.Target, workspace)
			moved = append(moved, s)
		}
	}
	l.Steps = append(l.Steps, moved...)
	return nil
}

// replace shows a file with a text of its own at each path, instead of the host's.
func (l *layout) replace(files map[string]string) {
	l.Steps = slices.DeleteFunc(l.Steps, func(s step) bool { return files[s.Target] != "" })
	l.Links = slices.DeleteFunc(l.Links, func(ln link) bool { return files[ln.Path] != "" })
	for _, path := range slices.Sorted(maps.Keys(files)) {
		l.Steps = append(l.Steps, step{Target: path, Text: files[path]})
	}
}

func (l *layout) places() []string {
	var out []string
	for _, s := range l.Steps {
		out = append(out, s.Target)
	}
	for _, ln := range l.Links {
		out = append(out, ln.Path)
	}
	return out
}
