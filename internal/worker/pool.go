package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"turnpike/internal/job"
)

// Store is what a pool's worker asks of the database.
type Store interface {
	Leases
	Reports
	Orphans
	// Register makes the worker known. job.ErrCeiling: the pool is registered with
	// another ceiling.
	Register(ctx context.Context, w job.WorkerInfo) error
	// Seen tells that the worker is alive and what it has free.
	Seen(ctx context.Context, w job.WorkerInfo) error
}

// Deliveries are the messages of one lane.
type Deliveries interface {
	// Fetch returns between none and n messages: what is there, or the first to come
	// within a bounded wait.
	Fetch(ctx context.Context, n int) ([]Message, error)
}

// Message is a delivery in hand, answered once.
type Message struct {
	job.Delivery
	Answer
}

// Answer removes a message, or gives it back after a delay. Answers may be lost.
type Answer interface {
	Ack()
	Nak(delay time.Duration)
}

// LaneConfig is a lane served, with as many turns at a time as it has slots.
type LaneConfig struct {
	Lane       job.Lane
	Slots      int
	Deliveries Deliveries
	// Via tells how its jobs are found now, and why not by the stream; nil tells nothing.
	Via func() (job.Transport, error)
}

// Pool serves lanes: pull by free slot, claim, run, settle.
type Pool struct {
	Turns *Turns
	Lanes []LaneConfig
	Store Store
	// Cancels and Results may be nil: cancelling then waits for the next beat, and
	// reports wait for Postgres.
	Cancels Cancels
	Results Results
	// OpenTranscript starts an attempt's stream; nil streams nothing.
	OpenTranscript func(job.ID, int) Transcript
	Retention      Retention
	Version        string

	BeatEvery   time.Duration // default 10 s
	CallTimeout time.Duration // of each database call; default 15 s
	// Drain is how long turns may go on after an ordered stop; default 1 minute.
	// Stopping, keeping and settling what is left then gets LastCall; default 2 minutes:
	// a grace, a large clone and a slow archive come before a report can be spooled.
	Drain, LastCall time.Duration
	Log             *slog.Logger

	once    sync.Once
	keeper  *Keeper
	settler *Settler
	refuse  context.CancelCauseFunc // ends serving, for a reason; set before anything calls it

	mu       sync.Mutex // guards the fields below
	lanes    []*lane
	draining bool
	running  sync.WaitGroup // turns; only a lane that serves adds
}

// unreadyLimit is how many attempts in a row a worker may fail to make ready before
// it stops serving the lane.
const unreadyLimit = 3

func (p *Pool) init() {
	p.once.Do(func() {
		p.BeatEvery = cmp.Or(p.BeatEvery, 10*time.Second)
		p.CallTimeout = cmp.Or(p.CallTimeout, 15*time.Second)
		p.Drain = cmp.Or(p.Drain, time.Minute)
		p.LastCall = cmp.Or(p.LastCall, 2*time.Minute)
		p.keeper = &Keeper{Leases: p.Store, Worker: p.Turns.Worker, Every: p.BeatEvery, CallTimeout: min(p.CallTimeout, p.BeatEvery), Log: p.Log}
		p.settler = &Settler{
			Reports: p.Store, Results: p.Results, State: p.Turns.State, CallTimeout: p.CallTimeout,
			Settled: func(s job.Settled) { p.keeper.Drop(s.Job, s.Attempt) },
			Hooks:   p.Turns.Hooks, Log: p.Log,
		}
		for _, c := range p.Lanes {
			p.lanes = append(p.lanes, &lane{pool: p, LaneConfig: c, changed: make(chan struct{}, 1), tokens: make(map[dispatchKey]token)})
		}
	})
}

