// Command scale shows what the queue's tables do at sizes that no test has: a fleet that
// beats, a backlog, and a long history, each on a Postgres of its own with fsync on. It
// prints tables and judges nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"turnpike/bench/servers"
	"turnpike/internal/job"
	"turnpike/internal/store"
)

var (
	only     = flag.String("only", "", "beats, backlog or history; default all")
	dir      = flag.String("dir", "", "directory for the server's data; default a temporary one")
	workers  = flag.Int("workers", 1000, "workers that beat")
	leases   = flag.Int("leases", 10, "leases of each worker")
	lasts    = flag.Duration("for", time.Minute, "how long they beat")
	backlog  = flag.Int("backlog", 1_000_000, "jobs that wait, to be compared with a hundredth of them")
	drain    = flag.Int("drain", 5000, "jobs taken through their life on top of a backlog")
	attempts = flag.Int("attempts", 5_000_000, "attempts on record")
	weeks    = flag.Int("weeks", 13, "weeks they were made in")
)

// lane is where all jobs go.
var lane = job.Lane{Placement: "none-confined", Pool: "default"}

// scene is a database that something is shown on.
type scene struct {
	pool  *pgxpool.Pool // as the superuser
	db    *store.DB     // leads
	dsn   string
	epoch int64
	pid   int // of the server
	out   io.Writer
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	shows := []struct {
		name string
		show func(context.Context, *scene) error
	}{{"beats", beats}, {"backlog", backlogs}, {"history", history}}
	for _, s := range shows {
		if *only != "" && *only != s.name {
			continue
		}
		if err := on(ctx, s.name, s.show); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// on runs a show on a server of its own.
func on(ctx context.Context, name string, show func(context.Context, *scene) error) (err error) {
	work, err := os.MkdirTemp(*dir, "turnpike-scale-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o755); err != nil { // the server runs as another user
		return err
	}
	pg, err := servers.StartPostgres(ctx, filepath.Join(work, "postgres"), map[string]string{"max_connections": "200"})
	if err != nil {
		return err
	}
	defer func() {
		if stopped := pg.Stop(); err == nil {
			err = stopped
		}
	}()
	s := &scene{out: os.Stdout}
	if s.pid, err = pg.PID(); err != nil {
		return err
	}
	if s.dsn, err = pg.Fresh(ctx, "scale"); err != nil {
		return err
	}
	if _, err := store.Migrate(ctx, s.dsn, nil); err != nil {
		return err
	}
	if s.pool, err = pgxpool.New(ctx, s.dsn); err != nil {
		return err
	}
	defer s.pool.Close()
	if s.db, err = store.Open(ctx, store.Config{DSN: s.dsn, App: "scale", CallTimeout: 10 * time.Minute}); err != nil {
		return err
	}
	defer s.db.Close()
	if s.epoch, err = s.db.Lead(ctx, "scale", 24*time.Hour); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\n== %s\n", name)
	return show(ctx, s)
}

// sql runs a statement.
func (s *scene) sql(ctx context.Context, sql string, args ...any) error {
	_, err := s.pool.Exec(ctx, sql, args...)
	return err
}

// ask reads one value.
func ask[T any](ctx context.Context, s *scene, sql string, args ...any) (v T, err error) {
	err = s.pool.QueryRow(ctx, sql, args...).Scan(&v)
	return v, err
}

// table prints rows in columns; the first is the header.
func (s *scene) table(rows ...[]string) {
	w := tabwriter.NewWriter(s.out, 0, 4, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	_ = w.Flush() // of standard output
}

// quantile is the q-th part of times.
func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// ms is a time for a table.
func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// enqueue puts n jobs into the queue as SQL does with a set, all behind key unless it is
// empty.
func (s *scene) enqueue(ctx context.Context, n int, key string) error {
	const sql = `
		WITH n AS MATERIALIZED (
			SELECT turnpike.uuid7() AS id, i, clock_timestamp() AS at FROM generate_series(1, $1::integer) i
		),
		j AS (
			INSERT INTO turnpike.jobs (job_id, name, tenant, producer, lane, agent, account, work_key, work_tags, run_at, request)
			SELECT id, 'scale', 'tenant-' || i % 10, 'scale', $2, 'claude', '', '', '{}', at, '{}' FROM n
		)
		INSERT INTO turnpike.queue (job_id, rank, run_at, backoff_ms, max_tries, policy, lane, tenant, agent, account, concurrency_key, state, checked)
		SELECT id, date_part('epoch', at) * 1000000 + i, at, 30000, 3, 'if_not_started', $2,
			CASE WHEN $3 = '' THEN 'tenant-' || i % 10 ELSE 'tenant-0' END, 'claude', '', nullif($3, ''), 'queued', true FROM n`
	for left := n; left > 0; left -= 100_000 {
		if _, err := s.pool.Exec(ctx, sql, min(left, 100_000), lane.String(), key); err != nil {
			return err
		}
	}
	return nil
}
