package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"turnpike/internal/agent"
)

// maxCounted is how much of one transcript line is looked at while counting.
const maxCounted = 1 << 20

// Interrupted finds the turns under root that were started and have no result.
// It must be called while no turn runs there. What cannot be read is told in the
// error beside the turns that can.
func Interrupted(root string) ([]agent.Interrupted, error) {
	dirs, err := all(root)
	errs := []error{err}
	var found []agent.Interrupted
	for _, d := range dirs {
		if d.Ended() {
			continue
		}
		m, err := d.Meta()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if m.StartedAt.IsZero() {
			continue
		}
		one := agent.Interrupted{Role: m.Role, Name: filepath.Base(d.path), Dir: d.path}
		one.Note, one.Killed = d.Killed()
		turns, err := countFile(d.Transcript())
		switch {
		case err == nil:
			one.Transcript, one.Turns = d.Transcript(), turns
		case !errors.Is(err, fs.ErrNotExist):
			one.Transcript = d.Transcript()
			errs = append(errs, err)
		}
		found = append(found, one)
	}
	return found, errors.Join(errs...)
}

// all gives the session directories under root, in name order. Anything else
// there is passed over.
func all(root string) ([]*Dir, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	var dirs []*Dir
	for _, e := range entries {
		d := &Dir{path: filepath.Join(root, e.Name())}
		if _, err := os.Lstat(filepath.Join(d.path, metaFile)); e.IsDir() && err == nil {
			dirs = append(dirs, d)
		}
	}
	return dirs, nil
}

func countFile(path string) (int, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	turns, err := CountTurns(f)
	return turns, errors.Join(err, f.Close())
}

// CountTurns counts the assistant messages of a transcript, which may be cut,
// malformed or endless in any line. Messages that come in several events under
// one id count once.
func CountTurns(transcript io.Reader) (int, error) {
	lines := NewLines(transcript, maxCounted)
	turns, last := 0, ""
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return turns, nil
		}
		if err != nil {
			return turns, fmt.Errorf("read transcript: %w", err)
		}
		id, ok := assistant(line)
		if !ok {
			continue
		}
		if id == "" || id != last {
			turns++
		}
		last = id
	}
}

// assistant says whether a line is an assistant's message, and the message's id
// where it has one.
func assistant(line agent.Line) (id string, ok bool) {
	if line.Cut {
		// The end is missing, so the line does not parse; its kind is mostly
		// found before that.
		return "", headType(line.Text) == "assistant"
	}
	var event struct {
		Type    string
		Message struct{ ID string }
	}
	if !json.Valid(line.Text) {
		return "", false
	}
	// An event whose members have other types still has the ones that fit.
	_ = json.Unmarshal(line.Text, &event)
	return event.Message.ID, event.Type == "assistant"
}

// headType finds the top-level member "type" in the head of a JSON object.
func headType(head []byte) string {
	dec := json.NewDecoder(bytes.NewReader(head))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return ""
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return ""
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return ""
		}
		var kind string
		if key == "type" && json.Unmarshal(value, &kind) == nil {
			return kind
		}
	}
	return ""
}

// Entry is a session directory as its keeper sees it.
type Entry struct {
	Dir       string
	Bytes     int64 // on the disk
	StartedAt time.Time
	// EndedAt is when the result, or the mark of a turn that was killed, was
	// written; zero while there is neither.
	EndedAt time.Time
}

// List describes the session directories under root, in name order. What cannot
// be read is told in the error beside the rest.
func List(root string) ([]Entry, error) {
	dirs, err := all(root)
	errs := []error{err}
	var entries []Entry
	for _, d := range dirs {
		e := Entry{Dir: d.path}
		if m, err := d.Meta(); err == nil {
			e.StartedAt = m.StartedAt
		} else {
			errs = append(errs, err)
		}
		for _, name := range []string{killedFile, resultFile} {
			if info, err := os.Lstat(filepath.Join(d.path, name)); err == nil {
				e.EndedAt = info.ModTime()
			}
		}
		if e.Bytes, err = size(d.path); err != nil {
			errs = append(errs, err)
		}
		entries = append(entries, e)
	}
	return entries, errors.Join(errs...)
}

// size adds up what a tree takes on the disk: an agent may have left sparse files.
func size(root string) (int64, error) {
	var total int64
	err := filepath.WalkDir(root, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			total += st.Blocks * 512
		} else {
			total += info.Size()
		}
		return nil
	})
	return total, err
}

// Remove deletes the session directory at dir and refuses anything else.
func Remove(dir string) error {
	d, err := Open(dir)
	if err != nil {
		return fmt.Errorf("remove session: %w", err)
	}
	if err := d.empty(); err != nil {
		return fmt.Errorf("remove session: %w", err)
	}
	if err := os.RemoveAll(d.path); err != nil {
		return fmt.Errorf("remove session: %w", err)
	}
	return nil
}

// empty removes everything but meta.json, which goes last so that a removal that
// was interrupted is found again.
func (d *Dir) empty() (err error) {
	// Whatever the agent left there, nothing outside is touched.
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	// There may be directories that not even their owner may search.
	err = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, _ error) error {
		if e == nil || !e.IsDir() {
			return nil
		}
		if err := root.Chmod(path, dirMode); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(d.path)
	for _, e := range entries {
		if e.Name() != metaFile {
			err = errors.Join(err, root.RemoveAll(e.Name()))
		}
	}
	return err
}
