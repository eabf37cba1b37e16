package dispatcher_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnpike/internal/dispatcher"
	"turnpike/internal/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

var lane = job.Lane{Placement: "none-confined", Pool: "default"}

func id(n int) job.ID { return job.ID(fmt.Sprintf("0190b5a0-7c1e-7d3a-9c53-%012x", n)) }

// row is one unfinished job.
type row struct {
	state       job.State
	dispatch    int
	publishedAt time.Time
}

// store is Postgres in memory: what the loops see of it.
type store struct {
	mu         sync.Mutex
	jobs       map[job.ID]*row
	load       job.LaneLoad
	down       error // what every call answers during an outage
	crossings  []job.Crossing
	budgets    []job.Budget
	oldest     time.Duration // lapsed lease
	holder     string
	until      time.Time
	epoch      int64
	skew       time.Duration // of the database's clock
	unchecked  []job.Unchecked
	good       []job.ID
	refused    map[job.ID]string
	reaps      []time.Time
	resigned   bool
	promotions int
	published  [][]job.Delivery // every call of Published
	settled    []job.Report
	schedules  []*schedule
}

func newStore(queued int) *store {
	s := &store{jobs: make(map[job.ID]*row), refused: make(map[job.ID]string), load: job.LaneLoad{Lane: lane}}
	for n := range queued {
		s.jobs[id(n+1)] = &row{state: job.Queued}
	}
	return s
}

func (s *store) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *store) count(state job.State) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if j.state == state {
			n++
		}
	}
	return n
}

func (s *store) allowed(epoch int64) error {
	if s.down != nil {
		return s.down
	}
	if epoch != s.epoch {
		return job.ErrNotLeader
	}
	return nil
}

func (s *store) Lead(_ context.Context, holder string, ttl time.Duration) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.down != nil:
		return 0, s.down
	case s.holder != holder && time.Now().Before(s.until):
		return 0, job.ErrNotLeader
	case s.holder != holder || !time.Now().Before(s.until):
		s.epoch++
	}
	s.holder, s.until = holder, time.Now().Add(ttl)
	return s.epoch, nil
}

func (s *store) Resign(_ context.Context, epoch int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.allowed(epoch); err != nil {
		return err
	}
	s.until, s.resigned = time.Time{}, true
	return nil
}

func (s *store) Unchecked(_ context.Context, epoch int64, limit int) ([]job.Unchecked, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unchecked[:min(limit, len(s.unchecked))], s.allowed(epoch)
}

func (s *store) Checked(_ context.Context, epoch int64, good []job.ID, refused map[job.ID]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.good = append(s.good, good...)
	for id, why := range refused {
		s.refused[id] = why
	}
	s.unchecked = nil
	return s.allowed(epoch)
}

func (s *store) Promote(_ context.Context, epoch int64, _ int) (int, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.promotions++
	return 0, time.Time{}, s.allowed(epoch)
}

// Crossings gives each crossing once.
func (s *store) Crossings(_ context.Context, epoch int64) ([]job.Crossing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.crossings
	s.crossings = nil
	return c, s.allowed(epoch)
}

func (s *store) Budgets(context.Context) ([]job.Budget, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budgets, s.down
}

func (s *store) Lapsed(context.Context) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.oldest, s.down
}

func (s *store) Load(context.Context) ([]job.LaneLoad, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.load
	l.Dispatched = 0
	for _, j := range s.jobs {
		if j.state == job.Dispatched {
			l.Dispatched++
		}
	}
	return []job.LaneLoad{l}, s.down
}

