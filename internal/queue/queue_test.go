package queue_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/job"
	"turnpike/internal/queue"
	"turnpike/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func connect(t *testing.T, url string, role queue.Role) *queue.Conn {
	t.Helper()
	c, err := queue.Connect(queue.Config{URL: url, Name: t.Name(), Role: role, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// within bounds everything a test waits for.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// raw is a JetStream client beside the code under test.
func raw(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func ids(n int) []job.ID {
	out := make([]job.ID, n)
	for i := range out {
		out[i] = job.ID(fmt.Sprintf("0190b5a0-7c1e-7d3a-9c53-%012x", i+1))
	}
	return out
}

func deliveries(n int) []job.Delivery {
	out := make([]job.Delivery, n)
	for i, id := range ids(n) {
		out[i] = job.Delivery{Job: id, Dispatch: 1}
	}
	return out
}

func publish(ctx context.Context, t *testing.T, c *queue.Conn, ds []job.Delivery) {
	t.Helper()
	for _, err := range c.Publish(ctx, lane, ds) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// eventually tries again until try succeeds: for what a server brings about by itself.
func eventually(ctx context.Context, t *testing.T, what string, try func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

func ensure(ctx context.Context, t *testing.T, a *queue.Admin) map[string]time.Time {
	t.Helper()
	created, _, err := a.Ensure(ctx, []job.Lane{lane})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func fetch(ctx context.Context, t *testing.T, p *queue.Puller, n int) []*queue.Message {
	t.Helper()
	msgs, err := p.Fetch(ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	return msgs
}

// gather fetches until it has n messages. What a consumer has to give it learns a moment
// after it was stored: the first fetch may find it idle yet, and bring the first to come.
func gather(ctx context.Context, t *testing.T, p *queue.Puller, n int) (msgs []*queue.Message) {
	t.Helper()
	for len(msgs) < n {
		msgs = append(msgs, fetch(ctx, t, p, n-len(msgs))...)
	}
	return msgs
}

func TestPuller(t *testing.T) {
	t.Parallel()

	t.Run("holds no more than it asked for", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		publish(ctx, t, c, deliveries(20))
		gather(ctx, t, c.Puller(lane, time.Second), 3)
		consumer, err := raw(t, b.URL()).Consumer(ctx, queue.JobsStream(lane.Placement), queue.LaneConsumer(lane))
		if err != nil {
			t.Fatal(err)
		}
		if info := consumer.CachedInfo(); info.NumAckPending != 3 || info.NumPending != 17 {
			t.Errorf("in hand %d, left %d; want 3 and 17", info.NumAckPending, info.NumPending)
		}
		gather(ctx, t, c.Puller(lane, time.Second), 17) // by a second worker
	})

	t.Run("returns the first to come at once", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		got := make(chan []*queue.Message, 1)
		go func() {
			msgs, err := c.Puller(lane, 30*time.Second).Fetch(ctx, 4)
			if err != nil {
				t.Error(err)
			}
			got <- msgs
		}()
		js := raw(t, b.URL())
		eventually(ctx, t, "the pull waits", func() error {
			consumer, err := js.Consumer(ctx, queue.JobsStream(lane.Placement), queue.LaneConsumer(lane))
			if err == nil && consumer.CachedInfo().NumWaiting != 1 {
				err = errors.New("nobody waits")
			}
			return err
		})
		publish(ctx, t, c, deliveries(1))
		start := time.Now()
		if msgs := <-got; len(msgs) != 1 || msgs[0].Job != ids(1)[0] || msgs[0].Lane != lane {
			t.Errorf("got %v", msgs)
		}
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("after %v", d)
		}
	})

	t.Run("an idle lane gives nothing", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		if msgs := fetch(ctx, t, c.Puller(lane, time.Second), 4); len(msgs) != 0 {
			t.Errorf("got %v", msgs)
		}
	})

	t.Run("offers again what nobody answered", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c, AckWait: 500 * time.Millisecond})
		publish(ctx, t, c, deliveries(1))
		p := c.Puller(lane, 5*time.Second)
		first := fetch(ctx, t, p, 1)
		second := fetch(ctx, t, p, 1)
		if len(first) != 1 || len(second) != 1 || first[0].Job != second[0].Job {
			t.Fatalf("first %v, second %v", first, second)
		}
		second[0].Ack()
		eventually(ctx, t, "the acknowledged message goes", func() error {
			s, err := raw(t, b.URL()).Stream(ctx, queue.JobsStream(lane.Placement))
			if err == nil && s.CachedInfo().State.Msgs != 0 {
				err = errors.New("it is still there")
			}
			return err
		})
	})

	t.Run("gives back what it was refused for a while", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		publish(ctx, t, c, deliveries(1))
		p := c.Puller(lane, 5*time.Second)
		fetch(ctx, t, p, 1)[0].Nak(0)
		start := time.Now()
		if msgs := fetch(ctx, t, p, 1); len(msgs) != 1 {
			t.Fatalf("got %v", msgs)
		}
		if d := time.Since(start); d < 50*time.Millisecond {
			t.Errorf("came back after %v: that is a hot loop", d)
		}
	})

	t.Run("a caller that leaves holds nothing back", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		gone, leave := context.WithCancelCause(ctx)
		left := make(chan error, 1)
		go func() {
			_, err := c.Puller(lane, 30*time.Second).Fetch(gone, 4)
			left <- err
		}()
		leave(job.ErrDrained)
		if err := <-left; !errors.Is(err, job.ErrDrained) {
			t.Errorf("error %v", err)
		}
		publish(ctx, t, c, deliveries(1))
		if msgs := fetch(ctx, t, c.Puller(lane, 5*time.Second), 1); len(msgs) != 1 {
			t.Errorf("got %v", msgs)
		}
	})

	t.Run("drops what is no delivery", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		js := raw(t, b.URL())
		if _, err := js.Publish(ctx, "turnpike.jobs.none-confined.default.nonsense.1", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if msgs := fetch(ctx, t, c.Puller(lane, time.Second), 4); len(msgs) != 0 {
			t.Errorf("got %v", msgs)
		}
		eventually(ctx, t, "the message goes", func() error {
			s, err := js.Stream(ctx, queue.JobsStream(lane.Placement))
			if err == nil && s.CachedInfo().State.Msgs != 0 {
				err = errors.New("it is still there")
			}
			return err
		})
	})

	t.Run("says when its lane is missing", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		p := c.Puller(lane, time.Second)
		if _, err := p.Fetch(ctx, 1); !errors.Is(err, job.ErrLaneMissing) {
			t.Fatalf("no stream: %v", err)
		}
		ensure(ctx, t, &queue.Admin{Conn: c})
		fetch(ctx, t, p, 1)
		if err := raw(t, b.URL()).DeleteConsumer(ctx, queue.JobsStream(lane.Placement), queue.LaneConsumer(lane)); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Fetch(ctx, 1); !errors.Is(err, job.ErrLaneMissing) {
			t.Fatalf("consumer deleted: %v", err)
		}
		publish(ctx, t, c, deliveries(1))
		ensure(ctx, t, &queue.Admin{Conn: c})
		if msgs := fetch(ctx, t, p, 1); len(msgs) != 1 {
			t.Errorf("after it was made again: %v", msgs)
		}
	})

	t.Run("refuses a consumer that is not the dispatcher's", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		js := raw(t, b.URL())
		stream := queue.JobsStream(lane.Placement)
		if err := js.DeleteConsumer(ctx, stream, queue.LaneConsumer(lane)); err != nil {
			t.Fatal(err)
		}
		if _, err := js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{Durable: queue.LaneConsumer(lane), AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Puller(lane, time.Second).Fetch(ctx, 1); !errors.Is(err, job.ErrLaneMissing) {
			t.Errorf("error %v", err)
		}
		ensure(ctx, t, &queue.Admin{Conn: c})
		fetch(ctx, t, c.Puller(lane, time.Second), 1)
	})

	t.Run("goes on after the server was away", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		publish(ctx, t, c, deliveries(2))
		p := c.Puller(lane, time.Second)
		if msgs := fetch(ctx, t, p, 1); len(msgs) != 1 {
			t.Fatalf("got %v", msgs)
		}
		b.Stop(t)
		start := time.Now()
		eventually(ctx, t, "the outage is noticed", func() error {
			if _, err := p.Fetch(ctx, 1); !errors.Is(err, job.ErrUnavailable) {
				return fmt.Errorf("not unavailable: %w", err)
			}
			return nil
		})
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("noticed after %v", d)
		}
		b.Start(t)
		eventually(ctx, t, "the lane serves again", func() error {
			msgs, err := p.Fetch(ctx, 1)
			if err == nil && len(msgs) == 0 {
				err = errors.New("nothing came")
			}
			return err
		})
	})

	t.Run("goes on after the server stood still", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		ensure(ctx, t, &queue.Admin{Conn: connect(t, b.URL(), ""), AckWait: time.Second})
		server, err := url.Parse(b.URL())
		if err != nil {
			t.Fatal(err)
		}
		wire := testenv.NewProxy(t, server.Host)
		c := connect(t, testenv.Via(b.URL(), wire.Addr()), "")
		publish(ctx, t, c, deliveries(2))
		p := c.Puller(lane, 5*time.Second)
		if msgs := fetch(ctx, t, p, 1); len(msgs) != 1 {
			t.Fatalf("got %v", msgs)
		}
		wire.Hold()
		if _, err := p.Fetch(ctx, 1); !errors.Is(err, job.ErrUnavailable) {
			t.Errorf("fetch from a server that says nothing: %v", err)
		}
		for _, err := range c.Publish(ctx, lane, deliveries(1)) {
			if !errors.Is(err, job.ErrUnavailable) {
				t.Errorf("publish to a server that says nothing: %v", err)
			}
		}
		wire.Resume()
		had := map[job.ID]bool{}
		eventually(ctx, t, "the lane gives both again", func() error {
			msgs, err := p.Fetch(ctx, 2)
			for _, m := range msgs {
				had[m.Job] = true
				m.Ack()
			}
			if err == nil && len(had) < 2 {
				err = fmt.Errorf("had %d", len(had))
			}
			return err
		})
	})
}

