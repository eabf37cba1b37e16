package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"

	"turnpike/bench/figure"
	"turnpike/internal/agent"
	"turnpike/internal/dispatcher"
	"turnpike/internal/job"
	"turnpike/internal/queue"
	"turnpike/internal/store"
	"turnpike/internal/vcs"
	"turnpike/internal/worker"
	"turnpike/internal/workspace"
)

// system is a whole Turnpike in this process: intake, a dispatcher that leads, NATS and
// a worker with one lane.
type system struct {
	db     *store.DB
	admin  *pgxpool.Pool // of the bench itself: it empties tables and looks what is left
	broker *server.Server
	conn   *queue.Conn
	bell   dispatcher.Bell
	offers *dispatcher.Offers
	intake *dispatcher.Intake
	dir    string
	lane   job.Lane
	log    *slog.Logger
}

// open sets everything up and starts no loop.
func open(ctx context.Context, dsn, dir string, log *slog.Logger) (_ *system, err error) {
	s := &system{bell: dispatcher.NewBell(), offers: &dispatcher.Offers{}, dir: dir, log: log}
	if s.lane, err = job.ParseLane("none/default"); err != nil {
		return nil, err
	}
	if _, err := store.Migrate(ctx, dsn, slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	if s.db, err = store.Open(ctx, store.Config{DSN: dsn, App: "bench", MaxConns: 20}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 2
	if s.admin, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	// Turnpike's streams need not be durable, and the settings are the server's own.
	if s.broker, err = server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: filepath.Join(dir, "nats"), NoSigs: true, NoLog: true,
	}); err != nil {
		return nil, err
	}
	s.broker.Start()
	if !s.broker.ReadyForConnections(10 * time.Second) {
		return nil, errors.New("the NATS server does not listen")
	}
	if s.conn, err = queue.Connect(queue.Config{URL: s.broker.ClientURL(), Name: "bench", Log: log}); err != nil {
		return nil, err
	}
	s.intake = &dispatcher.Intake{Jobs: s.db, Waker: s.conn, Bell: s.bell, Offers: s.offers, Log: log}
	return s, nil
}

func (s *system) close() {
	if s.conn != nil {
		s.conn.Close()
	}
	if s.broker != nil {
		s.broker.Shutdown()
		s.broker.WaitForShutdown()
	}
	if s.admin != nil {
		s.admin.Close()
	}
	s.db.Close()
}

// reset empties the tables that jobs leave rows in.
func (s *system) reset(ctx context.Context) error {
	_, err := s.admin.Exec(ctx, `TRUNCATE turnpike.queue, turnpike.jobs, turnpike.attempts, turnpike.costs, turnpike.outcomes,
		turnpike.finished, turnpike.events, turnpike.idempotency, turnpike.workers`)
	if err == nil {
		_, err = s.admin.Exec(ctx, "CHECKPOINT")
	}
	return err
}

// producer is who enqueues.
var producer = job.Producer{Name: "bench", Tenants: []string{job.AnyTenant}}

// request is a whole request of figure.Bytes bytes. The prompt begins with the time at
// which it was made. key may be empty.
func (s *system) request(key string) json.RawMessage {
	const form = `{"api_version":"turnpike/v1","name":"noop","profile":{"name":"bench","agent":"claude","sandbox":"none"},"grants":{"tools":["Read"]},` +
		`"workspace":{"dir":%q},%s"work":{"key":"BENCH-1"},"prompt":"%d %s"}`
	if key != "" {
		key = fmt.Sprintf(`"concurrency_key":%q,`, key)
	}
	now := time.Now().UnixNano()
	used := len(fmt.Sprintf(form, s.dir, key, now, ""))
	return fmt.Appendf(nil, form, s.dir, key, now, figure.Pad(used))
}

func (s *system) enqueue(ctx context.Context) error {
	_, err := s.intake.Accept(ctx, producer, "", s.request(""))
	return err
}

