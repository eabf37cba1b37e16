package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// keptRefs are the names of the commits clones were made of, in their mirror.
const keptRefs = "refs/turnpike/"

// discarded ends the name of a mirror that is being removed: half a mirror must not
// pass for one.
const discarded = ".discarded"

// lock is held by who changes a mirror. It is waited for with a context.
type lock chan struct{}

func (l lock) acquire(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l lock) try() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}

func (l lock) release() { <-l }

func (g *Git) lock(mirror string) lock {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mirrors == nil {
		g.mirrors = make(map[string]lock)
	}
	if g.mirrors[mirror] == nil {
		g.mirrors[mirror] = make(lock, 1)
	}
	return g.mirrors[mirror]
}

// needed are the commits of a mirror that clones were made of.
func (g *Git) needed(mirror string) map[string]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	commits := make(map[string]bool)
	for _, b := range g.bases {
		if b.gitDir == mirror {
			commits[b.commit] = true
		}
	}
	return commits
}

// forgetLocked drops the commits that were kept for clones that are gone.
func (g *Git) forgetLocked(ctx context.Context, mirror string) error {
	needed := g.needed(mirror)
	refs, err := g.run(ctx, nil, "--git-dir="+mirror, "for-each-ref", "--format=%(refname)", keptRefs)
	errs := []error{err}
	for ref := range strings.FieldsSeq(refs) {
		if !needed[path.Base(ref)] {
			_, err := g.run(ctx, nil, "--git-dir="+mirror, "update-ref", "-d", ref)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("forget what the mirror kept: %w", err)
	}
	return nil
}

// Sweep removes mirrors that no clone came from for KeepAge, and then, while all take
// more than KeepBytes, the longest unused. It leaves alone what is in use. Mirrors that
// stay have git tidy them up when it sees fit.
func (g *Git) Sweep(ctx context.Context, now time.Time) error {
	root, err := ownRoot(filepath.Join(g.Root, "mirrors"))
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("sweep mirrors: %w", err)
	}
	type mirror struct {
		dir  string
		used time.Time
		size int64
	}
	var all []mirror
	var errs []error
	for _, e := range entries {
		m := mirror{dir: filepath.Join(root, e.Name())}
		if strings.HasSuffix(m.dir, discarded) {
			errs = append(errs, removeOwn(root, m.dir))
			continue
		}
		info, err := e.Info()
		if err == nil {
			m.used = info.ModTime()
			m.size, err = sizeOf(m.dir)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b mirror) int { return b.used.Compare(a.used) })
	var kept int64
	for _, m := range all {
		if ctx.Err() != nil {
			break
		}
		kept += m.size
		due := now.Sub(m.used) > cmp.Or(g.KeepAge, 30*24*time.Hour) || kept > cmp.Or(g.KeepBytes, 10<<30)
		gone, err := g.tend(ctx, root, m.dir, due)
		if gone {
			kept -= m.size
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tend removes a mirror that is due and that nobody uses, or tidies it up. One that
// somebody is at is left as it is.
func (g *Git) tend(ctx context.Context, root, mirror string, due bool) (gone bool, err error) {
	lock := g.lock(mirror)
	if !lock.try() {
		return false, nil
	}
	defer lock.release()
	if due && len(g.needed(mirror)) == 0 {
		if err := os.Rename(mirror, mirror+discarded); err != nil {
			return false, fmt.Errorf("discard mirror: %w", err)
		}
		return true, removeOwn(root, mirror+discarded)
	}
	// Nobody may wait for long behind this.
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(g.Timeout, 10*time.Minute)/2)
	defer cancel()
	if err := g.forgetLocked(ctx, mirror); err != nil {
		return false, err
	}
	_, err = g.run(ctx, nil, "-c", "gc.auto=6700", "-c", "gc.autoDetach=false", "--git-dir="+mirror, "gc", "--auto", "--quiet")
	return false, err
}

// sizeOf is what a directory takes; what goes meanwhile takes nothing.
func sizeOf(dir string) (size int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("measure mirror: %w", err)
	}
	return size, nil
}