func TestPublish(t *testing.T) {
	t.Parallel()

	t.Run("the same number again counts as published", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		publish(ctx, t, c, deliveries(3))
		publish(ctx, t, c, deliveries(3))
		gather(ctx, t, c.Puller(lane, time.Second), 3)
		publish(ctx, t, c, deliveries(3)) // while in hand
		b.Stop(t)
		b.Start(t)
		eventually(ctx, t, "the connection is back", func() error { return c.Check(ctx) })
		publish(ctx, t, c, deliveries(3)) // and after a restart
		s, err := raw(t, b.URL()).Stream(ctx, queue.JobsStream(lane.Placement))
		if err != nil {
			t.Fatal(err)
		}
		if n := s.CachedInfo().State.Msgs; n != 3 {
			t.Errorf("%d messages, want 3", n)
		}
	})

	t.Run("a job that comes back is not swallowed", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		p := c.Puller(lane, 5*time.Second)
		for n := 1; n <= 3; n++ {
			publish(ctx, t, c, []job.Delivery{{Job: anID, Dispatch: n}})
			msgs := fetch(ctx, t, p, 1)
			if len(msgs) != 1 || msgs[0].Dispatch != n {
				t.Fatalf("dispatch %d: got %v", n, msgs)
			}
			msgs[0].Ack()
		}
	})

	t.Run("a full stream takes nothing, and is not taken for one that has it", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		js := raw(t, b.URL())
		s, err := js.Stream(ctx, queue.JobsStream(lane.Placement))
		if err != nil {
			t.Fatal(err)
		}
		bounded := s.CachedInfo().Config
		bounded.MaxBytes = 1 << 10
		if _, err := js.UpdateStream(ctx, bounded); err != nil {
			t.Fatal(err)
		}
		all := deliveries(20)
		var left []job.Delivery
		for i, err := range c.Publish(ctx, lane, all) {
			if err != nil {
				left = append(left, all[i])
			}
		}
		if len(left) == 0 || len(left) == len(all) {
			t.Fatalf("%d of %d were refused", len(left), len(all))
		}
		had := map[job.ID]bool{}
		take := func(n int) {
			t.Helper()
			for len(had) < n {
				for _, m := range fetch(ctx, t, c.Puller(lane, time.Second), n) {
					had[m.Job] = true
					m.Ack()
				}
			}
		}
		take(len(all) - len(left))
		bounded.MaxBytes = -1
		if _, err := js.UpdateStream(ctx, bounded); err != nil {
			t.Fatal(err)
		}
		publish(ctx, t, c, left)
		take(len(all))
	})

	t.Run("without the stream the lane is missing", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		for _, err := range c.Publish(ctx, lane, deliveries(2)) {
			if !errors.Is(err, job.ErrLaneMissing) {
				t.Errorf("error %v", err)
			}
		}
	})

	t.Run("without the server it fails at once and sends nothing late", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		b.Stop(t)
		for _, err := range c.Publish(ctx, lane, deliveries(2)) {
			if !errors.Is(err, job.ErrUnavailable) {
				t.Errorf("error %v", err)
			}
		}
		b.Start(t)
		eventually(ctx, t, "the connection is back", func() error { return c.Check(ctx) })
		if msgs := fetch(ctx, t, c.Puller(lane, time.Second), 10); len(msgs) != 0 {
			t.Errorf("got %v", msgs)
		}
	})
}

