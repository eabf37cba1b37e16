package worker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

// markVersion is the version of mark.
const markVersion = 1

// mark is what a worker writes before it starts anything for an attempt: its successor
// finds by it what may still run, and what to report. It is durable before anything is
// started.
type mark struct {
	Version   int       `json:"version"`
	Lease     job.Lease `json:"lease"`
	Local     bool      `json:"local,omitempty"` // run by hand: there is nobody to report to
	Worker    string    `json:"worker"`
	Agent     string    `json:"agent,omitempty"`
	Model     string    `json:"model,omitempty"`
	Session   string    `json:"session,omitempty"`
	Clone     string    `json:"clone,omitempty"` // a workspace that holds work of the turn's
	MarkedAt  time.Time `json:"marked_at"`
	StartedAt time.Time `json:"started_at,omitzero"`
	// Reported says that the attempt's report was made; what is left is to end what
	// could not be ended.
	Reported bool    `json:"reported,omitempty"`
	Things   []thing `json:"things,omitempty"`
}

// thing is something that was started, or is about to be.
type thing struct {
	agent.Identity
	Live bool `json:"live"` // its identity is known in full
}

func (m *mark) key() attemptKey { return keyOf(m.Lease) }

// errMark is a mark of another version, or under another's name.
var errMark = errors.New("not a mark of this version")

// marks is where a worker's marks are: each in a file of a directory, but for those that
// list nothing yet.
type marks struct {
	dir   string
	noted string
	notes *notes // nil: for who only reads
}

// write makes a mark durable.
func (m marks) write(mk *mark) error {
	b, err := json.Marshal(mk)
	if err != nil {
		return err
	}
	if err := writeDurably(m.dir, mk.key().file(), b); err != nil {
		return err
	}
	_, err = m.notes.remove(mk.key())
	return err
}

// note writes a new mark that lists nothing. It need not outlive the machine.
func (m marks) note(mk *mark) error {
	if err := m.notes.put(mk); !errors.Is(err, errLong) {
		return err
	}
	return m.write(mk)
}

func (m marks) remove(k attemptKey) error {
	if only, err := m.notes.remove(k); only || err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(m.dir, k.file())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// list reads every mark. One that cannot be read is told in the error beside the
// rest, and stays: something may run that only it knows of.
func (m marks) list() ([]*mark, error) {
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return nil, fmt.Errorf("read marks: %w", err)
	}
	var all []*mark
	var errs []error
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(m.dir, e.Name()))
		if err != nil {
			errs = append(errs, fmt.Errorf("read mark: %w", err))
			continue
		}
		if len(b) == 0 {
			errs = append(errs, os.Remove(filepath.Join(m.dir, e.Name()))) // of a release that noted in files; the machine crashed
			continue
		}
		var mk mark
		if err := json.NewDecoder(bytes.NewReader(b)).Decode(&mk); err != nil || mk.Version != markVersion || mk.key().file() != e.Name() {
			errs = append(errs, fmt.Errorf("mark %s cannot be read: look for what it was for, then remove it: %w", e.Name(), cmp.Or(err, errMark)))
			continue
		}
		all = append(all, &mk)
	}
	_, err = readNotes(m.noted, func(_ int, mk *mark) {
		if !slices.ContainsFunc(all, func(a *mark) bool { return a.key() == mk.key() }) {
			all = append(all, mk)
		}
	})
	return all, errors.Join(append(errs, err)...)
}

// recorder is told of everything one attempt starts. It writes the mark first; the
// database learns by the next beat.
type recorder struct {
	marks marks
	kept  *kept // nil for a turn run by hand

	mu   sync.Mutex // guards mark
	mark *mark
}

var _ agent.Recorder = (*recorder)(nil)

// open makes the attempt known here. Until it returned nil nothing of it but its empty
// session directory may be here; until change did, nothing may be started for it.
func (r *recorder) open() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return unmarked(r.marks.note(r.mark))
}

func (r *recorder) change(f func(*mark)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.mark)
	return unmarked(r.marks.write(r.mark))
}

func unmarked(err error) error {
	if err != nil {
		return fmt.Errorf("mark attempt: %w: %w", err, agent.ErrUnready)
	}
	return nil
}

// Creating implements agent.Recorder.
func (r *recorder) Creating(_ context.Context, what agent.Identity) error {
	return r.change(func(m *mark) { m.Things = append(m.Things, thing{Identity: what}) })
}

// Live implements agent.Recorder.
func (r *recorder) Live(_ context.Context, what agent.Identity) error {
	err := r.change(func(m *mark) {
		if i := m.find(what); i >= 0 {
			m.Things[i] = thing{what, true}
		} else {
			m.Things = append(m.Things, thing{what, true})
		}
		if what.Kind != agent.KindServer && m.StartedAt.IsZero() {
			m.StartedAt = time.Now().UTC()
		}
	})
	if err != nil || r.kept == nil || what.Kind == agent.KindServer {
		return err
	}
	identity, err := json.Marshal(what)
	if err != nil {
		return err
	}
	r.kept.running(identity)
	return nil
}

// Gone implements agent.Recorder.
func (r *recorder) Gone(_ context.Context, what agent.Identity) error {
	return r.change(func(m *mark) {
		if i := m.find(what); i >= 0 {
			m.Things = slices.Delete(m.Things, i, i+1)
		}
	})
}

// find is the thing that what names: the very one, else one of its kind and label
// that is yet to become known in full.
func (m *mark) find(what agent.Identity) int {
	if i := slices.IndexFunc(m.Things, func(t thing) bool { return t.Identity == what }); i >= 0 {
		return i
	}
	return slices.IndexFunc(m.Things, func(t thing) bool { return !t.Live && t.Kind == what.Kind && t.Label == what.Label })
}

// left lists what was not shown to be gone.
func (r *recorder) left() []thing {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mark.Things)
}
