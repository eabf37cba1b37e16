package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

// Leases hands out the right to run a job and renews it.
type Leases interface {
	// Claim asks for several leases at once. A job that is missing in the answer is
	// refused; an error means that nothing is known. A claim repeated with its token
	// answers the same lease.
	Claim(ctx context.Context, worker string, lane job.Lane, claims []job.Claim) ([]job.Claimed, error)
	// Beat renews leases and answers for each whether it still is the worker's. What is
	// missing in the answer is not known yet.
	Beat(ctx context.Context, worker string, beats []job.Beat) ([]job.Beaten, error)
}

// Cancels tells, sooner than the next beat would, that a job was cancelled. It is
// a hint: the keeper asks Postgres at once and acts on its answer.
type Cancels interface {
	// ListenCancels calls hint for each job until ctx ends; with no id when hints may
	// have been missed.
	ListenCancels(ctx context.Context, hint func(job.ID)) error
}

// Standing is what the keeper knows of one running turn.
type Standing struct {
	// Good is when the last beat that renewed the lease was sent, or the claim was:
	// the database's lease is no older. By this process's monotonic clock.
	Good   time.Time
	Length time.Duration
	Frozen bool
	// Lost says that the lease is known to be somebody else's or nobody's.
	Lost bool
	// Cancelled is the person's request, nil without one.
	Cancelled *job.Cancelled
	// Over is a budget of the job's that is spent, nil without one.
	Over *job.OverBudget
}

// Action is what the keeper does about a turn.
type Action int

// The actions.
const (
	LetRun Action = iota
	Freeze
	Thaw
	Stop
)

// doubt is how long before its end a lease counts as doubtful: 15 s, less where
// leases are short.
func doubt(length time.Duration) time.Duration { return min(15*time.Second, length/4) }

// FreezeAt is when the turn must stand still unless a beat succeeds first.
func (s Standing) FreezeAt() time.Time { return s.Good.Add(s.Length - doubt(s.Length)) }

// errFenced ends a turn that may not go on for a moment.
var errFenced = fmt.Errorf("%w: %w", job.ErrLeaseLost, agent.ErrFenced)

// Decide is the keeper's whole judgement. A turn without a good beat stands still
// before its lease can lapse, and for as long as nobody says whose it is: until
// then Postgres is as far from a reaper as from this worker.
func Decide(s Standing, now time.Time) (Action, error) {
	doubtful := !now.Before(s.FreezeAt())
	switch {
	case s.Lost:
		return Stop, errFenced
	case s.Cancelled != nil:
		return Stop, s.Cancelled
	case s.Over != nil:
		return Stop, s.Over
	case doubtful && !s.Frozen:
		return Freeze, nil
	case !doubtful && s.Frozen:
		return Thaw, nil
	}
	return LetRun, nil
}

// Keeper keeps the leases of all attempts of one worker.
type Keeper struct {
	Leases Leases
	Worker string
	// Every is the time between beats; default 10 s, and at most a sixth of the
	// shortest lease held.
	Every time.Duration
	// CallTimeout bounds one beat; default Every.
	CallTimeout time.Duration
	Log         *slog.Logger

	once  sync.Once
	nudge chan struct{} // holds one: somebody's beat is urgent
	look  chan struct{} // holds one: a turn came or was steered, judge all anew

	mu   sync.Mutex // guards held and every kept in it
	held map[attemptKey]*kept
}

// kept is one attempt whose lease is kept, from its claim until its report is settled.
type kept struct {
	keeper  *Keeper
	lease   job.Lease
	stop    context.CancelCauseFunc
	control agent.Control // nil until the agent runs
	until   time.Time     // when it was told to stand still by itself
	// earlier are the attempts of the same job that were here when this one came.
	earlier []*kept

	standing Standing
	ended    bool          // the turn is over: its lease is kept for the report's sake alone
	left     bool          // it is over, and something of it could not be shown to be gone
	over     chan struct{} // closed with ended
	stopped  bool
	steering bool          // a freeze or a thaw is under way
	begun    bool          // recorded is closed
	urgent   bool          // its beat cannot wait for the others'
	beat     job.Beat      // what the next beat carries
	recorded chan struct{} // closed once a beat with StartedAt succeeded
}

