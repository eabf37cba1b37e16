package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
	"turnpike/internal/store"
)

// history puts attempts of many weeks on record and times what reads them, and how the
// oldest weeks go while others are written.
func history(ctx context.Context, s *scene) error {
	begun := time.Now()
	if err := s.record(ctx); err != nil {
		return err
	}
	size, err := ask[string](ctx, s, `SELECT pg_size_pretty(pg_database_size(current_database()))`)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "%d attempts of %d weeks on record in %s, %s\n", *attempts, *weeks, time.Since(begun).Round(time.Second), size)
	if err := s.reads(ctx, "before the tables themselves are analyzed"); err != nil {
		return err
	}
	begun = time.Now()
	swept, err := s.db.Sweep(ctx, s.epoch, store.Retention{})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\n%d tables analyzed by the sweep in %s\n", swept.Analyzed, time.Since(begun).Round(time.Millisecond))
	if err := s.reads(ctx, "after"); err != nil {
		return err
	}
	return s.retire(ctx)
}

// record makes history by SQL: one week a statement, so that each has its partition.
func (s *scene) record(ctx context.Context) error {
	// The least id of the first week, in each default partition, has the weeks made.
	const seed = `INSERT INTO turnpike.jobs (job_id, name, tenant, producer, lane, agent, account, work_key, work_tags, run_at, request)
		VALUES (turnpike.uuid7_floor(date_trunc('week', now()) - $1 * interval '7 days'), '', '', '', '', '', '', '', '{}', now(), '{}')`
	if _, err := s.pool.Exec(ctx, seed, *weeks); err != nil {
		return err
	}
	for _, table := range []string{"attempts", "costs", "outcomes", "finished", "events"} {
		rest := map[string]string{
			"attempts": `(job_id, attempt, lease_no, token, dispatch_no, profile, lane, tenant, agent, account, worker, run_at, dispatched_at, claimed_at, ended_at, ending, next, verdict)
				SELECT job_id, 1, 1, gen_random_uuid(), 1, 0, '', '', '', '', '', now(), now(), now(), now(), 'done', 'succeeded', ''`,
			"costs":    `(job_id, attempt, model) SELECT job_id, 1, ''`,
			"outcomes": `(job_id, attempt, status, note, work_key, work_tags) SELECT job_id, 1, '', '', '', '{}'`,
			"finished": `(job_id, state, reason, note, by) SELECT job_id, 'cancelled', '', '', ''`,
			"events":   `(job_id, what) SELECT job_id, ''`,
		}[table]
		if _, err := s.pool.Exec(ctx, `INSERT INTO turnpike.`+table+` `+rest+` FROM turnpike.jobs_default`); err != nil {
			return fmt.Errorf("%s: %w", table, err)
		}
	}
	if _, err := s.pool.Exec(ctx, `SELECT turnpike.extend_history(t, interval '28 days') FROM unnest(turnpike.history()) t`); err != nil {
		return err
	}
	const week = `
		WITH n AS MATERIALIZED (
			SELECT i, at, (lpad(to_hex((date_part('epoch', at) * 1000)::bigint), 12, '0') || '7' || substr(md5(i::text), 1, 3) || '8' || substr(md5(i::text), 4, 15))::uuid AS id
			FROM (SELECT i, date_trunc('week', now()) - $1 * interval '7 days' + i * interval '7 days' / $2::integer AS at FROM generate_series(0, $2::integer - 1) i) g
		),
		j AS (
			INSERT INTO turnpike.jobs (job_id, created_at, name, tenant, producer, lane, agent, account, work_key, work_tags, run_at, request)
			SELECT id, at, 'job-' || i % 50, 'tenant-' || i % 20, 'scale', $3, 'claude', '', 'work-' || i % 1000, '{}', at, '{"prompt": "do it"}' FROM n
		),
		c AS (
			INSERT INTO turnpike.costs (job_id, attempt, model, input_tokens, output_tokens, cost_usd)
			SELECT id, 1, 'model-' || i % 3, 1000, 100, 0.25 FROM n
		)
		INSERT INTO turnpike.attempts (job_id, attempt, lease_no, token, dispatch_no, profile, lane, tenant, agent, account, worker, host, run_at, dispatched_at,
			claimed_at, started_at, ended_at, closed_at, ending, next, verdict, model, duration_ms, num_turns, cost_usd, result_text)
		SELECT id, 1, 1, gen_random_uuid(), 1, 0, $3, 'tenant-' || i % 20, 'claude', '', 'worker-' || i % 100, 'host', at, at, at, at, at + interval '5 minutes', at + interval '5 minutes',
			CASE WHEN i % 10 = 0 THEN 'timeout' ELSE 'done' END, (CASE WHEN i % 10 = 0 THEN 'failed' ELSE 'succeeded' END)::turnpike.job_state,
			CASE WHEN i % 10 = 0 THEN 'timeout' ELSE '' END, 'model-' || i % 3, 300000, 12, 0.25, repeat('what the agent said ', 10)
		FROM n`
	for w := *weeks; w > 0; w-- {
		if _, err := s.pool.Exec(ctx, week, w, *attempts / *weeks, lane.String()); err != nil {
			return err
		}
	}
	// As autovacuum does in time; it never analyzes the tables themselves.
	return s.each(ctx, `SELECT format('VACUUM ANALYZE turnpike.%I', c.relname) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent::regclass::text LIKE 'turnpike.%' AND c.relkind = 'r'`)
}

