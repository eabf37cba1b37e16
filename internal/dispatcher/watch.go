package dispatcher

import (
	"context"
	"log/slog"
	"time"

	"turnpike/internal/job"
)

// Watched is what people are told of as it happens.
type Watched interface {
	// Crossings lists the budgets whose state changed since it was asked last, and
	// takes back what was dispatched under those that are spent now. It returns
	// job.ErrNotLeader when the epoch is over.
	Crossings(ctx context.Context, epoch int64) ([]job.Crossing, error)
	Budgets(ctx context.Context) ([]job.Budget, error)
	// Lapsed is how long the oldest lapsed lease of a running attempt is over; zero
	// when none is.
	Lapsed(ctx context.Context) (time.Duration, error)
}

// Watch tells how budgets and leases stand: each crossing of a budget's level once in
// the log, and everything as metrics.
type Watch struct {
	Jobs    Watched
	Every   time.Duration // default 2 s
	Bell    Bell          // rung when a budget has something left again
	Health  *Health
	Metrics *Metrics
	Log     *slog.Logger
}

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context, epoch int64) {
	every := w.Every
	if every <= 0 {
		every = 2 * time.Second
	}
	loop(ctx, nil, func(ctx context.Context) (time.Duration, error) {
		err := w.round(ctx, epoch)
		w.Health.note("watch", err)
		return every, err
	})
}

func (w *Watch) round(ctx context.Context, epoch int64) error {
	crossed, err := w.Jobs.Crossings(ctx, epoch)
	if err != nil {
		return err
	}
	for _, c := range crossed {
		level := slog.LevelWarn
		if c.State == job.BudgetOK {
			level = slog.LevelInfo
		}
		w.Log.Log(ctx, level, "a budget crossed a level", "budget", c.String(), "from", c.From, "to", c.State,
			"spent", (c.SpentUSD + c.RunningUSD).String(), "limit", c.LimitUSD.String(), "returned", c.Returned)
		w.Metrics.crossed(c)
		if c.From == job.BudgetSpent {
			w.Bell.Ring()
		}
	}
	budgets, err := w.Jobs.Budgets(ctx)
	if err != nil {
		return err
	}
	w.Metrics.budgets(budgets)
	lapsed, err := w.Jobs.Lapsed(ctx)
	if err != nil {
		return err
	}
	w.Metrics.overdue(lapsed)
	return nil
}