func (k *Keeper) init() {
	k.once.Do(func() {
		k.nudge = make(chan struct{}, 1)
		k.look = make(chan struct{}, 1)
		k.held = make(map[attemptKey]*kept)
		k.Every = cmp.Or(k.Every, 10*time.Second)
		k.CallTimeout = cmp.Or(k.CallTimeout, k.Every)
	})
}

// hold begins to keep a claimed lease. sent is when its claim was sent. stop ends
// the attempt's context with a cause. Another attempt of the job that is still here
// was closed while this worker could not hear of it: the newer lease says so.
func (k *Keeper) hold(c job.Claimed, sent time.Time, stop context.CancelCauseFunc) *kept {
	k.init()
	h := &kept{
		keeper: k, lease: c.Lease, stop: stop,
		standing: Standing{Good: sent, Length: c.Length},
		beat:     job.Beat{Lease: c.Lease},
		recorded: make(chan struct{}), over: make(chan struct{}),
	}
	k.mu.Lock()
	for _, other := range k.held {
		switch {
		case other.lease.Job != c.Job:
		case other.lease.Number < c.Number:
			other.standing.Lost = true
			h.earlier = append(h.earlier, other)
		case other.lease.Number > c.Number:
			h.standing.Lost = true
		}
	}
	k.held[keyOf(c.Lease)] = h
	k.mu.Unlock()
	// Its claim was as good as a beat.
	k.lookAgain()
	return h
}

// Drop forgets an attempt: its report is settled.
func (k *Keeper) Drop(id job.ID, attempt int) {
	k.init()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.held, attemptKey{id, attempt})
}

// Frozen counts the turns that stand still until it is known whose they are.
func (k *Keeper) Frozen() (n int) {
	k.init()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range k.held {
		if h.standing.Frozen && !h.ended {
			n++
		}
	}
	return n
}

// holds says whether the attempt's lease is kept.
func (k *Keeper) holds(id job.ID, attempt int) bool {
	k.init()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held[attemptKey{id, attempt}] != nil
}

// beatSoon sends the beats that are urgent at once.
func (k *Keeper) beatSoon() {
	select {
	case k.nudge <- struct{}{}:
	default:
	}
}

// lookAgain has every turn judged anew, without a beat.
func (k *Keeper) lookAgain() {
	select {
	case k.look <- struct{}{}:
	default:
	}
}

// Hint says that a job may have been cancelled: if it runs here, Postgres is asked at
// once. No id is any job.
func (k *Keeper) Hint(id job.ID) {
	k.init()
	k.mu.Lock()
	due := false
	for key, h := range k.held {
		if (id == "" || key.Job == id) && !h.ended {
			h.urgent, due = true, true
		}
	}
	k.mu.Unlock()
	if due {
		k.beatSoon()
	}
}

// answer is what became of one beat.
type answer struct {
	sent  time.Time
	asked []job.Beat
	got   []job.Beaten
	err   error
}

// Run beats until ctx ends. Neither a beat in flight nor a turn that is slow to
// freeze delays another turn's freeze.
func (k *Keeper) Run(ctx context.Context) error {
	k.init()
	var (
		answers  = make(chan answer, 1)
		inFlight = false
		again    = false // asked for while a beat was in flight
		next     = time.Now()
		failures = 0
		steers   sync.WaitGroup
	)
	defer steers.Wait()
	defer func() {
		if inFlight {
			<-answers
		}
	}()
	beat := func(all bool) {
		again = false
		beats := k.beats(all)
		if len(beats) == 0 || ctx.Err() != nil {
			return
		}
		inFlight = true
		sent := time.Now()
		go func() {
			ctx, cancel := context.WithTimeout(ctx, k.CallTimeout)
			defer cancel()
			got, err := k.Leases.Beat(ctx, k.Worker, beats)
			answers <- answer{sent, beats, got, err}
		}()
	}
	for {
		now := time.Now()
		if due := !now.Before(next); !inFlight && (again || due) {
			if due {
				next = now.Add(k.interval())
			}
			beat(due)
		}
		wake := next
		if inFlight {
			wake = now.Add(time.Hour)
		}
		if at := k.enforce(now, &steers); !at.IsZero() && at.Before(wake) {
			wake = at
		}
		timer := time.NewTimer(time.Until(wake))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-k.nudge:
			again = true
		case <-k.look:
			next = earlier(next, time.Now().Add(k.interval()))
		case a := <-answers:
			inFlight = false
			k.learn(a) // what was answered counts, whatever failed after it
			switch {
			case a.err == nil:
				failures = 0
			case len(a.got) > 0:
				failures = 0
				k.Log.Warn("leases were renewed, but not all about them is known", "turns", len(a.asked), "error", a.err)
			default:
				failures++
				k.Log.Warn("leases were not renewed", "turns", len(a.asked), "failures", failures, "error", a.err)
			}
			if len(a.got) < len(a.asked) {
				// Soon again, while the lease lasts; but not all workers at once.
				next = earlier(next, time.Now().Add(min(k.interval(), time.Second<<min(failures, 4)/2)))
			}
		case <-timer.C:
		}
		timer.Stop()
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// interval is the time between beats, by the shortest lease held.
func (k *Keeper) interval() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	every := k.Every
	for _, h := range k.held {
		every = min(every, max(h.standing.Length/6, 10*time.Millisecond))
	}
	return every
}

