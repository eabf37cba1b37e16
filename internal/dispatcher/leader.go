package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"turnpike/internal/job"
)

// Leadership is the row that says who leads.
type Leadership interface {
	// Lead takes or renews the leadership for ttl. It returns job.ErrNotLeader while
	// another holds it. The epoch changes whenever it is taken.
	Lead(ctx context.Context, holder string, ttl time.Duration) (epoch int64, err error)
	// Resign gives it up, if the epoch still is the leader's.
	Resign(ctx context.Context, epoch int64) error
}

// Leader runs work while this dispatcher leads. The zero TTL is usable.
type Leader struct {
	Row    Leadership
	Holder string        // unique per process
	TTL    time.Duration // after which another takes over; default 5 s
	Health *Health
}

// leading is work that runs under one epoch.
type leading struct {
	epoch int64
	stop  context.CancelCauseFunc
	done  chan struct{}
}

func (l *leading) end(cause error) {
	if l == nil {
		return
	}
	l.stop(cause)
	<-l.done
}

// Run stands by or leads until ctx ends; then it waits for work and resigns. work gets
// a context that ends with the leadership.
func (l *Leader) Run(ctx context.Context, work func(ctx context.Context, epoch int64)) {
	ttl := l.TTL
	if ttl <= 0 {
		ttl = 5 * time.Second
	}
	var now *leading
	loop(ctx, nil, func(ctx context.Context) (time.Duration, error) {
		epoch, err := l.Row.Lead(ctx, l.Holder, ttl)
		switch {
		case errors.Is(err, job.ErrNotLeader):
			now.end(err)
			now = nil
			l.Health.note("leader", nil) // standing by is no trouble
		case err != nil:
			// Nobody was heard to lead instead: go on. Every statement carries the epoch.
			l.Health.note("leader", err)
		default:
			l.Health.note("leader", nil)
			if now != nil && now.epoch != epoch {
				now.end(fmt.Errorf("%w: epoch %d follows %d", job.ErrNotLeader, epoch, now.epoch))
				now = nil
			}
			if now == nil {
				now = l.start(ctx, epoch, work)
			}
		}
		return ttl / 3, nil
	})
	if now == nil {
		return
	}
	now.end(context.Cause(ctx))
	// The context is over, but the next leader need not wait for the time to run out.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl)
	defer cancel()
	if err := l.Row.Resign(last, now.epoch); err != nil && !errors.Is(err, job.ErrNotLeader) {
		l.Health.note("leader", err)
	}
}

func (l *Leader) start(ctx context.Context, epoch int64, work func(context.Context, int64)) *leading {
	ctx, stop := context.WithCancelCause(ctx)
	now := &leading{epoch: epoch, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(now.done)
		work(ctx, epoch)
	}()
	return now
}