func TestConnect(t *testing.T) {
	t.Parallel()
	t.Run("waits for a server that is not there yet", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		b.Stop(t)
		c := connect(t, b.URL(), "")
		if err := c.Check(ctx); !errors.Is(err, job.ErrUnavailable) {
			t.Errorf("error %v", err)
		}
		b.Start(t)
		eventually(ctx, t, "the connection comes up", func() error { return c.Check(ctx) })
	})
	t.Run("waits for credentials to be put right", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t, &server.User{Username: "late", Password: "wrong"})
		url := strings.Replace(b.As("late"), "wrong", "right", 1)
		c := connect(t, url, "")
		for range 5 {
			if err := c.Check(ctx); !errors.Is(err, job.ErrUnavailable) {
				t.Errorf("error %v", err)
			}
		}
	})
}

func TestAdmin(t *testing.T) {
	t.Parallel()

	t.Run("tells when the store was wiped", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		a := &queue.Admin{Conn: c}
		before, fresh, err := a.Ensure(ctx, []job.Lane{lane, {Placement: "none", Pool: "p2"}})
		if err != nil || len(fresh) != 2 || len(before) != 2 {
			t.Fatalf("created %v, fresh %v, error %v", before, fresh, err)
		}
		again, fresh, err := a.Ensure(ctx, []job.Lane{lane})
		if err != nil || len(fresh) != 0 || !again[lane.Placement].Equal(before[lane.Placement]) {
			t.Fatalf("created %v, fresh %v, error %v", again, fresh, err)
		}
		b.Stop(t)
		b.Start(t)
		eventually(ctx, t, "the connection is back", func() error { return c.Check(ctx) })
		if kept := ensure(ctx, t, a); !kept[lane.Placement].Equal(before[lane.Placement]) {
			t.Errorf("a restart changed the creation time")
		}
		b.Stop(t)
		b.Wipe(t)
		b.Start(t)
		eventually(ctx, t, "the connection is back", func() error { return c.Check(ctx) })
		after, fresh, err := a.Ensure(ctx, []job.Lane{lane})
		if err != nil || len(fresh) != 1 || after[lane.Placement].Equal(before[lane.Placement]) {
			t.Errorf("created %v, fresh %v, error %v", after, fresh, err)
		}
	})

	t.Run("sets up the other lanes where one cannot be", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		// A stream of somebody else's has the subjects of one placement.
		_, err := raw(t, b.URL()).CreateStream(ctx, jetstream.StreamConfig{Name: "OTHERS", Subjects: []string{"turnpike.jobs.none.>"}})
		if err != nil {
			t.Fatal(err)
		}
		a := &queue.Admin{Conn: c}
		created, fresh, err := a.Ensure(ctx, []job.Lane{{Placement: "none", Pool: "p2"}, lane})
		if err == nil || !strings.Contains(err.Error(), "none/p2") || len(fresh) != 1 || created[lane.Placement].IsZero() {
			t.Errorf("created %v, fresh %v, error %v", created, fresh, err)
		}
		publish(ctx, t, c, deliveries(1))
	})

	t.Run("changes what differs and keeps the messages", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		publish(ctx, t, c, deliveries(2))
		ensure(ctx, t, &queue.Admin{Conn: c, AckWait: time.Second, JobsAge: time.Minute, MaxWaiting: 4096})
		s, err := raw(t, b.URL()).Stream(ctx, queue.JobsStream(lane.Placement))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.CachedInfo(); got.Config.MaxAge != time.Minute || got.State.Msgs != 2 {
			t.Errorf("max age %v, %d messages", got.Config.MaxAge, got.State.Msgs)
		}
		consumer, err := s.Consumer(ctx, queue.LaneConsumer(lane))
		if err != nil {
			t.Fatal(err)
		}
		if got := consumer.CachedInfo().Config.AckWait; got != time.Second {
			t.Errorf("ack wait %v", got)
		}
	})

	t.Run("rebuilds a lane that went deaf", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		a := &queue.Admin{Conn: c, AckWait: time.Hour} // it does not come again by itself
		ensure(ctx, t, a)
		publish(ctx, t, c, deliveries(1))
		p := c.Puller(lane, time.Second)
		if msgs := fetch(ctx, t, p, 1); len(msgs) != 1 {
			t.Fatalf("got %v", msgs)
		}
		if err := a.Rebuild(ctx, lane); err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "the message comes again", func() error {
			msgs, err := p.Fetch(ctx, 1)
			if err == nil && len(msgs) == 0 {
				err = errors.New("nothing came")
			}
			return err
		})
	})
}

