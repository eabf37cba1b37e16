package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"turnpike/internal/job"
	"turnpike/internal/store"
)

func TestRoles(t *testing.T) {
	t.Parallel()
	d := open(t)
	as := func(role string) *pgx.Conn {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), d.env.Login(t, role))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(t.Context()) })
		return conn
	}
	conns := map[string]*pgx.Conn{}
	for _, role := range []string{"turnpike_producer", "turnpike_dispatcher", "turnpike_worker", "turnpike_reporter"} {
		conns[role] = as(role)
	}
	body, err := json.Marshal(request())
	if err != nil {
		t.Fatal(err)
	}
	enqueues := "SELECT turnpike.enqueue('" + string(body) + "')"

	t.Run("may", func(t *testing.T) {
		for role, statements := range map[string][]string{
			"turnpike_producer": {enqueues},
			"turnpike_reporter": {
				"SELECT * FROM turnpike.v_jobs", "SELECT * FROM turnpike.v_attempts", "SELECT * FROM turnpike.v_costs", "SELECT * FROM turnpike.v_outcomes",
				"SELECT * FROM turnpike.v_orphans", "SELECT * FROM turnpike.v_queue", "SELECT * FROM turnpike.v_workers", "SELECT * FROM turnpike.v_pauses",
				"SELECT * FROM turnpike.v_budgets", "SELECT * FROM turnpike.v_schedules", "SELECT * FROM turnpike.v_waits",
			},
		} {
			for _, sql := range statements {
				if _, err := conns[role].Exec(t.Context(), sql); err != nil {
					t.Errorf("%s: %.60s: %v", role, sql, err)
				}
			}
		}
	})
	t.Run("may not", func(t *testing.T) {
		everybody := []string{
			"CREATE TABLE turnpike.mine (x int)", "DROP TABLE turnpike.queue", "TRUNCATE turnpike.jobs", "ALTER TABLE turnpike.queue ADD x int",
			"DELETE FROM turnpike.attempts", "DELETE FROM turnpike.jobs", "DELETE FROM turnpike.costs", "UPDATE turnpike.jobs SET request = '{}'",
			"UPDATE turnpike.costs SET cost_usd = 0", "UPDATE turnpike.outcomes SET status = 'x'", "UPDATE turnpike.finished SET state = 'failed'",
			"UPDATE turnpike.attempts SET next = 'failed'", "UPDATE turnpike.attempts SET token = gen_random_uuid()", "DELETE FROM turnpike.events",
			"UPDATE turnpike.goose_db_version SET version_id = 0", "CREATE ROLE mallory", "SET ROLE turnpike_nobody",
			"SELECT turnpike.move_history('jobs_default', 'jobs_default', gen_random_uuid(), gen_random_uuid())",
			"SELECT pg_read_file('/etc/passwd')", "COPY turnpike.jobs TO PROGRAM 'true'",
		}
		reads := []string{
			"SELECT * FROM turnpike.jobs", "SELECT * FROM turnpike.queue", "SELECT token FROM turnpike.attempts", "SELECT * FROM turnpike.idempotency",
			"SELECT * FROM turnpike.leader", "SELECT * FROM turnpike.audit", "SELECT * FROM turnpike.workers", "SELECT * FROM turnpike.schedules",
		}
		writes := []string{
			"INSERT INTO turnpike.queue (job_id) VALUES (gen_random_uuid())", "UPDATE turnpike.queue SET state = 'queued'", "DELETE FROM turnpike.queue",
			"INSERT INTO turnpike.jobs (job_id) VALUES (gen_random_uuid())", "UPDATE turnpike.leader SET epoch = 9", "INSERT INTO turnpike.limits VALUES ('x', 1)",
			"INSERT INTO turnpike.costs (job_id) VALUES (gen_random_uuid())", "INSERT INTO turnpike.attempts (job_id) VALUES (gen_random_uuid())",
			"INSERT INTO turnpike.pauses (scope) VALUES ('lane')", "UPDATE turnpike.workers SET ceiling = ''", "INSERT INTO turnpike.audit (who) VALUES ('x')",
			"SELECT turnpike.lead(1)", "SELECT turnpike.drop_history('jobs', now())", "SELECT turnpike.extend_history('jobs', '1 day')",
			"SELECT * FROM turnpike.accept('[]', '{}')", "SELECT * FROM turnpike.waits", "SELECT turnpike.await('[]', '{}', '{}')",
		}
		for role, statements := range map[string][][]string{
			"turnpike_producer": {everybody, reads, writes, {"SELECT * FROM turnpike.v_jobs", "SELECT turnpike.facts('{}')", "SELECT turnpike.uuid7()"}},
			"turnpike_reporter": {everybody, reads, writes, {enqueues, "UPDATE turnpike.v_pauses SET reason = ''"}},
			"turnpike_worker": {everybody, {
				"SELECT * FROM turnpike.idempotency", "SELECT * FROM turnpike.leader", "SELECT * FROM turnpike.audit", enqueues,
				"INSERT INTO turnpike.queue (job_id) VALUES (gen_random_uuid())", "UPDATE turnpike.queue SET lane = 'none/x'", "UPDATE turnpike.queue SET tenant = 'x'",
				"UPDATE turnpike.queue SET policy = 'always'", "UPDATE turnpike.queue SET max_tries = 20", "UPDATE turnpike.queue SET account = 'x'",
				"UPDATE turnpike.queue SET rank = 0", "UPDATE turnpike.queue SET dispatch_no = 1", "UPDATE turnpike.queue SET checked = true",
				"INSERT INTO turnpike.jobs (job_id) VALUES (gen_random_uuid())", "INSERT INTO turnpike.finished (job_id) VALUES (gen_random_uuid())",
				"DELETE FROM turnpike.orphans", "DELETE FROM turnpike.pauses", "DELETE FROM turnpike.workers", "INSERT INTO turnpike.limits VALUES ('x', 1)",
				"SELECT turnpike.lead(1)", "SELECT turnpike.drop_history('jobs', now())", "SELECT * FROM turnpike.accept('[]', '{}')",
				"DELETE FROM turnpike.spend", "UPDATE turnpike.spend SET budget = 1", "UPDATE turnpike.budgets SET limit_usd = 9", "UPDATE turnpike.queue SET budgets = NULL",
				"SELECT turnpike.seed_budget(1)", "SELECT holder FROM turnpike.leader", "SELECT * FROM turnpike.schedules", "DELETE FROM turnpike.schedules",
				"DELETE FROM turnpike.waits", "UPDATE turnpike.queue SET doomed = 'x'", "SELECT turnpike.let_go('{}')", "SELECT turnpike.await('[]', '{}', '{}')",
			}},
			"turnpike_dispatcher": {everybody, {enqueues, "DELETE FROM turnpike.waits", "DELETE FROM turnpike.leader", "INSERT INTO turnpike.leader DEFAULT VALUES", "UPDATE turnpike.audit SET who = ''"}},
		} {
			for _, list := range statements {
				for _, sql := range list {
					_, err := conns[role].Exec(t.Context(), sql)
					pg, ok := errors.AsType[*pgconn.PgError](err)
					// 42501: permission denied. 22023: there is no such role to become. 55000: nobody can write to the view.
					if !ok || pg.Code != "42501" && pg.Code != "22023" && pg.Code != "55000" {
						t.Errorf("%s: %.80s: %v", role, sql, err)
					}
				}
			}
		}
	})
	t.Run("nobody may rewrite what is on record or have a job vanish, nor a worker lift a pause", func(t *testing.T) {
		c := d.running()
		cost := job.USD(5)
		d.settle(ended(c, job.EndDone, started, func(r *job.Report) { r.CostUSD = &cost }))
		d.sql(`INSERT INTO turnpike.spend (budget, bucket, usd) VALUES (1, now(), 5)`)
		for _, scope := range job.Scopes() {
			if _, err := d.Pause(t.Context(), scope, "held/up", time.Now().Add(time.Hour), "me", ""); err != nil {
				t.Fatal(err)
			}
		}
		recorded := []string{
			"UPDATE turnpike.attempts SET cost_usd = 0 WHERE job_id = '" + string(c.Job) + "'",
			"UPDATE turnpike.attempts SET late = true, late_at = now(), cost_usd = 0 WHERE job_id = '" + string(c.Job) + "'",
			"UPDATE turnpike.spend SET usd = 4",
			"DELETE FROM turnpike.queue WHERE job_id = '" + string(d.running().Job) + "'", // without an end
		}
		for _, sql := range recorded {
			_, err := conns["turnpike_dispatcher"].Exec(t.Context(), sql)
			if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
				t.Errorf("a dispatcher: %.80s: %v", sql, err)
			}
		}
		for _, sql := range append(recorded,
			"UPDATE turnpike.pauses SET until = now() WHERE scope = 'account'",
			"UPDATE turnpike.pauses SET until = 'infinity' WHERE scope = 'lane'",
			"UPDATE turnpike.pauses SET name = 'other' WHERE scope = 'account'",
			"INSERT INTO turnpike.pauses (scope, name, until, reason, by) VALUES ('tenant', 'x', 'infinity', '', '')",
			"INSERT INTO turnpike.pauses (scope, name, until, reason, by) VALUES ('key', 'x/y', 'infinity', '', '')",
			"UPDATE turnpike.pauses SET until = 'infinity' WHERE scope = 'key'",
			"INSERT INTO turnpike.weights (tenant, weight, by) VALUES ('x', 100, '')", "SELECT * FROM turnpike.slow_starts()",
		) {
			_, err := conns["turnpike_worker"].Exec(t.Context(), sql)
			if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
				t.Errorf("%.80s: %v", sql, err)
			}
		}
		if _, err := conns["turnpike_worker"].Exec(t.Context(), "UPDATE turnpike.pauses SET until = 'infinity' WHERE scope = 'account'"); err != nil {
			t.Errorf("pausing an account for longer: %v", err)
		}
	})
	t.Run("nobody else may execute anything", func(t *testing.T) {
		if got := names(d, `SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'turnpike'::regnamespace
			AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0)`); len(got) != 0 {
			t.Errorf("everybody may execute %v", got)
		}
		if got := names(d, `SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'turnpike'::regnamespace AND p.prosecdef
			AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)`); len(got) != 0 {
			t.Errorf("definer's rights under the caller's search path: %v", got)
		}
	})
	t.Run("a reporter's statements end", func(t *testing.T) {
		if got := ask[string](d, `SELECT array_to_string(rolconfig, ',') FROM pg_roles WHERE rolname = 'turnpike_reporter'`); got != "statement_timeout=30s" {
			t.Errorf("settings: %q", got)
		}
	})
	t.Run("are enough for the programs", func(t *testing.T) {
		dispatcher, err := store.Open(t.Context(), store.Config{DSN: d.env.Login(t, "turnpike_dispatcher")})
		if err != nil {
			t.Fatal(err)
		}
		defer dispatcher.Close()
		works, err := store.Open(t.Context(), store.Config{DSN: d.env.Login(t, "turnpike_worker")})
		if err != nil {
			t.Fatal(err)
		}
		defer works.Close()
		ctx := t.Context()
		e := entry(t, key("k"))
		e.IdempotencyKey = "roles"
		var acc, rest []job.Accepted
		var sel []job.Selected
		var claimed []job.Claimed
		var settled []job.Settled
		var unchecked []job.Unchecked
		for _, step := range []struct {
			what string
			do   func() error
		}{
			{"lead", func() error { return dispatcher.Resign(ctx, d.epoch) }},
			{"lead", func() (err error) { d.epoch, err = dispatcher.Lead(ctx, "roles", time.Hour); return err }},
			{"enqueue", func() (err error) { acc, err = dispatcher.Enqueue(ctx, []job.Entry{e, entry(t, key("k"))}); return err }},
			{"limit", func() error { return dispatcher.SetLimit(ctx, "x", 1, "me") }},
			{"unlimit", func() error { return dispatcher.SetLimit(ctx, "x", -1, "me") }},
			{"weight", func() error { return dispatcher.SetWeight(ctx, "x", 2, "me") }},
			{"weights", func() error { _, err := dispatcher.Weights(ctx); return err }},
			{"no weight", func() error { return dispatcher.SetWeight(ctx, "x", 1, "me") }},
			{"redrive", func() error {
				_, err := dispatcher.Redrive(ctx, job.Redrive{States: []job.State{job.Failed, job.Cancel}}, "me")
				return err
			}},
			{"unchecked", func() (err error) { unchecked, err = dispatcher.Unchecked(ctx, d.epoch, 10); return err }},
			{"checked", func() error { return dispatcher.Checked(ctx, d.epoch, nil, map[job.ID]string{unchecked[0].ID: "no"}) }},
			{"promote", func() error { _, _, err := dispatcher.Promote(ctx, d.epoch, 10); return err }},
			{"load", func() error { _, err := dispatcher.Load(ctx); return err }},
			{"select", func() (err error) { sel, err = dispatcher.Select(ctx, d.epoch, lane, 10); return err }},
			{"published", func() error { return dispatcher.Published(ctx, []job.Delivery{sel[0].Delivery}) }},
			{"unpublished", func() error { _, err := dispatcher.Unpublished(ctx, d.epoch, 10); return err }},
			{"register", func() error {
				return works.Register(ctx, job.WorkerInfo{ID: worker, Lanes: []job.LaneSlots{{Lane: lane}}})
			}},
			{"seen", func() error { return works.Seen(ctx, job.WorkerInfo{ID: worker, Lanes: []job.LaneSlots{{Lane: lane}}}) }},
			{"claim", func() (err error) {
				claimed, err = works.Claim(ctx, worker, lane, []job.Claim{{Job: sel[0].Job, Dispatch: sel[0].Dispatch, Token: job.NewToken()}})
				return err
			}},
			{"beat", func() error {
				_, err := works.Beat(ctx, worker, []job.Beat{{Lease: claimed[0].Lease, StartedAt: time.Now()}})
				return err
			}},
			{"orphan", func() error {
				return works.RecordOrphan(ctx, job.Orphan{Job: claimed[0].Job, Attempt: 1, Kind: "process", Worker: worker, State: job.OrphanLive})
			}},
			{"orphans", func() error { _, err := works.Orphans(ctx, store.OrphanFilter{}); return err }},
			{"settle", func() (err error) {
				cost := job.USD(1)
				settled, err = works.Settle(ctx, []job.Report{ended(claimed[0], job.EndLimited, started, func(r *job.Report) {
					r.CostUSD, r.Usage, r.Outcome = &cost, []job.ModelUsage{{Model: "m"}}, &job.Outcome{Status: "x"}
					r.Left = []job.Orphan{{Kind: "server", State: job.OrphanLive}}
				})})
				return err
			}},
			{"lift", func() error {
				return dispatcher.Lift(ctx, job.ScopeAccount, store.DefaultAccount("claude"), "me", "")
			}},
			{"select", func() (err error) { sel, err = dispatcher.Select(ctx, d.epoch, lane, 10); return err }},
			{"redispatch", func() (err error) { sel, err = dispatcher.Redispatch(ctx, d.epoch, lane, 0, false, 10); return err }},
			{"claim", func() (err error) {
				claimed, err = works.Claim(ctx, worker, lane, []job.Claim{{Job: sel[0].Job, Dispatch: sel[0].Dispatch, Token: job.NewToken()}})
				return err
			}},
			{"clock", func() error { _, err := dispatcher.Clock(ctx); return err }},
			{"reap", func() error {
				d.lapse(claimed[0].Job)
				got, err := dispatcher.Reap(ctx, d.epoch, later, 10)
				if err == nil && len(got) != 1 {
					err = fmt.Errorf("reaped %+v", got)
				}
				return err
			}},
			{"settle late", func() (err error) {
				settled, err = works.Settle(ctx, []job.Report{ended(claimed[0], job.EndDone)})
				if err == nil && settled[0].How != job.SettledLate {
					err = fmt.Errorf("settled %+v", settled)
				}
				return err
			}},
			{"settle again by the stream", func() (err error) {
				settled, err = dispatcher.Settle(ctx, []job.Report{ended(claimed[0], job.EndDone)})
				if err == nil && settled[0].How != job.SettledBefore {
					err = fmt.Errorf("settled %+v", settled)
				}
				return err
			}},
			{"settle late by the stream", func() (err error) {
				lost := d.running()
				d.lapse(lost.Job)
				if _, err := dispatcher.Reap(ctx, d.epoch, later, 10); err != nil {
					return err
				}
				settled, err = dispatcher.Settle(ctx, []job.Report{ended(lost, job.EndDone, started, func(r *job.Report) {
					r.Usage, r.Outcome = []job.ModelUsage{{Model: "m"}}, &job.Outcome{Status: "x"}
				})})
				if err == nil && settled[0].How != job.SettledLate {
					err = fmt.Errorf("settled %+v", settled)
				}
				return err
			}},
			{"cancel", func() error { _, err := dispatcher.Cancel(ctx, acc[0].ID, "me", ""); return err }},
			{"retry", func() error { _, err := dispatcher.Retry(ctx, acc[0].ID, "me"); return err }},
			{"get", func() error { _, err := dispatcher.Get(ctx, acc[0].ID); return err }},
			{"list", func() error { _, err := dispatcher.List(ctx, job.Filter{}); return err }},
			{"report", func() error { _, err := dispatcher.Report(ctx, "agent", time.Time{}); return err }},
			{"pause", func() error {
				_, err := dispatcher.Pause(ctx, job.ScopeTenant, "x", time.Time{}, "me", "")
				return err
			}},
			{"set a schedule", func() error {
				_, err := dispatcher.SetSchedule(ctx, job.Schedule{Tenant: "roles", Name: "x", Cron: "@daily", Zone: "UTC", Missed: job.MissedOnce,
					Overlap: job.OverlapCancel, Request: e.Body}, "me")
				return err
			}},
			{"pause it", func() error { return dispatcher.PauseSchedule(ctx, "roles", "x", "me", "") }},
			{"resume it", func() error { return dispatcher.ResumeSchedule(ctx, "roles", "x", "me", "") }},
			{"fire it", func() error {
				d.sql(`UPDATE turnpike.schedules SET next_at = now() - interval '1 day'`)
				due, err := dispatcher.Due(ctx, 10)
				if err != nil || len(due) != 1 {
					return fmt.Errorf("due %v, %w", due, err)
				}
				f, err := due[0].Firing()
				if err != nil {
					return err
				}
				_, err = dispatcher.Fire(ctx, d.epoch, f)
				return err
			}},
			{"remove it", func() error { return dispatcher.RemoveSchedule(ctx, "roles", "x", "me", "") }},
			{"repeat", func() (err error) { rest, err = dispatcher.Enqueue(ctx, []job.Entry{e}); return err }},
			{"sweep", func() error {
				_, err := dispatcher.Sweep(ctx, d.epoch, store.Retention{History: time.Hour, Idempotency: 1, Orphans: 1, Workers: 1, Audit: 1})
				return err
			}},
		} {
			if err := step.do(); err != nil {
				t.Fatalf("%s: %v", step.what, err)
			}
		}
		if !rest[0].Existing {
			t.Errorf("%+v", rest)
		}
	})
}
