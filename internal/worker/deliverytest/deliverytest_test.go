package deliverytest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"turnpike/internal/job"
	"turnpike/internal/queue"
	"turnpike/internal/store"
	"turnpike/internal/testenv"
	"turnpike/internal/worker"
	"turnpike/internal/worker/deliverytest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var (
	schema = testenv.Migrated(func(ctx context.Context, dsn string) error {
		_, err := store.Migrate(ctx, dsn, nil)
		return err
	})
	quiet = slog.New(slog.DiscardHandler)
)

// desk is the database that says what is dispatched and who may run it. Workers look for
// jobs by a proxy.
type desk struct {
	t     *testing.T
	db    *store.DB
	epoch int64
	far   *store.DB
	proxy *testenv.Proxy
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	env := testenv.Postgres(t, schema)
	server, err := url.Parse(env.DSN())
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{t: t, proxy: testenv.NewProxy(t, server.Host)}
	d.db = openStore(t, env.DSN())
	d.far = openStore(t, testenv.Via(env.DSN(), d.proxy.Addr()))
	if d.epoch, err = d.db.Lead(t.Context(), "test", time.Hour); err != nil {
		t.Fatal(err)
	}
	return d
}

func openStore(t *testing.T, dsn string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DSN: dsn, CallTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

func (d *desk) Offer(ctx context.Context, n int) ([]job.Delivery, error) {
	r := job.Request{
		APIVersion: job.APIVersion, Prompt: "do it", Grants: &job.Grants{}, Workspace: job.Workspace{Scratch: true},
		Profile: job.Profile{Agent: "claude", Sandbox: "none", Confine: true, Timeout: job.Duration(time.Hour)},
		Pool:    job.DefaultPool, Tenant: job.DefaultTenant,
		Retry: job.Retry{Policy: job.RetryIfNotStarted, MaxTries: 3, Backoff: job.Duration(time.Second)},
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	entries := make([]job.Entry, n)
	for i := range entries {
		entries[i] = job.Entry{Request: r, Body: body, Producer: "test"}
	}
	if _, err := d.db.Enqueue(ctx, entries); err != nil {
		return nil, err
	}
	selected, err := d.db.Select(ctx, d.epoch, deliverytest.Lane, n)
	ds := make([]job.Delivery, len(selected))
	for i, s := range selected {
		ds[i] = s.Delivery
	}
	return ds, err
}

func (d *desk) Again(ctx context.Context, of job.Delivery) (job.Delivery, error) {
	selected, err := d.db.Redispatch(ctx, d.epoch, deliverytest.Lane, 0, false, 100)
	if err != nil {
		return job.Delivery{}, err
	}
	for _, s := range selected {
		if s.Job == of.Job {
			return s.Delivery, nil
		}
	}
	return job.Delivery{}, fmt.Errorf("job %s was not dispatched again", of.Job)
}

func (d *desk) Claim(ctx context.Context, name string, of job.Delivery) (bool, error) {
	got, err := d.db.Claim(ctx, name, deliverytest.Lane, []job.Claim{{Job: of.Job, Dispatch: of.Dispatch, Token: job.NewToken()}})
	return len(got) == 1, err
}

func (d *desk) polled(name string, wait time.Duration) *worker.Polled {
	return &worker.Polled{Offers: d.far, Lane: deliverytest.Lane, Worker: name, Wait: wait}
}

func (d *desk) Open(name string, wait time.Duration) worker.Deliveries { return d.polled(name, wait) }
func (d *desk) Stop()                                                  { d.proxy.Cut() }
func (d *desk) Start()                                                 { d.proxy.Resume() }

// stream adds the broker, which everybody reaches by a wire of its own.
type stream struct {
	*desk
	broker *testenv.Broker
	wire   *testenv.Proxy
	nc     *queue.Conn
}

func newStream(t *testing.T) *stream {
	t.Helper()
	s := &stream{desk: newDesk(t), broker: testenv.NATS(t)}
	server, err := url.Parse(s.broker.URL())
	if err != nil {
		t.Fatal(err)
	}
	s.wire = testenv.NewProxy(t, server.Host)
	if s.nc, err = queue.Connect(queue.Config{URL: testenv.Via(s.broker.URL(), s.wire.Addr()), Name: t.Name(), Timeout: 2 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.nc.Close)
	if _, _, err := (&queue.Admin{Conn: s.nc}).Ensure(t.Context(), []job.Lane{deliverytest.Lane}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stream) publish(ctx context.Context, ds []job.Delivery, err error) ([]job.Delivery, error) {
	if err != nil {
		return nil, err
	}
	return ds, errors.Join(s.nc.Publish(ctx, deliverytest.Lane, ds)...)
}

func (s *stream) Offer(ctx context.Context, n int) ([]job.Delivery, error) {
	ds, err := s.desk.Offer(ctx, n)
	return s.publish(ctx, ds, err)
}

func (s *stream) Again(ctx context.Context, of job.Delivery) (job.Delivery, error) {
	d, err := s.desk.Again(ctx, of)
	_, err = s.publish(ctx, []job.Delivery{d}, err)
	return d, err
}

func (s *stream) Open(_ string, wait time.Duration) worker.Deliveries {
	return pulled{s.nc.Puller(deliverytest.Lane, wait)}
}
func (s *stream) Stop()  { s.broker.Stop(s.t) }
func (s *stream) Start() { s.broker.Start(s.t) }

// pulled shows a puller's messages as a worker's.
type pulled struct{ *queue.Puller }

func (p pulled) Fetch(ctx context.Context, n int) ([]worker.Message, error) {
	msgs, err := p.Puller.Fetch(ctx, n)
	out := make([]worker.Message, len(msgs))
	for i, m := range msgs {
		out[i] = worker.Message{Delivery: m.Delivery, Answer: m}
	}
	return out, err
}

// both is a stream with the database behind it. To take it away takes both.
type both struct{ *stream }

func (b *both) Open(name string, wait time.Duration) worker.Deliveries { return b.either(name, wait) }

func (b *both) either(name string, wait time.Duration) *worker.Either {
	return &worker.Either{Stream: b.stream.Open(name, wait), Polled: b.polled(name, wait), Again: 100 * time.Millisecond, Log: quiet}
}
func (b *both) Stop()  { b.stream.Stop(); b.desk.Stop() }
func (b *both) Start() { b.stream.Start(); b.desk.Start() }

func TestDeliveries(t *testing.T) {
	t.Parallel()
	t.Run("nats", func(t *testing.T) {
		t.Parallel()
		deliverytest.Exercise(t, func(t *testing.T) deliverytest.Source { return newStream(t) })
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		deliverytest.Exercise(t, func(t *testing.T) deliverytest.Source { return newDesk(t) })
	})
	t.Run("nats or postgres", func(t *testing.T) {
		t.Parallel()
		deliverytest.Exercise(t, func(t *testing.T) deliverytest.Source { return &both{newStream(t)} })
	})
}

// While the broker is away jobs are found in Postgres, and what was found there does not
// run again when the stream brings it.
func TestEither(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]outage{
		"stopped":        {func(b *both) { b.broker.Stop(b.t) }, func(b *both) { b.broker.Start(b.t) }, job.ByPostgres},
		"cut off":        {func(b *both) { b.wire.Cut() }, func(b *both) { b.wire.Resume() }, job.ByPostgres},
		"standing still": {func(b *both) { b.wire.Hold() }, func(b *both) { b.wire.Resume() }, job.ByPostgres},
		// It is there for workers: nobody could publish, be it full or out of the dispatcher's reach.
		"given nothing": {func(*both) {}, func(*both) {}, job.ByNATS},
	} {
		t.Run("the broker is "+name, func(t *testing.T) {
			t.Parallel()
			loseBroker(t, o)
		})
	}
}

// outage is one of the broker's, and where a worker says that it finds its jobs meanwhile.
type outage struct {
	begin, end func(*both)
	via        job.Transport
}

func loseBroker(t *testing.T, o outage) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b := &both{newStream(t)}
	e := b.either("w1", 5*time.Second) // long enough to miss the server's signs of life
	ran := map[job.ID]int{}
	run := func(n int) {
		t.Helper()
		for len(ran) < n {
			msgs, err := e.Fetch(ctx, 10)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range msgs {
				ok, err := b.Claim(ctx, "w1", m.Delivery)
				if err != nil {
					t.Fatal(err)
				}
				if m.Ack(); ok {
					ran[m.Job]++
				}
			}
		}
	}
	via := func(want job.Transport) {
		t.Helper()
		if got, why := e.Via(); got != want || (want == job.ByPostgres) != (why != nil) {
			t.Errorf("jobs come by %s (%v), want %s", got, why, want)
		}
	}
	if _, err := b.Offer(ctx, 2); err != nil {
		t.Fatal(err)
	}
	run(2)
	via(job.ByNATS)

	unclaimed, err := b.Offer(ctx, 1) // in the stream when it goes
	if err != nil {
		t.Fatal(err)
	}
	o.begin(b)
	unsent, err := b.desk.Offer(ctx, 3)
	if err != nil {
		t.Fatal(err)
	}
	run(6)
	via(o.via)

	o.end(b)
	for { // the dispatcher publishes what it could not, although it has run
		if _, err := b.publish(ctx, append(unclaimed, unsent...), nil); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the broker does not come back")
		}
	}
	if _, err := b.Offer(ctx, 1); err != nil {
		t.Fatal(err)
	}
	run(7)
	for got, _ := e.Via(); got != job.ByNATS; got, _ = e.Via() {
		if _, err := e.Fetch(ctx, 10); err != nil {
			t.Fatal(err)
		}
	}
	for id, n := range ran {
		if n != 1 {
			t.Errorf("job %s ran %d times", id, n)
		}
	}
}
