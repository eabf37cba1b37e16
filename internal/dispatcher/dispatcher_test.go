package dispatcher_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"turnpike/internal/dispatcher"
	"turnpike/internal/job"
)

// passes lets time pass and everything that is due happen.
func passes(d time.Duration) {
	<-time.After(d) // by the bubble's clock
	synctest.Wait()
}

func TestDispatcher(t *testing.T) {
	t.Parallel()

	t.Run("offers every job once and notes it", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(100)
			s.load.Slots, s.load.Free = 4, 4
			q := newStream(s)
			stop := running(t, dispatch(s, q, "a", dispatcher.NewBell()).Run)
			ran := 0
			for range 400 {
				passes(20 * time.Millisecond)
				ran += len(q.claim(2))
			}
			if ran != 100 || s.count(job.Running) != 100 {
				t.Errorf("%d jobs ran", ran)
			}
			if len(q.early) > 0 {
				t.Errorf("published before the commit: %v", q.early)
			}
			stop()
			if !s.resigned {
				t.Error("it did not resign")
			}
			calls := 0
			for _, ds := range s.published {
				calls += len(ds)
			}
			if calls != 100 || len(s.published) > 60 {
				t.Errorf("%d deliveries noted in %d calls", calls, len(s.published))
			}
		})
	})

	t.Run("another takes over from one that died", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(0)
			q := newStream(s)
			s.holder, s.until, s.epoch = "dead", time.Now().Add(5*time.Second), 7
			// The dead one selected, and died before it published.
			s.set(func() { s.jobs[id(1)] = &row{state: job.Dispatched, dispatch: 3} })
			d := dispatch(s, q, "heir", dispatcher.NewBell())
			running(t, d.Run)
			passes(4 * time.Second)
			if q.held(job.Delivery{Job: id(1), Dispatch: 3}) {
				t.Fatal("published while another leads")
			}
			passes(4 * time.Second)
			if !q.held(job.Delivery{Job: id(1), Dispatch: 3}) {
				t.Error("what the dead one left was not published with its own number")
			}
		})
	})

	t.Run("steps down when another leads", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(0)
			q := newStream(s)
			d := dispatch(s, q, "a", dispatcher.NewBell())
			running(t, d.Run)
			passes(time.Second)
			s.set(func() { s.holder, s.until, s.epoch = "b", time.Now().Add(time.Hour), s.epoch+1 })
			passes(10 * time.Second)
			s.set(func() { s.promotions = 0 })
			passes(time.Minute)
			if s.promotions != 0 {
				t.Errorf("%d rounds after it was told that another leads", s.promotions)
			}
			for _, p := range d.Health.Parts() {
				if p.Err != nil {
					t.Errorf("%s: %v: standing by is no trouble", p.Name, p.Err)
				}
			}
		})
	})

	t.Run("lives through outages of Postgres and NATS and says so", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(3)
			q := newStream(s)
			d := dispatch(s, q, "a", dispatcher.NewBell())
			s.set(func() { s.down = job.ErrUnavailable })
			q.set(func() { q.down = job.ErrUnavailable })
			running(t, d.Run)
			passes(10 * time.Minute)
			sick(t, d, "leader")
			s.set(func() { s.down = nil })
			passes(time.Minute)
			sick(t, d, "relay")
			if n := s.count(job.Dispatched); n != 3 {
				t.Errorf("%d jobs dispatched, want 3 waiting for NATS", n)
			}
			q.set(func() { q.down = nil })
			passes(time.Minute)
			for _, p := range d.Health.Parts() {
				if p.Err != nil {
					t.Errorf("%s: %v", p.Name, p.Err)
				}
			}
			if n := len(q.claim(10)); n != 3 {
				t.Errorf("%d jobs can be claimed, want 3", n)
			}
		})
	})

	t.Run("a ring is faster than the poll", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(0)
			q := newStream(s)
			bell := dispatcher.NewBell()
			d := dispatch(s, q, "a", bell)
			d.Poll = time.Hour
			running(t, d.Run)
			passes(time.Second)
			s.set(func() { s.jobs[id(1)] = &row{state: job.Queued} })
			bell.Ring()
			synctest.Wait()
			if n := len(q.claim(1)); n != 1 {
				t.Errorf("%d jobs on offer", n)
			}
		})
	})
}

func sick(t *testing.T, d *dispatcher.Dispatcher, part string) {
	t.Helper()
	for _, p := range d.Health.Parts() {
		if p.Name == part {
			if !errors.Is(p.Err, job.ErrUnavailable) {
				t.Errorf("%s: %v", part, p.Err)
			}
			return
		}
	}
	t.Errorf("no part %s", part)
}

