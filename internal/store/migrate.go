package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"turnpike/migrations"
)

// ErrSchema says that the database's schema is older than this program needs.
// Migrate brings it up to date. A newer one is fine: a migration works with the
// programs of the release before it.
var ErrSchema = errors.New("the database's schema is older than this program; run migrate")

// Migration is one step of the schema.
type Migration struct {
	Version int64
	Name    string
	Applied time.Time // zero: not yet
}

// Migrate applies the steps that are missing and returns how many. Several
// programs may call it at once: one does it, the others wait.
func Migrate(ctx context.Context, dsn string, log *slog.Logger) (applied int, err error) {
	err = withGoose(dsn, log, func(p *goose.Provider, db *sql.DB) error {
		// goose keeps its tables in the schema that the first step makes.
		if _, err := db.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS turnpike`); err != nil && !exists(err) {
			return err
		}
		done, err := p.Up(ctx)
		applied = len(done)
		return err
	})
	if err != nil {
		return applied, fail(ctx, "migrate", err)
	}
	return applied, nil
}

// exists says that another session created the same thing at the same moment.
func exists(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "23505" || pg.Code == "42P06")
}

// MigrationStatus lists every step this program knows. It only reads: goose's own
// answer would take its lock, which only a migrating login may.
func MigrationStatus(ctx context.Context, dsn string) (steps []Migration, err error) {
	err = withGoose(dsn, nil, func(p *goose.Provider, db *sql.DB) error {
		applied, err := appliedSteps(ctx, db)
		for _, s := range p.ListSources() {
			steps = append(steps, Migration{Version: s.Version, Name: s.Path, Applied: applied[s.Version]})
		}
		return err
	})
	if err != nil {
		return nil, fail(ctx, "read the schema's version", err)
	}
	return steps, nil
}

// appliedSteps says when each step was applied; none where goose never was.
func appliedSteps(ctx context.Context, db *sql.DB) (map[int64]time.Time, error) {
	var there bool
	if err := db.QueryRowContext(ctx, `SELECT to_regclass('turnpike.goose_db_version') IS NOT NULL`).Scan(&there); err != nil || !there {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, `SELECT version_id, tstamp FROM turnpike.goose_db_version WHERE is_applied`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err tells what went wrong
	applied := map[int64]time.Time{}
	for rows.Next() {
		var version int64
		var at time.Time
		if err := rows.Scan(&version, &at); err != nil {
			return nil, err
		}
		applied[version] = at
	}
	return applied, rows.Err()
}

// Version checks that the database's schema is at least what this program needs.
// Its error wraps ErrSchema when it is not.
func Version(ctx context.Context, dsn string) (have, want int64, err error) {
	steps, err := MigrationStatus(ctx, dsn)
	if err != nil {
		return 0, 0, err
	}
	for _, s := range steps {
		want = max(want, s.Version)
		if !s.Applied.IsZero() {
			have = max(have, s.Version)
		}
	}
	if have < want {
		return have, want, fmt.Errorf("schema version %d, want %d: %w", have, want, ErrSchema)
	}
	return have, want, nil
}

func withGoose(dsn string, log *slog.Logger, do func(*goose.Provider, *sql.DB) error) error {
	pc, err := pgx.ParseConfig(dsn)
	if err != nil {
		return fmt.Errorf("database address: %w", err)
	}
	dialect(pc)
	// goose's few statements run once each: nothing is worth remembering.
	pc.DefaultQueryExecMode = pgx.QueryExecModeExec
	db := stdlib.OpenDB(*pc)
	defer func() { _ = db.Close() }() // nothing is lost with it
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	// A lock in a table: one of the session would be left behind by a pooler.
	locker, err := lock.NewPostgresTableLocker(lock.WithTableName("turnpike.goose_lock"), lock.WithTableLogger(log))
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Files,
		goose.WithTableName("turnpike.goose_db_version"),
		goose.WithLocker(locker),
		goose.WithDisableGlobalRegistry(true),
		goose.WithSlog(log))
	if err != nil {
		return err
	}
	return do(p, db)
}