// each runs every statement that a query gives.
func (s *scene) each(ctx context.Context, sql string) error {
	rows, err := s.pool.Query(ctx, sql)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, one := range all {
		if _, err := s.pool.Exec(ctx, one); err != nil {
			return fmt.Errorf("%s: %w", one, err)
		}
	}
	return nil
}

// reads times what people ask: the commands, and the queries of docs/reporting.md by
// their shapes, with how many partitions of attempts each reads.
func (s *scene) reads(ctx context.Context, when string) error {
	fmt.Fprintln(s.out, "\n"+when)
	out := [][]string{{"what", "time", "weeks of attempts read"}}
	for _, since := range []int{7, 30, 90} {
		begun := time.Now()
		if _, err := s.db.Report(ctx, "tenant", begun.AddDate(0, 0, -since)); err != nil {
			return err
		}
		out = append(out, []string{fmt.Sprintf("dispatcher report, %d days", since), ms(time.Since(begun)), ""})
	}
	var some job.ID
	for what, f := range map[string]job.Filter{"dispatcher list": {}, "dispatcher list, failed of a tenant": {Tenant: "tenant-10", States: []job.State{job.Failed}}} {
		begun := time.Now()
		got, err := s.db.List(ctx, f)
		if err != nil {
			return err
		}
		out = append(out, []string{what, ms(time.Since(begun)), ""})
		if len(got) > 0 {
			some = got[0].ID
		}
	}
	begun := time.Now()
	if _, err := s.db.Get(ctx, some); err != nil {
		return err
	}
	out = append(out, []string{"dispatcher get", ms(time.Since(begun)), ""})
	for _, q := range []struct{ what, sql string }{
		{"cost per day and tenant, 30 days", `SELECT date_trunc('day', ended_at)::date, tenant, sum(cost_usd) FROM turnpike.v_attempts
			WHERE ended_at >= now() - interval '30 days' GROUP BY 1, 2`},
		{"tokens per model", `SELECT model, sum(input_tokens), sum(cost_usd) FROM turnpike.v_costs GROUP BY model`},
	} {
		rows, err := s.pool.Query(ctx, "EXPLAIN (ANALYZE, TIMING OFF) "+q.sql)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		read := 0
		for _, l := range lines {
			if strings.Contains(l, " on attempts_2") && !strings.Contains(l, "never executed") {
				read++
			}
		}
		out = append(out, []string{q.what, strings.TrimPrefix(lines[len(lines)-1], "Execution Time: "), fmt.Sprint(read)})
	}
	s.table(out...)
	return nil
}

// retire drops the older half of the weeks while jobs are enqueued, and tells the longest
// that one of those waited.
func (s *scene) retire(ctx context.Context) error {
	writing, stop := context.WithCancel(ctx)
	var worst time.Duration // read once the writer returned
	var written int
	var failed error
	var writer sync.WaitGroup
	writer.Go(func() {
		for writing.Err() == nil {
			begun := time.Now()
			if err := s.enqueue(ctx, 1, ""); err != nil {
				failed = err
				return
			}
			worst, written = max(worst, time.Since(begun)), written+1
		}
	})
	begun := time.Now()
	swept, err := s.db.Sweep(ctx, s.epoch, store.Retention{History: time.Duration(*weeks/2) * 7 * 24 * time.Hour})
	took := time.Since(begun)
	stop()
	writer.Wait()
	if err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	s.table([]string{"partitions dropped", "in", "written meanwhile", "longest write"},
		[]string{fmt.Sprint(swept.Partitions), took.Round(time.Millisecond).String(), fmt.Sprint(written), ms(worst)})
	return nil
}
