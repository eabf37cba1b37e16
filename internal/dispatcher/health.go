package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"turnpike/internal/job"
)

// Part is how one part of the dispatcher stands.
type Part struct {
	Name  string
	Err   error     // nil while it works
	Since time.Time // of Err, or of its absence
}

// Health gathers how the parts stand. The zero value is usable.
type Health struct {
	Log *slog.Logger

	mu    sync.Mutex // guards parts
	parts map[string]Part
}

// Parts lists every part that ran so far, by name.
func (h *Health) Parts() []Part {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]Part, 0, len(h.parts))
	for _, p := range h.parts {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Part) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// note records how a round of a part ended and logs when that changes: an outage is
// two lines, however long it lasts.
func (h *Health) note(part string, err error) {
	if errors.Is(err, context.Canceled) {
		return // an ordered stop says nothing of the part
	}
	h.mu.Lock()
	before, known := h.parts[part]
	changed := !known || (before.Err == nil) != (err == nil)
	now := Part{Name: part, Err: err, Since: before.Since}
	if changed {
		now.Since = time.Now()
	}
	if h.parts == nil {
		h.parts = make(map[string]Part)
	}
	h.parts[part] = now
	h.mu.Unlock()
	switch {
	case !changed || h.Log == nil:
	case err != nil:
		level := slog.LevelError
		if errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrNotLeader) {
			level = slog.LevelWarn
		}
		h.Log.Log(context.Background(), level, "trouble", "part", part, "err", err)
	case known:
		h.Log.Info("recovered", "part", part, "after", now.Since.Sub(before.Since).Round(time.Millisecond))
	}
}

// forget drops a part that stands by.
func (h *Health) forget(parts ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range parts {
		delete(h.parts, p)
	}
}