// beats gathers what to send: everybody's, or what is urgent alone, so that a turn that
// starts does not have all the others written, too.
func (k *Keeper) beats(all bool) []job.Beat {
	k.mu.Lock()
	defer k.mu.Unlock()
	beats := make([]job.Beat, 0, len(k.held))
	for _, h := range k.held {
		if !h.standing.Lost && (all || h.urgent) {
			beats = append(beats, h.beat)
		}
		h.urgent = false
	}
	slices.SortFunc(beats, func(a, b job.Beat) int { return cmp.Compare(a.Job, b.Job) })
	return beats
}

// learn takes an answer in. An attempt that was dropped meanwhile, or that the answer
// does not mention, learns nothing. No beat asks for two attempts of one job: all but
// the newest are lost.
func (k *Keeper) learn(a answer) {
	asked := make(map[job.ID]job.Beat, len(a.asked))
	for _, b := range a.asked {
		asked[b.Job] = b
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range a.got {
		sent := asked[b.Job]
		h := k.held[keyOf(sent.Lease)]
		if h == nil || h.lease.Token != sent.Token {
			continue
		}
		if !b.Ours {
			h.standing.Lost = true
			continue
		}
		h.standing.Good = a.sent
		if !sent.StartedAt.IsZero() && !h.begun {
			h.begun = true
			close(h.recorded)
		}
		if b.Cancelled != nil {
			h.standing.Cancelled = b.Cancelled
		}
		if b.Over != nil {
			h.standing.Over = b.Over
		}
		if len(sent.Running) > 0 && string(sent.Running) == string(h.beat.Running) {
			h.beat.Running = nil // it is on record
		}
	}
}

// steer is one decision to carry out, outside the lock.
type steer struct {
	h       *kept
	control agent.Control
	action  Action
	cause   error
}

// enforce has every decision that is due carried out, each on its own, and says when
// the next one is. Steering a turn may take long; what it came to is looked at before
// that turn is steered again.
func (k *Keeper) enforce(now time.Time, steers *sync.WaitGroup) time.Time {
	var todo, bounds []steer
	var next time.Time
	k.mu.Lock()
	for _, h := range k.held {
		if h.ended || h.stopped {
			continue
		}
		action, cause := Decide(h.standing, now)
		switch action {
		case Stop:
			h.stopped = true
		case Freeze, Thaw:
			if h.control == nil || h.steering {
				// Nothing runs, and starting refuses while the lease is in doubt; or
				// the end of the steering will wake the keeper.
				continue
			}
			h.standing.Frozen, h.steering = action == Freeze, true
		}
		if action != LetRun {
			todo = append(todo, steer{h, h.control, action, cause})
		}
		if at := h.standing.FreezeAt(); h.control != nil && !h.stopped && at.After(h.until) {
			h.until = at
			bounds = append(bounds, steer{h: h, control: h.control})
		}
		if at := h.standing.FreezeAt(); !h.stopped && !h.standing.Frozen && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	k.mu.Unlock()
	for _, s := range bounds {
		steers.Go(func() { k.bound(s) })
	}
	for _, s := range todo {
		if s.action == Stop {
			k.carryOut(s)
			continue
		}
		steers.Go(func() {
			k.carryOut(s)
			k.mu.Lock()
			s.h.steering = false
			k.mu.Unlock()
			k.lookAgain()
		})
	}
	return next
}

// bound has the turn stand still by itself when it would be frozen: this process may
// stand still then.
func (k *Keeper) bound(s steer) {
	b, able := s.control.(agent.Bounded)
	if !able {
		return
	}
	k.mu.Lock()
	at := s.h.until
	k.mu.Unlock()
	if err := b.RunUntil(at); err != nil && !errors.Is(err, os.ErrProcessDone) {
		k.Log.Warn("the turn would not stand still by itself", "job", s.h.lease.Job, "attempt", s.h.lease.Attempt, "error", err)
	}
}

func (k *Keeper) carryOut(s steer) {
	log := k.Log.With("job", s.h.lease.Job, "attempt", s.h.lease.Attempt)
	var err error
	switch s.action {
	case Freeze:
		log.Warn("the lease could not be renewed; the turn is frozen before it lapses")
		err = s.control.Freeze()
	case Thaw:
		log.Info("the lease is renewed; the turn goes on")
		err = s.control.Thaw()
	case Stop:
		log.Warn("the turn is stopped", "cause", s.cause)
		s.h.stop(s.cause)
		return
	}
	if err == nil || errors.Is(err, os.ErrProcessDone) { // or it ended by itself just now
		return
	}
	// A turn that cannot be held still must not outlive its lease, and one that
	// cannot be woken would never end.
	log.Error("the turn cannot be steered; it is stopped", "error", err)
	k.mu.Lock()
	s.h.stopped = true
	k.mu.Unlock()
	s.h.stop(fmt.Errorf("%w: %w", errFenced, err))
}

// alone waits until no earlier attempt of the job runs here: there are never two
// trees of one job at once. The error is the reason not to run.
func (h *kept) alone(ctx context.Context) error {
	for _, e := range h.earlier {
		select {
		case <-e.over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		h.keeper.mu.Lock()
		left := e.left
		h.keeper.mu.Unlock()
		if left {
			return fmt.Errorf("something of attempt %d could not be shown to be gone here: %w", e.lease.Attempt, agent.ErrUnready)
		}
	}
	return nil
}

// errDoubtful says that an agent may not start because the lease is in doubt.
var errDoubtful = errors.New("the lease could not be renewed in time to start")

// starting has Postgres know that the agent is about to be executed, and returns
// once it does: what was never started may be run again, so nothing runs that
// might be taken for it. The agent is started with its end, for this process may stand
// still until the lease is another's. The error is the reason not to start.
func (h *kept) starting(ctx context.Context) (until time.Time, err error) {
	h.keeper.mu.Lock()
	h.beat.StartedAt = time.Now().UTC()
	h.urgent = true
	wait := time.Until(h.standing.FreezeAt())
	h.keeper.mu.Unlock()
	h.keeper.beatSoon()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-h.recorded:
		return h.runsUntil(), nil
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	case <-timer.C:
		h.keeper.mu.Lock()
		defer h.keeper.mu.Unlock()
		h.beat.StartedAt = time.Time{}
		return time.Time{}, fmt.Errorf("%w: %w", errDoubtful, agent.ErrUnready)
	}
}

// runsUntil is when the agent stands still by itself, as is known by now. Whoever asks tells
// the agent.
func (h *kept) runsUntil() time.Time {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	h.until = h.standing.FreezeAt()
	return h.until
}

// doubtful says whether the lease is in doubt now.
func (h *kept) doubtful() bool {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	return !time.Now().Before(h.standing.FreezeAt())
}

// started hands over the running turn's control.
func (h *kept) started(c agent.Control) {
	h.keeper.mu.Lock()
	h.control = c
	h.keeper.mu.Unlock()
	h.keeper.lookAgain()
}

// progress is carried by the next beat.
func (h *kept) progress(p agent.Progress) {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	h.beat.Conversation = p.Conversation
	h.beat.Turns, h.beat.ToolCalls = p.Turns, p.ToolCalls
	if p.CostKnown {
		usd := job.USDFromFloat(p.CostUSD)
		h.beat.CostUSD = &usd
	}
}

// running is the identity of what runs, carried by beats from now until one succeeds.
func (h *kept) running(identity json.RawMessage) {
	h.keeper.mu.Lock()
	h.beat.Running = identity
	h.urgent = true
	h.keeper.mu.Unlock()
	h.keeper.beatSoon()
}

// end says that the turn is over, and whether it left something behind; its lease is
// kept until the report is settled.
func (h *kept) end(left bool) {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	h.ended, h.left, h.earlier = true, left, nil
	close(h.over)
}
