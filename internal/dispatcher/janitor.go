package dispatcher

import (
	"context"
	"time"
)

// Janitor sweeps what retention lets go. Sweep is one pass over everything; what is to
// be kept for how long is known to whoever wires it.
type Janitor struct {
	Sweep  func(ctx context.Context, epoch int64) error
	Every  time.Duration // default 10 min
	Health *Health
}

// Run sweeps until ctx ends.
func (j *Janitor) Run(ctx context.Context, epoch int64) {
	every := j.Every
	if every <= 0 {
		every = 10 * time.Minute
	}
	loop(ctx, nil, func(ctx context.Context) (time.Duration, error) {
		err := j.Sweep(ctx, epoch)
		j.Health.note("janitor", err)
		return every, err
	})
}