func TestSignals(t *testing.T) {
	t.Parallel()
	ctx, b := within(t), testenv.NATS(t)
	c := connect(t, b.URL(), "")

	stop, cancel := context.WithCancel(ctx)
	wakes, cancels := make(chan struct{}, 100), make(chan job.ID, 100)
	done := make(chan error, 2)
	go func() { done <- c.ListenWakes(stop, func() { wakes <- struct{}{} }) }()
	go func() { done <- c.ListenCancels(stop, func(id job.ID) { cancels <- id }) }()
	<-wakes // at the start, something may have been missed
	if id := <-cancels; id != "" {
		t.Errorf("cancelled %q", id)
	}
	if err := c.Wake(); err != nil {
		t.Error(err)
	}
	<-wakes
	if err := c.PushCancel(anID); err != nil {
		t.Error(err)
	}
	if id := <-cancels; id != anID {
		t.Errorf("cancelled %q", id)
	}

	b.Stop(t)
	eventually(ctx, t, "the outage is noticed", func() error {
		if err := c.Wake(); !errors.Is(err, job.ErrUnavailable) {
			return fmt.Errorf("not unavailable: %w", err)
		}
		return nil
	})
	b.Start(t)
	<-wakes // after a reconnect, something may have been missed
	for id := range cancels {
		if id == "" {
			break
		}
	}
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestTranscript(t *testing.T) {
	t.Parallel()

	t.Run("is read back whole and followed to its end", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		w := c.OpenTranscript(anID, 1)
		w.Line([]byte("first\n"))

		seen := make(chan string, 100)
		followed := make(chan error, 1)
		go func() {
			followed <- c.Tail(ctx, anID, 1, 0, true, func(chunk job.TranscriptChunk) error {
				seen <- string(chunk.Lines)
				return nil
			})
		}()
		if got := <-seen; got != "first\n" {
			t.Errorf("got %q", got)
		}
		w.Line([]byte("second"))
		w.Line([]byte("third"))
		if n := w.Close(ctx); n != 0 {
			t.Errorf("%d lines dropped", n)
		}
		if err := <-followed; err != nil {
			t.Error(err)
		}

		var all strings.Builder
		var last job.TranscriptChunk
		if err := c.Tail(ctx, anID, 0, 0, false, func(chunk job.TranscriptChunk) error {
			all.Write(chunk.Lines)
			last = chunk
			return nil
		}); err != nil {
			t.Error(err)
		}
		if all.String() != "first\nsecond\nthird\n" || !last.End || last.Attempt != 1 {
			t.Errorf("got %q, last %+v", all.String(), last)
		}
		if err := c.Tail(ctx, anID, 0, last.Seq, false, func(chunk job.TranscriptChunk) error {
			return fmt.Errorf("a chunk after the last: %+v", chunk)
		}); err != nil {
			t.Error(err)
		}
	})

	t.Run("counts what it drops while the server is away and never waits", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		ensure(ctx, t, &queue.Admin{Conn: c})
		b.Stop(t)
		w := c.OpenTranscript(anID, 1)
		line := []byte(strings.Repeat("x", 64<<10))
		for range 100 { // 6.4 MiB
			w.Line(line)
		}
		w.Line(make([]byte, 1<<20)) // a line that fits no message
		b.Start(t)
		dropped := w.Close(ctx)
		if dropped < 30 || dropped > 50 {
			t.Errorf("%d lines dropped", dropped)
		}
		lines, told := 0, 0
		var last job.TranscriptChunk
		if err := c.Tail(ctx, anID, 1, 0, false, func(chunk job.TranscriptChunk) error {
			lines += strings.Count(string(chunk.Lines), "\n")
			told += chunk.Dropped
			last = chunk
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if lines+told != 101 || told != dropped || !last.End {
			t.Errorf("%d lines and %d told dropped of 101 (%d), last %v", lines, told, dropped, last.End)
		}
	})

	t.Run("is given up with its context", func(t *testing.T) {
		t.Parallel()
		ctx, b := within(t), testenv.NATS(t)
		c := connect(t, b.URL(), "")
		b.Stop(t)
		w := c.OpenTranscript(anID, 1)
		w.Line([]byte("lost"))
		gone, cancel := context.WithCancel(ctx)
		cancel()
		if n := w.Close(gone); n != 1 {
			t.Errorf("%d lines dropped, want 1", n)
		}
		w.Line([]byte("after the end"))
	})
}

func TestReports(t *testing.T) {
	t.Parallel()
	ctx, b := within(t), testenv.NATS(t)
	c := connect(t, b.URL(), "")
	ensure(ctx, t, &queue.Admin{Conn: c})
	want := report(anID, 2)
	for range 2 { // a repetition is one report
		if err := c.PublishReport(ctx, want); err != nil {
			t.Fatal(err)
		}
	}
	refuse := errors.New("Postgres is away")
	if _, err := c.DrainReports(ctx, 10, func(context.Context, []job.Report) error { return refuse }); !errors.Is(err, refuse) {
		t.Fatalf("error %v", err)
	}
	var got []job.Report
	eventually(ctx, t, "the report comes again", func() error {
		n, err := c.DrainReports(ctx, 10, func(_ context.Context, r []job.Report) error {
			got = append(got, r...)
			return nil
		})
		if err == nil && n == 0 {
			err = errors.New("nothing came")
		}
		return err
	})
	if len(got) != 1 || got[0].Lease != want.Lease {
		t.Errorf("got %+v", got)
	}
	big := report(ids(1)[0], 1)
	big.ResultText = strings.Repeat("x", 2<<20)
	if err := c.PublishReport(ctx, big); !errors.Is(err, queue.ErrTooLarge) {
		t.Errorf("a large report: %v", err)
	}
	small := connect(t, b.URL(), "")
	ensure(ctx, t, &queue.Admin{Conn: small, ResultsBytes: 4 << 10})
	for attempt := range 3 { // the server tells a full stream by the code of a subject that has its message
		r := report(ids(2)[1], attempt+1)
		r.ResultText = strings.Repeat("x", 2500)
		if err := small.PublishReport(ctx, r); (err == nil) != (attempt == 0) {
			t.Errorf("report %d to a stream that holds one: %v", attempt, err)
		}
	}
	ensure(ctx, t, &queue.Admin{Conn: c})
	if n, err := c.DrainReports(ctx, 10, func(context.Context, []job.Report) error { return nil }); n != 1 || err != nil {
		t.Errorf("of the full stream: %d settled, error %v", n, err)
	}
	if _, err := raw(t, b.URL()).Publish(ctx, queue.ResultSubject(anID, 3), []byte(`{"version":1}`)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.DrainReports(ctx, 10, func(context.Context, []job.Report) error { return nil }); n != 0 || err != nil {
		t.Errorf("what is no report: %d settled, error %v", n, err)
	}
}

func TestPermissionsOf(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	var users []*server.User
	for _, r := range queue.Roles() {
		p := queue.PermissionsOf(r)
		users = append(users, &server.User{Username: string(r), Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: p.Publish},
			Subscribe: &server.SubjectPermission{Allow: p.Subscribe},
		}})
	}
	b := testenv.NATS(t, users...)
	conns := make(map[queue.Role]*queue.Conn)
	for _, r := range queue.Roles() {
		conns[r] = connect(t, b.As(string(r)), r)
	}
	admin := raw(t, b.URL())
	disp, worker := conns[queue.Dispatcher], conns[queue.Worker]

	t.Run("suffice for the work", func(t *testing.T) {
		a := &queue.Admin{Conn: disp}
		ensure(ctx, t, a)
		if err := a.Rebuild(ctx, lane); err != nil {
			t.Error(err)
		}
		publish(ctx, t, disp, deliveries(1))
		msgs := fetch(ctx, t, worker.Puller(lane, 5*time.Second), 1)
		if len(msgs) != 1 {
			t.Fatalf("got %v", msgs)
		}
		msgs[0].Ack()
		eventually(ctx, t, "the ack is allowed", func() error {
			s, err := admin.Stream(ctx, queue.JobsStream(lane.Placement))
			if err == nil && s.CachedInfo().State.Msgs != 0 {
				err = errors.New("the message is still there")
			}
			return err
		})
		w := worker.OpenTranscript(anID, 1)
		w.Line([]byte("hello"))
		if n := w.Close(ctx); n != 0 {
			t.Errorf("%d lines dropped", n)
		}
		for _, r := range []queue.Role{queue.Dispatcher, queue.Reporter} {
			var got string
			if err := conns[r].Tail(ctx, anID, 1, 0, true, func(c job.TranscriptChunk) error { got += string(c.Lines); return nil }); err != nil || got != "hello\n" {
				t.Errorf("%s reads %q, error %v", r, got, err)
			}
		}
		if err := worker.PublishReport(ctx, report(anID, 1)); err != nil {
			t.Error(err)
		}
		if n, err := disp.DrainReports(ctx, 1, func(context.Context, []job.Report) error { return nil }); n != 1 || err != nil {
			t.Errorf("%d reports, error %v", n, err)
		}
		var wakes, cancels atomic.Int64
		stop, cancel := context.WithCancel(ctx)
		done := make(chan error, 2)
		go func() { done <- disp.ListenWakes(stop, func() { wakes.Add(1) }) }()
		go func() { done <- worker.ListenCancels(stop, func(job.ID) { cancels.Add(1) }) }()
		eventually(ctx, t, "signals arrive", func() error {
			if err := conns[queue.Producer].Wake(); err != nil {
				return err
			}
			if err := disp.PushCancel(anID); err != nil {
				return err
			}
			if wakes.Load() < 2 || cancels.Load() < 2 { // the first is each listener's own
				return errors.New("not yet")
			}
			return nil
		})
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("keep everything else from a worker, a producer and a reporter", func(t *testing.T) {
		before := state(ctx, t, admin)
		for _, r := range []queue.Role{queue.Worker, queue.Producer, queue.Reporter} {
			denied := make(chan error, 100)
			nc, err := nats.Connect(b.As(string(r)),
				nats.CustomInboxPrefix("_INBOX_"+strings.ToUpper(string(r))),
				nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			stream := queue.JobsStream(lane.Placement)
			for _, subject := range []string{
				"$JS.API.STREAM.CREATE.OTHER", "$JS.API.STREAM.DELETE." + stream, "$JS.API.STREAM.UPDATE." + stream,
				"$JS.API.STREAM.PURGE." + stream, "$JS.API.STREAM.MSG.GET.TURNPIKE_RESULTS", "$JS.API.STREAM.MSG.DELETE." + stream,
				"$JS.API.DIRECT.GET.TURNPIKE_RESULTS",
				"$JS.API.CONSUMER.CREATE." + stream + ".mine", "$JS.API.CONSUMER.DELETE." + stream + "." + queue.LaneConsumer(lane),
				"$JS.API.CONSUMER.MSG.NEXT.TURNPIKE_RESULTS.settle",
				"turnpike.jobs.none-confined.default." + string(anID) + ".9",
				"turnpike.cancel." + string(anID), "_INBOX_DISPATCHER.x",
			} {
				if err := nc.Publish(subject, []byte("{}")); err != nil {
					t.Fatal(err)
				}
				if err := <-denied; !errors.Is(err, nats.ErrPermissionViolation) {
					t.Errorf("%s publishes to %s: %v", r, subject, err)
				}
			}
			for _, subject := range []string{">", "_INBOX.>", "_INBOX_DISPATCHER.>", "turnpike.>", "turnpike.results.>", "turnpike.jobs.>", "$JS.>", "$SYS.>"} {
				if _, err := nc.SubscribeSync(subject); err != nil {
					t.Fatal(err)
				}
				if err := <-denied; !errors.Is(err, nats.ErrPermissionViolation) {
					t.Errorf("%s subscribes to %s: %v", r, subject, err)
				}
			}
		}
		if after := state(ctx, t, admin); after != before {
			t.Errorf("streams before %s, after %s", before, after)
		}
	})
}

// state is what a test may compare to see that nothing changed.
func state(ctx context.Context, t *testing.T, js jetstream.JetStream) string {
	t.Helper()
	var s strings.Builder
	streams := js.ListStreams(ctx)
	for info := range streams.Info() {
		fmt.Fprintf(&s, "%s: %d messages, %d consumers; ", info.Config.Name, info.State.Msgs, info.State.Consumers)
	}
	if err := streams.Err(); err != nil {
		t.Fatal(err)
	}
	return s.String()
}