// Run serves until ctx ends and then drains: fetching stops everywhere at once,
// turns may go on for Drain, then they are stopped, and what they leave is settled.
// It returns nil on an ordered stop, and an error that wraps job.ErrCeiling when the
// pool has another ceiling.
func (p *Pool) Run(ctx context.Context) error {
	p.init()
	recovery := &Recovery{
		State: p.Turns.State, Worker: p.Turns.Worker, Host: p.Turns.Host, End: p.Turns.End, Sessions: p.Turns.Sessions,
		Orphans: p.Store, Put: p.settler.Put, Reported: p.settler.Pending, Clean: p.Turns.Clean,
		Prices: p.Turns.Prices, Log: p.Log,
	}
	// The spool first: a report that is already there says more than recovery can.
	if err := p.settler.Replay(); err != nil {
		p.Log.Error("the spool of an earlier worker", "error", err)
	}
	if err := recovery.Run(ctx); err != nil {
		p.Log.Error("what an earlier worker left", "error", err)
	}
	if err := p.register(ctx); err != nil {
		return err
	}
	// A pool that was registered anew with another ceiling meanwhile is not ours.
	ctx, p.refuse = context.WithCancelCause(ctx)
	defer p.refuse(nil)

	// What keeps turns alive outlives the order to stop: each part below ends when
	// its own context does.
	keeping, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	var keepers sync.WaitGroup
	defer keepers.Wait()
	defer stopKeeping()
	settling, stopSettling := context.WithCancel(keeping)
	defer stopSettling()
	settled := make(chan struct{})
	keepers.Go(func() { p.must(p.keeper.Run(keeping)) })
	keepers.Go(func() { defer close(settled); p.must(p.settler.Run(settling)) })
	keepers.Go(func() { p.tellAlive(keeping) })
	keepers.Go(func() { p.retain(keeping) })
	if p.Cancels != nil {
		keepers.Go(func() { p.listen(keeping) })
	}

	turns, stopAll := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopAll(nil)
	var lanes sync.WaitGroup
	for _, l := range p.lanes {
		lanes.Go(func() { l.serve(ctx, turns) })
	}
	p.Log.Info("serving", "lanes", len(p.lanes), "worker", p.Turns.Worker)

	<-ctx.Done()
	drained := time.NewTimer(p.Drain)
	defer drained.Stop()
	p.mu.Lock()
	p.draining = true
	p.mu.Unlock()
	p.Log.Info("draining: no more jobs are taken", "turns may go on for", p.Drain.String())
	keepers.Go(func() { p.seen(keeping) })
	ended := make(chan struct{})
	go func() { defer close(ended); lanes.Wait(); p.running.Wait() }()
	select {
	case <-ended:
	case <-drained.C:
		p.Log.Warn("draining took too long; the turns are stopped")
		stopAll(job.ErrDrained)
	}
	// From here one deadline for stopping and settling.
	last, cancel := context.WithTimeout(keeping, p.LastCall)
	defer cancel()
	select {
	case <-ended:
	case <-last.Done():
		p.Log.Error("turns did not end; they are left to the next worker of this state directory")
	}
	stopSettling()
	<-settled
	p.settler.Flush(last)
	if n := p.settler.Count(); n > 0 {
		p.Log.Warn("reports are left in the spool for the next worker", "reports", n)
	}
	p.seen(last)
	if cause := context.Cause(ctx); errors.Is(cause, job.ErrCeiling) {
		return fmt.Errorf("serve: %w", cause)
	}
	return nil
}

func (p *Pool) must(err error) {
	if err != nil {
		p.Log.Error("a part of the worker stopped", "error", err)
	}
}

// register tries until the database answers.
func (p *Pool) register(ctx context.Context) error {
	for wait := 250 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		err := p.call(ctx, func(ctx context.Context) error { return p.Store.Register(ctx, p.info()) })
		switch {
		case err == nil:
			return nil
		case errors.Is(err, job.ErrCeiling), errors.Is(err, job.ErrLeaseLength):
			return fmt.Errorf("register: %w", err)
		}
		p.Log.Warn("the worker cannot register yet", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (p *Pool) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.CallTimeout)
	defer cancel()
	return f(ctx)
}

// tellAlive tells every ten seconds, and whenever a lane closes.
func (p *Pool) tellAlive(ctx context.Context) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.seen(ctx)
		}
	}
}

func (p *Pool) seen(ctx context.Context) {
	err := p.call(ctx, func(ctx context.Context) error { return p.Store.Seen(ctx, p.info()) })
	if errors.Is(err, job.ErrCeiling) {
		p.refuse(err)
	}
	if err != nil && ctx.Err() == nil {
		p.Log.Warn("the worker could not tell that it is alive", "error", err)
	}
}

func (p *Pool) listen(ctx context.Context) {
	for {
		err := p.Cancels.ListenCancels(ctx, p.keeper.Hint)
		if ctx.Err() != nil {
			return
		}
		p.Log.Warn("cancels come with beats only for now", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Second):
		}
	}
}

func (p *Pool) retain(ctx context.Context) {
	r := p.Retention
	r.Turns, r.Log = p.Turns, p.Log
	r.InUse = p.inUse
	p.must(r.Run(ctx))
}

