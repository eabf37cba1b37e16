package mcphost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// What one walk looks at.
const (
	maxDepth   = 48      // directories below the one it starts in; each costs two descriptors
	maxEntries = 10_000  // of one directory
	maxWalk    = 100_000 // of all together
)

// unread are the directories a walk passes over: version control's own, which hold
// everything a second time. They can still be asked for by name.
var unread = []string{".git", ".hg", ".jj", ".svn"}

// errEnough ends a walk without being an error of it.
var errEnough = errors.New("enough")

// tree is a directory that is read and never left.
type tree struct {
	root *os.Root
	// shown is the path the directory has where the agent runs; absolute paths
	// beneath it are taken as what they mean.
	shown string
}

// local gives a path as it is beneath the root. Whether it stays there is seen to by
// os.Root when it is opened.
func (t tree) local(name string) (string, error) {
	if strings.ContainsRune(name, 0) {
		return "", errors.New("path: must not contain NUL")
	}
	if path.IsAbs(name) {
		clean := path.Clean(name)
		rest, ok := strings.CutPrefix(clean, strings.TrimSuffix(t.shown, "/")+"/")
		switch {
		case t.shown == "":
			return "", fmt.Errorf("path: %q is absolute; paths are relative to the workspace", name)
		case clean == t.shown:
			return ".", nil
		case !ok:
			return "", fmt.Errorf("path: %q lies outside the workspace %s", name, t.shown)
		}
		return rest, nil
	}
	return path.Clean(name), nil // an empty one is "."
}

// open opens a directory or a regular file, and nothing else: opening a pipe would
// wait for its other end, and opening a device may do things.
func open(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	info, err := root.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if err := readable(name, info); err != nil {
		return nil, nil, err
	}
	// By now it may be something else, which must not block either.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = readable(name, info)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func readable(name string, info fs.FileInfo) error {
	if info.IsDir() || info.Mode().IsRegular() {
		return nil
	}
	return fmt.Errorf("%q is %s, which is not read", name, kindOf(info.Mode()))
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "a file"
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a link"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

func (t tree) file(name string) (*os.File, fs.FileInfo, error) {
	name, err := t.local(name)
	if err != nil {
		return nil, nil, err
	}
	f, info, err := open(t.root, name)
	if err != nil {
		return nil, nil, err
	}
	if info.IsDir() {
		f.Close()
		return nil, nil, fmt.Errorf("%q is a directory; list it", name)
	}
	return f, info, nil
}

// names gives the names in an open directory, sorted, and whether there are more than
// it gives.
func names(dir *os.File, most int) (found []string, more bool, err error) {
	found, err = dir.Readdirnames(most + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	if len(found) > most {
		found, more = found[:most], true
	}
	slices.Sort(found)
	return found, more, nil
}

// walk is what one walk over a tree came to.
type walk struct {
	visit   func(dir *os.Root, name, rel string, info fs.FileInfo) error
	entries int
	notes   []string
}

// over visits the regular files beneath start, or start itself, in name order, following no links. The
// path it tells of a file is relative to the workspace. It stops without an error when
// visit returns errEnough or a bound is reached, which the notes tell.
func (w *walk) over(ctx context.Context, t tree, start string) error {
	start, err := t.local(start)
	if err != nil {
		return err
	}
	info, err := t.root.Stat(start)
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		err = w.visit(t.root, start, start, info)
	} else {
		err = w.from(ctx, t, start)
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (w *walk) from(ctx context.Context, t tree, start string) error {
	sub, err := t.root.OpenRoot(start)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Close() }() // it was only read
	return w.dir(ctx, sub, start, 0)
}

func (w *walk) dir(ctx context.Context, dir *os.Root, rel string, depth int) error {
	f, err := dir.Open(".")
	if err != nil {
		w.note("%s: cannot be read", shown(rel))
		return nil //nolint:nilerr // told by the note
	}
	list, more, err := names(f, maxEntries)
	f.Close()
	if err != nil {
		w.note("%s: cannot be read", shown(rel))
		return nil //nolint:nilerr // told by the note
	}
	if more {
		w.note("%s: has more than %d entries, of which the rest was passed over", shown(rel), maxEntries)
	}
	for _, name := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if w.entries++; w.entries > maxWalk {
			w.note("stopped after %d entries; name a directory to look in", maxWalk)
			return errEnough
		}
		info, err := dir.Lstat(name)
		if err != nil {
			continue // gone again
		}
		below := path.Join(rel, name)
		switch {
		case info.Mode().IsRegular():
			if err := w.visit(dir, name, below, info); err != nil {
				return err
			}
		case !info.IsDir() || slices.Contains(unread, name):
		case depth == maxDepth:
			w.note("%s: lies too deep", shown(below))
		default:
			if err := w.descend(ctx, dir, name, below, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *walk) descend(ctx context.Context, dir *os.Root, name, rel string, depth int) error {
	sub, err := dir.OpenRoot(name)
	if err != nil {
		w.note("%s: cannot be read", shown(rel))
		return nil
	}
	defer func() { _ = sub.Close() }() // it was only read
	return w.dir(ctx, sub, rel, depth)
}

// maxNotes bounds what a walk tells beside its result.
const maxNotes = 20

func (w *walk) note(format string, args ...any) {
	if len(w.notes) < maxNotes {
		w.notes = append(w.notes, fmt.Sprintf(format, args...))
	}
}
