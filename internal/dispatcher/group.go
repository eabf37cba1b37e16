package dispatcher

import (
	"context"
	"errors"
	"slices"
	"sync"

	"turnpike/internal/job"
)

// grouping lets requests that come while another commit is on its way share the next
// one: a commit costs the disk the same for one job and for many. Who comes alone waits
// for nobody. Its zero value is usable.
type grouping struct {
	mu    sync.Mutex // guards the fields below and what a group gathers
	busy  bool       // a group has its turn
	queue []*group   // of those that wait for theirs; the last one gathers
}

// group is requests that are written together.
type group struct {
	entries []job.Entry
	bytes   int
	callers int // that wait for their answer
	begun   bool

	turn chan struct{} // holds one: any of its callers writes the group
	done chan struct{} // closed once the answers are there
	// The answers, each for the entry of its index.
	accepted []job.Accepted
	errs     []error
}

// A group is bounded as far as one transaction should be.
const (
	groupEntries = 128
	groupBytes   = 4 << 20
)

// join adds an entry to the group that gathers, and is its index there.
func (q *grouping) join(e job.Entry) (g *group, index int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.queue); n > 0 {
		g = q.queue[n-1]
	}
	if g == nil || len(g.entries) == groupEntries || g.bytes+len(e.Body) > groupBytes {
		g = &group{turn: make(chan struct{}, 1), done: make(chan struct{})}
		q.queue = append(q.queue, g)
	}
	g.entries = append(g.entries, e)
	g.bytes += len(e.Body)
	g.callers++
	if !q.busy {
		q.busy = true
		g.turn <- struct{}{}
	}
	return g, len(g.entries) - 1
}

// begin closes the group whose turn it is: nobody joins it any more.
func (q *grouping) begin(g *group) []job.Entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = q.queue[1:] // turns go in order
	g.begun = true
	return g.entries
}

// end gives the next group its turn.
func (q *grouping) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.next()
}

// next gives the first group of the queue its turn; the caller holds mu.
func (q *grouping) next() {
	if q.busy = len(q.queue) > 0; q.busy {
		q.queue[0].turn <- struct{}{}
	}
}

// leave tells that a caller waits no more. A group that all have left would never take
// its turn, nor pass it on.
func (q *grouping) leave(g *group) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if g.callers--; g.callers > 0 || g.begun {
		return
	}
	q.queue = slices.DeleteFunc(q.queue, func(o *group) bool { return o == g })
	select {
	case <-g.turn:
		q.next()
	default:
	}
}

// do has write write the entry, together with those that come meanwhile, and returns
// its answer. write gets a context that no single caller ends.
func (q *grouping) do(ctx context.Context, e job.Entry, write func(context.Context, []job.Entry) ([]job.Accepted, error)) (job.Accepted, error) {
	g, index := q.join(e)
	for {
		select {
		case <-g.turn:
			g.write(context.WithoutCancel(ctx), q.begin(g), write)
			q.end()
		case <-g.done:
			return g.accepted[index], g.errs[index]
		case <-ctx.Done():
			q.leave(g)
			return job.Accepted{}, context.Cause(ctx) // as with any call that was left, it may be written
		}
	}
}

// write writes the group, all or none. What the store refuses of the whole is written one
// by one, so that each gets its own answer.
func (g *group) write(ctx context.Context, entries []job.Entry, write func(context.Context, []job.Entry) ([]job.Accepted, error)) {
	defer close(g.done)
	accepted, err := write(ctx, entries)
	if err == nil || len(entries) == 1 || errors.Is(err, job.ErrUnavailable) {
		g.accepted, g.errs = accepted, make([]error, len(entries))
		if err != nil {
			g.accepted = make([]job.Accepted, len(entries))
			for i := range g.errs {
				g.errs[i] = err
			}
		}
		return
	}
	for i := range entries {
		one, err := write(ctx, entries[i:i+1])
		g.errs = append(g.errs, err)
		if err != nil {
			one = make([]job.Accepted, 1)
		}
		g.accepted = append(g.accepted, one[0])
	}
}
