package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"turnpike/internal/job"
)

// Scheduled are the schedules.
type Scheduled interface {
	// Due lists those whose time has come, at most limit, by the database's clock.
	Due(ctx context.Context, limit int) ([]job.Due, error)
	// Fire carries out what was decided, all of it or nothing. It returns
	// job.ErrConflict when the schedule is no longer as it was, job.ErrQueueFull at the
	// tenant's limit, job.ErrNotLeader when the epoch is over.
	Fire(ctx context.Context, epoch int64, f job.Firing) (job.Fired, error)
	// Defer notes why one cannot fire, and lets the others go first for a while.
	Defer(ctx context.Context, epoch int64, d job.Due, wait time.Duration, why string) error
}

// Schedules enqueues what is due by the schedules. The zero Every is usable.
type Schedules struct {
	Jobs    Scheduled
	Pusher  CancelPusher  // of the cancels that schedules order; nil: beats tell
	Every   time.Duration // default 1 s
	Bell    Bell          // rung when something was enqueued
	Health  *Health
	Metrics *Metrics
	Log     *slog.Logger
}

const (
	fireBatch = 100
	// fireAgain is how long one that cannot fire waits.
	fireAgain = 10 * time.Second
)

// Run fires until ctx ends.
func (s *Schedules) Run(ctx context.Context, epoch int64) {
	every := s.Every
	if every <= 0 {
		every = time.Second
	}
	loop(ctx, nil, func(ctx context.Context) (time.Duration, error) {
		more, err := s.round(ctx, epoch)
		s.Health.note("schedules", err)
		if more && err == nil {
			return 0, nil
		}
		return every, err
	})
}

// round fires what is due. more says that there may be more at once.
func (s *Schedules) round(ctx context.Context, epoch int64) (more bool, err error) {
	due, err := s.Jobs.Due(ctx, fireBatch)
	if err != nil {
		return false, err
	}
	for _, d := range due {
		if err := s.fire(ctx, epoch, d); err != nil {
			return false, err
		}
	}
	return len(due) == fireBatch, nil
}

// fire does what is to be done about one schedule. What only that one suffers from is
// told and keeps no other from firing.
func (s *Schedules) fire(ctx context.Context, epoch int64, d job.Due) error {
	f, err := d.Firing()
	var fired job.Fired
	if err == nil {
		fired, err = s.Jobs.Fire(ctx, epoch, f)
	}
	if errors.Is(err, job.ErrQueueFull) && len(f.Entries) > 1 { // or there might never be room for all at once
		f = f.Oldest()
		fired, err = s.Jobs.Fire(ctx, epoch, f)
	}
	switch {
	case err == nil:
		s.tell(f, fired)
		return nil
	case errors.Is(err, job.ErrConflict):
		return nil // changed, or fired, meanwhile: the next round sees how it is
	case errors.Is(err, job.ErrQueueFull), errors.Is(err, job.ErrInvalid):
		s.Log.Warn("a schedule cannot fire; its time is kept", "schedule", d.String(), "err", err)
		s.Metrics.fired("deferred", 1)
		return s.Jobs.Defer(ctx, epoch, d, fireAgain, err.Error())
	}
	return err
}

func (s *Schedules) tell(f job.Firing, fired job.Fired) {
	about := []any{"schedule", f.String(), "jobs", len(fired.Jobs)}
	if len(fired.Jobs) > 0 {
		about = append(about, "first", fired.Jobs[0].ID)
	}
	if f.Note != "" {
		about = append(about, "missed", f.Note)
	}
	if fired.Unfinished != "" {
		about = append(about, "unfinished", fired.Unfinished, "overlap", f.Overlap)
	}
	s.Log.Info("a schedule fired", about...)
	s.Metrics.fired("job", len(fired.Jobs))
	s.Metrics.fired("skipped", f.Left+len(f.Entries)-len(fired.Jobs))
	if len(fired.Jobs) > 0 {
		s.Bell.Ring()
	}
	if c := fired.Cancelled; c != nil && c.State == job.Running && s.Pusher != nil {
		if err := s.Pusher.PushCancel(c.ID); err != nil {
			s.Log.Info("the worker will learn of the cancel by its next beat", "job", c.ID, "err", err)
		}
	}
}
