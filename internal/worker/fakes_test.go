package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/job"
	"turnpike/internal/vcs"
	"turnpike/internal/worker"
)

const lane = "none-confined/default"

// store is Postgres as a worker sees it, in memory.
type store struct {
	mu        sync.Mutex
	away      bool          // every call fails
	length    time.Duration // of leases
	leases    map[job.ID]job.Lease
	dispatch  map[job.ID]int
	requests  map[job.ID]job.Request
	cancelled map[job.ID]*job.Cancelled
	left      map[job.ID]*job.Left
	over      map[job.ID]*job.OverBudget
	settled   map[string]job.Report
	beats     []job.Beat
	orphans   []job.Orphan
	infos     []job.WorkerInfo
	number    int64
	// lose makes the next n claims commit and then fail, as a cut connection would.
	lose     int
	claims   int
	deaf     bool          // beats alone fail
	hazy     bool          // beats renew, and then fail
	busy     chan struct{} // when set, beats have no answer yet, and each tells here
	stalled  bool          // claims have no answer
	refuse   func(job.Report) error
	unknown  map[job.ID]bool
	register error
	reported chan job.Report // when set, gets each report settled for the first time
}

func newStore() *store {
	return &store{
		length: time.Minute, leases: map[job.ID]job.Lease{}, dispatch: map[job.ID]int{}, requests: map[job.ID]job.Request{},
		cancelled: map[job.ID]*job.Cancelled{}, left: map[job.ID]*job.Left{}, over: map[job.ID]*job.OverBudget{}, settled: map[string]job.Report{}, unknown: map[job.ID]bool{}, reported: make(chan job.Report, 1000),
	}
}

var errAway = fmt.Errorf("postgres: %w", job.ErrUnavailable)

func (s *store) set(f func()) { s.mu.Lock(); defer s.mu.Unlock(); f() }

// add dispatches a job.
func (s *store) add(n int, r job.Request) job.Delivery {
	id := job.ID(fmt.Sprintf("00000000-0000-7000-8000-%012d", n))
	s.set(func() { s.requests[id], s.dispatch[id] = r, 1 })
	l, err := job.ParseLane(lane)
	if err != nil {
		panic(err)
	}
	return job.Delivery{Version: 1, Job: id, Dispatch: 1, Lane: l}
}

func (s *store) Claim(ctx context.Context, _ string, l job.Lane, claims []job.Claim) ([]job.Claimed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims++
	if s.stalled {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return nil, errAway
	}
	if s.away {
		return nil, errAway
	}
	var granted []job.Claimed
	for _, c := range claims {
		held, taken := s.leases[c.Job]
		if s.dispatch[c.Job] != c.Dispatch || taken && held.Token != c.Token {
			continue
		}
		if !taken {
			s.number++
			held = job.Lease{Job: c.Job, Attempt: c.Dispatch, Number: s.number, Token: c.Token}
			s.leases[c.Job] = held
		}
		raw, err := json.Marshal(s.requests[c.Job])
		if err != nil {
			return nil, err
		}
		granted = append(granted, job.Claimed{Lease: held, Length: s.length, Lane: l, Request: raw, Left: s.left[c.Job]})
	}
	if s.lose > 0 {
		s.lose--
		return nil, errAway
	}
	return granted, nil
}

func (s *store) Beat(_ context.Context, _ string, beats []job.Beat) ([]job.Beaten, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away || s.deaf {
		return nil, errAway
	}
	s.beats = append(s.beats, beats...)
	if s.busy != nil {
		select {
		case s.busy <- struct{}{}:
		default: // nobody counts so far
		}
		return nil, nil
	}
	var answers []job.Beaten
	for _, b := range beats {
		ours := s.leases[b.Job].Token == b.Token
		a := job.Beaten{Job: b.Job, Ours: ours}
		if ours {
			a.Cancelled, a.Over = s.cancelled[b.Job], s.over[b.Job]
		}
		answers = append(answers, a)
	}
	if s.hazy {
		return answers, errAway
	}
	return answers, nil
}

