package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"turnpike/internal/job"
)

// Config says how to reach the database. Everything but DSN has a usable zero.
type Config struct {
	DSN         string
	MaxConns    int           // default 8
	App         string        // application_name, for whoever looks at pg_stat_activity
	CallTimeout time.Duration // every call's deadline; default 10s
	LeaseLength time.Duration // default 60s
	// Unready is how long a job may find nothing but workers that cannot make it ready
	// before it fails; default 24h.
	Unready time.Duration
	// SlowStart is the step in which an account gets going again whose limit is over:
	// one job, and twice as many each step, for ten of them. Zero is all at once.
	SlowStart time.Duration
}

// DB is the store. It is safe for concurrent use.
type DB struct {
	pool    *pgxpool.Pool
	timeout time.Duration
	lease   time.Duration
	unready time.Duration
	slow    time.Duration
	// pooled says that a transaction pooler was found between, which does not keep
	// prepared statements apart.
	pooled *atomic.Bool
}

// Open prepares a pool of connections; it does not connect, so that a program may
// start while the database is away. Close ends it.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	pc, err := pgxpool.ParseConfig(cfg.DSN)
	if err != nil {
		return nil, fmt.Errorf("database address: %w", err) // pgx leaves the password out
	}
	pc.MaxConns = 8
	if cfg.MaxConns > 0 {
		pc.MaxConns = int32(min(cfg.MaxConns, 1000))
	}
	db := &DB{timeout: 10 * time.Second, lease: 60 * time.Second, unready: 24 * time.Hour, slow: max(cfg.SlowStart, 0), pooled: new(atomic.Bool)}
	if cfg.CallTimeout > 0 {
		db.timeout = cfg.CallTimeout
	}
	if cfg.LeaseLength > 0 {
		db.lease = cfg.LeaseLength
	}
	if cfg.Unready > 0 {
		db.unready = cfg.Unready
	}
	dialect(pc.ConnConfig)
	if cfg.App != "" {
		pc.ConnConfig.RuntimeParams["application_name"] = cfg.App
	}
	pc.ConnConfig.ConnectTimeout = min(db.timeout, 5*time.Second)
	if db.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return nil, fmt.Errorf("database address: %w", err)
	}
	return db, nil
}

// dialect makes a connection fit for any transaction pooler: descriptions of
// statements are remembered on this side, and no statement is prepared under a name
// on a server connection that the next transaction may not get. Only hot goes further.
func dialect(c *pgx.ConnConfig) {
	c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	// Times are read by people in psql and by reports; the programs do not care.
	c.RuntimeParams["timezone"] = "UTC"
}

// Close ends the connections. No call may be running.
func (db *DB) Close() { db.pool.Close() }

// Ping asks whether the database answers.
func (db *DB) Ping(ctx context.Context) error {
	return db.exec(ctx, "ping", "SELECT", nil)
}

const clock = `SELECT clock_timestamp()`

// Clock is the database's time, which is what leases go by.
func (db *DB) Clock(ctx context.Context) (time.Time, error) {
	return one(ctx, db, "read the clock", stmt{clock, nil}, pgx.RowTo[time.Time])
}

// LeaseLength is how long a lease is.
func (db *DB) LeaseLength() time.Duration { return db.lease }

type args = pgx.StrictNamedArgs

type stmt struct {
	sql  string
	args args
}

func (s stmt) queue(b *pgx.Batch) *pgx.QueuedQuery {
	if s.args == nil {
		return b.Queue(s.sql)
	}
	return b.Queue(s.sql, s.args)
}

// together runs statements in one transaction and one round trip. Each sees what
// was committed before it began, so one that takes locks is a statement of its own,
// before the one that relies on them. It returns the rows of the last.
func together[T any](ctx context.Context, db *DB, what string, row pgx.RowToFunc[T], stmts ...stmt) ([]T, error) {
	call, cancel := context.WithTimeout(ctx, db.timeout)
	defer cancel()
	b := &pgx.Batch{}
	for _, s := range stmts {
		s.queue(b)
	}
	out, err := rowsOf(db.pool.SendBatch(call, b), len(stmts), row)
	return out, db.fail(ctx, what, err)
}

// hot is together for what every job passes through: its statements are prepared, once
// per connection, because planning them takes as long as running them does.
func hot[T any](ctx context.Context, db *DB, what string, row pgx.RowToFunc[T], stmts ...stmt) (out []T, err error) {
	return locking(ctx, db, what, row, nil, stmts...)
}

// locking is hot for a transaction that takes locks before its last statement. idle is
// that one with arguments with which it does nothing: a connection runs it once
// before, for its plan. On a server that just started, planning can take as long as a
// lease, and whoever beats waits for the locks meanwhile.
func locking[T any](ctx context.Context, db *DB, what string, row pgx.RowToFunc[T], idle *stmt, stmts ...stmt) (out []T, err error) {
	if db.pooled.Load() {
		return together(ctx, db, what, row, stmts...)
	}
	call, cancel := context.WithTimeout(ctx, db.timeout)
	defer cancel()
	err = db.pool.AcquireFunc(call, func(c *pgxpool.Conn) error {
		b := &pgx.Batch{}
		for _, s := range stmts {
			sql, values, err := s.args.RewriteQuery(call, c.Conn(), s.sql, nil)
			if err != nil {
				return err
			}
			// A batch uses the statement that was prepared under its own text.
			if _, err := c.Conn().Prepare(call, sql, sql); err != nil {
				return err
			}
			b.Queue(sql, values...)
		}
		if idle != nil {
			if err := plan(call, c.Conn(), *idle); err != nil {
				return err
			}
		}
		out, err = rowsOf(c.SendBatch(call, b), len(stmts), row)
		return err
	})
	return out, db.fail(ctx, what, err)
}

