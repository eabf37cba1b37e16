package boundary

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"turnpike/internal/agent"
)

var errNotAbsolute = errors.New("not an absolute path")

// maxSurvey is how many entries of writable mounts are looked at. More than that
// cannot be told free of version control metadata in reasonable time.
const maxSurvey = 2_000_000

var vcsMetadata = []string{".git", ".hg", ".jj", ".svn"}

func versionControl(req agent.Request) (bool, error) {
	if req.Profile.VCSAccess && !req.Grants.VCS {
		return false, notGranted("the profile asks for version control")
	}
	return req.Profile.VCSAccess, nil
}

func insideMetadata(path string) bool {
	return slices.ContainsFunc(strings.Split(path, "/"), func(name string) bool {
		return slices.Contains(vcsMetadata, name)
	})
}

// executables finds the version control commands a turn could run: their names,
// and the paths they have: links and what they lead to alike, and other names of the
// same files beside them.
func executables(env []string) (names, paths []string) {
	names = agent.VCSCommands()
	for _, dir := range append(shellPath(env), agent.CommandDirs()...) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // what is not there cannot be run
		}
		for _, e := range entries {
			if slices.Contains(agent.VCSCommands(), e.Name()) || strings.HasPrefix(e.Name(), "git-") {
				names = append(names, e.Name())
				paths = append(paths, withTarget(filepath.Join(dir, e.Name()))...)
			}
		}
	}
	for _, tree := range agent.VCSTrees() {
		paths = append(paths, withTarget(tree)...)
	}
	slices.Sort(names)
	return slices.Compact(names), sameFiles(paths)
}