func (s *store) Settle(_ context.Context, reports []job.Report) ([]job.Settled, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, errAway
	}
	if s.refuse != nil {
		for _, r := range reports {
			if err := s.refuse(r); err != nil {
				return nil, err
			}
		}
	}
	var answers []job.Settled
	for _, r := range reports {
		a := job.Settled{Job: r.Lease.Job, Attempt: r.Lease.Attempt, How: job.SettledNow}
		key := fmt.Sprint(r.Lease.Job, r.Lease.Attempt)
		switch _, before := s.settled[key]; {
		case s.unknown[r.Lease.Job]:
			a.How = job.SettledNever
		case before:
			a.How = job.SettledBefore
		default:
			if s.leases[r.Lease.Job].Token != r.Lease.Token {
				a.How = job.SettledLate
			}
			s.settled[key] = r
			s.reported <- r
		}
		answers = append(answers, a)
	}
	return answers, nil
}

func (s *store) RecordOrphan(_ context.Context, o job.Orphan) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errAway
	}
	s.orphans = append(s.orphans, o)
	return nil
}

func (s *store) Register(_ context.Context, w job.WorkerInfo) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errAway
	}
	return s.register
}

func (s *store) Seen(_ context.Context, w job.WorkerInfo) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.infos = append(s.infos, w)
	return nil
}

// stream is one lane's messages in memory.
type stream struct {
	mu      sync.Mutex
	queue   []job.Delivery
	acked   []job.ID
	naked   []job.ID
	fetches []int
	more    chan struct{}
}

func newStream(ds ...job.Delivery) *stream { return &stream{queue: ds, more: make(chan struct{}, 1)} }

func (q *stream) push(ds ...job.Delivery) {
	q.mu.Lock()
	q.queue = append(q.queue, ds...)
	q.mu.Unlock()
	select {
	case q.more <- struct{}{}:
	default:
	}
}

func (q *stream) Fetch(ctx context.Context, n int) ([]worker.Message, error) {
	q.mu.Lock()
	q.fetches = append(q.fetches, n)
	empty := len(q.queue) == 0
	q.mu.Unlock()
	if empty {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-q.more:
		case <-time.After(5 * time.Second):
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var msgs []worker.Message
	for _, d := range q.queue[:min(n, len(q.queue))] {
		msgs = append(msgs, worker.Message{Delivery: d, Answer: &answer{q, d}})
	}
	q.queue = q.queue[len(msgs):]
	return msgs, nil
}

type answer struct {
	q *stream
	d job.Delivery
}

func (a *answer) Ack() {
	a.q.mu.Lock()
	defer a.q.mu.Unlock()
	a.q.acked = append(a.q.acked, a.d.Job)
}

// Nak gives the message back at once: its delay is the server's to keep.
func (a *answer) Nak(time.Duration) {
	a.q.mu.Lock()
	a.q.naked = append(a.q.naked, a.d.Job)
	a.q.mu.Unlock()
	a.q.push(a.d)
}

// sessions are session directories in memory but for the directory itself.
type sessions struct {
	root string
	past worker.Past
}

func (s sessions) New(name string) (string, error) {
	return os.MkdirTemp(s.root, name+"-")
}
func (s sessions) Read(string) (worker.Past, error) { return s.past, nil }
func (s sessions) Remove(dir string) error          { return os.RemoveAll(dir) }
func (s sessions) List() ([]worker.SessionEntry, error) {
	entries, err := os.ReadDir(s.root)
	var l []worker.SessionEntry
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		l = append(l, worker.SessionEntry{Dir: filepath.Join(s.root, e.Name()), Bytes: 100, EndedAt: info.ModTime()})
	}
	return l, err
}

// places are workspaces that need no disk.
type places struct {
	dir string
	err error

	mu       sync.Mutex
	released int
}

func (p *places) Acquire(context.Context, vcs.Spec) (vcs.Workspace, error) {
	return vcs.Workspace{Dir: p.dir}, p.err
}

func (p *places) Release(context.Context, vcs.Workspace) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released++
	return nil
}

// control notes what the keeper does to a turn.
type control struct {
	mu     sync.Mutex
	frozen bool
	log    []string
	until  time.Time
	err    error
	stuck  chan struct{} // when set, the first call waits for it
	told   chan string   // when set, each call tells what it did
}

func (c *control) note(what string, frozen bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if stuck := c.stuck; stuck != nil {
		c.stuck = nil
		c.mu.Unlock()
		<-stuck
		c.mu.Lock()
	}
	if c.err != nil {
		return c.err
	}
	c.log, c.frozen = append(c.log, what), frozen
	if c.told != nil {
		c.told <- what
	}
	return nil
}
func (c *control) Freeze() error { return c.note("freeze", true) }
func (c *control) Thaw() error   { return c.note("thaw", false) }
func (c *control) RunUntil(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = at
	return nil
}

