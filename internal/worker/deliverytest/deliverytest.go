// Package deliverytest is what a worker relies on whatever its deliveries come by. Every
// source of them runs this suite; what only one of them promises is tested beside it.
package deliverytest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"turnpike/internal/job"
	"turnpike/internal/worker"
)

// Lane is the lane every source serves.
var Lane = job.Lane{Placement: "none-confined", Pool: "default"}

// Source is one lane's deliveries and the other end of them, set up for one test.
type Source interface {
	// Open is the lane as a worker of that name has it, whose fetch from an idle lane
	// lasts about wait.
	Open(name string, wait time.Duration) worker.Deliveries
	// Offer dispatches n more jobs.
	Offer(ctx context.Context, n int) ([]job.Delivery, error)
	// Again dispatches a job again that nobody claimed, with the next number.
	Again(ctx context.Context, d job.Delivery) (job.Delivery, error)
	// Claim is what decides: true once for each dispatch.
	Claim(ctx context.Context, name string, d job.Delivery) (bool, error)
	// Stop takes the source away until Start.
	Stop()
	Start()
}

// Exercise runs the suite, each case on a source of its own.
func Exercise(t *testing.T, open func(t *testing.T) Source) {
	t.Helper()
	for _, c := range []struct {
		name string
		run  func(*bench)
	}{
		{"gives what is offered, and no more than was asked for", offered},
		{"an idle lane gives nothing", idle},
		{"gives the first to come to who waits", awaited},
		{"what was answered does not come again", answered},
		{"what was given back comes again", givenBack},
		{"a job that comes back comes with its next number", comesBack},
		{"a caller that leaves holds nothing back", leaves},
		{"several workers run every job, and each once", several},
		{"says so while it is away, and goes on after", away},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			t.Cleanup(cancel)
			c.run(&bench{t, ctx, open(t)})
		})
	}
}

type bench struct {
	*testing.T
	ctx context.Context //nolint:containedctx // it bounds this one case, as t.Context does
	Source
}

func (b *bench) offer(n int) []job.Delivery {
	b.Helper()
	ds, err := b.Offer(b.ctx, n)
	if err != nil {
		b.Fatal(err)
	}
	return ds
}

func (b *bench) fetch(d worker.Deliveries, n int) []worker.Message {
	b.Helper()
	msgs, err := d.Fetch(b.ctx, n)
	if err != nil {
		b.Fatal(err)
	}
	if len(msgs) > n {
		b.Fatalf("%d messages, %d were asked for", len(msgs), n)
	}
	return msgs
}

// some fetches until something comes.
func (b *bench) some(d worker.Deliveries, n int) []worker.Message {
	b.Helper()
	for {
		if msgs := b.fetch(d, n); len(msgs) > 0 {
			return msgs
		}
	}
}

// take claims what was fetched and acks it, as the worker w1 does.
func (b *bench) take(msgs []worker.Message) (granted []job.ID) {
	b.Helper()
	for _, m := range msgs {
		ok, err := b.Claim(b.ctx, "w1", m.Delivery)
		if err != nil {
			b.Fatal(err)
		}
		if ok {
			granted = append(granted, m.Job)
		}
		m.Ack()
	}
	return granted
}

func offered(b *bench) {
	want := map[job.ID]int{}
	for _, d := range b.offer(5) {
		want[d.Job] = d.Dispatch
	}
	d := b.Open("w1", time.Second)
	got := map[job.ID]int{}
	for len(got) < len(want) {
		for _, m := range b.some(d, 2) {
			if m.Lane != Lane {
				b.Errorf("lane %s", m.Lane)
			}
			got[m.Job] = m.Dispatch
			b.take([]worker.Message{m})
		}
	}
	if !maps.Equal(got, want) {
		b.Errorf("got %v, want %v", got, want)
	}
}

func idle(b *bench) {
	if msgs := b.fetch(b.Open("w1", 200*time.Millisecond), 3); len(msgs) != 0 {
		b.Errorf("got %v", msgs)
	}
}

func awaited(b *bench) {
	d := b.Open("w1", time.Minute)
	got := make(chan []worker.Message, 1)
	go func() {
		msgs, err := d.Fetch(b.ctx, 3)
		if err != nil {
			b.Error(err)
		}
		got <- msgs
	}()
	want := b.offer(1)
	if msgs := <-got; len(msgs) != 1 || msgs[0].Job != want[0].Job {
		b.Errorf("got %v", msgs)
	}
}

