package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// Complaint is one thing that a running installation is found to have. What it means
// and what to do about it is for whoever asked.
type Complaint struct {
	Check string
	What  string
}

// Expected is what Complaints compares with.
type Expected struct {
	Version     string        // of the program that asks
	KeepHistory time.Duration // zero keeps it
	Transport   job.Transport // of the dispatcher; empty expects none
}

// complaints are the checks by name, in the order in which they are told: each row of
// an answer is one complaint. All read small tables, or the live rows by their indexes.
var complaints = []struct{ check, sql string }{
	{"rights", `
		SELECT format('%s lacks %s on %s', p.role, p.privilege, p.object)
		FROM (VALUES
			('turnpike_producer', 'turnpike.enqueue(jsonb)', 'EXECUTE'), ('turnpike_reporter', 'turnpike.v_jobs', 'SELECT'),
			('turnpike_dispatcher', 'turnpike.queue', 'INSERT'), ('turnpike_dispatcher', 'turnpike.lead(bigint)', 'EXECUTE'),
			('turnpike_worker', 'turnpike.jobs', 'SELECT'), ('turnpike_worker', 'turnpike.attempts', 'INSERT'), ('turnpike_worker', 'turnpike.spend', 'INSERT')
		) p(role, object, privilege)
		WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = p.role AND CASE WHEN p.object LIKE '%)'
			THEN has_function_privilege(r.oid, p.object, p.privilege) ELSE has_table_privilege(r.oid, p.object, p.privilege) END)
		UNION ALL
		SELECT format('%s may %s on %s, which it must not', p.role, p.privilege, p.object)
		FROM (VALUES
			('turnpike_worker', 'turnpike.queue', 'INSERT'), ('turnpike_worker', 'turnpike.jobs', 'INSERT'), ('turnpike_worker', 'turnpike.jobs', 'UPDATE'),
			('turnpike_worker', 'turnpike.finished', 'INSERT'), ('turnpike_worker', 'turnpike.pauses', 'DELETE'), ('turnpike_worker', 'turnpike.budgets', 'UPDATE'),
			('turnpike_worker', 'turnpike.spend', 'DELETE'), ('turnpike_worker', 'turnpike.audit', 'SELECT'),
			('turnpike_worker', 'turnpike.lead(bigint)', 'EXECUTE'), ('turnpike_worker', 'turnpike.enqueue(jsonb)', 'EXECUTE'),
			('turnpike_producer', 'turnpike.queue', 'SELECT'), ('turnpike_producer', 'turnpike.jobs', 'SELECT'),
			('turnpike_reporter', 'turnpike.queue', 'SELECT'), ('turnpike_reporter', 'turnpike.jobs', 'SELECT')
		) p(role, object, privilege)
		JOIN pg_roles r ON r.rolname = p.role
		WHERE CASE WHEN p.object LIKE '%)'
			THEN has_function_privilege(r.oid, p.object, p.privilege) ELSE has_table_privilege(r.oid, p.object, p.privilege) END
		UNION ALL
		SELECT format('login %s is a worker and also %s', l.rolname, string_agg(r.rolname, ', ' ORDER BY r.rolname))
		FROM pg_roles l JOIN pg_roles r ON r.rolname IN ('turnpike_producer', 'turnpike_dispatcher', 'turnpike_reporter') AND pg_has_role(l.oid, r.oid, 'MEMBER')
		WHERE l.rolcanlogin AND NOT l.rolsuper AND pg_has_role(l.oid, 'turnpike_worker', 'MEMBER')
		GROUP BY l.rolname`},
	{"leader", `
		SELECT CASE holder WHEN '' THEN 'no dispatcher leads' ELSE format('%s led last, until %s', holder, until) END
		FROM turnpike.leader WHERE until <= now()`},
	{"workers", `
		SELECT 'no worker was seen in the last 30 seconds'
		WHERE NOT EXISTS (SELECT FROM turnpike.workers WHERE seen_at > now() - interval '30 seconds')`},
	{"lanes", `
		SELECT format('%s jobs wait on lane %s, and no worker serves it', count(*), q.lane)
		FROM turnpike.queue q
		WHERE (q.ready IS NOT NULL OR q.dispatched_at IS NOT NULL AND q.state = 'dispatched')
			AND NOT EXISTS (SELECT FROM turnpike.v_workers w WHERE w.lane = q.lane AND w.alive AND NOT w.draining AND w.closed = '')
		GROUP BY q.lane ORDER BY q.lane`},
	{"closed lanes", `
		SELECT format('worker %s takes nothing on lane %s: %s', id, lane, closed) FROM turnpike.v_workers WHERE alive AND closed <> '' ORDER BY id, lane`},
	{"leases", `
		SELECT format('%s leases are over and nobody has reaped them, the oldest for %s', count(*), date_trunc('second', max(now() - lease_until)))
		FROM turnpike.queue
		WHERE dispatched_at IS NOT NULL AND state = 'running'
			AND lease_until < now() - 2 * coalesce((SELECT lease FROM turnpike.leader), interval '1 minute')
		HAVING count(*) > 0`},
	{"publication", `
		SELECT format('%s jobs are dispatched and not published, the oldest for %s', count(*), date_trunc('second', max(now() - dispatched_at)))
		FROM turnpike.queue
		WHERE dispatched_at IS NOT NULL AND state = 'dispatched' AND published_at IS NULL AND dispatched_at < now() - interval '30 seconds'
		HAVING count(*) > 0`},
	{"lease length", `
		SELECT format('worker %s has leases of %s, the dispatcher of %s', w.id, w.lease, l.lease)
		FROM turnpike.workers w CROSS JOIN turnpike.leader l
		WHERE w.seen_at > now() - interval '30 seconds' AND l.until > now() AND w.lease <> l.lease ORDER BY w.id`},
	{"partitions", `
		SELECT format('%s has no partition for the week of %s', t, to_char(week, 'YYYY-MM-DD'))
		FROM unnest(turnpike.history()) t, date_trunc('week', now() + interval '7 days') week
		WHERE to_regclass(format('turnpike.%I', t || to_char(week, '_YYYYMMDD'))) IS NULL
		UNION ALL
		SELECT 'rows are in the default partition of jobs' WHERE EXISTS (SELECT FROM turnpike.jobs_default)`},
	{"delivery", `
		SELECT format('worker %s finds the jobs of lane %s by %s', id, lane, via) FROM turnpike.v_workers
		WHERE alive AND via <> '' AND via <> @transport AND @transport <> '' ORDER BY id, lane`},
	{"versions", `
		SELECT format('worker %s is %s, this program %s', id, version, @version::text) FROM turnpike.workers
		WHERE seen_at > now() - interval '30 seconds' AND version <> @version ORDER BY id`},
	{"pauses", `
		SELECT format('%s %s is paused %s by %s%s', scope, name,
			CASE WHEN isfinite(until) THEN to_char(until AT TIME ZONE 'UTC', '"until" YYYY-MM-DD"T"HH24:MI:SS"Z"') ELSE 'until it is resumed' END,
			by, coalesce(': ' || nullif(reason, ''), ''))
		FROM turnpike.pauses WHERE until > now()
		UNION ALL
		SELECT format('account %s is in slow start after a limit until %s, with %s of at most %s jobs', name,
			to_char(slow_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), live, live_max)
		FROM turnpike.v_pauses WHERE state = 'slow start' ORDER BY 1`},
	{"budgets", `
		SELECT format('%s %s per %s: %s; %s of %s USD', scope, name, period, state, spent_usd + running_usd, limit_usd)
		FROM turnpike.v_budgets WHERE state <> 'ok' ORDER BY scope, name, period`},
	{"cost caps", `
		SELECT format('worker %s: %s never tells what a turn costs', id, array_to_string(inert, ', '))
		FROM turnpike.workers WHERE seen_at > now() - interval '30 seconds' AND inert <> '{}' ORDER BY id`},
	{"orphans", `
		SELECT format('job %s attempt %s left a %s that is %s, of worker %s', job_id, attempt, kind, state, worker)
		FROM (SELECT * FROM turnpike.orphans WHERE state <> 'gone' AND abandoned_at IS NULL ORDER BY job_id, attempt, kind LIMIT 20) o
		UNION ALL
		SELECT format('%s orphans are unreachable: host %s was not seen since', count(*), coalesce(nullif(host, ''), 'unknown'))
		FROM turnpike.orphans WHERE abandoned_at IS NOT NULL AND state <> 'gone'
		GROUP BY host ORDER BY 1 LIMIT 40`},
	{"retention", `
		SELECT format('%s orphans keep weeks of history that are older than %s', count(*), @keep::interval)
		FROM turnpike.orphans
		WHERE @keep::interval > interval '0' AND state <> 'gone' AND abandoned_at IS NULL AND job_id < turnpike.uuid7_floor(date_trunc('week', now() - @keep::interval))
		HAVING count(*) > 0
		UNION ALL
		SELECT format('%s unfinished jobs keep weeks of history that are older than %s', count(*), @keep::interval)
		FROM turnpike.queue
		WHERE @keep::interval > interval '0' AND job_id < turnpike.uuid7_floor(date_trunc('week', now() - @keep::interval))
		HAVING count(*) > 0`},
}

