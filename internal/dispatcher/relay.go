package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"turnpike/internal/job"
)

// Dispatched are the jobs on their way to a worker. Every method that takes the epoch
// returns job.ErrNotLeader when it is over, and has committed when it returns.
type Dispatched interface {
	Load(ctx context.Context) ([]job.LaneLoad, error)
	// Published notes that deliveries are in the stream.
	Published(ctx context.Context, ds []job.Delivery) error
	// Unpublished lists dispatched jobs not noted as published, with the same number.
	Unpublished(ctx context.Context, epoch int64, limit int) ([]job.Selected, error)
	// Redispatch gives the next number to jobs of a lane that were published that long
	// ago, or at any time, and not claimed.
	Redispatch(ctx context.Context, epoch int64, lane job.Lane, olderThan time.Duration, all bool, limit int) ([]job.Selected, error)
}

// Publisher puts deliveries of one lane into the stream: one error per delivery, nil
// when it is there. A delivery that was there already counts as published.
type Publisher interface {
	Publish(ctx context.Context, lane job.Lane, ds []job.Delivery) []error
}

// Streams are what deliveries are published to.
type Streams interface {
	// Ensure makes what is missing. It tells by placement when the stream was created,
	// and which placements' streams it had to make, also where an error says that some
	// lanes could not be set up.
	Ensure(ctx context.Context, lanes []job.Lane) (created map[string]time.Time, fresh []string, err error)
	// Rebuild makes a lane's consumer anew.
	Rebuild(ctx context.Context, lane job.Lane) error
}

// Relay publishes what was selected and sees to it that it gets claimed. The zero
// AckWait is usable.
type Relay struct {
	Jobs Dispatched
	// Publisher and Streams are nil where workers look for their jobs in Postgres: what
	// is dispatched is on offer there as soon as it is committed.
	Publisher Publisher
	Streams   Streams
	AckWait   time.Duration // the stream's; default 30 s
	Health    *Health
	Metrics   *Metrics
	Log       *slog.Logger

	mu     sync.Mutex
	acked  []job.Delivery // guarded by mu: in the stream, to be noted
	flight map[job.ID]int // guarded by mu: numbers being published, or acked and not noted
	failed error          // guarded by mu: of the latest publication that failed
	bell   Bell           // guarded by mu: rung when a publication failed; nil while Run does not run
}

const (
	noteEvery    = 200 * time.Millisecond
	idleEvery    = time.Second // while there is nothing to note
	rescanEvery  = 5 * time.Second
	ensureEvery  = 5 * time.Second
	relayBatch   = 500
	publishBatch = 250
)

// Publish publishes jobs whose selection is committed. What fails is published again
// by Run: in Postgres it is still not noted as published.
func (r *Relay) Publish(ctx context.Context, selected []job.Selected) {
	lanes := make(map[job.Lane][]job.Delivery)
	r.mu.Lock()
	if r.flight == nil {
		r.flight = make(map[job.ID]int)
	}
	for _, s := range selected {
		r.flight[s.Job] = s.Dispatch
		lanes[s.Lane] = append(lanes[s.Lane], s.Delivery)
	}
	r.mu.Unlock()
	for lane, ds := range lanes {
		for part := range slices.Chunk(ds, publishBatch) {
			results := make([]error, len(part))
			if r.Publisher != nil {
				results = r.Publisher.Publish(ctx, lane, part)
			}
			r.done(part, results)
		}
	}
}

// done sorts published deliveries from failed ones.
func (r *Relay) done(ds []job.Delivery, results []error) {
	published := 0
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, d := range ds {
		if results[i] == nil {
			r.acked = append(r.acked, d)
			published++
			continue
		}
		delete(r.flight, d.Job)
		r.failed = results[i]
	}
	r.Metrics.relayed(published)
	if published < len(ds) && r.bell != nil {
		r.bell.Ring()
	}
}

// watch is what one Run knows beside the Relay's own fields.
type watch struct {
	epoch            int64
	created          map[string]time.Time // by placement
	rebuilt          map[job.Lane]time.Time
	room             map[job.Lane]bool // workers were free at the last look
	scanned, ensured time.Time
	looked           time.Time // for what nobody claimed
}

// Run notes what was published, publishes again what failed, and dispatches again what
// was lost, until ctx ends. It begins with what an earlier leader left unpublished.
func (r *Relay) Run(ctx context.Context, epoch int64) {
	bell := NewBell()
	r.mu.Lock()
	r.bell = bell
	r.mu.Unlock()
	w := &watch{epoch: epoch, created: make(map[string]time.Time), rebuilt: make(map[job.Lane]time.Time), room: make(map[job.Lane]bool), looked: time.Now()}
	loop(ctx, bell, func(ctx context.Context) (time.Duration, error) {
		err := r.round(ctx, w)
		r.Health.note("relay", err)
		if r.idle() {
			return idleEvery, err
		}
		return noteEvery, err
	})
	// What is acked and not noted would be published again by the next leader: harmless,
	// but easily spared.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := r.note(last); err != nil {
		r.Log.Debug("note what was published", "err", err)
	}
	r.mu.Lock()
	r.bell, r.acked, r.flight, r.failed = nil, nil, nil, nil
	r.mu.Unlock()
}

