package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnpike/internal/job"
)

// Retention removes what finished attempts left on this worker, by age and size. It
// never touches what runs, is not settled or is marked.
type Retention struct {
	// SessionAge and SessionBytes bound session directories, with the transcripts and
	// patches in them; default 7 days and 5 GiB. The oldest go first.
	SessionAge   time.Duration
	SessionBytes int64
	// RejectedAge bounds the files set aside; default 30 days.
	RejectedAge time.Duration
	// Workspaces, when set, are swept with the rest: what they keep between attempts is
	// theirs to bound.
	Workspaces Sweeper
	Every      time.Duration // default 10 minutes

	// The pool fills these in.

	Turns *Turns
	InUse func(job.ID, int) bool
	Log   *slog.Logger
}

// Sweeper removes what is old and in nobody's use.
type Sweeper interface {
	Sweep(ctx context.Context, now time.Time) error
}

// Run sweeps until ctx ends.
func (r *Retention) Run(ctx context.Context) error {
	tick := time.NewTicker(cmp.Or(r.Every, 10*time.Minute))
	defer tick.Stop()
	for {
		if err := r.Sweep(ctx, time.Now()); err != nil {
			r.Log.Warn("not everything old could be removed", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Sweep removes what is due.
func (r *Retention) Sweep(ctx context.Context, now time.Time) error {
	err := errors.Join(r.sessions(ctx, now), r.rejected(now))
	if r.Workspaces != nil {
		err = errors.Join(err, r.Workspaces.Sweep(ctx, now))
	}
	return err
}

func (r *Retention) sessions(ctx context.Context, now time.Time) error {
	// A session is read before the marks: one that is made meanwhile is marked.
	entries, err := r.Turns.Sessions.List()
	errs := []error{err}
	all, err := r.Turns.State.marks().list()
	if err != nil {
		// An unreadable mark may be of any of them.
		return errors.Join(append(errs, err)...)
	}
	marked := make(map[string]bool, len(all))
	for _, m := range all {
		marked[m.Session] = true
	}
	slices.SortFunc(entries, func(a, b SessionEntry) int { return r.when(b).Compare(r.when(a)) })
	var kept int64
	for _, e := range entries {
		kept += e.Bytes
		old := now.Sub(r.when(e)) > cmp.Or(r.SessionAge, 7*24*time.Hour)
		if !old && kept <= cmp.Or(r.SessionBytes, 5<<30) || marked[e.Dir] || r.attemptInUse(e.Dir) || ctx.Err() != nil {
			continue
		}
		if err := r.Turns.Sessions.Remove(e.Dir); err != nil {
			errs = append(errs, fmt.Errorf("remove session %s: %w", e.Dir, err))
			continue
		}
		kept -= e.Bytes
	}
	return errors.Join(errs...)
}

// when is what a session's age counts from.
func (r *Retention) when(e SessionEntry) time.Time {
	if !e.EndedAt.IsZero() {
		return e.EndedAt
	}
	return e.StartedAt
}

// attemptInUse says whether the directory is of an attempt that is in use: its name
// begins with the attempt's.
func (r *Retention) attemptInUse(dir string) bool {
	name := filepath.Base(dir)
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		name = name[:i]
	}
	k, ok := parseKey(name + ".json")
	return ok && r.InUse != nil && r.InUse(k.Job, k.Attempt)
}

func (r *Retention) rejected(now time.Time) error {
	entries, err := os.ReadDir(r.Turns.State.rejected())
	errs := []error{err}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && now.Sub(info.ModTime()) > cmp.Or(r.RejectedAge, 30*24*time.Hour) {
			err = os.RemoveAll(filepath.Join(r.Turns.State.rejected(), e.Name()))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