func TestRelay(t *testing.T) {
	t.Parallel()

	t.Run("a wiped stream's jobs are dispatched again", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(4)
			q := newStream(s)
			running(t, dispatch(s, q, "a", dispatcher.NewBell()).Run)
			passes(10 * time.Second)
			q.wipe()
			passes(15 * time.Second)
			if n := len(q.claim(10)); n != 4 {
				t.Errorf("%d of 4 jobs can be claimed", n)
			}
		})
	})

	t.Run("also when the dispatcher was away meanwhile", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(4)
			q := newStream(s)
			stop := running(t, dispatch(s, q, "a", dispatcher.NewBell()).Run)
			passes(10 * time.Second)
			stop()
			q.wipe()
			running(t, dispatch(s, q, "b", dispatcher.NewBell()).Run)
			passes(15 * time.Second)
			if n := len(q.claim(10)); n != 4 {
				t.Errorf("%d of 4 jobs can be claimed", n)
			}
		})
	})

	for name, c := range map[string]struct {
		free    int
		not, by time.Duration
		rebuilt int
	}{
		"though workers had room, after two AckWaits":   {2, 55 * time.Second, 80 * time.Second, 1},
		"while all workers are busy, after ten of them": {0, 290 * time.Second, 320 * time.Second, 0},
	} {
		t.Run("what nobody claims gets its next number "+name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore(1)
				s.load.Slots, s.load.Free = 2, c.free
				q := newStream(s)
				running(t, dispatch(s, q, "a", dispatcher.NewBell()).Run)
				passes(c.not)
				if q.held(job.Delivery{Job: id(1), Dispatch: 2}) {
					t.Error("too early")
				}
				passes(c.by - c.not)
				if !q.held(job.Delivery{Job: id(1), Dispatch: 2}) {
					t.Error("not yet")
				}
				if len(q.rebuilt) != c.rebuilt {
					t.Errorf("rebuilt %d times", len(q.rebuilt))
				}
			})
		})
	}

	t.Run("a lane that is deaf while workers are free is rebuilt, now and then", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(1)
			s.load.Slots, s.load.Free = 2, 2
			q := newStream(s)
			running(t, dispatch(s, q, "a", dispatcher.NewBell()).Run)
			passes(5 * time.Minute)
			if n := len(q.rebuilt); n < 3 || n > 5 {
				t.Errorf("rebuilt %d times in five minutes", n)
			}
		})
	})

	t.Run("without a broker what is dispatched counts as published, and stays so", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(3)
			s.load.Slots, s.load.Free = 4, 4
			d := dispatch(s, nil, "a", dispatcher.NewBell())
			d.Publisher, d.Streams, d.Reports, d.Wakes = nil, nil, nil, nil
			running(t, d.Run)
			passes(4 * time.Minute) // workers have room and claim nothing
			for _, id := range []job.ID{id(1), id(2), id(3)} {
				j := s.jobs[id]
				if j.state != job.Dispatched || j.dispatch != 1 || j.publishedAt.IsZero() {
					t.Errorf("job %s: %+v", id, *j)
				}
			}
			for _, p := range d.Health.Parts() {
				if p.Err != nil {
					t.Errorf("%s: %v", p.Name, p.Err)
				}
			}
			passes(2 * time.Minute) // after ten AckWaits once, for what was paused since
			if n := s.jobs[id(1)].dispatch; n != 2 {
				t.Errorf("number %d", n)
			}
		})
	})

	t.Run("notes what it published although Postgres was away", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(0)
			s.epoch = 1
			s.jobs[id(1)] = &row{state: job.Dispatched, dispatch: 1}
			q := newStream(s)
			q.missing = false
			r := &dispatcher.Relay{Jobs: s, Publisher: q, Streams: q, Health: &dispatcher.Health{}, Log: quiet}
			running(t, func(ctx context.Context) { r.Run(ctx, 1) })
			synctest.Wait()
			s.set(func() { s.down = job.ErrUnavailable })
			passes(time.Minute)
			s.set(func() { s.down = nil })
			passes(10 * time.Second)
			if s.jobs[id(1)].publishedAt.IsZero() {
				t.Error("not noted")
			}
			if s.jobs[id(1)].dispatch != 1 {
				t.Error("dispatched again")
			}
		})
	})
}

func TestSelection(t *testing.T) {
	t.Parallel()

	t.Run("window", func(t *testing.T) {
		t.Parallel()
		s := &dispatcher.Selection{}
		for name, c := range map[string]struct {
			load job.LaneLoad
			want int
		}{
			"no worker seen: the floor":       {job.LaneLoad{}, 4},
			"twice the free slots":            {job.LaneLoad{Slots: 10, Free: 10}, 20},
			"less what is on offer":           {job.LaneLoad{Slots: 10, Free: 10, Dispatched: 15}, 5},
			"full":                            {job.LaneLoad{Slots: 10, Free: 10, Dispatched: 25}, 0},
			"all busy: half the slots":        {job.LaneLoad{Slots: 100}, 50},
			"few and busy: the floor":         {job.LaneLoad{Slots: 2}, 4},
			"paused":                          {job.LaneLoad{Slots: 10, Free: 10, Paused: true}, 0},
			"never more than one transaction": {job.LaneLoad{Slots: 5000, Free: 5000}, 500},
		} {
			if got := s.Room(c.load); got != c.want {
				t.Errorf("%s: room for %d, want %d", name, got, c.want)
			}
		}
	})

	t.Run("refuses what SQL producers wrote wrongly", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore(0)
			s.unchecked = []job.Unchecked{
				{ID: id(1), Request: []byte(request)},
				{ID: id(2), Request: []byte(strings.Replace(request, `"prompt"`, `"propmt"`, 1))},
			}
			running(t, dispatch(s, newStream(s), "a", dispatcher.NewBell()).Run)
			passes(time.Second)
			if len(s.good) != 1 || s.good[0] != id(1) || !strings.Contains(s.refused[id(2)], "propmt") {
				t.Errorf("good %v, refused %v", s.good, s.refused)
			}
		})
	})
}

func TestHealth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(0)
		d := dispatch(s, newStream(s), "a", dispatcher.NewBell())
		stop := running(t, d.Run)
		passes(time.Second)
		var names []string
		for _, p := range d.Health.Parts() {
			if p.Err != nil {
				t.Errorf("%s: %v", p.Name, p.Err)
			}
			names = append(names, p.Name)
		}
		if got := strings.Join(names, " "); got != "janitor leader reaper relay schedules selection watch" {
			t.Errorf("parts %s", got)
		}
		stop()
	})
}
