package dispatcher

import (
	"context"
	"log/slog"
	"time"

	"turnpike/internal/job"
)

// Lapsed closes attempts whose lease is over.
type Lapsed interface {
	// Clock is the database's time.
	Clock(ctx context.Context) (time.Time, error)
	// Reap closes attempts that lapsed before asOf, at most limit, and applies their
	// policies. It returns job.ErrNotLeader when the epoch is over.
	Reap(ctx context.Context, epoch int64, asOf time.Time, limit int) ([]job.Reaped, error)
}

// Reaper takes jobs back from workers that are gone.
type Reaper struct {
	Attempts Lapsed
	Lease    time.Duration // how long a lease is; default 60 s
	Bell     Bell          // rung when something was reaped: it may be selected again
	Health   *Health
	Metrics  *Metrics
	Log      *slog.Logger
}

const reapBatch = 100

// Run reaps until ctx ends.
func (r *Reaper) Run(ctx context.Context, epoch int64) {
	lease := r.Lease
	if lease <= 0 {
		lease = time.Minute
	}
	// Often enough that a gap of half a lease is an outage and no slow tick.
	every := min(max(lease/12, 50*time.Millisecond), 5*time.Second)
	c := &caution{lease: lease}
	loop(ctx, nil, func(ctx context.Context) (time.Duration, error) {
		more, err := r.round(ctx, epoch, c)
		r.Health.note("reaper", err)
		switch {
		case err != nil:
			c.broke()
			return every, err
		case more:
			return 0, nil
		}
		return every, nil
	})
}

// round is one tick. more says that there may be more to reap at once.
func (r *Reaper) round(ctx context.Context, epoch int64, c *caution) (more bool, err error) {
	sent := time.Now()
	db, err := r.Attempts.Clock(ctx)
	if err != nil || !c.tick(sent, db) {
		return false, err
	}
	reaped, err := r.Attempts.Reap(ctx, epoch, db, reapBatch)
	if err != nil {
		return false, err
	}
	for _, a := range reaped {
		r.Log.Warn("the lease lapsed; the attempt is lost", "job", a.Job, "attempt", a.Attempt, "worker", a.Worker, "state", a.State)
	}
	if len(reaped) > 0 {
		r.Metrics.reaped(len(reaped))
		r.Bell.Ring()
	}
	return len(reaped) == reapBatch, nil
}