// Checks names what Complaints looks at, in order.
func Checks() []string {
	var names []string
	for _, c := range complaints {
		names = append(names, c.check)
	}
	return names
}

// Complaints looks at a running installation as a dispatcher's login sees it.
func (db *DB) Complaints(ctx context.Context, want Expected) ([]Complaint, error) {
	var out []Complaint
	for _, c := range complaints {
		with := args{}
		switch c.check {
		case "versions":
			with["version"] = want.Version
		case "delivery":
			with["transport"] = string(want.Transport)
		case "retention":
			with["keep"] = want.KeepHistory
		}
		rows, err := many(ctx, db, "check the "+c.check, stmt{c.sql, with}, pgx.RowTo[string])
		if err != nil {
			return out, err
		}
		for _, what := range rows {
			out = append(out, Complaint{c.check, what})
		}
	}
	return out, nil
}

// Skew is how far this machine's clock is ahead of the database's, give or take half
// the time of the question.
func (db *DB) Skew(ctx context.Context) (ahead, within time.Duration, err error) {
	asked := time.Now()
	there, err := db.Clock(ctx)
	if err != nil {
		return 0, 0, err
	}
	within = time.Since(asked) / 2
	return asked.Add(within).Sub(there), within, nil
}

// Lanes lists the lanes that live workers serve: those that have a consumer.
func (db *DB) Lanes(ctx context.Context) ([]job.Lane, error) {
	names, err := many(ctx, db, "read the lanes", stmt{`SELECT DISTINCT lane FROM turnpike.v_workers WHERE alive ORDER BY lane`, nil}, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	lanes := make([]job.Lane, 0, len(names))
	for _, n := range names {
		l, err := job.ParseLane(n)
		if err != nil {
			return nil, fmt.Errorf("read the lanes: %w", err)
		}
		lanes = append(lanes, l)
	}
	return slices.Clip(lanes), nil
}
