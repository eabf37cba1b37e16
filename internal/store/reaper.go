package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// Live rows only, by their index: a lapsed lease has none of its own. Whoever
// settles one of them at this moment keeps it.
const lapsed = `
	SELECT job_id::text, attempt, lease_no, token::text, worker, started_at, coalesce(conversation, ''), turns, tool_calls,
		(cost_usd * 1000000)::bigint, orphan, now()
	FROM turnpike.queue
	WHERE dispatched_at IS NOT NULL AND state = 'running' AND lease_until < least(now(), @as_of)
	ORDER BY job_id
	LIMIT @most
	FOR UPDATE SKIP LOCKED`

const overdue = `
	SELECT coalesce(max(now() - lease_until), interval '0') FROM turnpike.queue
	WHERE dispatched_at IS NOT NULL AND state = 'running' AND lease_until < now()`

// Lapsed is how long the oldest lapsed lease is over that nobody has reaped yet; zero
// when none is.
func (db *DB) Lapsed(ctx context.Context) (time.Duration, error) {
	return one(ctx, db, "look at the leases", stmt{overdue, nil}, pgx.RowTo[time.Duration])
}

// Reap closes up to limit attempts whose lease lapsed, with what their beats told,
// and decides what follows. When the database was away, or this program was, leases
// lapsed because nobody could renew them: it is the caller who waits a full lease
// before. asOf is the database's time at which the caller found that it may: what lapsed
// after it, by a clock that jumped since, is left. It returns job.ErrNotLeader.
func (db *DB) Reap(ctx context.Context, epoch int64, asOf time.Time, limit int) ([]job.Reaped, error) {
	var out []job.Reaped
	err := db.within(ctx, "reap", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, asLeader, args{"epoch": epoch}); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, lapsed, args{"most": limit, "as_of": asOf})
		if err != nil {
			return err
		}
		reports, err := pgx.CollectRows(rows, toLost)
		if err != nil || len(reports) == 0 {
			return err
		}
		encoded, err := encodeReports(reports)
		if err != nil {
			return err
		}
		if rows, err = tx.Query(ctx, closing, args{"reports": encoded, "reaped": true}); err != nil {
			return err
		}
		settled, err := pgx.CollectRows(rows, toClosed)
		if err != nil {
			return err
		}
		worker := make(map[job.ID]string, len(reports))
		for _, r := range reports {
			worker[r.Lease.Job] = r.Worker
		}
		for _, s := range settled {
			out = append(out, job.Reaped{Job: s.Job, Attempt: s.Attempt, Worker: worker[s.Job], State: s.State})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// toLost is the report that a worker which is gone would have written.
func toLost(row pgx.CollectableRow) (job.Report, error) {
	r := job.Report{Version: job.ReportVersion, Ending: job.EndLost, Reason: "the worker's lease lapsed"}
	var started *time.Time
	var orphan struct {
		State    job.OrphanState `json:"state"`
		Kind     string          `json:"kind"`
		Identity json.RawMessage `json:"identity"`
	}
	var kept []byte
	err := row.Scan(&r.Lease.Job, &r.Lease.Attempt, &r.Lease.Number, &r.Lease.Token, &r.Worker, &started, &r.Conversation,
		&r.NumTurns, &r.ToolCalls, &r.CostUSD, &kept, &r.EndedAt)
	if err != nil {
		return r, err
	}
	if started == nil {
		return r, nil // nothing is made or executed before a beat has told of it
	}
	r.Started, r.StartedAt = true, *started
	r.DurationMS = max(0, r.EndedAt.Sub(*started).Milliseconds())
	// Its conversation went with its worker: nobody kept it.
	if err := json.Unmarshal(kept, &orphan); err != nil {
		return r, fmt.Errorf("orphan of job %s: %w", r.Lease.Job, err)
	}
	if orphan.Kind == "" {
		var id struct {
			Kind string `json:"kind"`
		}
		if err := json.Unmarshal(orphan.Identity, &id); err == nil {
			orphan.Kind = id.Kind
		}
	}
	r.Left = []job.Orphan{{Kind: orphan.Kind, Identity: orphan.Identity, State: orphan.State, Turns: r.NumTurns}}
	return r, nil
}
