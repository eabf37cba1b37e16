package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"turnpike/internal/job"
)

// ReportStream holds reports that workers could not bring to Postgres.
type ReportStream interface {
	// DrainReports waits a few seconds for reports, takes at most n, and removes them
	// once settle returned nil.
	DrainReports(ctx context.Context, n int, settle func(context.Context, []job.Report) error) (int, error)
}

// Settler records what became of attempts, idempotently.
type Settler interface {
	Settle(ctx context.Context, reports []job.Report) ([]job.Settled, error)
}

// Results brings reports from the stream into Postgres. Every dispatcher does.
type Results struct {
	Stream   ReportStream
	Attempts Settler
	Bell     Bell
	Health   *Health
	Metrics  *Metrics
	Log      *slog.Logger
}

const settleBatch = 64

// Run settles until ctx ends.
func (r *Results) Run(ctx context.Context) {
	loop(ctx, nil, func(ctx context.Context) (time.Duration, error) {
		_, err := r.Stream.DrainReports(ctx, settleBatch, r.settle)
		if errors.Is(err, job.ErrLaneMissing) {
			return time.Second, nil // a leader is yet to make the stream: there are no reports
		}
		r.Health.note("results", err)
		if err != nil {
			return time.Second, err
		}
		return 0, nil // the drain itself waits
	})
}

// settle settles reports together, or one by one where one of them cannot be for what it
// says: it must not hold up the others. That one leaves the stream; its worker's spool has it.
func (r *Results) settle(ctx context.Context, reports []job.Report) error {
	settled, err := r.Attempts.Settle(ctx, reports)
	switch {
	case err == nil:
	case errors.Is(err, job.ErrUnavailable) || ctx.Err() != nil:
		return err
	case len(reports) > 1:
		for _, one := range reports {
			if err := r.settle(ctx, []job.Report{one}); err != nil {
				return err
			}
		}
		return nil
	case !errors.Is(err, job.ErrInvalid) && !errors.Is(err, job.ErrUnstorable):
		return err // a wrong password or a missing right: no report is to be lost for it
	default:
		r.Log.Error("a report cannot be recorded; it stays in its worker's spool", "job", reports[0].Lease.Job, "attempt", reports[0].Lease.Attempt, "err", err)
		return nil
	}
	for _, s := range settled {
		r.Metrics.settled(s.How)
		if s.How == job.SettledNever {
			r.Log.Error("a report of an attempt that never was", "job", s.Job, "attempt", s.Attempt)
		}
	}
	r.Bell.Ring()
	return nil
}
