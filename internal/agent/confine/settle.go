package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"turnpike/internal/agent"
)

// settle gives c in the kernel's own names, or refuses what Seatbelt cannot hold. It
// reads the file system and is the part of macOS that every platform can be tested on.
// home is the worker's user's, private the worker's own directories.
func settle(c agent.Confinement, home string, private []string) (seatbelt, error) {
	s := seatbelt{Network: c.Network.Open}
	switch {
	case c.Sandbox == agent.SandboxClaude:
		return s, unsupported("Claude Code's own sandbox cannot be set up inside another: use placement %q", "none-confined")
	case c.Sandbox != "" && c.Sandbox != agent.SandboxNone:
		return s, unsupported("sandbox %q is not a host's", c.Sandbox)
	case c.Network.Proxied:
		return s, unsupported("macOS has no network of a turn's own, and a proxy on loopback would serve every turn alike: grant the open network or none, or use a container")
	case c.WorkDir != c.Workspace:
		return s, unsupported("without mounts the workspace %s cannot be shown at %s", c.Workspace, c.WorkDir)
	}
	if err := seatbeltLimits(c.Limits); err != nil {
		return s, err
	}
	for _, m := range c.Mounts {
		if m.Access != agent.ReadOnly && m.Access != agent.ReadWrite {
			return s, unsupported("mount %s has access %q", m.Path, m.Access)
		}
		path, err := spelled(m.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return s, fmt.Errorf("%w: mount %s is gone", agent.ErrPolicyChanged, m.Path)
		}
		if err != nil {
			return s, err
		}
		if path != m.Path {
			return s, unsupported("mount %s is %s; grant it by that name", m.Path, path)
		}
		if err := offLimits(path, home, private); err != nil {
			return s, err
		}
		twice := slices.ContainsFunc(s.Mounts, func(o agent.Mount) bool { return o.Path == path && o.Access != m.Access })
		if twice {
			return s, unsupported("mount %s is granted both ro and rw", path)
		}
		s.Mounts = append(s.Mounts, m)
	}
	for _, m := range c.System {
		path, err := spelled(m.Path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // nothing is there to be reached
		}
		if err != nil {
			return s, err
		}
		if path == "/" {
			return s, unsupported("system path %s is the root of the host", m.Path)
		}
		s.System = append(s.System, agent.Mount{Path: path, Access: m.Access})
	}
	if _, ok := agent.Deciding(s.Mounts, c.Workspace); !ok {
		return s, unsupported("the workspace %s lies in no mount", c.Workspace)
	}
	for _, path := range c.ReadOnlyMetadata {
		actual, err := spelled(path)
		if errors.Is(err, fs.ErrNotExist) {
			return s, fmt.Errorf("%w: metadata %s is gone", agent.ErrPolicyChanged, path)
		}
		if err != nil {
			return s, err
		}
		s.ReadOnly = append(s.ReadOnly, actual)
	}
	var err error
	s.Denied, err = everyName(c.Denied)
	return s, err
}

// seatbeltLimits refuses limits that only a control group or a namespace can hold.
func seatbeltLimits(l agent.Limits) error {
	switch {
	case l.MemoryBytes != 0, l.Processes != 0, l.CPUs != 0:
		return unsupported("macOS holds no turn to a limit of memory, processes or CPU: use a container or a sandbox")
	case l.OpenFiles < 0, l.FileBytes < 0, l.OpenFiles > math.MaxInt32:
		return unsupported("a limit out of range")
	}
	return nil
}

// spelled gives path with its links resolved and every name as the directory that
// holds it lists it. A file system that takes two spellings for one file lets a path
// that is spelled otherwise through, and the kernel then compares the file's own.
func spelled(path string) (string, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		return "", unsupported("%q is no clean absolute path", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", unsupportedPath(path, err)
	}
	out := "/"
	for name := range strings.SplitSeq(strings.TrimPrefix(real, "/"), "/") {
		if name == "" {
			continue
		}
		entry, err := listed(out, name)
		if err != nil {
			return "", unsupportedPath(path, err)
		}
		out = filepath.Join(out, entry)
	}
	return out, nil
}

// listed gives the name by which dir lists its entry called name.
func listed(dir, name string) (string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrPermission) {
		return name, nil // nobody this process could start can list it either
	}
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == name }) {
		return name, nil
	}
	want, err := os.Lstat(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && os.SameFile(info, want) {
			return e.Name(), nil
		}
	}
	return "", &fs.PathError{Op: "list", Path: filepath.Join(dir, name), Err: fs.ErrNotExist}
}

func unsupportedPath(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "confine", Path: path, Err: fs.ErrNotExist}
	}
	return unsupported("%s: %v", path, err)
}

// everyName gives the denied paths that are there, what they lead to, and every other
// name of the same files in the directories that hold them.
func everyName(denied []string) ([]string, error) {
	var out []string
	for _, path := range denied {
		actual, err := spelled(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // and where it could be made, it is the turn's own
		}
		if err != nil {
			return nil, err
		}
		dir, err := spelled(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		out = append(out, actual, filepath.Join(dir, filepath.Base(path)))
		is, err := os.Stat(actual)
		if err != nil {
			return nil, unsupportedPath(path, err)
		}
		if is.IsDir() {
			continue
		}
		for _, dir := range []string{dir, filepath.Dir(actual)} {
			entries, err := os.ReadDir(dir)
			if err != nil {
				return nil, unsupported("other names of denied files in %s: %v", dir, err)
			}
			for _, e := range entries {
				if !e.Type().IsRegular() {
					continue
				}
				if info, err := e.Info(); err == nil && os.SameFile(info, is) {
					out = append(out, filepath.Join(dir, e.Name()))
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// offLimits refuses a mount that is or holds what no turn may have, and one that lies
// where the user's keys and the sockets of engines are.
func offLimits(path, home string, private []string) error {
	around := append([]string{
		"/", "/private", "/private/etc", "/private/var", "/private/var/run", "/private/tmp", "/System", "/Library", "/Users", "/Volumes", "/dev",
	}, private...)
	var inside []string
	if home != "" && home != "/" {
		around = append(around, home)
		for _, name := range []string{"Library", ".docker/run", ".docker/desktop", ".colima", ".rd", ".orbstack", ".lima", ".ssh", ".gnupg"} {
			inside = append(inside, filepath.Join(home, name))
		}
	}
	inside = append(inside, "/dev", "/private/var/run", "/private/var/db", "/System/Volumes")
	for _, p := range append(around, inside...) {
		if agent.Inside(p, path) {
			return unsupported("mount %s reaches %s, which no turn may", path, p)
		}
	}
	for _, p := range inside {
		if agent.Inside(path, p) {
			return unsupported("mount %s lies in %s, which no turn may reach", path, p)
		}
	}
	return nil
}
