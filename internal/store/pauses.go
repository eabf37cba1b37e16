package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// DefaultAccount is the name under which the credential is paused that a worker has
// for an agent when a request names no account.
func DefaultAccount(agent string) string { return "~" + agent }

const pause = `
	INSERT INTO turnpike.pauses (scope, name, until, reason, by)
	VALUES (@scope, @name, coalesce(@until, 'infinity'::timestamptz), @reason, @by)
	ON CONFLICT (scope, name) DO UPDATE SET until = excluded.until, reason = excluded.reason, by = excluded.by, ending = NULL, at = now()`

// holds is whether a pause p is one of a queue row q. Most have no key, and no name then.
const holds = `p.name = CASE p.scope WHEN 'lane' THEN q.lane WHEN 'tenant' THEN q.tenant WHEN 'key' THEN q.tenant || '/' || q.concurrency_key
				ELSE q.credential END`

const audited = `INSERT INTO turnpike.audit (who, what, subject, note) VALUES (@who, @what, @subject, @note)`

// In the order of the ids, as claims lock them.
const takeBack = `
	WITH l AS MATERIALIZED (
		SELECT q.job_id, q.tenant, q.concurrency_key
		FROM turnpike.queue q CROSS JOIN (VALUES (@scope::text, @name::text)) p(scope, name)
		WHERE q.dispatched_at IS NOT NULL AND q.state = 'dispatched' AND ` + holds + `
		ORDER BY q.job_id
		FOR UPDATE OF q
	),
	back AS (
		UPDATE turnpike.queue q SET state = 'queued', dispatched_at = NULL, published_at = NULL
		FROM l WHERE q.job_id = l.job_id AND q.state = 'dispatched'
		RETURNING q.job_id
	),
	freed AS (
		SELECT tenant, concurrency_key FROM l
	),
	` + letOut + `
	SELECT count(*) FROM back`

// Pause keeps jobs of a lane, tenant, account or key from being selected and claimed until
// a time, or until it is lifted when that is zero. What was dispatched and not claimed
// goes back to the queue in the same transaction; what runs goes on. It returns how
// many went back.
func (db *DB) Pause(ctx context.Context, scope job.Scope, name string, until time.Time, by, why string) (int, error) {
	if err := scope.Check(name); err != nil {
		return 0, fmt.Errorf("pause: %w", err)
	}
	var at *time.Time
	if !until.IsZero() {
		at = &until
	}
	subject := string(scope) + " " + name
	back, err := together(ctx, db, "pause "+subject, pgx.RowTo[int],
		stmt{pause, args{"scope": string(scope), "name": name, "until": at, "reason": why, "by": by}},
		stmt{audited, args{"who": by, "what": "pause", "subject": subject, "note": why}},
		stmt{takeBack, args{"scope": string(scope), "name": name}})
	if err != nil {
		return 0, err
	}
	return back[0], nil
}

const lift = `DELETE FROM turnpike.pauses WHERE scope = @scope AND name = @name`

// A person's act, and rare: it may read the whole queue. What another pause still
// holds is parked again at the next selection.
const release = `
	UPDATE turnpike.queue q SET parked = NULL, wake_at = NULL
	FROM (VALUES (@scope::text, @name::text)) p(scope, name)
	WHERE q.parked = 'pause' AND (` + holds + `
		OR EXISTS (
			SELECT FROM jsonb_to_recordset(q.chain) AS e(lane text, agent text, account text)
			WHERE p.name = CASE p.scope WHEN 'lane' THEN e.lane WHEN 'account' THEN CASE e.account WHEN '' THEN '~' || e.agent ELSE e.account END END))`

// Lift ends a pause at once, and a slow start with it.
func (db *DB) Lift(ctx context.Context, scope job.Scope, name, by, why string) error {
	if err := scope.Check(name); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	subject := string(scope) + " " + name
	_, err := together(ctx, db, "lift the pause of "+subject, pgx.RowTo[int],
		stmt{lift, args{"scope": string(scope), "name": name}},
		stmt{audited, args{"who": by, "what": "lift", "subject": subject, "note": why}},
		stmt{release, args{"scope": string(scope), "name": name}})
	return err
}

const setLimit = `
	INSERT INTO turnpike.limits (tenant, max_unfinished) VALUES (@tenant, @most)
	ON CONFLICT (tenant) DO UPDATE SET max_unfinished = excluded.max_unfinished`

const dropLimit = `DELETE FROM turnpike.limits WHERE tenant = @tenant AND @most::integer < 0`

// SetLimit bounds a tenant's unfinished jobs; a negative number lifts the bound.
func (db *DB) SetLimit(ctx context.Context, tenant string, most int, by string) error {
	set := stmt{setLimit, args{"tenant": tenant, "most": most}}
	if most < 0 {
		set.sql = dropLimit
	}
	_, err := together(ctx, db, "limit tenant "+tenant, pgx.RowTo[int], set,
		stmt{audited, args{"who": by, "what": "limit", "subject": "tenant " + tenant, "note": fmt.Sprint(most)}})
	return err
}

const pauses = `
	SELECT scope, name, CASE WHEN until < 'infinity' THEN until END, active, reason, by, at, state, live, live_max, slow_until
	FROM turnpike.v_pauses
	ORDER BY at DESC, scope, name`

// Pauses lists every pause that was not lifted, those that are over too.
func (db *DB) Pauses(ctx context.Context) ([]job.Pause, error) {
	return many(ctx, db, "list pauses", stmt{pauses, nil}, func(row pgx.CollectableRow) (p job.Pause, err error) {
		err = row.Scan(&p.Scope, &p.Name, &p.Until, &p.Active, &p.Reason, &p.By, &p.At, &p.State, &p.Live, &p.LiveMax, &p.SlowUntil)
		return p, err
	})
}
