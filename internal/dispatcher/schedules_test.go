package dispatcher_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"turnpike/internal/dispatcher"
	"turnpike/internal/job"
)

// minutely is a schedule that acts every minute from the next on.
func minutely(n int64, missed job.Missed) *schedule {
	return &schedule{Due: job.Due{ID: n, Producer: "anna", At: time.Now().Truncate(time.Minute).Add(time.Minute), Schedule: job.Schedule{
		Tenant: "default", Name: fmt.Sprint("s", n), Cron: "* * * * *", Missed: missed, Overlap: job.OverlapQueue, Request: []byte(request)}}}
}

// minutes are the times that got a job, as minutes since the bubble began.
func (s *store) minutes(begun time.Time, n int) (out []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.schedules[n].fired {
		for _, e := range f.Entries {
			out = append(out, int(e.Request.RunAt.Sub(begun)/time.Minute))
		}
	}
	return out
}

func TestSchedules(t *testing.T) {
	t.Parallel()

	t.Run("act at each time once, and what they made is selected at once", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			s := newStore(0)
			s.schedules = []*schedule{minutely(1, job.MissedOnce)}
			s.schedules[0].answer.Jobs = []job.Accepted{{ID: id(1)}}
			bell := dispatcher.NewBell()
			l := &dispatcher.Schedules{Jobs: s, Bell: bell, Health: &dispatcher.Health{}, Log: quiet}
			running(t, func(ctx context.Context) { l.Run(ctx, 0) })
			for want := 1; want <= 5; want++ {
				<-bell
				if late := time.Since(begun) - time.Duration(want)*time.Minute; late < 0 || late > time.Second {
					t.Errorf("the time of minute %d is acted on %s after it", want, late)
				}
			}
			if got := s.minutes(begun, 0); !slices.Equal(got, []int{1, 2, 3, 4, 5}) {
				t.Errorf("jobs for the minutes %v", got)
			}
		})
	})

	t.Run("lose no time and repeat none while the lead changes hands", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			s := newStore(0)
			s.schedules = []*schedule{minutely(1, job.MissedAll), minutely(2, job.MissedSkip)}
			q := newStream(s)
			stops := []func(){
				running(t, dispatch(s, q, "a", dispatcher.NewBell()).Run),
				running(t, dispatch(s, q, "b", dispatcher.NewBell()).Run),
			}
			// The lead goes from one to the other and back, and once both are away.
			for n := range 20 {
				passes(50 * time.Second)
				switch {
				case n == 10:
					stops[0]()
					stops[1]()
				case n == 14:
					running(t, dispatch(s, q, "c", dispatcher.NewBell()).Run)
				case n%3 == 0:
					s.set(func() { s.until = time.Time{} })
				}
			}
			var all, kept []int
			for m := 1; m <= 16; m++ {
				all = append(all, m)
				if m <= 9 || m >= 12 {
					kept = append(kept, m)
				}
			}
			if got := s.minutes(begun, 0); !slices.Equal(got, all) {
				t.Errorf("jobs for the minutes %v, want all of 16", got)
			}
			if got := s.minutes(begun, 1); !slices.Equal(got, kept) {
				t.Errorf("jobs for the minutes %v, want %v: without those that were missed", got, kept)
			}
		})
	})

	t.Run("one that cannot act holds up no other, and keeps its time", func(t *testing.T) {
		t.Parallel()
		for name, spoil := range map[string]func(*schedule){
			"its tenant is at its limit":             func(c *schedule) { c.fail = job.ErrQueueFull },
			"this release refuses what it would ask": func(c *schedule) { c.Request = []byte("{}") },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					begun := time.Now()
					s := newStore(0)
					s.schedules = []*schedule{minutely(1, job.MissedOnce), minutely(2, job.MissedOnce)}
					spoil(s.schedules[0])
					d := dispatch(s, newStream(s), "a", dispatcher.NewBell())
					running(t, d.Run)
					passes(3*time.Minute + 5*time.Second)
					if got := s.minutes(begun, 1); !slices.Equal(got, []int{1, 2, 3}) {
						t.Errorf("the other: %v", got)
					}
					s.set(func() {
						if n := len(s.schedules[0].deferred); n < 10 || n > 14 {
							t.Errorf("tried %d times in two minutes", n)
						}
						s.schedules[0].fail, s.schedules[0].Request = nil, []byte(request)
					})
					passes(12 * time.Second)
					if got := s.minutes(begun, 0); !slices.Equal(got, []int{3}) {
						t.Errorf("after: %v, want one job for all", got)
					}
					for _, p := range d.Health.Parts() {
						if p.Err != nil {
							t.Errorf("%s: %v", p.Name, p.Err)
						}
					}
				})
			})
		}
	})

	t.Run("what there is no room for at once is made up for bit by bit", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			s := newStore(0)
			s.schedules = []*schedule{minutely(1, job.MissedAll)}
			s.schedules[0].room = 2
			passes(7 * time.Minute) // before anybody leads
			running(t, dispatch(s, newStream(s), "a", dispatcher.NewBell()).Run)
			passes(30 * time.Second)
			if got := s.minutes(begun, 0); !slices.Equal(got, []int{1, 2, 3, 4, 5, 6, 7}) {
				t.Errorf("jobs for the minutes %v", got)
			}
			if why := s.schedules[0].deferred; len(why) > 0 {
				t.Errorf("deferred: %v", why)
			}
		})
	})

	t.Run("one that changed meanwhile is no trouble", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(0)
			s.schedules = []*schedule{minutely(1, job.MissedOnce)}
			s.schedules[0].fail = job.ErrConflict
			d := dispatch(s, newStream(s), "a", dispatcher.NewBell())
			running(t, d.Run)
			passes(2 * time.Minute)
			for _, p := range d.Health.Parts() {
				if p.Err != nil {
					t.Errorf("%s: %v", p.Name, p.Err)
				}
			}
			if len(s.schedules[0].deferred) > 0 {
				t.Error("deferred")
			}
		})
	})

	t.Run("an outage is lived through, and said", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			s := newStore(0)
			s.schedules = []*schedule{minutely(1, job.MissedAll)}
			d := dispatch(s, newStream(s), "a", dispatcher.NewBell())
			running(t, d.Run)
			passes(30 * time.Second)
			s.set(func() { s.down = job.ErrUnavailable })
			passes(3 * time.Minute)
			sick(t, d, "schedules")
			s.set(func() { s.down = nil })
			passes(10 * time.Second)
			if got := s.minutes(begun, 0); !slices.Equal(got, []int{1, 2, 3}) {
				t.Errorf("jobs for the minutes %v", got)
			}
		})
	})

	t.Run("the worker of a job that is cancelled for the next is told", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(0)
			s.schedules = []*schedule{minutely(1, job.MissedOnce)}
			s.schedules[0].answer = job.Fired{Unfinished: id(7), Cancelled: &job.CancelAnswer{ID: id(7), State: job.Running}}
			q := newStream(s)
			running(t, dispatch(s, q, "a", dispatcher.NewBell()).Run)
			passes(62 * time.Second)
			if !slices.Equal(q.cancels, []job.ID{id(7)}) {
				t.Errorf("told of %v", q.cancels)
			}
		})
	})
}
