package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

const recordOrphan = `
	INSERT INTO turnpike.orphans AS o (job_id, attempt, kind, identity, worker, state_dir, host, state, stopped_by, note, transcript, turns, gone_at)
	VALUES (@job, @attempt, @kind, @identity::text::jsonb, @worker, coalesce((SELECT state_dir FROM turnpike.workers WHERE id = @worker), ''),
		coalesce((SELECT host FROM turnpike.workers WHERE id = @worker), ''), @state, nullif(@by, ''), nullif(@note, ''), nullif(@transcript, ''), nullif(@turns::bigint, 0),
		CASE WHEN @state = 'gone' THEN now() END)
	ON CONFLICT (job_id, attempt, kind) DO UPDATE SET identity = coalesce(excluded.identity, o.identity),
		state = excluded.state, stopped_by = coalesce(excluded.stopped_by, o.stopped_by), note = coalesce(excluded.note, o.note),
		transcript = coalesce(excluded.transcript, o.transcript), turns = coalesce(excluded.turns, o.turns), gone_at = excluded.gone_at, abandoned_at = NULL
	WHERE o.state <> 'gone'`

// RecordOrphan writes down, or brings up to date, something that may have outlived
// its worker. What is gone stays gone; what was abandoned is not any more.
func (db *DB) RecordOrphan(ctx context.Context, o job.Orphan) error {
	var identity *string
	if raw := asJSON(o.Identity); len(raw) > 0 {
		s := string(clean(raw))
		identity = &s
	}
	return db.exec(ctx, fmt.Sprintf("record what job %s left", o.Job), recordOrphan, args{
		"job": string(o.Job), "attempt": o.Attempt, "kind": o.Kind, "identity": identity, "worker": o.Worker, "state": string(o.State),
		"by": o.StoppedBy, "note": o.Note, "transcript": o.Transcript, "turns": o.Turns})
}

const closeOrphan = `
	WITH gone AS (
		UPDATE turnpike.orphans SET state = 'gone', gone_at = now(), stopped_by = @by, note = coalesce(nullif(@why, ''), note)
		WHERE job_id = @job AND attempt = @attempt AND kind = @kind AND state <> 'gone'
		RETURNING job_id
	),
	told AS (
		INSERT INTO turnpike.audit (who, what, subject, note)
		SELECT @by, 'orphan gone', format('job %s attempt %s %s', @job::text, @attempt::integer, @kind::text), @why FROM gone
	)
	SELECT count(*) FROM gone`

// CloseOrphan records that something an attempt left is gone, on the word of a person
// who looked. It returns job.ErrNoOrphan when nothing like it is left.
func (db *DB) CloseOrphan(ctx context.Context, o job.Orphan, by, why string) error {
	what := fmt.Sprintf("record that the %s of job %s attempt %d is gone", o.Kind, o.Job, o.Attempt)
	n, err := one(ctx, db, what, stmt{closeOrphan, args{"job": string(o.Job), "attempt": o.Attempt, "kind": o.Kind, "by": by, "why": why}}, pgx.RowTo[int])
	if err == nil && n == 0 {
		err = fmt.Errorf("%s: %w", what, job.ErrNoOrphan)
	}
	return err
}

// Neither the worker nor another one of its state directory or its host was seen for
// that long, nor was the record made since.
const abandon = `
	WITH l AS MATERIALIZED (
		SELECT o.job_id, o.attempt, o.kind
		FROM turnpike.orphans o
		WHERE o.state <> 'gone' AND o.abandoned_at IS NULL AND o.created_at < now() - @after::interval
			AND NOT EXISTS (
				SELECT FROM turnpike.workers w
				WHERE w.seen_at >= now() - @after::interval
					AND (w.id = o.worker OR (o.state_dir <> '' AND w.state_dir = o.state_dir) OR (o.host <> '' AND w.host = o.host)))
		ORDER BY o.job_id, o.attempt, o.kind
		LIMIT @most
		FOR NO KEY UPDATE OF o SKIP LOCKED
	),
	u AS (
		UPDATE turnpike.orphans o SET state = 'unreachable', abandoned_at = now(),
			note = concat_ws('; ', nullif(o.note, ''), format('its host was not seen for %s', @after::interval))
		FROM l WHERE o.job_id = l.job_id AND o.attempt = l.attempt AND o.kind = l.kind
		RETURNING o.job_id, o.attempt, o.kind, o.host, o.worker
	),
	told AS (
		INSERT INTO turnpike.events (job_id, what, note)
		SELECT job_id, 'unreachable', format('what attempt %s left (%s) is on host %s of worker %s, which was not seen for %s',
			attempt, kind, coalesce(nullif(host, ''), 'unknown'), worker, @after::interval) FROM u
	)
	SELECT count(*) FROM u`

// Abandon makes unreachable, up to limit, what was left on hosts that were not seen for
// longer than after: it keeps no history any more. A worker that comes back after all
// closes it as any other. It returns how many, or job.ErrNotLeader.
func (db *DB) Abandon(ctx context.Context, epoch int64, after time.Duration, limit int) (int, error) {
	n, err := together(ctx, db, "abandon orphans", pgx.RowTo[int], holding(epoch), stmt{abandon, args{"after": after, "most": limit}})
	if err != nil {
		return 0, err
	}
	return n[0], nil
}

// OrphansLeft lists what may still run although nobody keeps its lease.
func (db *DB) OrphansLeft(ctx context.Context) ([]job.Orphan, error) {
	return db.Orphans(ctx, OrphanFilter{States: []job.OrphanState{job.OrphanCreating, job.OrphanLive, job.OrphanReaping, job.OrphanUnreachable}})
}

// OrphanFilter narrows Orphans. Zero values do not.
type OrphanFilter struct {
	Worker   string
	StateDir string
	States   []job.OrphanState
	Limit    int // default 1000
}

const orphans = `
	SELECT job_id::text, attempt, kind, coalesce(identity::text, ''), worker, state, coalesce(stopped_by, ''), coalesce(note, ''),
		coalesce(transcript, ''), coalesce(turns, 0), host
	FROM turnpike.orphans
	WHERE (@worker = '' OR worker = @worker) AND (@dir = '' OR state_dir = @dir)
		AND (@states::text[] IS NULL OR state = ANY (@states))
	ORDER BY job_id, attempt, kind
	LIMIT @most`

// Orphans lists what was left over, the oldest job's first.
func (db *DB) Orphans(ctx context.Context, f OrphanFilter) ([]job.Orphan, error) {
	if f.Limit <= 0 {
		f.Limit = 1000
	}
	var states []string
	for _, s := range f.States {
		states = append(states, string(s))
	}
	return many(ctx, db, "list orphans", stmt{orphans, args{"worker": f.Worker, "dir": f.StateDir, "states": states, "most": f.Limit}},
		func(row pgx.CollectableRow) (o job.Orphan, err error) {
			var identity string
			err = row.Scan(&o.Job, &o.Attempt, &o.Kind, &identity, &o.Worker, &o.State, &o.StoppedBy, &o.Note, &o.Transcript, &o.Turns, &o.Host)
			if identity != "" {
				o.Identity = json.RawMessage(identity)
			}
			return o, err
		})
}
