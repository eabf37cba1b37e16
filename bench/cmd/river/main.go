// Command river measures River (riverqueue.com): a queue on Postgres alone, whose jobs
// are claimed by polling and by LISTEN.
package main

import (
	"context"
	"flag"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"turnpike/bench/figure"
)

var (
	options  = figure.Define("river-default", "")
	cooldown = flag.Duration("cooldown", 0, "FetchCooldown of both clients; 0 is River's default of 100 ms")
)

func main() { figure.Main(run) }

type noop struct{ figure.Noop }

func (noop) Kind() string { return "noop" }

type worker struct {
	river.WorkerDefaults[noop]
	started *figure.Latencies // nil: nobody asks
}

func (w *worker) Work(_ context.Context, j *river.Job[noop]) error {
	if w.started != nil {
		w.started.Add(j.Args.Age())
	}
	return nil
}

type bench struct {
	pool   *pgxpool.Pool
	driver *riverpgxv5.Driver
	client *river.Client[pgx.Tx] // inserts
	sheet  *figure.Sheet
}

func run(ctx context.Context) error {
	cfg, err := pgxpool.ParseConfig(options.Address)
	if err != nil {
		return err
	}
	cfg.MaxConns = 20
	b := &bench{sheet: options.Sheet()}
	if b.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return err
	}
	defer b.pool.Close()
	b.driver = riverpgxv5.New(b.pool)
	migrator, err := rivermigrate.New(b.driver, nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	// The inserting client lets out one NOTIFY per cooldown, so it needs the setting, too.
	if b.client, err = river.NewClient(b.driver, b.config(nil)); err != nil {
		return err
	}
	return b.sheet.Measure(ctx, b.reset, append(b.sheet.Singles("", b.enqueue),
		figure.Figure{Name: figure.Batches, Run: b.batches},
		figure.Figure{Name: figure.Drain, Run: b.drain},
		figure.Figure{Name: figure.Start, Run: b.steady},
	)...)
}

func (b *bench) config(w *worker) *river.Config {
	c := &river.Config{Logger: slog.New(slog.DiscardHandler), FetchCooldown: *cooldown}
	if w != nil {
		c.Workers = river.NewWorkers()
		river.AddWorker(c.Workers, w)
		c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: options.Slots}}
	}
	return c
}

func (b *bench) reset(ctx context.Context) error {
	if _, err := b.pool.Exec(ctx, "TRUNCATE river_job"); err != nil {
		return err
	}
	_, err := b.pool.Exec(ctx, "CHECKPOINT")
	return err
}

func (b *bench) enqueue(ctx context.Context) error {
	_, err := b.client.Insert(ctx, noop{figure.NewNoop()}, nil)
	return err
}

// batches inserts a thousand at a time: with rows that come back, as ours do, and by
// COPY.
func (b *bench) batches(ctx context.Context, name string) error {
	since := b.sheet.Meter.Read()
	if err := b.fill(ctx, b.client.InsertMany); err != nil {
		return err
	}
	if err := b.sheet.Rate(name, options.N, "jobs/s", since, "InsertMany"); err != nil {
		return err
	}
	if err := b.reset(ctx); err != nil {
		return err
	}
	since = b.sheet.Meter.Read()
	if err := b.copyIn(ctx); err != nil {
		return err
	}
	return b.sheet.Rate(name+" (COPY)", options.N, "jobs/s", since, "InsertManyFast")
}

func (b *bench) copyIn(ctx context.Context) error {
	return each(func(jobs []river.InsertManyParams) (int, error) { return b.client.InsertManyFast(ctx, jobs) })
}

func (b *bench) fill(ctx context.Context, insert func(context.Context, []river.InsertManyParams) ([]*rivertype.JobInsertResult, error)) error {
	return each(func(jobs []river.InsertManyParams) (int, error) {
		rows, err := insert(ctx, jobs)
		return len(rows), err
	})
}

// each inserts all jobs, a thousand at a time.
func each(insert func([]river.InsertManyParams) (int, error)) error {
	for total := 0; total < options.N; {
		jobs := make([]river.InsertManyParams, min(1000, options.N-total))
		for i := range jobs {
			jobs[i].Args = noop{figure.NewNoop()}
		}
		n, err := insert(jobs)
		if err != nil {
			return err
		}
		total += n
	}
	return nil
}

func (b *bench) drain(ctx context.Context, name string) error {
	if err := b.copyIn(ctx); err != nil {
		return err
	}
	client, err := river.NewClient(b.driver, b.config(&worker{}))
	if err != nil {
		return err
	}
	since := b.sheet.Meter.Read()
	if err := client.Start(ctx); err != nil {
		return err
	}
	for left := true; left; time.Sleep(10 * time.Millisecond) {
		const unfinished = "SELECT EXISTS (SELECT FROM river_job WHERE state IN ('available', 'running'))"
		if err := b.pool.QueryRow(ctx, unfinished).Scan(&left); err != nil {
			return err
		}
	}
	if err := b.sheet.Rate(name, options.N, "jobs/s", since, ""); err != nil {
		return err
	}
	return client.Stop(ctx)
}

func (b *bench) steady(ctx context.Context, _ string) error {
	started := &figure.Latencies{}
	client, err := river.NewClient(b.driver, b.config(&worker{started: started}))
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // it elects a leader and listens
	if err := b.sheet.Steady(started, func() error { return b.enqueue(ctx) }); err != nil {
		return err
	}
	return client.Stop(ctx)
}
