package worker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"turnpike/internal/job"
	"turnpike/internal/worker"
)

// offers are dispatched jobs in memory, by when they were dispatched.
type offers struct {
	mu   sync.Mutex
	jobs []job.Offer
	back []time.Duration // how far each look went back; zero for one at everything
	err  error
}

func (o *offers) Offered(_ context.Context, _ string, _ job.Lane, since time.Time, n int) (job.Offered, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	back := time.Duration(0)
	if !since.IsZero() {
		back = time.Since(since)
	}
	o.back = append(o.back, back)
	out := job.Offered{AsOf: time.Now(), All: true}
	for _, j := range o.jobs {
		switch {
		case j.At.Before(since):
		case len(out.Jobs) == n:
			out.All = false
		default:
			out.Jobs = append(out.Jobs, j)
		}
	}
	return out, o.err
}

func (o *offers) add(id job.ID, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.jobs = append(o.jobs, job.Offer{Delivery: job.Delivery{Job: id, Dispatch: 1}, At: at})
}

func (o *offers) looks() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.back)
}

var ids = []job.ID{
	"0190b5a0-7c1e-7d3a-9c53-000000000001", "0190b5a0-7c1e-7d3a-9c53-000000000002", "0190b5a0-7c1e-7d3a-9c53-000000000003",
}

func TestPolled(t *testing.T) {
	t.Parallel()
	look := func(t *testing.T, p *worker.Polled, n int) []worker.Message {
		t.Helper()
		msgs, err := p.Look(t.Context(), n)
		must(t, err)
		return msgs
	}

	t.Run("an idle lane is looked at ever more seldom, and with jitter", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			o := &offers{}
			p := &worker.Polled{Offers: o, Wait: time.Hour}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := p.Fetch(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
			if n := o.looks(); n < 45 || n > 90 {
				t.Errorf("%d looks in a minute", n)
			}
		})
	})

	t.Run("what was dispatched long ago is read once a minute", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			o := &offers{}
			p := &worker.Polled{Offers: o}
			whole := 0
			for range 300 {
				look(t, p, 1)
				time.Sleep(time.Second)
			}
			for i, back := range o.back {
				if back == 0 {
					whole++
				} else if back > 35*time.Second {
					t.Errorf("look %d goes back %v", i, back)
				}
			}
			if whole < 3 || whole > 10 {
				t.Errorf("%d whole looks in five minutes", whole)
			}
		})
	})

	t.Run("does not pass by what nobody claims, nor what commits late", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			o := &offers{}
			p := &worker.Polled{Offers: o}
			o.add(ids[0], time.Now())
			if got := look(t, p, 2); len(got) != 1 {
				t.Fatalf("got %v", got)
			}
			for range 100 { // it stays there, and is found again each time
				time.Sleep(time.Second)
				if got := look(t, p, 2); len(got) != 1 || got[0].Job != ids[0] {
					t.Fatalf("got %v", got)
				}
			}
			o.jobs = nil
			look(t, p, 2)
			o.add(ids[1], time.Now().Add(-20*time.Second))
			if got := look(t, p, 2); len(got) != 1 || got[0].Job != ids[1] {
				t.Errorf("got %v", got)
			}
		})
	})

	t.Run("what was answered rests, and hides nothing", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			o := &offers{}
			p := &worker.Polled{Offers: o}
			for _, id := range ids[:3] {
				o.add(id, time.Now())
			}
			first := look(t, p, 1)[0]
			first.Ack()
			second := look(t, p, 1)[0]
			second.Nak(2 * time.Second)
			if third := look(t, p, 3); len(third) != 1 || third[0].Job == first.Job || third[0].Job == second.Job {
				t.Errorf("got %v", third)
			}
			time.Sleep(3 * time.Second)
			if got := look(t, p, 3); len(got) != 2 {
				t.Errorf("after a pause: %v", got)
			}
			time.Sleep(2 * time.Minute)
			if got := look(t, p, 3); len(got) != 3 {
				t.Errorf("after minutes: %v", got)
			}
		})
	})
}

// puller is a stream that fails as it is told.
type puller struct {
	mu      sync.Mutex
	err     error
	fetches int
	takes   time.Duration
}

func (p *puller) Fetch(ctx context.Context, _ int) ([]worker.Message, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetches++
	select {
	case <-time.After(p.takes):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return nil, p.err
}

func TestEither(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, s := &offers{}, &puller{takes: 20 * time.Second}
		e := &worker.Either{Stream: s, Polled: &worker.Polled{Offers: o}, Log: quiet()}
		fetch := func(want int) {
			t.Helper()
			msgs, err := e.Fetch(t.Context(), 5)
			must(t, err)
			if len(msgs) != want {
				t.Errorf("got %v, want %d", msgs, want)
			}
			for _, m := range msgs {
				m.Ack()
				o.jobs = nil // claimed
			}
		}
		fetch(0)
		if got, why := e.Via(); got != job.ByNATS || why != nil {
			t.Errorf("by %s, %v", got, why)
		}
		o.add(ids[0], time.Now()) // the stream does not bring it
		fetch(1)

		s.err = job.ErrUnavailable
		begun := time.Now()
		o.add(ids[1], time.Now())
		fetch(1)
		if got, why := e.Via(); got != job.ByPostgres || !errors.Is(why, job.ErrUnavailable) {
			t.Errorf("by %s, %v", got, why)
		}
		// A stream that hangs holds up the jobs it does not bring now and then only.
		before := s.fetches
		for n := 0; time.Since(begun) < 2*time.Minute; n++ {
			fetch(0)
		}
		if n := s.fetches - before; n < 3 || n > 6 {
			t.Errorf("the stream was tried %d times", n)
		}
		s.err = nil
		for got, _ := e.Via(); got != job.ByNATS; got, _ = e.Via() {
			fetch(0)
		}
		o.err = job.ErrUnavailable
		if _, err := e.Fetch(t.Context(), 5); !errors.Is(err, job.ErrUnavailable) {
			t.Errorf("error %v", err)
		}
	})
}
