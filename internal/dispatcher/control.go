package dispatcher

import (
	"context"
	"fmt"
	"log/slog"

	"turnpike/internal/job"
)

// Commands are what people do to jobs.
type Commands interface {
	// Cancel sets the durable flag, or ends a job that does not run. It returns
	// job.ErrNotFound or job.ErrFinished.
	Cancel(ctx context.Context, id job.ID, by, why string) (job.CancelAnswer, error)
	// Retry enqueues a finished job anew. It returns job.ErrNotFound or job.ErrConflict.
	Retry(ctx context.Context, id job.ID, by string) (job.Accepted, error)
}

// CancelPusher tells workers of a cancel sooner than their next beat would.
type CancelPusher interface {
	PushCancel(id job.ID) error
}

// Control carries out commands and passes on the news. What counts is in Postgres.
type Control struct {
	Jobs   Commands
	Pusher CancelPusher
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
	if answer.State == job.Running {
		if err := c.Pusher.PushCancel(id); err != nil {
			c.Log.Info("the worker will learn of the cancel by its next beat", "job", id, "err", err)
		}
	} else {
		c.Bell.Ring() // a concurrency key or a place in the window came free
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
