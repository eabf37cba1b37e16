package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"turnpike/internal/job"
)

// Candidates are the jobs that may be selected. Every method that takes the epoch
// returns job.ErrNotLeader when it is over.
type Candidates interface {
	// Unchecked lists jobs enqueued by SQL whose request was not decoded yet.
	Unchecked(ctx context.Context, epoch int64, limit int) ([]job.Unchecked, error)
	// Checked releases the good ones to selection and ends the others as refused.
	Checked(ctx context.Context, epoch int64, good []job.ID, refused map[job.ID]string) error
	// Promote queues scheduled jobs that are due and fails those past their deadline.
	Promote(ctx context.Context, epoch int64, limit int) (n int, next time.Time, err error)
	// Look tells what there is to do, with every lane that has jobs or workers. It
	// writes nothing.
	Look(ctx context.Context) (job.Outlook, error)
	// Select dispatches up to n jobs of a lane. It has committed when it returns.
	Select(ctx context.Context, epoch int64, lane job.Lane, n int) ([]job.Selected, error)
}

// Selection decides what may run now. The zero Poll and Floor are usable.
type Selection struct {
	Jobs    Candidates
	Relay   *Relay
	Bell    Bell
	Poll    time.Duration // without a ring; default 250 ms
	Floor   int           // the smallest window of a lane; default 4
	Offers  *Offers       // told what room is left; nil: nobody asks
	Health  *Health
	Metrics *Metrics
	Log     *slog.Logger
}

const (
	checkBatch   = 100
	promoteBatch = 500
	// busyPoll is the wait while lanes take jobs as fast as they are offered.
	busyPoll = 10 * time.Millisecond
	// quietRounds without anything to do are followed by ones twice as far apart.
	quietRounds = 40
	// maxWindow bounds one selecting transaction.
	maxWindow = 500
)

// Run selects until ctx ends.
func (s *Selection) Run(ctx context.Context, epoch int64) {
	poll := s.Poll
	if poll <= 0 {
		poll = 250 * time.Millisecond
	}
	quiet := 0
	loop(ctx, s.Bell, func(ctx context.Context) (time.Duration, error) {
		found, busy, err := s.round(ctx, epoch)
		s.Health.note("selection", err)
		if quiet++; found || err != nil {
			quiet = 0
		}
		switch {
		case busy && err == nil:
			return busyPoll, nil
		case quiet > quietRounds:
			return 2 * poll, nil
		}
		return poll, err
	})
}

// round checks, promotes and fills every lane's window, as far as there is anything to
// check, promote or select: a look alone costs no commit. found says that there was
// anything of that, busy that there is probably more to do at once.
func (s *Selection) round(ctx context.Context, epoch int64) (found, busy bool, err error) {
	o, err := s.Jobs.Look(ctx)
	if err != nil {
		return false, false, err
	}
	if o.Unchecked || o.Due {
		found = true
		if busy, err = s.prepare(ctx, epoch); err != nil {
			return true, false, err
		}
		if o, err = s.Jobs.Look(ctx); err != nil {
			return true, false, err
		}
	}
	left := make(map[job.Lane]int, len(o.Lanes))
	defer func() { s.Offers.grant(left) }()
	for _, l := range o.Lanes {
		s.Metrics.load(l)
		room := s.room(l)
		if room == 0 || !l.Ready {
			left[l.Lane] = room
			continue
		}
		found = true
		selected, err := s.Jobs.Select(ctx, epoch, l.Lane, room)
		if err != nil {
			return true, false, err
		}
		left[l.Lane] = room - len(selected)
		if len(selected) == 0 {
			continue
		}
		// Only now, with the commit known: a claim that comes before it is refused.
		s.Relay.Publish(ctx, selected)
		busy = busy || len(selected) == room
	}
	return found, busy, nil
}

// prepare makes jobs ready to be selected whose time came or whose request was not
// decoded yet. more says that it did not get to all.
func (s *Selection) prepare(ctx context.Context, epoch int64) (more bool, err error) {
	unchecked, err := s.check(ctx, epoch)
	if err != nil {
		return false, err
	}
	promoted, _, err := s.Jobs.Promote(ctx, epoch, promoteBatch)
	return unchecked == checkBatch || promoted == promoteBatch, err
}

// room is how many more jobs the lane should have on offer: enough that a worker never
// waits for the next, and no more, for what is on offer is past priority, fairness and
// cancelling. Workers report their free slots now and then, so half of all slots is
// taken as free in any case.
func (s *Selection) room(l job.LaneLoad) int {
	if l.Paused {
		return 0
	}
	floor := s.Floor
	if floor <= 0 {
		floor = 4
	}
	window := min(max(2*l.Free, l.Slots/2, floor), maxWindow)
	return max(window-l.Dispatched, 0)
}

// check decodes what SQL producers enqueued. It returns how many there were.
func (s *Selection) check(ctx context.Context, epoch int64) (int, error) {
	unchecked, err := s.Jobs.Unchecked(ctx, epoch, checkBatch)
	if err != nil || len(unchecked) == 0 {
		return 0, err
	}
	var good []job.ID
	refused := make(map[job.ID]string)
	for _, u := range unchecked {
		if _, err := job.Decode(u.Request); err != nil {
			refused[u.ID] = why(err)
			s.Log.Info("refused a request", "job", u.ID, "err", err)
			continue
		}
		good = append(good, u.ID)
	}
	return len(unchecked), s.Jobs.Checked(ctx, epoch, good, refused)
}

// why names every problem of a request, as the reason of its refusal.
func why(err error) string {
	var all job.Invalid
	if !errors.As(err, &all) {
		return err.Error()
	}
	lines := make([]string, len(all))
	for i, p := range all {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "; ")
}
