package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// backlogs compares selection and drain in front of a small backlog, a large one, and a
// large one behind one key that is taken.
func backlogs(ctx context.Context, s *scene) error {
	out := [][]string{{"backlog", "enqueued in", "selection p50", "p99", "first selections", "drained", "jobs/s"}}
	for _, b := range []struct {
		name string
		n    int
		key  string
	}{
		{"small", *backlog / 100, ""}, {"large", *backlog, ""}, {"large, behind one key", *backlog, "key"},
	} {
		if _, err := s.pool.Exec(ctx, `TRUNCATE turnpike.queue, turnpike.jobs, turnpike.attempts, turnpike.costs, turnpike.outcomes, turnpike.finished, turnpike.events`); err != nil {
			return err
		}
		begun := time.Now()
		if err := s.enqueue(ctx, b.n, b.key); err != nil {
			return err
		}
		enqueued := time.Since(begun)
		if b.key != "" {
			if err := s.enqueue(ctx, *drain, ""); err != nil { // those that may run
				return err
			}
		}
		if err := s.sql(ctx, `VACUUM ANALYZE turnpike.queue`); err != nil {
			return err
		}
		if err := s.sql(ctx, `SELECT pg_stat_reset_single_table_counters('turnpike.queue'::regclass)`); err != nil {
			return err
		}
		first, times, rate, done, err := s.drain(ctx)
		if err != nil {
			return err
		}
		out = append(out, []string{fmt.Sprintf("%s (%d)", b.name, b.n), enqueued.Round(time.Second).String(), ms(quantile(times, 0.5)), ms(quantile(times, 0.99)),
			first.Round(time.Millisecond).String(), strconv.Itoa(done), fmt.Sprintf("%.0f", rate)})
		if err := s.plans(ctx); err != nil {
			return err
		}
	}
	s.table(out...)
	return sizes(ctx, s)
}

// drain takes jobs through selection, claim and settling, a hundred at a time by one
// client, and tells the time until the first were selected.
func (s *scene) drain(ctx context.Context) (first time.Duration, times []time.Duration, rate float64, done int, err error) {
	begun := time.Now()
	for done < *drain {
		at := time.Now()
		selected, err := s.db.Select(ctx, s.epoch, lane, 100)
		if err != nil {
			return 0, nil, 0, 0, err
		}
		times = append(times, time.Since(at))
		if len(selected) == 0 {
			if len(times) > 10_000 {
				return 0, nil, 0, 0, fmt.Errorf("nothing can be selected, after %d jobs", done)
			}
			continue // a round may find only what it has to park
		}
		if first == 0 {
			first = time.Since(begun)
		}
		claims := make([]job.Claim, len(selected))
		for i, c := range selected {
			claims[i] = job.Claim{Job: c.Job, Dispatch: c.Dispatch, Token: job.NewToken()}
		}
		claimed, err := s.db.Claim(ctx, "worker", lane, claims)
		if err != nil {
			return 0, nil, 0, 0, err
		}
		reports := make([]job.Report, len(claimed))
		for i, c := range claimed {
			reports[i] = job.Report{Version: job.ReportVersion, Lease: c.Lease, Worker: "worker", Host: "host", Ending: job.EndDone,
				Started: true, StartedAt: time.Now(), EndedAt: time.Now(), Agent: "claude"}
		}
		if _, err := s.db.Settle(ctx, reports); err != nil {
			return 0, nil, 0, 0, err
		}
		done += len(claimed)
	}
	return first, times, float64(done) / (time.Since(begun) - first).Seconds(), done, nil
}

// plans tells how often the whole queue was read, by what Postgres counted: a small one
// may be.
func (s *scene) plans(ctx context.Context) error {
	rows, err := s.pool.Query(ctx, `SELECT relname || ': ' || seq_scan || ' sequential scans, ' || idx_scan || ' by index'
		FROM pg_stat_user_tables WHERE relid = 'turnpike.queue'::regclass`)
	if err != nil {
		return err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	fmt.Fprintln(s.out, strings.Join(lines, "\n"))
	return err
}
