// Command pgfloor measures what Postgres gives to a table and statements written for one
// figure each: the floor under every queue on it. It is no queue: nothing is fair,
// fenced or recorded.
package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"turnpike/bench/figure"
)

var options = figure.Define("postgres-floor", "")

func main() { figure.Main(run) }

const schema = `
	DROP TABLE IF EXISTS floor;
	CREATE TABLE floor (
		id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
		state text NOT NULL DEFAULT 'available',
		attempt integer NOT NULL DEFAULT 0,
		created_at timestamptz NOT NULL DEFAULT now(),
		started_at timestamptz,
		done_at timestamptz,
		payload jsonb NOT NULL
	);
	CREATE INDEX floor_ready ON floor (id) WHERE state = 'available';`

type bench struct {
	pool  *pgxpool.Pool
	sheet *figure.Sheet
}

func run(ctx context.Context) error {
	cfg, err := pgxpool.ParseConfig(options.Address)
	if err != nil {
		return err
	}
	cfg.MaxConns = 32
	b := &bench{sheet: options.Sheet()}
	if b.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return err
	}
	defer b.pool.Close()
	return b.sheet.Measure(ctx, b.reset, append(b.sheet.Singles("INSERT", b.enqueue),
		figure.Figure{Name: figure.Batches, Run: b.batches},
		figure.Figure{Name: figure.Drain, Run: b.drain},
		figure.Figure{Name: figure.Start, Run: b.steady},
	)...)
}

func (b *bench) reset(ctx context.Context) error {
	if _, err := b.pool.Exec(ctx, schema); err != nil {
		return err
	}
	_, err := b.pool.Exec(ctx, "CHECKPOINT")
	return err
}

const insert = `INSERT INTO floor (payload) VALUES ($1)`

func (b *bench) enqueue(ctx context.Context) error {
	_, err := b.pool.Exec(ctx, insert, figure.NewNoop())
	return err
}

func (b *bench) batches(ctx context.Context, name string) error {
	since := b.sheet.Meter.Read()
	if err := b.fill(ctx); err != nil {
		return err
	}
	return b.sheet.Rate(name, options.N, "jobs/s", since, "COPY")
}

func (b *bench) fill(ctx context.Context) error {
	for n := options.N; n > 0; n -= 1000 {
		_, err := b.pool.CopyFrom(ctx, pgx.Identifier{"floor"}, []string{"payload"},
			pgx.CopyFromSlice(min(n, 1000), func(int) ([]any, error) { return []any{figure.NewNoop()}, nil }))
		if err != nil {
			return err
		}
	}
	_, err := b.pool.Exec(ctx, "ANALYZE floor")
	return err
}

const claim = `
	UPDATE floor SET state = 'running', attempt = attempt + 1, started_at = now()
	WHERE id IN (SELECT id FROM floor WHERE state = 'available' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
	RETURNING id, (payload ->> 'at')::bigint`

const finish = `UPDATE floor SET state = 'completed', done_at = now() WHERE id = ANY ($1) AND state = 'running'`

// drain claims and finishes as many at a time as a hundred slots would in two commits,
// from two connections.
func (b *bench) drain(ctx context.Context, name string) error {
	if err := b.fill(ctx); err != nil {
		return err
	}
	since := b.sheet.Meter.Read()
	var all sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		all.Go(func() { errs[i] = b.cycle(ctx, options.Slots/2) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return b.sheet.Rate(name, options.N, "jobs/s", since, "half the slots claimed and finished at a time")
}

func (b *bench) cycle(ctx context.Context, n int) error {
	for {
		rows, err := b.pool.Query(ctx, claim, n)
		if err != nil {
			return err
		}
		var ids []int64
		var id, at int64
		if _, err := pgx.ForEachRow(rows, []any{&id, &at}, func() error { ids = append(ids, id); return nil }); err != nil || len(ids) == 0 {
			return err
		}
		if _, err := b.pool.Exec(ctx, finish, ids); err != nil {
			return err
		}
	}
}

// steady is an INSERT with a NOTIFY, and a listener that claims.
func (b *bench) steady(ctx context.Context, _ string) error {
	started := &figure.Latencies{}
	listening, stop := context.WithCancel(ctx)
	heard := make(chan error, 1)
	ready := make(chan struct{})
	go func() { heard <- b.listen(listening, started, ready) }()
	<-ready
	err := b.sheet.Steady(started, func() error {
		_, err := b.pool.Exec(ctx, `WITH i AS (`+insert+` RETURNING 1) SELECT pg_notify('floor', '') FROM i`, figure.NewNoop())
		return err
	})
	stop()
	return errors.Join(err, <-heard)
}

func (b *bench) listen(ctx context.Context, started *figure.Latencies, ready chan<- struct{}) error {
	c, err := b.pool.Acquire(ctx)
	if err != nil {
		close(ready)
		return err
	}
	defer c.Release()
	_, err = c.Exec(ctx, "LISTEN floor")
	close(ready)
	for err == nil {
		if _, err = c.Conn().WaitForNotification(ctx); err != nil {
			break
		}
		err = b.take(ctx, started)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// take claims what there is, one at a time.
func (b *bench) take(ctx context.Context, started *figure.Latencies) error {
	for {
		var id, at int64
		err := b.pool.QueryRow(ctx, claim, 1).Scan(&id, &at)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		started.Add(time.Since(time.Unix(0, at)))
	}
}
