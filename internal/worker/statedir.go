package worker

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"crypto/rand"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another worker uses the state directory.
var ErrLocked = errors.New("state directory is in use by another worker")

// StateDir is a worker's directory. It holds what the worker must not lose (the
// marks of what it started, the spool) and what may go (sessions, workspaces).
//
//	lock       held for as long as the worker lives
//	id         the directory's own name, by which a successor is known
//	marks/     one file per attempt that may have something running
//	journal/   the reports of the attempts that ended just now, and the marks of those that
//	           started nothing yet
//	spool/     one report per attempt that was not settled at once
//	rejected/  reports that Postgres knows no attempt of, and files that cannot be read
//	sessions/  session directories
//	work/      scratch directories and checkouts
type StateDir struct {
	path string
	id   string
	lock *os.File

	notes *notes
}

// OpenStateDir makes the directory ready and takes its lock. Its error wraps
// ErrLocked when another worker holds it.
func OpenStateDir(path string) (_ *StateDir, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	s := &StateDir{path: path}
	for _, dir := range []string{path, s.marksDir(), s.journal(), s.spool(), s.rejected(), s.Sessions(), s.Work()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	if s.lock, err = os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	defer func() {
		if err != nil {
			s.lock.Close()
		}
	}()
	// The kernel lets go of the lock with the process, however it ends. Children
	// do not inherit it: Go opens files close-on-exec.
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", path, ErrLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	for _, dir := range []string{path, s.marksDir(), s.spool()} {
		if err := removeUnfinished(dir); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	if s.id, err = s.identify(); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if s.notes, err = openNotes(s.noted()); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	return s, nil
}

// Close lets go of the directory.
func (s *StateDir) Close() error { return errors.Join(s.notes.close(), s.lock.Close()) }

// ID is the directory's own name. It moves with the directory.
func (s *StateDir) ID() string { return s.id }

// Path is the directory itself.
func (s *StateDir) Path() string { return s.path }

// Sessions is where session directories are made.
func (s *StateDir) Sessions() string { return filepath.Join(s.path, "sessions") }

// Work is where workspaces are made.
func (s *StateDir) Work() string { return filepath.Join(s.path, "work") }

// Private lists the directories no turn may be granted: everything but the
// workspaces.
func (s *StateDir) Private() []string {
	return []string{s.marksDir(), s.journal(), s.spool(), s.rejected(), s.Sessions()}
}

func (s *StateDir) marks() marks { return marks{dir: s.marksDir(), noted: s.noted(), notes: s.notes} }

func (s *StateDir) marksDir() string { return filepath.Join(s.path, "marks") }
func (s *StateDir) noted() string    { return filepath.Join(s.journal(), "noted") }
func (s *StateDir) journal() string  { return filepath.Join(s.path, "journal") }
func (s *StateDir) spool() string    { return filepath.Join(s.path, "spool") }
func (s *StateDir) rejected() string { return filepath.Join(s.path, "rejected") }

// Free is how many bytes the worker may still write to the directory's disk.
func (s *StateDir) Free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.path, &st); err != nil {
		return 0, fmt.Errorf("disk of %s: %w", s.path, err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil //nolint:unconvert // its type differs by system
}

var idForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

func (s *StateDir) identify() (string, error) {
	b, err := os.ReadFile(filepath.Join(s.path, "id"))
	if err == nil && idForm.MatchString(strings.TrimSpace(string(b))) {
		return strings.TrimSpace(string(b)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var raw [16]byte
	rand.Read(raw[:]) // never fails: see crypto/rand
	id := hex.EncodeToString(raw[:])
	return id, writeDurably(s.path, "id", []byte(id+"\n"))
}

const unfinished = ".unfinished-"

// writeDurably puts a file in place whole or not at all; once it returns the file
// survives a crash of the machine.
func writeDurably(dir, name string, content []byte) (err error) {
	f, err := os.CreateTemp(dir, unfinished+"*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes the names in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// removeUnfinished removes what a crash left of writeDurably.
func removeUnfinished(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), unfinished) {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
