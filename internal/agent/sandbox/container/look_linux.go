package container

import (
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"turnpike/internal/agent"
)

// contents are what a look found in an image.
type contents struct {
	// Agents are the executables of agents, by name.
	Agents map[string]string
	// Denied are the executables of version control, outer before inner.
	Denied []executable
}

type executable struct {
	Path string
	Dir  bool // a directory of nothing else
}

// look looks through the container it runs in, where this is its PATH.
func look(commands string, out io.Writer) error {
	found := contents{Agents: map[string]string{}}
	for _, name := range agent.Agents() {
		path, err := exec.LookPath(name)
		if err != nil {
			continue // the image has no such agent
		}
		if path, err = filepath.Abs(path); err == nil {
			found.Agents[name] = path
		}
	}
	s := search{commands: filepath.SplitList(commands), paths: map[string]bool{}, files: map[file]bool{}, names: map[file][]string{}}
	s.commands = append(s.commands, agent.CommandDirs()...)
	if err := s.walk("/"); err != nil {
		return err
	}
	for id := range s.files { // other names of the same files would do as well
		for _, path := range s.names[id] {
			s.paths[path] = false
		}
	}
	found.Denied = s.outermost()
	return json.NewEncoder(out).Encode(found)
}

type file struct{ device, inode uint64 }

// search finds the executables of version control by name, wherever they are.
type search struct {
	commands []string          // directories in which more names count
	paths    map[string]bool   // found, and whether it is a directory
	files    map[file]bool     // found
	names    map[file][]string // of files that have several
}

// walk looks through the image's own files and follows no link; what is mounted over
// them is not the image's.
func (s *search) walk(root string) error {
	var top syscall.Stat_t
	if err := syscall.Stat(root, &top); err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // closed to this user, and so to the agent
		}
		info, err := e.Info()
		if err != nil {
			return nil //nolint:nilerr // gone meanwhile
		}
		st := info.Sys().(*syscall.Stat_t)
		if e.IsDir() {
			switch {
			case st.Dev != top.Dev, path == "/proc", path == "/sys", path == "/dev":
				return fs.SkipDir
			case slices.Contains(agent.VCSTrees(), path), e.Name() == "git-core":
				s.paths[path] = true
				return fs.SkipDir
			}
			return nil
		}
		id := file{st.Dev, st.Ino}
		if st.Nlink > 1 {
			s.names[id] = append(s.names[id], path)
		}
		if s.denied(path, e) {
			s.add(path, id, info.Mode().IsRegular())
		}
		return nil
	})
}

// add takes an executable and, where it is a link, what it leads to.
func (s *search) add(path string, id file, regular bool) {
	if regular {
		s.paths[path] = false
		s.files[id] = true
		return
	}
	// Nothing can be mounted over a link: what it leads to is covered.
	actual, err := filepath.EvalSymlinks(path)
	if err != nil {
		return // it leads nowhere
	}
	var st syscall.Stat_t
	if syscall.Stat(actual, &st) == nil {
		s.paths[actual] = false
		s.files[file{st.Dev, st.Ino}] = true
	}
}

func (s *search) denied(path string, e fs.DirEntry) bool {
	known := slices.Contains(agent.VCSCommands(), e.Name()) ||
		strings.HasPrefix(e.Name(), "git-") && slices.Contains(s.commands, filepath.Dir(path))
	if !known {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

func (s *search) outermost() []executable {
	var out []executable
	var paths []string
	for p := range s.paths {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		if !slices.ContainsFunc(out, func(x executable) bool { return x.Dir && agent.Inside(p, x.Path) }) {
			out = append(out, executable{p, s.paths[p]})
		}
	}
	return out
}