// inUse says whether an attempt runs or is not settled.
func (p *Pool) inUse(id job.ID, attempt int) bool {
	return p.keeper.holds(id, attempt) || p.settler.Pending(id, attempt)
}

func (p *Pool) info() job.WorkerInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := job.WorkerInfo{
		ID: p.Turns.Worker, Host: p.Turns.Host, Version: p.Version, Ceiling: p.Turns.Ceiling.Hash(),
		StateDir: p.Turns.State.ID(), Draining: p.draining, Inert: p.Turns.inert(),
	}
	for _, l := range p.lanes {
		w.Lanes = append(w.Lanes, l.slotsLocked())
	}
	return w
}

// Status is how the worker's lanes stand.
func (p *Pool) Status() job.WorkerInfo {
	p.init()
	return p.info()
}

// lane is one lane being served. Its pool's mu guards busy, closed, unready and bad.
type lane struct {
	pool *Pool
	LaneConfig
	changed chan struct{} // holds one: a slot came free
	tokens  map[dispatchKey]token

	busy    int
	closed  string // for good
	unready string // for now
	bad     int    // attempts in a row that could not be made ready
}

// dispatchKey is one publication of a job.
type dispatchKey struct {
	job      job.ID
	dispatch int
}

// token is what a claim of unknown outcome was sent with. Claiming again with it
// cannot take the job twice.
type token struct {
	token job.Token
	sent  time.Time
}

func (l *lane) slotsLocked() job.LaneSlots {
	s := job.LaneSlots{Lane: l.Lane, Via: l.via(), Slots: l.Slots, Free: l.Slots - l.busy, Closed: cmp.Or(l.closed, l.unready)}
	if s.Closed != "" || l.pool.draining {
		s.Free = 0
	}
	return s
}

func (l *lane) via() job.Transport {
	if l.Via == nil {
		return ""
	}
	t, _ := l.Via() // why is for whoever asks the worker itself
	return t
}

// pause is how long a lane waits after something went wrong.
const pause = time.Second

// serve pulls and runs until ctx ends or the lane closes.
func (l *lane) serve(ctx, turns context.Context) {
	for ctx.Err() == nil {
		free, closed := l.free()
		switch {
		case closed:
			return
		case free == 0:
			select {
			case <-ctx.Done():
			case <-l.changed:
			}
			continue
		case !l.ready():
			l.rest(ctx, 5*pause)
			continue
		}
		msgs, err := l.Deliveries.Fetch(ctx, free)
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, job.ErrLaneMissing):
			l.pool.Log.Info("the dispatcher is yet to set the lane up", "lane", l.Lane)
			l.rest(ctx, pause/2)
		default:
			l.pool.Log.Warn("nothing could be fetched", "lane", l.Lane, "error", err)
			l.rest(ctx, pause)
		}
		if len(msgs) > 0 {
			l.take(ctx, turns, msgs)
		}
	}
}

func (l *lane) rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (l *lane) free() (n int, closed bool) {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	return l.Slots - l.busy, l.closed != ""
}

// ready says whether the worker has room for another turn, and tells when that
// changes.
func (l *lane) ready() bool {
	err := l.pool.Turns.ready()
	if n := l.pool.settler.Count(); err == nil && n >= l.pool.settler.Most {
		err = fmt.Errorf("%d reports are not settled yet", n)
	}
	why := ""
	if err != nil {
		why = text(err)
	}
	l.pool.mu.Lock()
	was := l.unready
	l.unready = why
	l.pool.mu.Unlock()
	if (was == "") != (why == "") {
		l.pool.Log.Warn("the lane's readiness changed", "lane", l.Lane, "unready", why)
	}
	return err == nil
}

// take claims messages and runs what is granted.
func (l *lane) take(ctx, turns context.Context, msgs []Message) {
	if ctx.Err() != nil {
		give(msgs, 0)
		return
	}
	claims, sent := l.claims(msgs)
	granted, err := l.claim(ctx, claims)
	if err != nil {
		l.pool.Log.Warn("claims have no answer; the messages go back", "lane", l.Lane, "messages", len(msgs), "error", err)
		give(msgs, 2*pause)
		return
	}
	// The commit is known: from here on the lease is the only lease.
	for _, m := range msgs {
		m.Ack()
		delete(l.tokens, dispatchKey{m.Job, m.Dispatch})
	}
	for _, c := range granted {
		at, ours := sent[c.Token]
		if !ours {
			l.pool.Log.Error("a lease was granted that was not asked for", "job", c.Job)
			continue
		}
		l.pool.Turns.Hooks.at(AfterClaim)
		l.start(turns, c, at)
	}
}

