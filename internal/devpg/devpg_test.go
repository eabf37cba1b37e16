package devpg_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/devpg"
)

func TestServer(t *testing.T) {
	bin, err := devpg.Find()
	if err != nil {
		t.Fatalf("%v: `make deps` installs them", err)
	}
	// Not t.TempDir: its parents are closed to the uid Postgres runs under as root.
	base, err := os.MkdirTemp("", "devpg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(base, "pg")
	ctx := t.Context()

	exec := func(s *devpg.Server, sql string) {
		t.Helper()
		c, err := pgx.Connect(ctx, s.SuperuserDSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(ctx)
		if _, err := c.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	query := func(s *devpg.Server, sql string) (n int) {
		t.Helper()
		c, err := pgx.Connect(ctx, s.SuperuserDSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(ctx)
		if err := c.QueryRow(ctx, sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	first, err := devpg.Start(ctx, bin, dir)
	if err != nil {
		t.Fatal(err)
	}
	exec(first, "CREATE TABLE kept AS SELECT 7 AS n")
	if _, err := devpg.Start(ctx, bin, dir); !errors.Is(err, devpg.ErrInUse) {
		t.Errorf("a second server in the same directory: %v, want ErrInUse", err)
	}
	if _, err := pgx.Connect(ctx, first.DSN("postgres", devpg.Superuser, "wrong")); err == nil {
		t.Error("a wrong password is let in")
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}

	again, err := devpg.Start(ctx, bin, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Stop()
	if got := query(again, "SELECT n FROM kept"); got != 7 {
		t.Errorf("after a restart kept is %d, want 7", got)
	}
}
