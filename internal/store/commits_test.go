package store_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/devpg"
	"turnpike/internal/job"
	"turnpike/internal/store"
)

// TestPooler plays a transaction pooler that does not keep prepared statements apart.
func TestPooler(t *testing.T) {
	t.Parallel()
	d := open(t, func(c *store.Config) { c.MaxConns = 1 })
	d.enqueue()
	if err := store.Forget(t.Context(), d.DB); err != nil {
		t.Fatal(err)
	}
	_, err := d.Enqueue(t.Context(), []job.Entry{entry(t)})
	wantIs(t, err, job.ErrUnavailable)
	for range 2 { // nothing is prepared any more
		d.enqueue()
		if err := store.Forget(t.Context(), d.DB); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(d.claim(d.dispatch(5)...)); got != 3 {
		t.Errorf("claimed %d jobs, want the 3 that were answered", got)
	}
}

// TestCrashedServer ends Postgres as a failure would, with what it had not written. A selection may be gone
// after that, and then must be as if it had never been; what was answered to a producer
// or a worker may not, and nor may the selection under it.
func TestCrashedServer(t *testing.T) {
	t.Parallel()
	bin, err := devpg.Find()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "turnpike-crash-") // another uid has to get there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var server *devpg.Server
	start := func() *store.DB {
		t.Helper()
		if server, err = devpg.Start(ctx, bin, dir); err != nil {
			t.Fatal(err)
		}
		db, err := store.Open(ctx, store.Config{DSN: server.SuperuserDSN("postgres"), LeaseLength: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	do := func(sql ...string) {
		t.Helper()
		c, err := pgx.Connect(ctx, server.SuperuserDSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(ctx)
		for _, s := range sql {
			if _, err := c.Exec(ctx, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	crash := func(db *store.DB) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(b), "\n")
		pid, err := strconv.Atoi(first)
		if err != nil {
			t.Fatal(err)
		}
		// The immediate shutdown: its processes end where they are, and write nothing more.
		if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
			t.Fatal(err)
		}
		<-server.Done()
		db.Close()
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db := start()
	defer func() {
		db.Close()
		if server != nil { // it did not start again
			_ = server.Stop()
		}
	}()
	_, err = store.Migrate(ctx, server.SuperuserDSN("postgres"), slog.New(slog.DiscardHandler))
	must(err)
	// Nobody else brings the log to the disk before the crash.
	do("ALTER SYSTEM SET wal_writer_delay = '10s'", "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()", "CHECKPOINT")

	lead := func() int64 {
		t.Helper()
		epoch, err := db.Lead(ctx, "test", time.Hour)
		must(err)
		return epoch
	}
	epoch := lead()
	accepted, err := db.Enqueue(ctx, []job.Entry{entry(t)})
	must(err)
	selected, err := db.Select(ctx, epoch, lane, 1)
	must(err)
	if len(selected) != 1 || selected[0].Dispatch != 1 {
		t.Fatalf("selected %+v", selected)
	}
	crash(db)

	db = start()
	claims := []job.Claim{{Job: accepted[0].ID, Dispatch: 1, Token: job.NewToken()}}
	got, err := db.Claim(ctx, worker, lane, claims)
	must(err)
	v, err := db.Get(ctx, accepted[0].ID)
	must(err)
	switch {
	case v.State == job.Queued && len(got) == 0:
		again, err := db.Select(ctx, lead(), lane, 1)
		must(err)
		if len(again) != 1 || again[0].Dispatch != 1 {
			t.Fatalf("selected again %+v, want the same number", again)
		}
		got, err = db.Claim(ctx, worker, lane, claims)
		must(err)
	case v.State == job.Running:
		t.Log("the selection had reached the disk")
	}
	if len(got) != 1 {
		t.Fatalf("claimed %+v of a job that is %s", got, v.State)
	}
	crash(db)

	db = start()
	v, err = db.Get(ctx, accepted[0].ID)
	must(err)
	beaten, err := db.Beat(ctx, worker, []job.Beat{{Lease: got[0].Lease}})
	must(err)
	if v.State != job.Running || !beaten[0].Ours {
		t.Errorf("a claim that was answered: the job is %s, the beat %+v", v.State, beaten)
	}
}