// fill enqueues n jobs in batches.
func (s *system) fill(ctx context.Context, n int, key string) error {
	for n > 0 {
		batch := make([]json.RawMessage, min(n, dispatcher.MaxBatch))
		for i := range batch {
			batch[i] = s.request(key)
		}
		if _, err := s.intake.AcceptAll(ctx, producer, "", batch); err != nil {
			return err
		}
		n -= len(batch)
	}
	return nil
}

// serve runs dispatcher and worker until stop is called, which waits for both.
func (s *system) serve(ctx context.Context, slots int, turn worker.Runner) (stop func() error, err error) {
	state, err := worker.OpenStateDir(filepath.Join(s.dir, "state"))
	if err != nil {
		return nil, err
	}
	ceiling, err := worker.ParseCeiling(fmt.Appendf(nil, "placements: [none]\nagents: [claude]\ntools: [Read]\nworkspaces: {dirs: [{path: %q, access: rw}]}\n", s.dir))
	if err != nil {
		return nil, errors.Join(err, state.Close())
	}
	d := &dispatcher.Dispatcher{
		Store: s.db, Publisher: s.conn, Streams: &queue.Admin{Conn: s.conn}, Reports: s.conn, Wakes: s.conn,
		Sweep:  func(context.Context, int64) error { return nil },
		Holder: "bench", Bell: s.bell, Offers: s.offers, Health: &dispatcher.Health{Log: s.log}, Log: s.log,
	}
	p := &worker.Pool{
		Turns: &worker.Turns{
			Ceiling: ceiling, State: state, Sessions: noSessions{}, Workspaces: vcs.Provider[vcs.Spec](&workspace.Set{Dir: &workspace.Dir{}}),
			Run:    turn,
			End:    func(context.Context, agent.Identity) (bool, error) { return false, nil },
			Worker: "bench-1", Host: "bench", Log: s.log,
		},
		Lanes: []worker.LaneConfig{{Lane: s.lane, Slots: slots, Deliveries: deliveries{s.conn.Puller(s.lane, 20*time.Second)}}},
		Store: s.db, Cancels: s.conn, Results: s.conn,
		Version: "bench", Log: s.log,
	}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { d.Run(ctx) })
	served := make(chan error, 1)
	go func() { served <- p.Run(ctx) }()
	return func() error {
		cancel()
		all.Wait()
		return errors.Join(<-served, state.Close())
	}, nil
}

// noSessions keeps no session directories: a turn that starts no process writes none.
type noSessions struct{}

func (noSessions) New(name string) (string, error)      { return filepath.Join("/nonexistent", name), nil }
func (noSessions) Read(string) (worker.Past, error)     { return worker.Past{}, os.ErrNotExist }
func (noSessions) List() ([]worker.SessionEntry, error) { return nil, nil }
func (noSessions) Remove(string) error                  { return nil }

// deliveries shows the worker a puller's messages as its own, as the worker's program
// does.
type deliveries struct{ *queue.Puller }

func (d deliveries) Fetch(ctx context.Context, n int) ([]worker.Message, error) {
	msgs, err := d.Puller.Fetch(ctx, n)
	out := make([]worker.Message, len(msgs))
	for i, m := range msgs {
		out[i] = worker.Message{Delivery: m.Delivery, Answer: m}
	}
	return out, err
}

// noop is a turn that ends at once. started may be nil.
func noop(started *figure.Latencies) worker.Runner {
	return func(_ context.Context, l worker.Launch) (*agent.Result, error) {
		now := time.Now()
		if started != nil {
			at, _, _ := strings.Cut(l.Request.Prompt, " ")
			var nanos int64
			if _, err := fmt.Sscan(at, &nanos); err != nil {
				return nil, err
			}
			started.Add(now.Sub(time.Unix(0, nanos)))
		}
		return &agent.Result{Name: "noop", Role: "bench", Agent: "claude", StartedAt: now, Duration: time.Since(now), NumTurns: 1, CostKnown: true, CostUSD: 0.01}, nil
	}
}
