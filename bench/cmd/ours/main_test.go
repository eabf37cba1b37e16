package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/bench/servers"
)

// TestOurs has every figure measured once, with few jobs: that the programs still fit
// together is what it is about, and not how fast they are.
func TestOurs(t *testing.T) {
	ctx := t.Context()
	shared := os.Getenv("TURNPIKE_TEST_PG_DSN") // see scripts/test.sh
	if shared == "" {
		dir, err := os.MkdirTemp("", "turnpike-ours-") // Postgres may be another user
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		pg, err := servers.StartPostgres(ctx, dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pg.Stop() })
		if shared, err = pg.Fresh(ctx, "shared"); err != nil {
			t.Fatal(err)
		}
	}
	address, err := url.Parse(shared)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("ours_%d", os.Getpid())
	do := func(ctx context.Context, sql string) {
		t.Helper()
		c, err := pgx.Connect(ctx, shared)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(ctx)
		if _, err := c.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	do(ctx, "CREATE DATABASE "+name)
	t.Cleanup(func() { do(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)") })
	address.Path = "/" + name
	options.Address, options.Dir, options.N, options.Duration = address.String(), t.TempDir(), 40, time.Second
	if err := run(ctx); err != nil {
		t.Fatal(err)
	}
}