func (r *Relay) round(ctx context.Context, w *watch) error {
	if err := r.note(ctx); err != nil {
		return err
	}
	failed := r.takeFailure()
	now := time.Now()
	var ensured error // a lane that cannot be set up holds up no other
	if now.Sub(w.ensured) >= ensureEvery || errors.Is(failed, job.ErrLaneMissing) {
		switch ensured = r.ensure(ctx, w); {
		case errors.Is(ensured, job.ErrNotLeader):
			return ensured
		case ensured == nil: // or the next round tries again, and has the same trouble
			w.ensured = now
		}
	}
	if now.Sub(w.scanned) >= rescanEvery || failed != nil {
		if err := r.rescan(ctx, w.epoch); err != nil {
			return err
		}
		w.scanned = now
	}
	if now.Sub(w.looked) >= r.ackWait()/2 {
		if err := r.unclaimed(ctx, w); err != nil {
			return err
		}
		w.looked = now
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return errors.Join(ensured, fmt.Errorf("publish: %w", r.failed))
	}
	return ensured
}

func (r *Relay) ackWait() time.Duration {
	if r.AckWait <= 0 {
		return 30 * time.Second
	}
	return r.AckWait
}

// idle says that nothing is on its way or to be noted.
func (r *Relay) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.flight) == 0
}

func (r *Relay) takeFailure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.failed
	r.failed = nil
	return err
}

// note writes published_at, many at once: it is a third of the cost of one by one, and
// losing it only publishes a number again that is there.
func (r *Relay) note(ctx context.Context) error {
	r.mu.Lock()
	acked := r.acked
	r.acked = nil
	r.mu.Unlock()
	if len(acked) == 0 {
		return nil
	}
	err := r.Jobs.Published(ctx, acked)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.acked = append(acked, r.acked...)
		return fmt.Errorf("note what was published: %w", err)
	}
	for _, d := range acked {
		if r.flight[d.Job] == d.Dispatch {
			delete(r.flight, d.Job)
		}
	}
	return nil
}

// rescan publishes what Postgres has as dispatched and not published, unless it is on
// its way just now.
func (r *Relay) rescan(ctx context.Context, epoch int64) error {
	found, err := r.Jobs.Unpublished(ctx, epoch, relayBatch)
	if err != nil {
		return fmt.Errorf("look for what was not published: %w", err)
	}
	r.mu.Lock()
	found = slices.DeleteFunc(found, func(s job.Selected) bool { return r.flight[s.Job] == s.Dispatch })
	r.mu.Unlock()
	r.Publish(ctx, found)
	return nil
}

// ensure sets up the lanes and dispatches again what a lost stream held.
func (r *Relay) ensure(ctx context.Context, w *watch) error {
	if r.Streams == nil {
		return nil
	}
	loads, err := r.Jobs.Load(ctx)
	if err != nil {
		return fmt.Errorf("list the lanes: %w", err)
	}
	lanes := make([]job.Lane, len(loads))
	for i, l := range loads {
		lanes[i] = l.Lane
	}
	created, fresh, failed := r.Streams.Ensure(ctx, lanes)
	for _, placement := range fresh {
		if _, known := w.created[placement]; !known {
			w.created[placement] = time.Time{} // so that it counts as changed until all is done
		}
	}
	for _, l := range lanes {
		before, known := w.created[l.Placement]
		if now, there := created[l.Placement]; !known || !there || before.Equal(now) {
			continue
		}
		n, err := r.redispatch(ctx, w.epoch, l, 0, true)
		if err != nil {
			return err
		}
		if n > 0 {
			r.Log.Warn("the stream was lost and made anew; its jobs were dispatched again", "lane", l.String(), "jobs", n)
		}
	}
	maps.Copy(w.created, created) // only now: had something failed, the next round must do it all
	return failed
}

// unclaimed dispatches again what nobody claimed though workers had room: it is lost, or
// the lane's consumer is deaf, which is then rebuilt. While all are busy with long turns
// nothing is wrong with a job that waits, and every further number would only be one more
// message to refuse later; so there it takes much longer. Without a stream nothing can be
// lost on the way, and only what must not run any more is to be taken back.
func (r *Relay) unclaimed(ctx context.Context, w *watch) error {
	loads, err := r.Jobs.Load(ctx)
	if err != nil {
		return fmt.Errorf("list the lanes: %w", err)
	}
	for _, l := range loads {
		// Once may be a slot that came free just now.
		room := r.Streams != nil && l.Free > 0 && w.room[l.Lane]
		w.room[l.Lane] = l.Free > 0
		after := 2 * r.ackWait()
		if !room {
			after = 10 * r.ackWait()
		}
		n, err := r.redispatch(ctx, w.epoch, l.Lane, after, false)
		if err != nil {
			return err
		}
		if n == 0 || !room || l.Paused || time.Since(w.rebuilt[l.Lane]) < 2*r.ackWait() {
			continue
		}
		r.Log.Warn("workers are free and claim nothing; the lane's consumer is rebuilt", "lane", l.Lane.String(), "unclaimed", n)
		if err := r.Streams.Rebuild(ctx, l.Lane); err != nil {
			return err
		}
		w.rebuilt[l.Lane] = time.Now()
	}
	return nil
}

// redispatch gives jobs of a lane their next number and publishes them.
func (r *Relay) redispatch(ctx context.Context, epoch int64, l job.Lane, after time.Duration, all bool) (int, error) {
	total := 0
	for {
		selected, err := r.Jobs.Redispatch(ctx, epoch, l, after, all, relayBatch)
		if err != nil {
			return total, fmt.Errorf("dispatch again on lane %s: %w", l, err)
		}
		total += len(selected)
		r.Metrics.redispatched(len(selected))
		r.Publish(ctx, selected)
		if len(selected) < relayBatch {
			return total, nil
		}
	}
}
