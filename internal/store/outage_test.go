package store_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
	"turnpike/internal/store"
	"turnpike/internal/testenv"
)

func TestOutage(t *testing.T) {
	t.Parallel()
	env := testenv.Postgres(t, schema)
	to := func(t *testing.T, addr string) *store.DB {
		t.Helper()
		db, err := store.Open(t.Context(), store.Config{DSN: testenv.Via(env.DSN(), addr), CallTimeout: 500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(db.Close)
		return db
	}
	t.Run("nobody listens", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		db := to(t, addr)
		wantIs(t, db.Ping(t.Context()), job.ErrUnavailable)
		_, err = db.Enqueue(t.Context(), []job.Entry{entry(t)})
		wantIs(t, err, job.ErrUnavailable)
	})
	t.Run("nobody answers", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		db := to(t, l.Addr().String())
		begun := time.Now()
		_, err = db.Settle(t.Context(), []job.Report{{Lease: job.Lease{Token: job.NewToken(), Job: "0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11"}, Ending: job.EndDone}})
		wantIs(t, err, job.ErrUnavailable)
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
	})
	t.Run("a lock that is not let go", func(t *testing.T) {
		d := open(t)
		id := d.enqueue()
		hasty, err := store.Open(t.Context(), store.Config{DSN: d.env.DSN(), CallTimeout: 500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		defer hasty.Close()
		tx, err := d.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		if _, err := tx.Exec(t.Context(), `SELECT FROM turnpike.queue WHERE job_id = $1 FOR UPDATE`, string(id)); err != nil {
			t.Fatal(err)
		}
		_, err = hasty.Cancel(t.Context(), id, "me", "")
		wantIs(t, err, job.ErrUnavailable)
	})
	t.Run("the server's disk is full", func(t *testing.T) {
		d := open(t)
		c := d.running()
		d.sql(`
			CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN
				RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
			END $$;
			CREATE TRIGGER full_disk BEFORE INSERT ON turnpike.attempts FOR EACH ROW EXECUTE FUNCTION full_disk()`)
		r := ended(c, job.EndDone, touched)
		_, err := d.Settle(t.Context(), []job.Report{r})
		wantIs(t, err, job.ErrUnavailable) // the worker keeps the report
		if d.state(c.Job) != job.Running {
			t.Errorf("the job is %s", d.state(c.Job))
		}
		d.sql(`DROP TRIGGER full_disk ON turnpike.attempts`)
		if got := d.settle(r); got.How != job.SettledNow || got.State != job.Succeeded {
			t.Errorf("once there is room: %+v", got)
		}
	})
	t.Run("the session is ended by the server", func(t *testing.T) {
		d := open(t, func(c *store.Config) { c.App, c.MaxConns = "ended", 1 })
		if err := d.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.sql(`SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'ended' AND datname = current_database()`)
		if err := d.Ping(t.Context()); err != nil {
			wantIs(t, err, job.ErrUnavailable)
		}
		if err := d.Ping(t.Context()); err != nil {
			t.Errorf("did not come back: %v", err)
		}
	})
	t.Run("the primary is one no more, and stays connected", func(t *testing.T) {
		d := open(t, func(c *store.Config) { c.App, c.MaxConns = "reading", 1 })
		end := func() {
			d.sql(`SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'reading' AND datname = current_database()`)
		}
		set := func(what string) {
			d.sql(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I ` + what + `', current_database()); END $$`)
		}
		set("SET default_transaction_read_only = on")
		end()
		for i := 0; ; i++ {
			if _, err := d.Enqueue(t.Context(), []job.Entry{entry(t)}); i > 0 { // the first may meet the ended session
				wantIs(t, err, job.ErrUnavailable)
				break
			}
		}
		d.sql(`SET default_transaction_read_only = off`)
		set("RESET default_transaction_read_only")
		if _, err := d.Enqueue(t.Context(), []job.Entry{entry(t)}); err != nil {
			t.Errorf("it goes on with a server that only reads: %v", err)
		}
	})
	t.Run("a program that stands still within a transaction lets its locks go", func(t *testing.T) {
		d := open(t, func(c *store.Config) { c.CallTimeout = 700 * time.Millisecond })
		goOn, locked, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- store.Within(t.Context(), d.DB, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `SELECT FROM turnpike.leader FOR NO KEY UPDATE`)
				close(locked)
				<-goOn // the server sees as much of a program that is stopped
				return err
			})
		}()
		<-locked
		d.sql(`SELECT FROM turnpike.leader FOR NO KEY UPDATE`)
		close(goOn)
		wantIs(t, <-done, job.ErrUnavailable)
	})
	t.Run("the caller's own end is no outage", func(t *testing.T) {
		d := open(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(job.ErrDrained)
		err := d.Ping(ctx)
		wantIs(t, err, job.ErrDrained)
	})
	t.Run("an address that is none says so without its password", func(t *testing.T) {
		_, err := store.Open(t.Context(), store.Config{DSN: "postgres://u:hunter2@h:port/x"})
		if err == nil || containsSecret(err.Error()) {
			t.Errorf("%v", err)
		}
	})
}

// A worker's clock is an hour off. Leases, the order of attempts and waits go by the
// database's clock; what the worker says of its own times is kept as it says it.
func TestSkew(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := open(t, func(c *store.Config) { c.LeaseLength = time.Minute })
			there := func() time.Time { return time.Now().Add(off) }
			c := d.running(func(r *job.Request) { r.Retry.Policy = job.RetryAlways })
			got, err := d.Beat(t.Context(), worker, []job.Beat{{Lease: c.Lease, StartedAt: there()}})
			if err != nil || !got[0].Ours {
				t.Fatalf("%+v, %v", got, err)
			}
			if !ask[bool](d, `SELECT lease_until - now() BETWEEN '50 s' AND '1 minute' FROM turnpike.queue`) {
				t.Error("the lease is as long as its worker's clock is off")
			}
			if reaped := d.reap(); len(reaped) != 0 {
				t.Errorf("reaped %+v", reaped)
			}
			d.settle(ended(c, job.EndTimeout, func(r *job.Report) {
				r.Started, r.StartedAt, r.EndedAt, r.DurationMS = true, there(), there().Add(time.Second), 1000
			}))
			if !ask[bool](d, `SELECT wake_at > now() AND wake_at < now() + interval '1 minute' FROM turnpike.queue`) {
				t.Error("the next try waits for the worker's clock")
			}
			d.due()
			second := d.run(c.Job)
			d.settle(ended(second, job.EndDone, touched))
			if n := ask[int](d, `SELECT count(*) FROM turnpike.attempts
				WHERE claimed_at <= closed_at AND now() - closed_at < interval '5 minutes' AND duration_ms >= 0`); n != 2 {
				t.Errorf("%d attempts were closed by the database's clock, want 2", n)
			}
			if !ask[bool](d, `SELECT a.closed_at <= b.claimed_at FROM turnpike.attempts a, turnpike.attempts b WHERE a.attempt = 1 AND b.attempt = 2`) {
				t.Error("the attempts overlap")
			}
		})
	}

	t.Run("a reset time is the provider's, whoever passes it on", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		reset := time.Now().Add(10 * time.Minute).Truncate(time.Microsecond)
		d.settle(ended(d.running(), job.EndLimited, func(r *job.Report) { r.RetryAfter, r.EndedAt = reset, time.Now().Add(time.Hour) }))
		if until := ask[time.Time](d, `SELECT until FROM turnpike.pauses`); !until.Equal(reset) {
			t.Errorf("paused until %s, want %s", until, reset)
		}
	})
}