// Look finds everything to be due, so that each round does all there is to do.
func (s *store) Look(ctx context.Context) (job.Outlook, error) {
	lanes, err := s.Load(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range lanes {
		for _, j := range s.jobs {
			lanes[i].Ready = lanes[i].Ready || j.state == job.Queued
		}
	}
	return job.Outlook{Unchecked: len(s.unchecked) > 0, Due: true, Lanes: lanes}, err
}

// next dispatches a job and is what was selected.
func (s *store) next(id job.ID) job.Selected {
	j := s.jobs[id]
	j.state, j.publishedAt = job.Dispatched, time.Time{}
	j.dispatch++
	return s.selected(id)
}

func (s *store) selected(id job.ID) job.Selected {
	return job.Selected{Delivery: job.Delivery{Job: id, Dispatch: s.jobs[id].dispatch, Lane: lane}}
}

// take applies pick to at most limit jobs, in order of their ids.
func (s *store) take(limit int, want func(*row) bool, pick func(job.ID) job.Selected) (out []job.Selected) {
	var ids []job.ID
	for id, j := range s.jobs {
		if want(j) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids[:min(limit, len(ids))] {
		out = append(out, pick(id))
	}
	return out
}

func (s *store) Select(_ context.Context, epoch int64, _ job.Lane, n int) ([]job.Selected, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.allowed(epoch); err != nil {
		return nil, err
	}
	return s.take(n, func(j *row) bool { return j.state == job.Queued }, s.next), nil
}

func (s *store) Published(_ context.Context, ds []job.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return s.down
	}
	s.published = append(s.published, slices.Clone(ds))
	for _, d := range ds {
		if j := s.jobs[d.Job]; j.state == job.Dispatched && j.dispatch == d.Dispatch {
			j.publishedAt = time.Now()
		}
	}
	return nil
}

func (s *store) Unpublished(_ context.Context, epoch int64, limit int) ([]job.Selected, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.allowed(epoch); err != nil {
		return nil, err
	}
	return s.take(limit, func(j *row) bool { return j.state == job.Dispatched && j.publishedAt.IsZero() }, s.selected), nil
}

func (s *store) Redispatch(_ context.Context, epoch int64, _ job.Lane, olderThan time.Duration, all bool, limit int) ([]job.Selected, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.allowed(epoch); err != nil {
		return nil, err
	}
	return s.take(limit, func(j *row) bool {
		return j.state == job.Dispatched && !j.publishedAt.IsZero() && (all || time.Since(j.publishedAt) >= olderThan)
	}, s.next), nil
}

func (s *store) Clock(context.Context) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.skew), s.down
}

func (s *store) Reap(_ context.Context, epoch int64, _ time.Time, _ int) ([]job.Reaped, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.allowed(epoch); err != nil {
		return nil, err
	}
	s.reaps = append(s.reaps, time.Now())
	return nil, nil
}

func (s *store) Settle(_ context.Context, reports []job.Report) ([]job.Settled, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return nil, s.down
	}
	s.settled = append(s.settled, reports...)
	out := make([]job.Settled, len(reports))
	for i, r := range reports {
		out[i] = job.Settled{Job: r.Lease.Job, Attempt: r.Lease.Attempt, How: job.SettledNow}
	}
	return out, nil
}

// schedule is one schedule.
type schedule struct {
	job.Due
	retry    time.Time
	fail     error     // what firing answers
	room     int       // for so many jobs at once; 0: for any
	answer   job.Fired // what it does otherwise
	fired    []job.Firing
	deferred []string
}

func (s *store) Due(_ context.Context, limit int) (due []job.Due, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().Add(s.skew)
	for _, c := range s.schedules {
		if !c.At.After(now) && !c.retry.After(now) && len(due) < limit {
			c.Now = now
			due = append(due, c.Due)
		}
	}
	return due, s.down
}

func (s *store) scheduled(d job.Due) *schedule {
	return s.schedules[slices.IndexFunc(s.schedules, func(c *schedule) bool { return c.ID == d.ID })]
}

func (s *store) Fire(_ context.Context, epoch int64, f job.Firing) (job.Fired, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.allowed(epoch); err != nil {
		return job.Fired{}, err
	}
	c := s.scheduled(f.Due)
	switch {
	case c.fail != nil:
		return job.Fired{}, c.fail
	case c.room > 0 && len(f.Entries) > c.room:
		return job.Fired{}, job.ErrQueueFull
	case !c.At.Equal(f.At):
		return job.Fired{}, job.ErrConflict
	}
	c.At = f.Next
	c.fired = append(c.fired, f)
	return c.answer, nil
}

