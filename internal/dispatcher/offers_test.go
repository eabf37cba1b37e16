package dispatcher_test

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"turnpike/internal/dispatcher"
	"turnpike/internal/job"
)

// accepting writes jobs to the store in memory; busy refuses every offer, as the store
// does where something has to be decided.
type accepting struct {
	*store
	busy bool
}

func (a *accepting) Enqueue(_ context.Context, entries []job.Entry) ([]job.Accepted, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]job.Accepted, len(entries))
	for i, e := range entries {
		out[i] = job.Accepted{ID: id(len(a.jobs) + 1), Lane: e.Request.Lane(), State: job.Queued}
		r := &row{state: job.Queued}
		if e.Offer && !a.busy {
			out[i].State, r = job.Dispatched, &row{state: job.Dispatched, dispatch: 1}
		}
		a.jobs[out[i].ID] = r
	}
	return out, nil
}

func TestOffers(t *testing.T) {
	t.Parallel()
	r, err := job.Decode(json.RawMessage(request))
	if err != nil {
		t.Fatal(err)
	}
	// leads is a dispatcher of a lane with four free slots, which has looked once.
	leads := func(t *testing.T) (*accepting, *stream, *dispatcher.Intake, func()) {
		s := newStore(0)
		s.load = job.LaneLoad{Lane: r.Lane(), Slots: 4, Free: 4}
		q := newStream(s)
		d := dispatch(s, q, "a", dispatcher.NewBell())
		d.Offers = &dispatcher.Offers{}
		a := &accepting{store: s}
		i := &dispatcher.Intake{Jobs: a, Bell: d.Bell, Offers: d.Offers, Log: quiet}
		stop := running(t, d.Run)
		passes(time.Second)
		return a, q, i, stop
	}
	accept := func(t *testing.T, i *dispatcher.Intake) job.Accepted {
		t.Helper()
		got, err := i.Accept(t.Context(), ci, "", json.RawMessage(request))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}

	t.Run("publishes what was dispatched in its commit, as far as there is room", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			_, q, i, _ := leads(t)
			for n := range 20 {
				want := job.Dispatched
				if n >= 8 { // the window of four slots
					want = job.Queued
				}
				if got := accept(t, i); got.State != want {
					t.Errorf("job %d is %s, want %s", n+1, got.State, want)
				} else if got.State == job.Dispatched {
					synctest.Wait() // no time passes
					if !q.held(job.Delivery{Job: got.ID, Dispatch: 1}) {
						t.Errorf("job %d was not published", n+1)
					}
				}
			}
		})
	})

	t.Run("the store may refuse, and the job goes by selection", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, q, i, _ := leads(t)
			a.busy = true
			got := accept(t, i)
			passes(time.Second)
			if got.State != job.Queued || !q.held(job.Delivery{Job: got.ID, Dispatch: 1}) {
				t.Errorf("%+v was not selected and published", got)
			}
		})
	})

	t.Run("nobody who does not lead offers", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			_, _, i, stop := leads(t)
			stop()
			if got := accept(t, i); got.State != job.Queued {
				t.Errorf("%+v after it led", got)
			}
			i.Offers = nil
			if got := accept(t, i); got.State != job.Queued {
				t.Errorf("%+v without offers", got)
			}
		})
	})

	t.Run("a pause of the lane leaves no room", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			a, _, i, _ := leads(t)
			a.set(func() { a.load.Paused = true })
			passes(time.Second)
			if got := accept(t, i); got.State != job.Queued {
				t.Errorf("%+v on a paused lane", got)
			}
		})
	})
}