func answered(b *bench) {
	want := b.offer(2)
	d := b.Open("w1", 200*time.Millisecond)
	// The first is granted; the second is refused, for another has it.
	if ok, err := b.Claim(b.ctx, "w2", want[1]); !ok || err != nil {
		b.Fatal(ok, err)
	}
	granted := b.take(b.some(d, 2))
	if more := b.fetch(d, 2); len(more) > 0 { // a stream may have brought one alone
		granted = append(granted, b.take(more)...)
	}
	if !slices.Equal(granted, []job.ID{want[0].Job}) {
		b.Errorf("granted %v, want %s", granted, want[0].Job)
	}
	if msgs := b.fetch(d, 2); len(msgs) != 0 {
		b.Errorf("%v came again", msgs)
	}
}

func givenBack(b *bench) {
	want := b.offer(1)
	d := b.Open("w1", time.Second)
	m := b.some(d, 1)[0]
	m.Nak(0)
	again := b.some(d, 1)[0]
	if again.Job != want[0].Job || again.Dispatch != want[0].Dispatch {
		b.Errorf("%v came, want %v", again.Delivery, want[0])
	}
	again.Nak(time.Millisecond)
	if other := b.some(b.Open("w2", time.Second), 1)[0]; other.Job != want[0].Job {
		b.Errorf("%v came to another", other.Delivery)
	}
}

func comesBack(b *bench) {
	d := b.Open("w1", time.Second)
	first := b.offer(1)[0]
	m := b.some(d, 1)[0]
	again, err := b.Again(b.ctx, first)
	if err != nil {
		b.Fatal(err)
	}
	if granted := b.take([]worker.Message{m}); len(granted) != 0 {
		b.Errorf("number %d was granted after %d came", m.Dispatch, again.Dispatch)
	}
	if m = b.some(d, 1)[0]; m.Job != first.Job || m.Dispatch != again.Dispatch || again.Dispatch <= first.Dispatch {
		b.Errorf("%+v came, want %+v", m.Delivery, again)
	}
	if granted := b.take([]worker.Message{m}); len(granted) != 1 {
		b.Error("the next number was not granted")
	}
}

func leaves(b *bench) {
	ctx, leave := context.WithCancelCause(b.ctx)
	d := b.Open("w1", time.Minute)
	left := make(chan error, 1)
	go func() {
		_, err := d.Fetch(ctx, 3)
		left <- err
	}()
	leave(job.ErrDrained)
	if err := <-left; !errors.Is(err, job.ErrDrained) {
		b.Errorf("error %v", err)
	}
	want := b.offer(1)
	if msgs := b.some(b.Open("w2", time.Second), 1); msgs[0].Job != want[0].Job {
		b.Errorf("got %v", msgs)
	}
}

func several(b *bench) {
	const workers, jobs = 5, 60
	want := make(map[job.ID]bool)
	for _, d := range b.offer(jobs) {
		want[d.Job] = true
	}
	var mu sync.Mutex // guards ran
	ran := map[job.ID]int{}
	done := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(ran) == jobs
	}
	var all sync.WaitGroup
	for w := range workers {
		name := fmt.Sprintf("w%d", w)
		d := b.Open(name, 200*time.Millisecond)
		all.Go(func() {
			for !done() && b.ctx.Err() == nil {
				msgs, err := d.Fetch(b.ctx, 3)
				if err != nil {
					b.Error(err)
					return
				}
				for _, m := range msgs {
					ok, err := b.Claim(b.ctx, name, m.Delivery)
					if err != nil {
						b.Error(err)
						return
					}
					m.Ack()
					if ok {
						mu.Lock()
						ran[m.Job]++
						mu.Unlock()
					}
				}
			}
		})
	}
	all.Wait()
	for id, n := range ran {
		if n != 1 || !want[id] {
			b.Errorf("job %s ran %d times", id, n)
		}
	}
	if len(ran) != jobs {
		b.Errorf("%d jobs ran, want %d", len(ran), jobs)
	}
}

func away(b *bench) {
	want := b.offer(2)
	d := b.Open("w1", time.Second)
	taken := b.take(b.some(d, 1))
	b.Stop()
	for {
		_, err := d.Fetch(b.ctx, 1)
		if errors.Is(err, job.ErrUnavailable) {
			break
		}
		if b.ctx.Err() != nil {
			b.Fatalf("while it is away: %v", err)
		}
	}
	b.Start()
	for len(taken) < len(want) {
		msgs, err := d.Fetch(b.ctx, 1)
		if b.ctx.Err() != nil {
			b.Fatalf("after it was away: %v", err)
		}
		for _, m := range msgs {
			// What decides may come back later than what delivers.
			if ok, err := b.Claim(b.ctx, "w1", m.Delivery); err != nil {
				m.Nak(0)
			} else if m.Ack(); ok {
				taken = append(taken, m.Job)
			}
		}
	}
}
