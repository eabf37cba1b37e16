package dispatcher

import (
	"context"
	"math/rand/v2"
	"time"
)

// Bell wakes a loop. Rings that come while it is awake are one.
type Bell chan struct{}

// NewBell returns a bell.
func NewBell() Bell { return make(Bell, 1) }

// Ring wakes the loop that listens, now or as soon as it does. It never blocks.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// maxBackoff is the longest wait between two tries during an outage.
const maxBackoff = 5 * time.Second

// loop runs round at once and then whenever the wait it returned is over or the bell
// rings, until ctx ends. After an error it backs off, bell or not.
func loop(ctx context.Context, bell Bell, round func(context.Context) (time.Duration, error)) {
	failures := 0
	for ctx.Err() == nil {
		wait, err := round(ctx)
		awake := bell
		if err != nil {
			wait = backoff(wait, failures)
			failures++
			awake = nil
		} else {
			failures = 0
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-awake:
		}
		timer.Stop()
	}
}

// backoff doubles the wait with every failure, with jitter so that dispatchers do not
// come back together.
func backoff(wait time.Duration, failures int) time.Duration {
	wait = max(wait, 50*time.Millisecond) << min(failures, 10)
	wait = min(wait, maxBackoff)
	return wait/2 + rand.N(wait/2+1)
}
