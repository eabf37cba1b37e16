package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"turnpike/internal/job"
)

// Commands are what people do to jobs.
type Commands interface {
	// Cancel sets the durable flag, or ends a job that does not run. It returns
	// job.ErrNotFound or job.ErrFinished.
	Cancel(ctx context.Context, id job.ID, by, why string) (job.CancelAnswer, error)
	// Retry enqueues a finished job anew. It returns job.ErrNotFound or job.ErrUnfinished.
	Retry(ctx context.Context, id job.ID, by string) (job.Accepted, error)
	// Redrive enqueues anew a part of what finished as r says. It returns job.ErrInvalid
	// or job.ErrQueueFull.
	Redrive(ctx context.Context, r job.Redrive, by string) (job.RedriveAnswer, error)
	// Pause holds up a lane, tenant, account or key, until a time or, when that is zero,
	// until it is lifted. It returns how many dispatched jobs went back.
	Pause(ctx context.Context, scope job.Scope, name string, until time.Time, by, why string) (int, error)
	Lift(ctx context.Context, scope job.Scope, name, by, why string) error
	Pauses(ctx context.Context) ([]job.Pause, error)
	// SetLimit bounds a tenant's unfinished jobs; a negative number lifts the bound.
	SetLimit(ctx context.Context, tenant string, most int, by string) error
	// SetWeight gives a tenant a share of each lane; 1 is everyone's.
	SetWeight(ctx context.Context, tenant string, weight int, by string) error
	Weights(ctx context.Context) ([]job.Weight, error)
	// SetBudget bounds what jobs may cost together; RemoveBudget returns
	// job.ErrNoBudget for one that is not there.
	SetBudget(ctx context.Context, b job.Budget, by, why string) error
	RemoveBudget(ctx context.Context, k job.BudgetKey, by, why string) error
	Budgets(ctx context.Context) ([]job.Budget, error)
	// OrphansLeft lists what may still run although nobody keeps its lease.
	OrphansLeft(ctx context.Context) ([]job.Orphan, error)
	// CloseOrphan records by hand that something is gone; job.ErrNoOrphan when nothing
	// like it is left.
	CloseOrphan(ctx context.Context, o job.Orphan, by, why string) error
}

// CancelPusher tells workers of a cancel sooner than their next beat would.
type CancelPusher interface {
	PushCancel(id job.ID) error
}

// Control carries out commands and passes on the news. What counts is in Postgres.
type Control struct {
	Jobs   Commands
	Pusher CancelPusher // nil: workers learn of cancels by their beats
	Waker  Waker
	Bell   Bell
	Log    *slog.Logger
}

// Cancel cancels a job. A running one is stopped by its worker soon after.
func (c *Control) Cancel(ctx context.Context, id job.ID, by, why string) (job.CancelAnswer, error) {
	answer, err := c.Jobs.Cancel(ctx, id, by, why)
	if err != nil {
		return answer, fmt.Errorf("cancel job %s: %w", id, err)
	}
	switch {
	case answer.State != job.Running:
		c.Bell.Ring() // a concurrency key or a place in the window came free
	case c.Pusher != nil:
		if err := c.Pusher.PushCancel(id); err != nil {
			c.Log.Info("the worker will learn of the cancel by its next beat", "job", id, "err", err)
		}
	}
	return answer, nil
}

// Retry enqueues a finished job as a new one.
func (c *Control) Retry(ctx context.Context, id job.ID, by string) (job.Accepted, error) {
	accepted, err := c.Jobs.Retry(ctx, id, by)
	if err != nil {
		return accepted, fmt.Errorf("retry job %s: %w", id, err)
	}
	wake(c.Waker, c.Bell, c.Log)
	return accepted, nil
}

// Redrive enqueues finished jobs as new ones, a part at a time.
func (c *Control) Redrive(ctx context.Context, r job.Redrive, by string) (job.RedriveAnswer, error) {
	answer, err := c.Jobs.Redrive(ctx, r, by)
	if err != nil {
		return answer, err
	}
	if answer.Redriven > 0 && !r.DryRun {
		wake(c.Waker, c.Bell, c.Log)
	}
	return answer, nil
}

// Pause holds up a lane, tenant, account or key. What runs goes on.
func (c *Control) Pause(ctx context.Context, scope job.Scope, name string, until time.Time, by, why string) (int, error) {
	n, err := c.Jobs.Pause(ctx, scope, name, until, by, why)
	if err != nil {
		return 0, fmt.Errorf("pause %s %s: %w", scope, name, err)
	}
	return n, nil
}

// Lift ends a pause at once.
func (c *Control) Lift(ctx context.Context, scope job.Scope, name, by, why string) error {
	if err := c.Jobs.Lift(ctx, scope, name, by, why); err != nil {
		return fmt.Errorf("resume %s %s: %w", scope, name, err)
	}
	wake(c.Waker, c.Bell, c.Log)
	return nil
}

// Pauses lists what is paused.
func (c *Control) Pauses(ctx context.Context) ([]job.Pause, error) { return c.Jobs.Pauses(ctx) }

// SetLimit bounds a tenant's unfinished jobs.
func (c *Control) SetLimit(ctx context.Context, tenant string, most int, by string) error {
	if err := c.Jobs.SetLimit(ctx, tenant, most, by); err != nil {
		return fmt.Errorf("limit tenant %s: %w", tenant, err)
	}
	return nil
}

// SetWeight gives a tenant a share of each lane.
func (c *Control) SetWeight(ctx context.Context, tenant string, weight int, by string) error {
	return c.Jobs.SetWeight(ctx, tenant, weight, by)
}

// Weights lists the tenants that have one.
func (c *Control) Weights(ctx context.Context) ([]job.Weight, error) { return c.Jobs.Weights(ctx) }

// SetBudget bounds what jobs may cost together, and lets out what was parked.
func (c *Control) SetBudget(ctx context.Context, b job.Budget, by, why string) error {
	if err := c.Jobs.SetBudget(ctx, b, by, why); err != nil {
		return err
	}
	wake(c.Waker, c.Bell, c.Log)
	return nil
}

// RemoveBudget lifts a budget, and lets out what was parked.
func (c *Control) RemoveBudget(ctx context.Context, k job.BudgetKey, by, why string) error {
	if err := c.Jobs.RemoveBudget(ctx, k, by, why); err != nil {
		return err
	}
	wake(c.Waker, c.Bell, c.Log)
	return nil
}

// Budgets lists every budget as it stands.
func (c *Control) Budgets(ctx context.Context) ([]job.Budget, error) { return c.Jobs.Budgets(ctx) }

// OrphansLeft lists what may still run although nobody keeps its lease.
func (c *Control) OrphansLeft(ctx context.Context) ([]job.Orphan, error) {
	return c.Jobs.OrphansLeft(ctx)
}

// CloseOrphan records by hand that something is gone.
func (c *Control) CloseOrphan(ctx context.Context, o job.Orphan, by, why string) error {
	return c.Jobs.CloseOrphan(ctx, o, by, why)
}
