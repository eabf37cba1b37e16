package store_test

import (
	"context"
	"crypto/rand"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/job"
	"turnpike/internal/store"
	"turnpike/internal/testenv"
)

// aged moves a job, with everything about it, to another week: what is on record is not
// rewritten otherwise.
func (d *desk) aged(id job.ID, weeks int) job.ID {
	d.t.Helper()
	d.sql(`DROP TRIGGER IF EXISTS keep_history ON turnpike.attempts`)
	to := ask[string](d, `SELECT overlay($1::text placing left(turnpike.uuid7_floor(now() + $2 * interval '7 days')::text, 13) from 1 for 13)`, string(id), weeks)
	for _, table := range append(names(d, `SELECT unnest(turnpike.history())`), "queue", "orphans") {
		d.sql(`UPDATE turnpike.`+table+` SET job_id = $1 WHERE job_id = $2`, to, string(id))
	}
	return job.ID(to)
}

// Weeks are dropped while jobs come, go and are looked at: nobody meets a deadlock.
func TestSweepBesideWork(t *testing.T) {
	t.Parallel()
	d := open(t)
	for week := range 4 {
		c := d.running()
		d.settle(ended(c, job.EndDone, started))
		d.aged(c.Job, -10-week)
	}
	if _, err := d.Sweep(t.Context(), d.epoch, store.Retention{}); err != nil { // each into its week's partition
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var beside sync.WaitGroup
	var rounds atomic.Int64
	for range 3 {
		beside.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				got, err := d.Enqueue(t.Context(), []job.Entry{entry(t)})
				if err == nil {
					_, err = d.Cancel(t.Context(), got[0].ID, "me", "")
				}
				if err == nil {
					_, err = d.Get(t.Context(), got[0].ID)
				}
				if err == nil {
					_, err = d.Report(t.Context(), "tenant", time.Time{})
				}
				if err != nil {
					t.Error(err)
					return
				}
				rounds.Add(1)
			}
		})
	}
	for rounds.Load() < 3 {
		runtime.Gosched()
	}
	swept, err := d.Sweep(t.Context(), d.epoch, store.Retention{History: 5 * 7 * 24 * time.Hour})
	close(stop)
	beside.Wait()
	if err != nil || swept.Partitions < 4*2 { // of jobs and attempts at least
		t.Errorf("swept %+v, %v; want four weeks gone", swept, err)
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	d := open(t)
	finished := func() job.ID {
		c := d.running()
		d.settle(ended(c, job.EndDone, started, func(r *job.Report) {
			r.Outcome, r.Usage = &job.Outcome{Status: "ok"}, []job.ModelUsage{{Model: "m"}}
		}))
		return c.Job
	}
	sweep := func(keep store.Retention) store.Swept {
		t.Helper()
		got, err := d.Sweep(t.Context(), d.epoch, keep)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	there := func(id job.ID) bool {
		return ask[bool](d, `SELECT EXISTS (SELECT FROM turnpike.jobs WHERE job_id = $1)`, string(id))
	}
	inDefault := func() int {
		return ask[int](d, `SELECT (SELECT count(*) FROM turnpike.jobs_default) + (SELECT count(*) FROM turnpike.attempts_default)`)
	}

	old, older, fresh, future := d.aged(finished(), -10), d.aged(finished(), -20), finished(), d.aged(finished(), 6)
	c := d.running()
	waits := d.aged(c.Job, -20)
	if inDefault() == 0 {
		t.Fatal("the old ones are not where nobody had made room")
	}
	// The planner is told of the history as a whole, once a day; nobody else does it.
	if got := sweep(store.Retention{}); got != (store.Swept{Analyzed: 6}) {
		t.Errorf("swept %+v", got)
	}
	if n := ask[float32](d, `SELECT reltuples FROM pg_class WHERE oid = 'turnpike.jobs'::regclass`); n < 5 {
		t.Errorf("the planner knows of %v jobs", n)
	}
	if got := sweep(store.Retention{}); got != (store.Swept{}) {
		t.Errorf("swept again %+v", got)
	}
	if n := inDefault(); n != 2 { // the future's week is not made yet
		t.Errorf("%d rows are in no week's partition", n)
	}
	if got := d.get(old); got.State != job.Succeeded || got.Outcome != "ok" || len(got.Attempts[0].Usage) != 1 {
		t.Errorf("moved: %+v", got)
	}

	sweep(store.Retention{History: 5 * 7 * 24 * time.Hour})
	if there(old) || !there(fresh) || !there(future) {
		t.Errorf("old %v, fresh %v, future %v", there(old), there(fresh), there(future))
	}
	if !there(older) || !there(waits) {
		t.Error("a week with an unfinished job was dropped")
	}
	if _, err := d.Cancel(t.Context(), waits, "me", ""); err != nil {
		t.Fatal(err)
	}
	d.sql(`UPDATE turnpike.queue SET started_at = now(), lease_until = now() - interval '1 s' WHERE job_id = $1`, string(waits))
	d.reap() // leaves an orphan
	sweep(store.Retention{History: 5 * 7 * 24 * time.Hour})
	if !there(waits) {
		t.Error("a week with an orphan was dropped")
	}
	// Its host does not come back: the same sweep gives it up and drops its week.
	d.sql(`UPDATE turnpike.orphans SET created_at = now() - interval '2 days'`)
	if got := sweep(store.Retention{History: 5 * 7 * 24 * time.Hour, Unreachable: 24 * time.Hour}); got.Unreachable != 1 || got.Partitions == 0 || there(waits) || there(older) {
		t.Errorf("swept %+v; still there", got)
	}
	if n := ask[int](d, `SELECT count(*) FROM turnpike.attempts WHERE job_id = $1`, string(older)); n != 0 {
		t.Errorf("%d attempts are left", n)
	}

	d.sql(`INSERT INTO turnpike.idempotency VALUES ('p', 'k', '', gen_random_uuid(), now() - interval '2 days')`)
	d.sql(`INSERT INTO turnpike.workers VALUES ('w', '', '', '', '', false, '[]', now(), now() - interval '2 days')`)
	d.sql(`INSERT INTO turnpike.audit VALUES (now() - interval '2 days', 'me', 'x', 'y')`)
	d.sql(`UPDATE turnpike.orphans SET abandoned_at = now() - interval '6 weeks'`)
	if got := sweep(store.Retention{History: 5 * 7 * 24 * time.Hour}); got.Orphans != 1 {
		t.Errorf("swept %+v; the record of what is unreachable stays without its history", got)
	}
	d.sql(`INSERT INTO turnpike.orphans (job_id, attempt, kind, worker, state, gone_at) VALUES ($1, 1, 'process', 'w', 'gone', now() - interval '2 days')`, string(fresh))
	day := 24 * time.Hour
	want := store.Swept{Idempotency: 1, Workers: 1, Audit: 1, Orphans: 1}
	if diff := cmp.Diff(want, sweep(store.Retention{Idempotency: day, Workers: day, Audit: day, Orphans: day})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	_, err := d.Sweep(t.Context(), d.epoch+1, store.Retention{})
	wantIs(t, err, job.ErrNotLeader)
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	empty := testenv.Postgres(t, nil)
	have, want, err := store.Version(t.Context(), empty.DSN())
	wantIs(t, err, store.ErrSchema)
	if have != 0 || want == 0 {
		t.Errorf("have %d, want %d", have, want)
	}
	steps, err := store.MigrationStatus(t.Context(), empty.DSN())
	if err != nil || len(steps) == 0 || !steps[0].Applied.IsZero() {
		t.Fatalf("%+v, %v", steps, err)
	}
	// Several at once: one does it, the others wait.
	type result struct {
		n   int
		err error
	}
	results := make(chan result)
	for range 3 {
		go func() {
			n, err := store.Migrate(context.WithoutCancel(t.Context()), empty.DSN(), nil)
			results <- result{n, err}
		}()
	}
	total := 0
	for range 3 {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
		}
		total += r.n
	}
	if total != len(steps) { // numbers may have gaps
		t.Errorf("%d steps were applied, want %d", total, len(steps))
	}
	if have, _, err = store.Version(t.Context(), empty.DSN()); err != nil || have != want {
		t.Errorf("have %d, %v", have, err)
	}
	for _, role := range []string{"turnpike_dispatcher", "turnpike_worker"} {
		login, password := "check_"+role+"_"+strings.ToLower(rand.Text()), rand.Text()
		for range 2 { // a second time changes the password only
			if err := store.EnsureLogin(t.Context(), empty.DSN(), login, password, role); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := store.Version(t.Context(), empty.As(login, password)); err != nil {
			t.Errorf("%s cannot tell the schema's version: %v", role, err)
		}
		if _, err := empty.Pool(t).Exec(t.Context(), "DROP ROLE "+login); err != nil {
			t.Error(err)
		}
	}
	steps, err = store.MigrationStatus(t.Context(), empty.DSN())
	if err != nil || len(steps) != total || steps[len(steps)-1].Applied.IsZero() || steps[0].Name == "" {
		t.Errorf("%+v, %v", steps, err)
	}
}
