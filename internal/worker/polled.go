package worker

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"turnpike/internal/job"
)

// Offers are the dispatched jobs that the database has.
type Offers interface {
	// Offered lists up to n jobs of a lane that are dispatched and not claimed, and were
	// dispatched at since or later. It grants nothing.
	Offered(ctx context.Context, worker string, lane job.Lane, since time.Time, n int) (job.Offered, error)
}

// Polled are the deliveries of one lane as the database has them: for an installation
// without a stream, and for as long as the stream is away. What it finds is a hint, as a
// message is; the claim decides. Its methods may be called at once.
type Polled struct {
	Offers Offers
	Lane   job.Lane
	Worker string
	// Wait is how long a fetch from an idle lane lasts; default 5 s.
	Wait time.Duration
	// Soonest and Latest bound the time between two looks at an idle lane, which grows
	// from one to the other; defaults 100 ms and 1 s. Jitter keeps workers apart.
	Soonest, Latest time.Duration

	mu sync.Mutex // guards the fields below
	// since is the dispatch up to which everything was claimed at the last look, less what
	// a slow transaction may yet commit. It keeps a look from reading, again and again,
	// the rows of the turns that run.
	since time.Time
	full  time.Time // from here on, the next look is at everything
	pace  time.Duration
	rest  map[dispatchKey]time.Time // answered: not given again before
}

const (
	// commitSlack is how much later than its time a dispatch may be seen: more than any
	// call takes.
	commitSlack = 30 * time.Second
	// wholeEvery is how often a look is at everything, whatever was seen before.
	wholeEvery = time.Minute
	// answeredFor is how long a delivery that was claimed or refused is not tried again by
	// this worker. A job that comes back has another number.
	answeredFor = time.Minute
)

// Fetch returns between none and n messages: what is there, or, on an idle lane, the
// first to come within Wait.
func (p *Polled) Fetch(ctx context.Context, n int) ([]Message, error) {
	end := time.NewTimer(cmp.Or(p.Wait, 5*time.Second))
	defer end.Stop()
	for {
		msgs, err := p.Look(ctx, n)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil || len(msgs) > 0 || n < 1 {
			return msgs, err
		}
		next := time.NewTimer(p.next())
		select {
		case <-next.C:
			continue
		case <-end.C:
			next.Stop()
			return nil, nil
		case <-ctx.Done():
			next.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// next is how long to wait until the next look.
func (p *Polled) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace = min(max(p.pace*3/2, cmp.Or(p.Soonest, 100*time.Millisecond)), cmp.Or(p.Latest, time.Second))
	return p.pace/2 + rand.N(p.pace+1)
}

// Look returns at once, with up to n messages.
func (p *Polled) Look(ctx context.Context, n int) ([]Message, error) {
	if n < 1 {
		return nil, nil
	}
	now := time.Now()
	p.mu.Lock()
	for k, until := range p.rest {
		if now.After(until) {
			delete(p.rest, k)
		}
	}
	since, whole := p.since, now.After(p.full)
	most := n + len(p.rest)
	p.mu.Unlock()
	if whole {
		since = time.Time{}
	}
	found, err := p.Offers.Offered(ctx, p.Worker, p.Lane, since, most)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if found.All {
		p.since = found.AsOf.Add(-commitSlack)
		for _, o := range found.Jobs {
			if o.At.Before(p.since) {
				p.since = o.At
			}
		}
		if whole {
			p.full = now.Add(wholeEvery/2 + rand.N(wholeEvery))
		}
	}
	var msgs []Message
	for _, o := range found.Jobs {
		if k := (dispatchKey{o.Job, o.Dispatch}); len(msgs) < n && p.rest[k].IsZero() {
			msgs = append(msgs, Message{Delivery: o.Delivery, Answer: offer{p, k}})
		}
	}
	if len(msgs) > 0 {
		p.pace = 0
	}
	return msgs, nil
}

// offer is the answer to what was found: there is nobody to tell, only to remember.
type offer struct {
	polled *Polled
	key    dispatchKey
}

func (o offer) Ack()                    { o.polled.leave(o.key, answeredFor) }
func (o offer) Nak(delay time.Duration) { o.polled.leave(o.key, max(delay, 100*time.Millisecond)) }

func (p *Polled) leave(k dispatchKey, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rest == nil {
		p.rest = make(map[dispatchKey]time.Time)
	}
	p.rest[k] = time.Now().Add(d)
}
