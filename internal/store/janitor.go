package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// Retention says how long things are kept. Zero keeps them.
type Retention struct {
	History     time.Duration // finished jobs with everything about them, by whole weeks
	Idempotency time.Duration // keys
	Orphans     time.Duration // records of what is gone
	Unreachable time.Duration // after which a host that is not seen is given up; see Abandon
	Workers     time.Duration // that were not seen
	Audit       time.Duration
}

// Swept counts what Sweep removed.
type Swept struct {
	Partitions  int // of all tables together
	Idempotency int64
	Orphans     int64
	Workers     int64
	Audit       int64
	Unreachable int // orphans that were given up
	Analyzed    int // tables of history
}

const (
	historyTables = `SELECT unnest(turnpike.history())`
	extendHistory = `SELECT turnpike.extend_history(@table, interval '28 days')`
	freshHistory  = `SELECT turnpike.analyze_history(@table, interval '1 day')`
	dropHistory   = `SELECT turnpike.drop_history(@table, now() - @keep::interval)`

	sweepIdempotency = `DELETE FROM turnpike.idempotency WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM turnpike.idempotency WHERE created_at < now() - @keep::interval LIMIT @most))`
	sweepOrphans = `DELETE FROM turnpike.orphans WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM turnpike.orphans WHERE state = 'gone' AND gone_at < now() - @keep::interval LIMIT @most))`
	// With the history they are about.
	sweepAbandoned = `DELETE FROM turnpike.orphans WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM turnpike.orphans WHERE abandoned_at < now() - @keep::interval LIMIT @most))`
	// One that still holds a lease is waited for.
	sweepWorkers = `DELETE FROM turnpike.workers w WHERE id = ANY (ARRAY(
		SELECT id FROM turnpike.workers w WHERE seen_at < now() - @keep::interval
			AND NOT EXISTS (SELECT FROM turnpike.queue q WHERE q.dispatched_at IS NOT NULL AND q.worker = w.id) LIMIT @most))`
	sweepAudit = `DELETE FROM turnpike.audit WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM turnpike.audit WHERE at < now() - @keep::interval LIMIT @most))`
)

// sweepBatch is how many rows one transaction removes: what it does under its deadline
// is done, however much there is.
const sweepBatch = 5000

// Sweep makes room: it creates the partitions of the coming weeks, gives up what is on
// hosts that are gone, drops the weeks that are older than they are to be kept, has the
// planner know the history, and removes what else is too old. What cannot be done keeps
// nothing else from being done, and may be tried again. It returns job.ErrNotLeader.
func (db *DB) Sweep(ctx context.Context, epoch int64, keep Retention) (swept Swept, err error) {
	tables, err := together(ctx, db, "sweep", pgx.RowTo[string], holding(epoch), stmt{historyTables, nil})
	if err != nil {
		return swept, err
	}
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	// A table a transaction: locks on several at once deadlock with who reads them.
	for _, t := range tables {
		_, err := one(ctx, db, "extend "+t, stmt{extendHistory, args{"table": t}}, pgx.RowTo[int])
		note(err)
	}
	if keep.Unreachable > 0 {
		swept.Unreachable, err = db.Abandon(ctx, epoch, keep.Unreachable, 1000)
		note(err)
	}
	if keep.History > 0 {
		for _, t := range tables {
			n, err := one(ctx, db, "drop old "+t, stmt{dropHistory, args{"table": t, "keep": keep.History}}, pgx.RowTo[int])
			note(err)
			swept.Partitions += n
		}
	}
	for _, t := range tables {
		did, err := db.analyze(ctx, t)
		note(err)
		if did {
			swept.Analyzed++
		}
	}
	for _, s := range []struct {
		keep time.Duration
		sql  string
		n    *int64
	}{
		{keep.Idempotency, sweepIdempotency, &swept.Idempotency},
		{keep.Orphans, sweepOrphans, &swept.Orphans},
		{keep.History, sweepAbandoned, &swept.Orphans},
		{keep.Workers, sweepWorkers, &swept.Workers},
		{keep.Audit, sweepAudit, &swept.Audit},
	} {
		if s.keep <= 0 {
			continue
		}
		n, err := db.sweep(ctx, s.sql, s.keep)
		note(err)
		*s.n += n
	}
	return swept, errors.Join(errs...)
}

// analyzeTime bounds a table: a sample of each of its partitions is read, and nobody
// waits for it.
const analyzeTime = 5 * time.Minute

// analyze keeps the planner's numbers of a table of history no older than a day.
func (db *DB) analyze(ctx context.Context, table string) (did bool, err error) {
	call, cancel := context.WithTimeout(ctx, analyzeTime)
	defer cancel()
	err = db.pool.QueryRow(call, freshHistory, args{"table": table}).Scan(&did)
	return did, fail(ctx, "analyze "+table, err)
}

// sweep removes what one statement finds, a batch at a time.
func (db *DB) sweep(ctx context.Context, sql string, keep time.Duration) (total int64, err error) {
	for {
		var n int64
		err := db.within(ctx, "sweep", func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, sql, args{"keep": keep, "most": sweepBatch})
			n = tag.RowsAffected()
			return err
		})
		if err != nil || n == 0 {
			return total, err
		}
		total += n
	}
}