func give(msgs []Message, delay time.Duration) {
	for _, m := range msgs {
		m.Nak(delay)
	}
}

// claims makes a claim of each message. One whose claim had no answer before is
// claimed with the same token, and its lease counts from then.
func (l *lane) claims(msgs []Message) ([]job.Claim, map[job.Token]time.Time) {
	now := time.Now()
	for k, t := range l.tokens {
		if now.Sub(t.sent) > time.Hour {
			delete(l.tokens, k)
		}
	}
	claims := make([]job.Claim, 0, len(msgs))
	sent := make(map[job.Token]time.Time, len(msgs))
	for _, m := range msgs {
		k := dispatchKey{m.Job, m.Dispatch}
		t, ok := l.tokens[k]
		if !ok {
			t = token{job.NewToken(), now}
			l.tokens[k] = t
		}
		claims = append(claims, job.Claim{Job: m.Job, Dispatch: m.Dispatch, Token: t.token})
		sent[t.token] = t.sent
	}
	return claims, sent
}

// claim asks a few times: a claim whose answer was lost may have been granted. Once
// the order to stop came it asks no more: such a lease is left to lapse.
func (l *lane) claim(ctx context.Context, claims []job.Claim) (granted []job.Claimed, err error) {
	// A granted lease must be known even when the order to stop comes in between.
	asking := context.WithoutCancel(ctx)
	for try := range 3 {
		if try > 0 {
			l.rest(ctx, time.Duration(try)*pause/4)
			if ctx.Err() != nil {
				break
			}
		}
		err = l.pool.call(asking, func(ctx context.Context) error {
			granted, err = l.pool.Store.Claim(ctx, l.pool.Turns.Worker, l.Lane, claims)
			return err
		})
		if err == nil {
			return granted, nil
		}
	}
	return nil, err
}

// start runs one claimed attempt in a slot.
func (l *lane) start(turns context.Context, c job.Claimed, sent time.Time) {
	p := l.pool
	p.mu.Lock()
	l.busy++
	p.mu.Unlock()
	ctx, stop := context.WithCancelCause(turns)
	h := p.keeper.hold(c, sent, stop)
	p.running.Go(func() {
		defer stop(nil)
		l.run(ctx, c, h)
	})
}

func (l *lane) run(ctx context.Context, c job.Claimed, h *kept) {
	p := l.pool
	var stream Transcript
	if p.OpenTranscript != nil {
		stream = p.OpenTranscript(c.Job, c.Attempt)
	}
	rep, local := p.Turns.claimed(ctx, c, h, stream)
	h.end(len(rep.Left) > 0)
	if stream != nil {
		// It must not hold up the slot for long, nor the report.
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if n := stream.Close(ctx); n > 0 {
				p.Log.Warn("transcript lines were not streamed; the session directory has them", "job", c.Job, "attempt", c.Attempt, "lines", n)
			}
		}()
	}
	p.Log.Info("attempt ended", "job", c.Job, "attempt", c.Attempt, "ending", rep.Ending, "reason", rep.Reason)
	err := p.settler.Put(rep)
	if err == nil {
		err = p.Turns.settled(rep)
	}
	if err != nil {
		p.Log.Error("the attempt's end is not durable here", "job", c.Job, "attempt", c.Attempt, "error", err)
	}
	l.release(rep.Ending, local)
}

// release frees the slot and judges the lane by how the attempt ended. An attempt
// that another worker could not have made ready either says nothing about the lane.
func (l *lane) release(ending job.Ending, local bool) {
	p := l.pool
	p.mu.Lock()
	l.busy--
	closing := false
	switch {
	case ending != job.EndUnready:
		l.bad = 0
	case local:
		l.bad++
	}
	if l.bad >= unreadyLimit && l.closed == "" {
		l.closed = fmt.Sprintf("%d attempts in a row could not be made ready", l.bad)
		closing = true
	}
	p.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
	if closing {
		p.Log.Error("the lane is closed until this worker starts again", "lane", l.Lane, "reason", "attempts in a row could not be made ready")
		p.seen(context.Background())
	}
}
