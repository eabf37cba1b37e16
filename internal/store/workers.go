package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// The rows of pools are locked by the first statement: of two workers that register
// with different ceilings at once, one comes second and sees the other. A worker that
// was not seen for a while, or drains, takes no more work under its ceiling.
const agree = `
	INSERT INTO turnpike.pools AS p (pool, ceiling)
	SELECT pool, @ceiling FROM json_array_elements_text(@pools) AS n(pool) ORDER BY pool
	ON CONFLICT (pool) DO UPDATE SET ceiling = excluded.ceiling, registered_at = now()
	WHERE p.ceiling <> excluded.ceiling AND NOT EXISTS (
		SELECT FROM turnpike.workers w
		WHERE w.ceiling <> excluded.ceiling AND w.id <> @id AND NOT w.draining AND w.seen_at > now() - @lately::interval
			AND w.lanes @> jsonb_build_array(jsonb_build_object('pool', p.pool)))`

const disagree = `
	SELECT pool FROM turnpike.pools
	WHERE pool IN (SELECT json_array_elements_text(@pools)) AND ceiling <> @ceiling
	ORDER BY pool`

const register = `
	INSERT INTO turnpike.workers AS w (id, host, version, ceiling, state_dir, draining, lanes, lease, inert)
	VALUES (@id, @host, @version, @ceiling, @dir, @draining, @lanes, @lease::interval, coalesce(@inert::text[], '{}'))
	ON CONFLICT (id) DO UPDATE SET host = excluded.host, version = excluded.version, ceiling = excluded.ceiling,
		state_dir = excluded.state_dir, draining = excluded.draining, lanes = excluded.lanes, lease = excluded.lease,
		inert = excluded.inert, seen_at = now()`

// A leader of the release before tells none.
const otherLease = `
	SELECT format('its dispatcher has leases of %s and this worker of %s', lease, @lease::interval)
	FROM turnpike.leader WHERE until > now() AND lease <> @lease::interval`

func (db *DB) registration(w job.WorkerInfo, lanes string) stmt {
	return stmt{register, args{"id": w.ID, "host": w.Host, "version": w.Version, "ceiling": w.Ceiling, "dir": w.StateDir,
		"draining": w.Draining, "lanes": lanes, "lease": db.lease, "inert": w.Inert}}
}

type laneSlots struct {
	Lane   string `json:"lane"`
	Pool   string `json:"pool"`
	Slots  int    `json:"slots"`
	Free   int    `json:"free"`
	Closed string `json:"closed"`
	Via    string `json:"via,omitempty"`
}

func encodeLanes(lanes []job.LaneSlots) (all, pools string, err error) {
	list := make([]laneSlots, len(lanes))
	names := map[string]bool{}
	for i, l := range lanes {
		list[i] = laneSlots{l.Lane.String(), l.Lane.Pool, l.Slots, l.Free, l.Closed, string(l.Via)}
		names[l.Lane.Pool] = true
	}
	distinct := make([]string, 0, len(names))
	for n := range names {
		distinct = append(distinct, n)
	}
	if all, err = encode(list); err != nil {
		return "", "", err
	}
	pools, err = encode(distinct)
	return all, pools, err
}

// Register makes a worker known. It returns job.ErrCeiling when another worker seen
// lately serves one of its pools under another ceiling: a pool's workers are alike.
// The ceiling of a pool changes once all its workers are gone or draining. It returns
// job.ErrLeaseLength when the dispatcher that leads has leases of another length.
func (db *DB) Register(ctx context.Context, w job.WorkerInfo) error {
	lanes, pools, err := encodeLanes(w.Lanes)
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	err = db.within(ctx, "register", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, agree, args{"pools": pools, "ceiling": w.Ceiling, "id": w.ID, "lately": seenLately}); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, disagree, args{"pools": pools, "ceiling": w.Ceiling})
		if err != nil {
			return err
		}
		other, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		if len(other) > 0 {
			return fmt.Errorf("pool %s: %w", other[0], job.ErrCeiling)
		}
		if rows, err = tx.Query(ctx, otherLease, args{"lease": db.lease}); err != nil {
			return err
		}
		differs, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		if len(differs) > 0 {
			return fmt.Errorf("%w: %s", job.ErrLeaseLength, differs[0])
		}
		known := db.registration(w, lanes)
		_, err = tx.Exec(ctx, known.sql, known.args)
		return err
	})
	return err
}

// Seen tells that a worker is alive and what it has free. It returns job.ErrCeiling
// when its pool got another ceiling while it was not seen.
func (db *DB) Seen(ctx context.Context, w job.WorkerInfo) error {
	lanes, pools, err := encodeLanes(w.Lanes)
	if err != nil {
		return fmt.Errorf("worker's heartbeat: %w", err)
	}
	other, err := together(ctx, db, "worker's heartbeat", pgx.RowTo[string],
		db.registration(w, lanes), stmt{disagree, args{"pools": pools, "ceiling": w.Ceiling}})
	if err == nil && len(other) > 0 {
		err = fmt.Errorf("worker's heartbeat: pool %s: %w", other[0], job.ErrCeiling)
	}
	return err
}
