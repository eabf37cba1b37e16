package store_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"turnpike/internal/job"
	"turnpike/internal/store"
	"turnpike/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var schema = testenv.Migrated(func(ctx context.Context, dsn string) error {
	_, err := store.Migrate(ctx, dsn, nil)
	return err
})

// lane is where jobs go unless a test says otherwise.
var lane = job.Lane{Placement: "none-confined", Pool: "default"}

const worker = "host:1:1"

// desk is one database with a store that leads.
type desk struct {
	*store.DB
	t     testing.TB
	env   *testenv.DB
	pool  *pgxpool.Pool // looks and meddles, as the superuser
	epoch int64
}

func open(t testing.TB, edit ...func(*store.Config)) *desk {
	t.Helper()
	env := testenv.Postgres(t, schema)
	cfg := store.Config{DSN: env.DSN(), LeaseLength: time.Hour}
	for _, e := range edit {
		e(&cfg)
	}
	db, err := store.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	d := &desk{DB: db, t: t, env: env, pool: env.Pool(t)}
	if d.epoch, err = db.Lead(t.Context(), "test", time.Hour); err != nil {
		t.Fatal(err)
	}
	return d
}

// request is the smallest valid one.
func request(edit ...func(*job.Request)) job.Request {
	r := job.Request{
		APIVersion: job.APIVersion, Prompt: "do it", Grants: &job.Grants{}, Workspace: job.Workspace{Scratch: true},
		Profile: job.Profile{Agent: "claude", Sandbox: "none", Confine: true, Timeout: job.Duration(time.Hour)},
		Pool:    job.DefaultPool, Tenant: job.DefaultTenant,
		Retry: job.Retry{Policy: job.RetryIfNotStarted, MaxTries: 3, Backoff: job.Duration(30 * time.Second)},
	}
	for _, e := range edit {
		e(&r)
	}
	return r
}

func entry(t testing.TB, edit ...func(*job.Request)) job.Entry {
	t.Helper()
	r := request(edit...)
	body, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return job.Entry{Request: r, Body: body, Producer: "test"}
}

func (d *desk) enqueue(edit ...func(*job.Request)) job.ID {
	d.t.Helper()
	got, err := d.Enqueue(d.t.Context(), []job.Entry{entry(d.t, edit...)})
	if err != nil {
		d.t.Fatal(err)
	}
	if len(got) != 1 || got[0].Existing {
		d.t.Fatalf("enqueue: %+v", got)
	}
	return got[0].ID
}

func (d *desk) dispatch(n int) []job.Selected {
	d.t.Helper()
	got, err := d.Select(d.t.Context(), d.epoch, lane, n)
	if err != nil {
		d.t.Fatal(err)
	}
	return got
}

func (d *desk) claim(sel ...job.Selected) []job.Claimed {
	d.t.Helper()
	claims := make([]job.Claim, len(sel))
	for i, s := range sel {
		claims[i] = job.Claim{Job: s.Job, Dispatch: s.Dispatch, Token: job.NewToken()}
	}
	got, err := d.Claim(d.t.Context(), worker, lane, claims)
	if err != nil {
		d.t.Fatal(err)
	}
	return got
}

// running enqueues a job and brings it to a running attempt.
func (d *desk) running(edit ...func(*job.Request)) job.Claimed {
	d.t.Helper()
	return d.run(d.enqueue(edit...))
}

// run selects and claims one job; others that are selected stay dispatched.
func (d *desk) run(id job.ID) job.Claimed {
	d.t.Helper()
	for _, s := range d.dispatch(1000) {
		if s.Job == id {
			if got := d.claim(s); len(got) == 1 {
				return got[0]
			}
		}
	}
	d.t.Fatalf("job %s does not run", id)
	return job.Claimed{}
}

// ended is the report of an attempt.
func ended(c job.Claimed, how job.Ending, edit ...func(*job.Report)) job.Report {
	r := job.Report{Version: job.ReportVersion, Lease: c.Lease, Worker: worker, Host: "host", Ending: how, Agent: "claude", EndedAt: time.Now()}
	for _, e := range edit {
		e(&r)
	}
	return r
}

func started(r *job.Report) { r.Started, r.StartedAt = true, time.Now() }

func touched(r *job.Report) {
	started(r)
	r.ToolCalls = 1
}

func (d *desk) settle(r job.Report) job.Settled {
	d.t.Helper()
	got, err := d.Settle(d.t.Context(), []job.Report{r})
	if err != nil {
		d.t.Fatal(err)
	}
	return got[0]
}

func (d *desk) state(id job.ID) job.State { return d.get(id).State }

func (d *desk) get(id job.ID) job.View {
	d.t.Helper()
	v, err := d.Get(d.t.Context(), id)
	if err != nil {
		d.t.Fatal(err)
	}
	return v
}

// lapse makes a running job's lease lapse.
func (d *desk) lapse(id job.ID) {
	d.t.Helper()
	d.sql(`UPDATE turnpike.queue SET lease_until = now() - interval '1 second' WHERE job_id = $1 AND state = 'running'`, string(id))
}

// due makes whatever waits for a time wait no longer.
func (d *desk) due() {
	d.t.Helper()
	d.sql(`UPDATE turnpike.queue SET wake_at = now() WHERE wake_at < 'infinity'`)
	if _, _, err := d.Promote(d.t.Context(), d.epoch, 1000); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) beat(b job.Beat) {
	d.t.Helper()
	if got, err := d.Beat(d.t.Context(), worker, []job.Beat{b}); err != nil || len(got) != 1 || !got[0].Ours {
		d.t.Fatalf("beat: %+v, %v", got, err)
	}
}

// later is after every lease of the tests.
var later = time.Now().Add(1000 * time.Hour)

func (d *desk) reap() []job.Reaped {
	d.t.Helper()
	got, err := d.Reap(d.t.Context(), d.epoch, later, 100)
	if err != nil {
		d.t.Fatal(err)
	}
	return got
}

func (d *desk) sql(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.pool.Exec(d.t.Context(), sql, args...); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
}

func ask[T any](d *desk, sql string, args ...any) T {
	d.t.Helper()
	rows, err := d.pool.Query(d.t.Context(), sql, args...)
	if err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
	return v
}