// sameFiles adds to paths the other names of the same files in the directories that
// hold one of them, and sorts them all.
func sameFiles(paths []string) []string {
	type file struct{ device, inode uint64 }
	identify := func(info fs.FileInfo) (file, bool) {
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || !info.Mode().IsRegular() {
			return file{}, false
		}
		return file{uint64(st.Dev), st.Ino}, true //nolint:unconvert // not uint64 on every system
	}
	files, dirs := map[file]bool{}, map[string]bool{}
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			continue // it leads nowhere
		}
		dirs[filepath.Dir(p)] = true
		if id, ok := identify(info); ok {
			files[id] = true
		}
	}
	out := slices.Clone(paths)
	for dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // what is not there cannot be run
		}
		for _, e := range entries {
			if !e.Type().IsRegular() {
				continue
			}
			if info, err := e.Info(); err == nil {
				if id, ok := identify(info); ok && files[id] {
					out = append(out, filepath.Join(dir, e.Name()))
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// withTarget gives a path with the links of its directory resolved and, where the
// path is a link itself, what it leads to.
func withTarget(path string) []string {
	actual, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return nil
	}
	return []string{filepath.Join(dir, filepath.Base(path)), actual}
}

// surveyed is what was found in the writable mounts of a turn.
type surveyed struct {
	metadata []string // version control metadata that must stay read-only
	sockets  []string // services that must not be reached
}

// survey looks through the writable mounts of a turn that something holds. With all it
// looks through the others for sockets, too: a read-only mount does not keep anybody
// from dialling what listens in it.
func survey(turn agent.Turn, extra []string, all bool) (surveyed, error) {
	s := &surveyor{turn: turn, left: maxSurvey}
	for _, m := range turn.Mounts {
		if s.writable = m.Access == agent.ReadWrite; !s.writable && !all {
			continue
		}
		if err := s.walk(m.Path); err != nil {
			return surveyed{}, err
		}
	}
	if !turn.VCS {
		for _, dir := range extra {
			if err := s.keep(dir); err != nil {
				return surveyed{}, err
			}
		}
	}
	s.found.metadata = outermost(s.found.metadata)
	return s.found, nil
}

type surveyor struct {
	turn     agent.Turn
	writable bool // the mount it walks through
	left     int
	found    surveyed
}

// walk looks at dir and follows no link.
func (s *surveyor) walk(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil // a mounted file, or gone meanwhile
	case errors.Is(err, fs.ErrPermission):
		return unreadable(dir)
	case err != nil:
		return unsupported("directory %q cannot be searched for version control metadata: %v", dir, err)
	}
	if s.left -= len(entries); s.left < 0 {
		return unsupported("the mounts hold more than %d files, too many to search for version control metadata and sockets; grant less", maxSurvey)
	}
	if !s.turn.VCS && s.writable && bareRepository(entries) {
		return s.keep(dir)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.Type()&fs.ModeSocket != 0 {
			s.found.sockets = append(s.found.sockets, path)
			continue
		}
		if !s.turn.VCS && s.writable && slices.Contains(vcsMetadata, e.Name()) {
			if err := s.metadata(path, e); err != nil {
				return err
			}
			continue
		}
		if !e.IsDir() || s.isMount(path) {
			continue // an inner mount decides, and is walked, on its own
		}
		if err := s.walk(path); err != nil {
			return err
		}
	}
	return nil
}

func (s *surveyor) isMount(path string) bool {
	return slices.ContainsFunc(s.turn.Mounts, func(m agent.Mount) bool { return m.Path == path })
}

// metadata keeps what a name such as .git stands for read-only.
func (s *surveyor) metadata(path string, e fs.DirEntry) error {
	switch {
	case e.IsDir():
		return s.keep(path)
	case e.Type().IsRegular():
		s.found.metadata = append(s.found.metadata, path)
		for _, dir := range pointedAt(path) {
			if err := s.keep(dir); err != nil {
				return err
			}
		}
		return nil
	}
	// A link could be replaced by what the agent likes, and nothing can be
	// mounted over it.
	return unsupported("%q is neither a directory nor a file and cannot be kept read-only; replace it, or grant version control", path)
}

// keep has dir stay read-only where it could be written.
func (s *surveyor) keep(dir string) error {
	actual, err := resolve(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return unsupported("version control metadata %q cannot be resolved: %v", dir, err)
	}
	if m, ok := agent.Deciding(s.turn.Mounts, actual); ok && m.Access == agent.ReadWrite {
		s.found.metadata = append(s.found.metadata, actual)
	}
	return nil
}

// pointedAt reads a worktree's .git file: the directory it names, and the
// repository that one belongs to. A file that is something else names nothing.
func pointedAt(file string) []string {
	target, ok := strings.CutPrefix(firstLine(file), "gitdir:")
	if !ok {
		return nil
	}
	gitdir := absolute(filepath.Dir(file), strings.TrimSpace(target))
	dirs := []string{gitdir}
	if common := firstLine(filepath.Join(gitdir, "commondir")); common != "" {
		dirs = append(dirs, absolute(gitdir, common))
	}
	return dirs
}

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	// Not Join: its Clean would take a ".." for the parent of a link.
	return dir + "/" + path
}

// firstLine reads the first line of a small regular file. Another turn may put
// anything in its place at any moment, so it is opened without following a link
// or waiting for a pipe's other end, and only then looked at.
func firstLine(path string) string {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // it was only read
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	content, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(content), "\n")
	return strings.TrimSpace(line)
}

func bareRepository(entries []fs.DirEntry) bool {
	has := func(name string) bool {
		_, ok := slices.BinarySearchFunc(entries, name, func(e fs.DirEntry, n string) int { return strings.Compare(e.Name(), n) })
		return ok
	}
	return has("HEAD") && has("objects") && has("refs")
}

// unreadable decides about a directory this process may not list. Its owner may
// change that, and an agent runs as the same user; anybody else's directory is
// closed to the agent too.
func unreadable(dir string) error {
	var st syscall.Stat_t
	mine := syscall.Lstat(dir, &st) == nil && int(st.Uid) == os.Geteuid()
	if !mine {
		return nil
	}
	return unsupported("directory %q cannot be searched for version control metadata; make it readable, or take it out of the grant", dir)
}

// outermost sorts paths and leaves out those that lie in another.
func outermost(paths []string) []string {
	slices.Sort(paths)
	var out []string
	for _, p := range paths {
		if !slices.ContainsFunc(out, func(o string) bool { return agent.Inside(p, o) }) {
			out = append(out, p)
		}
	}
	return out
}
