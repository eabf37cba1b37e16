// Package workspace provides the places turns work in: a directory that is there,
// an empty one of the attempt's own, or a repository at a ref. It decides nothing
// about what a turn may do there: the ceiling says which places a request may name,
// the boundary what a turn may touch of one.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"turnpike/internal/agent"
	"turnpike/internal/vcs"
)

// Set provides every sort of workspace. A nil provider refuses its sort.
type Set struct {
	Dir     *Dir
	Scratch *Scratch
	Git     *Git

	mu     sync.Mutex // guards leased
	leased map[string]lease
}

// lease is a workspace that was handed out and what takes it back.
type lease struct {
	release func(context.Context, vcs.Workspace) error
	// Nil where it has no history.
	patch func(context.Context, vcs.Workspace, io.Writer) (vcs.Changes, error)
	apply func(ctx context.Context, w vcs.Workspace, patch string) error
}

var _ vcs.Provider[vcs.Spec] = (*Set)(nil)

// Acquire implements vcs.Provider. Its error wraps agent.ErrUnsupported for a sort
// that is not provided here, agent.ErrNotGranted for a place that cannot be one, and
// agent.ErrUnready for one that could not be made ready now.
func (s *Set) Acquire(ctx context.Context, spec vcs.Spec) (w vcs.Workspace, err error) {
	var l lease
	switch {
	case spec.Dir != "" && s.Dir != nil:
		w, err = s.Dir.Acquire(ctx, spec.Dir)
		l = lease{release: s.Dir.Release}
	case spec.Scratch && s.Scratch != nil:
		w, err = s.Scratch.Acquire(ctx, spec.Name)
		l = lease{release: s.Scratch.Release}
	case spec.Git != nil && s.Git != nil:
		w, err = s.Git.Acquire(ctx, GitSpec{Name: spec.Name, Checkout: *spec.Git})
		l = lease{s.Git.Release, s.Git.Patch, s.Git.Apply}
	default:
		return vcs.Workspace{}, fmt.Errorf("this worker provides no such workspace: %w", agent.ErrUnsupported)
	}
	if err != nil {
		return vcs.Workspace{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leased == nil {
		s.leased = make(map[string]lease)
	}
	// Attempts may share a directory, and then release it alike.
	s.leased[w.Dir] = l
	return w, nil
}

// Release implements vcs.Provider.
func (s *Set) Release(ctx context.Context, w vcs.Workspace) error {
	s.mu.Lock()
	l, ok := s.leased[w.Dir]
	delete(s.leased, w.Dir)
	s.mu.Unlock()
	if !ok {
		return nil // a directory that another attempt shared and released
	}
	return l.release(ctx, w)
}

// Patch writes what changed in a workspace with a history since it was acquired.
func (s *Set) Patch(ctx context.Context, w vcs.Workspace, out io.Writer) (vcs.Changes, error) {
	if l := s.of(w); l.patch != nil {
		return l.patch(ctx, w, out)
	}
	return vcs.Changes{}, nil
}

// Apply makes the changes of a patch file in a workspace with a history that was just
// acquired.
func (s *Set) Apply(ctx context.Context, w vcs.Workspace, patch string) error {
	if l := s.of(w); l.apply != nil {
		return l.apply(ctx, w, patch)
	}
	return fmt.Errorf("%s has no history: %w", w.Dir, agent.ErrUnsupported)
}

func (s *Set) of(w vcs.Workspace) lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leased[w.Dir]
}

// Dir hands out directories of the host as they are.
type Dir struct{}

var _ vcs.Provider[string] = (*Dir)(nil)

// Acquire implements vcs.Provider: the directory must be there. Links are followed
// now and never again.
func (*Dir) Acquire(_ context.Context, path string) (vcs.Workspace, error) {
	if !filepath.IsAbs(path) {
		return vcs.Workspace{}, fmt.Errorf("directory %q is not absolute: %w", path, agent.ErrNotGranted)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return vcs.Workspace{}, fmt.Errorf("directory %s is not there: %w", path, agent.ErrNotGranted)
	}
	info, err := os.Stat(real)
	if err != nil || !info.IsDir() {
		return vcs.Workspace{}, fmt.Errorf("%s is no directory: %w", path, agent.ErrNotGranted)
	}
	return vcs.Workspace{Dir: real, Metadata: metadata(real)}, nil
}

// Release implements vcs.Provider. The directory stays.
func (*Dir) Release(context.Context, vcs.Workspace) error { return nil }

// Scratch hands out empty directories beneath Root, one for each attempt.
type Scratch struct {
	Root string
	// Keep leaves the directories after their turns.
	Keep bool
}

var _ vcs.Provider[string] = (*Scratch)(nil)

// Acquire implements vcs.Provider. name begins the directory's name.
func (s *Scratch) Acquire(_ context.Context, name string) (vcs.Workspace, error) {
	root, err := ownRoot(s.Root)
	if err != nil {
		return vcs.Workspace{}, err
	}
	dir, err := os.MkdirTemp(root, filepath.Base(name)+"-") // 0700
	if err != nil {
		return vcs.Workspace{}, unready("make scratch directory", err)
	}
	return vcs.Workspace{Dir: dir}, nil
}

// Release implements vcs.Provider.
func (s *Scratch) Release(_ context.Context, w vcs.Workspace) error {
	if s.Keep {
		return nil
	}
	return removeOwn(s.Root, w.Dir)
}

// Clean removes what an earlier worker left. It must be called while no turn runs.
func (s *Scratch) Clean() error {
	if s.Keep {
		return nil
	}
	return cleanRoot(s.Root)
}

func cleanRoot(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clean workspaces: %w", err)
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, removeOwn(root, filepath.Join(root, e.Name())))
	}
	return errors.Join(errs...)
}

// ownRoot makes a directory of the worker's and gives it with every link followed.
func ownRoot(root string) (string, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return "", unready("make workspace root", err)
	}
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return "", unready("resolve workspace root", err)
	}
	return filepath.Abs(real)
}

// removeOwn removes a directory directly beneath root and refuses anything else.
// What an agent left in it may be unwritable or a link; links are not followed.
func removeOwn(root, dir string) error {
	root, err := ownRoot(root)
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || real != root {
		return fmt.Errorf("%s is no workspace under %s", dir, root)
	}
	// A root handle keeps every step beneath it, whatever is swapped meanwhile.
	r, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("remove workspace: %w", err)
	}
	defer r.Close()
	name := filepath.Base(dir)
	err = r.RemoveAll(name)
	if errors.Is(err, fs.ErrPermission) {
		openUp(r, name)
		err = r.RemoveAll(name)
	}
	if err != nil {
		return fmt.Errorf("remove workspace: %w", err)
	}
	return nil
}

// openUp makes directories searchable again that an agent closed.
func openUp(r *os.Root, name string) {
	info, err := r.Lstat(name)
	if err != nil || !info.IsDir() {
		return
	}
	_ = r.Chmod(name, 0o700) // what stays closed is told by the removal
	d, err := r.Open(name)
	if err != nil {
		return
	}
	entries, _ := d.ReadDir(-1)
	d.Close()
	for _, e := range entries {
		if e.IsDir() {
			openUp(r, filepath.Join(name, e.Name()))
		}
	}
}

func unready(doing string, err error) error {
	return fmt.Errorf("%s: %w: %w", doing, err, agent.ErrUnready)
}