// plan has a connection plan a prepared statement, unless it has.
func plan(ctx context.Context, c *pgx.Conn, idle stmt) error {
	sql, values, err := idle.args.RewriteQuery(ctx, c, idle.sql, nil)
	if err != nil {
		return err
	}
	done := c.PgConn().CustomData()
	if done[sql] != nil {
		return nil
	}
	b := &pgx.Batch{}
	b.Queue(planned.sql)
	b.Queue(sql, values...)
	if err := c.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	done[sql] = true
	return nil
}

// rowsOf reads the rows of the last of n statements.
func rowsOf[T any](sent pgx.BatchResults, n int, row pgx.RowToFunc[T]) (out []T, err error) {
	err = func() error {
		for range n - 1 {
			if _, err := sent.Exec(); err != nil {
				return err
			}
		}
		rows, err := sent.Query()
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, row)
		return err
	}()
	// The commit is known only once the batch is closed.
	if closed := sent.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// planned has the statements of a hot transaction planned once, too, and by indexes
// alone: tables that are empty when that is done may have a million rows when it is
// used. It is a statement of its own, before them.
var planned = stmt{`SELECT ` + byIndex, nil}

const byIndex = `set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
	set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`

func many[T any](ctx context.Context, db *DB, what string, s stmt, row pgx.RowToFunc[T]) ([]T, error) {
	return together(ctx, db, what, row, s)
}

// one is for statements that return exactly one row.
func one[T any](ctx context.Context, db *DB, what string, s stmt, row pgx.RowToFunc[T]) (T, error) {
	out, err := together(ctx, db, what, row, s)
	if err == nil && len(out) != 1 {
		err = fmt.Errorf("%s: %d rows, want one", what, len(out))
	}
	if err != nil {
		var none T
		return none, err
	}
	return out[0], nil
}

func (db *DB) exec(ctx context.Context, what, sql string, a args) error {
	call, cancel := context.WithTimeout(ctx, db.timeout)
	defer cancel()
	var err error
	if a == nil {
		_, err = db.pool.Exec(call, sql)
	} else {
		_, err = db.pool.Exec(call, sql, a)
	}
	return db.fail(ctx, what, err)
}

// within runs do in a transaction, for what needs more than one round trip. The server
// ends one whose program stands still in the middle of it: it would keep its locks, the
// leader's row among them, as long as the connection lives.
func (db *DB) within(ctx context.Context, what string, do func(context.Context, pgx.Tx) error) error {
	call, cancel := context.WithTimeout(ctx, db.timeout)
	defer cancel()
	return db.fail(ctx, what, pgx.BeginFunc(call, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(call, "SET LOCAL idle_in_transaction_session_timeout = "+strconv.FormatInt(db.timeout.Milliseconds(), 10)); err != nil {
			return err
		}
		return do(call, tx)
	}))
}

// Codes that the functions of the schema raise.
const (
	codeConflict  = "TQ001"
	codeQueueFull = "TQ002"
	codeInvalid   = "TQ003"
	codeNotLeader = "TQ004"
)

const codeReadOnly = "25006"

// Codes of a prepared statement that is not this connection's.
const (
	codeNoStatement        = "26000"
	codeDuplicateStatement = "42P05"
)

// fail also lets go of the pool's connections where one leads to a server that only
// reads: it was the primary, and stays connected; and where a transaction pooler is
// between that does not keep prepared statements apart: none are used from then on.
func (db *DB) fail(ctx context.Context, what string, err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code {
		case codeReadOnly:
			db.pool.Reset()
		case codeNoStatement, codeDuplicateStatement:
			if !db.pooled.Swap(true) {
				db.pool.Reset()
			}
		}
	}
	return fail(ctx, what, err)
}

// fail wraps err in what was attempted and in the kind the caller acts on. ctx is
// the caller's: when it ended, that is the reason, and not the database's state.
func fail(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case pg.Code == codeConflict:
			return fmt.Errorf("%s: %w: %s", what, job.ErrConflict, pg.Message)
		case pg.Code == codeQueueFull:
			return fmt.Errorf("%s: %w: %s", what, job.ErrQueueFull, pg.Message)
		case pg.Code == codeInvalid:
			return fmt.Errorf("%s: %w", what, &job.FieldError{Field: pg.ColumnName, Problem: pg.Detail})
		case pg.Code == codeNotLeader:
			return fmt.Errorf("%s: %w: %s", what, job.ErrNotLeader, pg.Message)
		case passing(pg.Code):
			return fmt.Errorf("%s: %w: %w", what, job.ErrUnavailable, err)
		case strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23"): // data, constraints
			return fmt.Errorf("%s: %w: %w", what, job.ErrUnstorable, err)
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	if away(err) {
		return fmt.Errorf("%s: %w: %w", what, job.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// passing says that the same call may succeed later: the server is away, starting,
// full or a standby, or the transaction lost against another.
func passing(code string) bool {
	switch code {
	case "40001", "40P01", // serialization failure, deadlock
		"55P03",                                     // lock timeout
		"57014",                                     // statement timeout or cancelled
		"57P01", "57P02", "57P03", "57P04", "57P05", // shutdown, crash, starting, dropped, idle
		codeReadOnly,                            // the primary moved
		codeNoStatement, codeDuplicateStatement: // a pooler is between
		return true
	}
	return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "53") || strings.HasPrefix(code, "58")
}

// away says that the connection, not the statement, failed.
func away(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, pgconn.ErrConnClosed) || pgconn.Timeout(err) || pgconn.SafeToRetry(err)
}
