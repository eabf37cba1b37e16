package dispatcher

import (
	"context"
	"log/slog"
	"sync"

	"turnpike/internal/job"
)

// Offers takes jobs past selection: on a lane in which nothing waits and workers are
// free, intake asks for a job to be dispatched in the commit that enqueues it, which
// spares it two round trips. Selection says how many may be; where it does not run, none.
// The store decides whether one really goes: it knows what is paused and what waits. Its
// zero value grants none, as does a nil one.
type Offers struct {
	mu      sync.Mutex // guards the fields below
	room    map[job.Lane]int
	pending []job.Selected
	bell    Bell // rung for what is pending; nil while nobody leads here
}

// take asks whether a job may be offered on a lane, and counts it.
func (o *Offers) take(l job.Lane) bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.room[l] <= 0 {
		return false
	}
	o.room[l]--
	return true
}

// grant says how many jobs each lane has room for, in place of what was said before.
func (o *Offers) grant(room map[job.Lane]int) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bell != nil {
		o.room = room
	}
}

// publish hands over jobs that were dispatched as they were enqueued. Where nobody leads
// any more the next leader finds them.
func (o *Offers) publish(jobs []job.Selected) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bell == nil {
		return
	}
	o.pending = append(o.pending, jobs...)
	o.bell.Ring()
}

// run publishes what is handed over, until ctx ends.
func (o *Offers) run(ctx context.Context, relay *Relay, log *slog.Logger) {
	bell := NewBell()
	o.mu.Lock()
	o.bell = bell
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.pending) > 0 {
			log.Debug("the next leader publishes them", "jobs", len(o.pending))
		}
		o.bell, o.room, o.pending = nil, nil, nil
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-bell:
		}
		o.mu.Lock()
		jobs := o.pending
		o.pending = nil
		o.mu.Unlock()
		relay.Publish(ctx, jobs)
	}
}
