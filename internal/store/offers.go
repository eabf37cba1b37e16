package store

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// The live rows of a lane in the order of their dispatch (queue_live), from a time on:
// what runs long was dispatched long ago, and what is on offer was dispatched, or
// dispatched again, lately. No index has the state, so claims stay HOT updates. Each
// worker has an order of its own, so that several do not all go for the same rows; the
// window is so shallow that its order says little.
const offered = `
	SELECT o.job_id::text, o.dispatch_no, o.dispatched_at, c.as_of
	FROM (SELECT now() AS as_of) c
	LEFT JOIN LATERAL (
		SELECT job_id, dispatch_no, dispatched_at FROM turnpike.queue
		WHERE lane = @lane AND dispatched_at >= coalesce(@since::timestamptz, '-infinity') AND state = 'dispatched'
		ORDER BY dispatched_at
		LIMIT @window) o ON true
	ORDER BY uuid_hash_extended(o.job_id, @salt)
	LIMIT @most`

// offersWindow is how many offers of a lane are looked at: what selection has on offer
// at most.
const offersWindow = 500

// Offered lists up to n jobs of a lane that are dispatched and not claimed, and were
// dispatched at since or later; the zero time is ever. It grants nothing: that is
// Claim's. Each worker sees them in an order of its own.
func (db *DB) Offered(ctx context.Context, worker string, lane job.Lane, since time.Time, n int) (job.Offered, error) {
	n = min(n, offersWindow)
	var from *time.Time
	if !since.IsZero() {
		from = &since
	}
	salt := fnv.New64a()
	salt.Write([]byte(worker)) // it never fails
	type row struct {
		id   *string
		no   *int
		at   *time.Time
		asOf time.Time
	}
	rows, err := many(ctx, db, "look for offers",
		stmt{offered, args{"lane": lane.String(), "since": from, "window": offersWindow, "salt": int64(salt.Sum64()), "most": n}},
		func(r pgx.CollectableRow) (o row, err error) { return o, r.Scan(&o.id, &o.no, &o.at, &o.asOf) })
	if err != nil {
		return job.Offered{}, err
	}
	out := job.Offered{All: len(rows) < n}
	for _, r := range rows {
		out.AsOf = r.asOf
		if r.id == nil { // nothing is on offer
			out.All = true
			break
		}
		d := job.Delivery{Version: job.MessageVersion, Job: job.ID(*r.id), Dispatch: *r.no, Lane: lane}
		out.Jobs = append(out.Jobs, job.Offer{Delivery: d, At: *r.at})
	}
	return out, nil
}