// bound is when the turn was last told to stand still by itself.
func (c *control) bound() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.until
}
func (c *control) history() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.log)
}

// runs is a runner whose turns last until told otherwise.
type runs struct {
	mu      sync.Mutex
	active  int
	most    int
	started chan worker.Launch
	finish  chan *agent.Result // nil closes at once with success
	control *control
	err     error
	linger  time.Duration // how long a stopped turn takes to be gone
}

func newRuns() *runs {
	return &runs{started: make(chan worker.Launch, 1000), finish: make(chan *agent.Result, 1000), control: &control{}}
}

func (r *runs) run(ctx context.Context, l worker.Launch) (*agent.Result, error) {
	if r.err != nil {
		return nil, r.err
	}
	id := agent.Identity{Kind: agent.KindProcess, Label: l.Session}
	if err := l.Recorder.Creating(ctx, id); err != nil {
		return nil, err
	}
	if l.Observer.Starting != nil {
		until, err := l.Observer.Starting(ctx)
		if err != nil {
			return nil, err
		}
		_ = r.control.RunUntil(until) // it takes any
	}
	id.PID, id.StartTime, id.BootID = 42, 7, "boot"
	if err := l.Recorder.Live(ctx, id); err != nil {
		return nil, err
	}
	begun := time.Now()
	l.Observer.Started(r.control)
	l.Observer.Progress(agent.Progress{Conversation: "conv", Turns: 1, ToolCalls: 2, CostUSD: 0.5, CostKnown: true})
	r.mu.Lock()
	r.active++
	r.most = max(r.most, r.active)
	r.mu.Unlock()
	r.started <- l
	var res *agent.Result
	select {
	case res = <-r.finish:
	case <-ctx.Done():
		time.Sleep(r.linger)
		res = &agent.Result{IsError: true, ErrorSubtype: agent.SubtypeCancelled}
	}
	r.mu.Lock()
	r.active--
	r.mu.Unlock()
	res.StartedAt, res.Duration = begun, time.Since(begun)
	return res, l.Recorder.Gone(ctx, id)
}

// rig is a pool over fakes.
type rig struct {
	store  *store
	stream *stream
	runs   *runs
	places *places
	pool   *worker.Pool
	state  *worker.StateDir
}

func newRig(t testing.TB, slots int) *rig {
	t.Helper()
	base := t.TempDir()
	state, err := worker.OpenStateDir(filepath.Join(base, "state"))
	must(t, err)
	t.Cleanup(func() { state.Close() })
	return rigIn(t, base, state, slots)
}

func rigIn(t testing.TB, base string, state *worker.StateDir, slots int) *rig {
	t.Helper()
	c, err := worker.ParseCeiling([]byte("placements: [none-confined]\nagents: [claude]\ntools: [Read]\nworkspaces: {scratch: true}\n"))
	must(t, err)
	ws, err := filepath.EvalSymlinks(base)
	must(t, err)
	r := &rig{store: newStore(), stream: newStream(), runs: newRuns(), places: &places{dir: ws}, state: state}
	l, err := job.ParseLane(lane)
	must(t, err)
	r.pool = &worker.Pool{
		Turns: &worker.Turns{
			Ceiling: c, State: state, Sessions: sessions{root: state.Sessions()}, Workspaces: r.places, Run: r.runs.run,
			End:   func(context.Context, agent.Identity) (bool, error) { return false, nil },
			Floor: 1, Worker: "w1", Host: "h1", Log: quiet(),
		},
		Lanes: []worker.LaneConfig{{Lane: l, Slots: slots, Deliveries: r.stream}},
		Store: r.store, Log: quiet(), Drain: time.Minute, LastCall: 10 * time.Second,
	}
	return r
}

// serve runs the pool until the returned function is called.
func (r *rig) serve(t testing.TB) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.pool.Run(ctx) }()
	return func() error { cancel(); return <-done }
}

func plain() job.Request {
	r := request()
	r.Grants = &job.Grants{Tools: []string{"Read"}, Mounts: []job.Mount{{Path: "workspace:", Access: "rw"}}}
	return r
}