func (s *store) Defer(_ context.Context, epoch int64, d job.Due, wait time.Duration, why string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.scheduled(d)
	c.retry = time.Now().Add(wait)
	c.deferred = append(c.deferred, why)
	return s.allowed(epoch)
}

// stream is JetStream in memory.
type stream struct {
	mu       sync.Mutex
	store    *store // to see that nothing is published before its commit
	messages map[string]job.Delivery
	missing  bool // no stream: Ensure makes it
	created  time.Time
	down     error
	rebuilt  []job.Lane
	early    []job.Delivery
	cancels  []job.ID
}

func newStream(s *store) *stream {
	return &stream{store: s, messages: make(map[string]job.Delivery), missing: true}
}

func (q *stream) set(change func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
}

func (q *stream) wipe() {
	q.set(func() { q.missing, q.messages = true, make(map[string]job.Delivery) })
}

func (q *stream) held(d job.Delivery) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, there := q.messages[key(d)]
	return there
}

func key(d job.Delivery) string { return fmt.Sprint(d.Job, "/", d.Dispatch) }

func (q *stream) Publish(_ context.Context, _ job.Lane, ds []job.Delivery) []error {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make([]error, len(ds))
	for i, d := range ds {
		switch {
		case q.down != nil:
			out[i] = q.down
		case q.missing:
			out[i] = job.ErrLaneMissing
		default:
			q.messages[key(d)] = d
			q.store.mu.Lock()
			if q.store.jobs[d.Job].dispatch < d.Dispatch {
				q.early = append(q.early, d)
			}
			q.store.mu.Unlock()
		}
	}
	return out
}

func (q *stream) Ensure(_ context.Context, lanes []job.Lane) (map[string]time.Time, []string, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.down != nil {
		return nil, nil, q.down
	}
	created := make(map[string]time.Time)
	var fresh []string
	for _, l := range lanes {
		if q.missing {
			q.missing, q.created = false, time.Now()
			fresh = append(fresh, l.Placement)
		}
		created[l.Placement] = q.created
	}
	return created, fresh, nil
}

func (q *stream) Rebuild(_ context.Context, l job.Lane) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rebuilt = append(q.rebuilt, l)
	return q.down
}

// claim takes the message of a job as a worker would.
func (q *stream) claim(n int) (claimed []job.ID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	for k, d := range q.messages {
		if len(claimed) == n {
			break
		}
		delete(q.messages, k)
		if j := q.store.jobs[d.Job]; j.state == job.Dispatched && j.dispatch == d.Dispatch {
			j.state = job.Running
			claimed = append(claimed, d.Job)
		}
	}
	return claimed
}

func (q *stream) PushCancel(id job.ID) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cancels = append(q.cancels, id)
	return q.down
}

func (q *stream) ListenWakes(ctx context.Context, wake func()) error {
	wake()
	<-ctx.Done()
	return nil
}

func (q *stream) DrainReports(ctx context.Context, _ int, _ func(context.Context, []job.Report) error) (int, error) {
	<-ctx.Done()
	return 0, context.Cause(ctx)
}

// running is a loop under test; stop ends it and waits.
func running(t *testing.T, run func(context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			<-done
		})
	}
	t.Cleanup(stop)
	return stop
}

func dispatch(s *store, q *stream, holder string, bell dispatcher.Bell) *dispatcher.Dispatcher {
	return &dispatcher.Dispatcher{
		Store: s, Publisher: q, Streams: q, Reports: q, Wakes: q, Pusher: q,
		Sweep:  func(context.Context, int64) error { return nil },
		Holder: holder, Bell: bell,
		Health: &dispatcher.Health{Log: quiet}, Log: quiet,
	}
}
