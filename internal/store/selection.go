package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// seenLately is how long a worker's slots count after it told of them.
const seenLately = 30 * time.Second

// Lanes are found by skipping along the ready index, one probe each, in the live
// rows and in what workers tell.
const load = `
	WITH RECURSIVE ready AS (
		(SELECT lane FROM turnpike.queue WHERE ready IS NOT NULL ORDER BY lane LIMIT 1)
		UNION ALL
		SELECT (SELECT q.lane FROM turnpike.queue q WHERE q.ready IS NOT NULL AND q.lane > r.lane ORDER BY q.lane LIMIT 1)
		FROM ready r WHERE r.lane IS NOT NULL
	),
	live AS (
		SELECT lane, count(*) FILTER (WHERE state = 'dispatched') AS dispatched
		FROM turnpike.queue WHERE dispatched_at IS NOT NULL GROUP BY lane
	),
	served AS (
		SELECT l.lane, sum(l.slots) AS slots, sum(l.free) AS free
		FROM turnpike.workers w CROSS JOIN LATERAL jsonb_to_recordset(w.lanes) AS l(lane text, slots bigint, free bigint, closed text)
		WHERE w.seen_at > now() - @lately::interval AND NOT w.draining AND coalesce(l.closed, '') = ''
		GROUP BY l.lane
	)
	SELECT lane, coalesce(s.slots, 0)::bigint, coalesce(s.free, 0)::bigint, coalesce(v.dispatched, 0),
		EXISTS (SELECT FROM turnpike.pauses p WHERE p.scope = 'lane' AND p.name = lane AND p.until > now()),
		EXISTS (SELECT FROM ready r WHERE r.lane = l.lane)
	FROM (SELECT lane FROM ready WHERE lane IS NOT NULL UNION SELECT lane FROM live UNION SELECT lane FROM served) l
	LEFT JOIN served s USING (lane)
	LEFT JOIN live v USING (lane)
	ORDER BY lane`

// Load tells of every lane that has work or workers.
func (db *DB) Load(ctx context.Context) ([]job.LaneLoad, error) {
	return many(ctx, db, "read the lanes", stmt{load, args{"lately": seenLately}}, toLoad)
}

func toLoad(row pgx.CollectableRow) (l job.LaneLoad, err error) {
	var lane string
	if err := row.Scan(&lane, &l.Slots, &l.Free, &l.Dispatched, &l.Paused, &l.Ready); err != nil {
		return l, err
	}
	l.Lane, err = job.ParseLane(lane)
	return l, err
}

// What Unchecked lists and what Promote would move, by the first row of each index, and
// the lanes: jobs may have to leave one that is paused.
const look = `
	SELECT w.unchecked, w.due, coalesce(l.lane, ''), coalesce(l.slots, 0), coalesce(l.free, 0), coalesce(l.dispatched, 0),
		coalesce(l.paused, false), coalesce(l.ready, false)
	FROM (
		SELECT EXISTS (SELECT FROM turnpike.queue WHERE NOT checked) AS unchecked,
			EXISTS (SELECT FROM turnpike.queue WHERE wake_at <= now())
			OR EXISTS (SELECT FROM turnpike.queue WHERE deadline <= now() AND state <> 'running')
			OR EXISTS (SELECT FROM turnpike.queue WHERE unready_since <= now() - @unready::interval AND state <> 'running')
			OR EXISTS (SELECT FROM turnpike.slow_starts() s WHERE s.live < s.live_max AND EXISTS (SELECT ` + paced + `)) AS due) w
	LEFT JOIN (` + load + `) l (lane, slots, free, dispatched, paused, ready) ON true`

// Look tells what there is to do, and writes nothing.
func (db *DB) Look(ctx context.Context) (o job.Outlook, err error) {
	_, err = hot(ctx, db, "look for work", func(row pgx.CollectableRow) (none struct{}, err error) {
		var l job.LaneLoad
		var lane string
		var due bool
		if err := row.Scan(&o.Unchecked, &due, &lane, &l.Slots, &l.Free, &l.Dispatched, &l.Paused, &l.Ready); err != nil {
			return none, err
		}
		o.Due = o.Due || due || l.Paused && l.Ready
		if lane == "" {
			return none, nil
		}
		l.Lane, err = job.ParseLane(lane)
		o.Lanes = append(o.Lanes, l)
		return none, err
	}, planned, stmt{look, args{"unready": db.unready, "lately": seenLately}})
	return o, err
}

const due = `
	WITH d AS MATERIALIZED (
		SELECT job_id FROM turnpike.queue
		WHERE wake_at <= now()
		ORDER BY wake_at
		LIMIT @most
		FOR NO KEY UPDATE SKIP LOCKED
	),
	woken AS (
		UPDATE turnpike.queue q SET state = 'queued', parked = NULL, wake_at = NULL
		FROM d WHERE q.job_id = d.job_id
		RETURNING q.job_id
	)
	SELECT count(*) FROM woken`

// paced is a queue row q that waits for nothing but the slow start s of its account.
const paced = `FROM turnpike.queue q
			WHERE q.credential = s.credential AND q.parked = 'pause' AND q.wake_at <= s.slow_until
				AND NOT EXISTS (SELECT FROM turnpike.pauses p WHERE p.until > now() AND ` + holds + `)`

// A job that was parked until more may be live goes when a live one has ended. Where a
// lane has no room for it, more and more of them wait there: what holds them up is not
// the slow start any more.
const follow = `
	WITH d AS MATERIALIZED (
		SELECT w.job_id FROM turnpike.slow_starts() s
		CROSS JOIN LATERAL (
			SELECT q.job_id ` + paced + `
			ORDER BY q.wake_at, q.rank
			LIMIT greatest(s.live_max - s.live, 0)
			FOR NO KEY UPDATE SKIP LOCKED) w
		LIMIT @most
	),
	woken AS (
		UPDATE turnpike.queue q SET parked = NULL, wake_at = NULL
		FROM d WHERE q.job_id = d.job_id
		RETURNING q.job_id
	)
	SELECT count(*) FROM woken`

// Also dispatched jobs: a claim past the deadline is refused.
const expire = `
	WITH d AS MATERIALIZED (
		SELECT job_id, tenant, concurrency_key, parked FROM turnpike.queue
		WHERE deadline <= now() AND state <> 'running'
		ORDER BY deadline
		LIMIT @most
		FOR UPDATE SKIP LOCKED
	),
	gone AS (
		DELETE FROM turnpike.queue q USING d WHERE q.job_id = d.job_id AND q.state <> 'running'
		RETURNING q.job_id
	),
	ended AS (
		INSERT INTO turnpike.finished (job_id, state, reason, note, by)
		SELECT job_id, 'failed', 'deadline', 'its deadline passed before it could start', 'dispatcher' FROM gone
	),
	freed AS (
		SELECT tenant, concurrency_key FROM d WHERE parked IS DISTINCT FROM 'key'
	),
	` + letOut + `
	SELECT count(*) FROM gone`

// Machines that cannot make a job ready for so long will not.
const giveUp = `
	WITH d AS MATERIALIZED (
		SELECT job_id, tenant, concurrency_key, parked FROM turnpike.queue
		WHERE unready_since <= now() - @unready::interval AND state <> 'running'
		ORDER BY unready_since
		LIMIT @most
		FOR UPDATE SKIP LOCKED
	),
	gone AS (
		DELETE FROM turnpike.queue q USING d WHERE q.job_id = d.job_id AND q.state <> 'running'
		RETURNING q.job_id
	),
	ended AS (
		INSERT INTO turnpike.finished (job_id, state, reason, note, by)
		SELECT job_id, 'failed', 'unready', format('no worker could make it ready in %s', @unready::interval), 'dispatcher' FROM gone
	),
	freed AS (
		SELECT tenant, concurrency_key FROM d WHERE parked IS DISTINCT FROM 'key'
	),
	` + letOut + `
	SELECT count(*) FROM gone`

// What waited for others in vain. Parked, it holds no key; who waits for it may be next.
const dropDoomed = `
	WITH d AS MATERIALIZED (
		SELECT job_id, doomed FROM turnpike.queue
		WHERE doomed IS NOT NULL
		ORDER BY job_id
		LIMIT @most
		FOR UPDATE SKIP LOCKED
	),
	gone AS (
		DELETE FROM turnpike.queue q USING d WHERE q.job_id = d.job_id
		RETURNING q.job_id, d.doomed
	),
	ended AS (
		INSERT INTO turnpike.finished (job_id, state, reason, note, by)
		SELECT job_id, 'failed', 'dependency', doomed, 'dispatcher' FROM gone
	)
	SELECT count(*) FROM gone`

const nextDue = `
	SELECT least(
		(SELECT min(wake_at) FROM turnpike.queue WHERE wake_at < 'infinity'),
		(SELECT min(deadline) FROM turnpike.queue WHERE deadline > now()))`

// Jobs with fallbacks leave a lane that is paused; the others wait where they are, but for
// those with a key: they are parked, so that they keep no other lane's job of it waiting.
// Where no profile has capacity the job is parked too, so that each is looked at once.
const vacate = `
	WITH p AS MATERIALIZED (
		SELECT q.job_id, q.tenant, q.concurrency_key, ` + placed + `, CASE WHEN q.chain IS NULL THEN l.until ELSE b.until END AS until
		FROM (SELECT name, until FROM turnpike.pauses WHERE scope = 'lane' AND until > now()) l
		CROSS JOIN LATERAL (
			SELECT * FROM turnpike.queue q
			WHERE q.lane = l.name AND q.ready IS NOT NULL AND (q.chain IS NOT NULL OR q.concurrency_key IS NOT NULL)
			ORDER BY q.ready
			LIMIT @most
			FOR NO KEY UPDATE SKIP LOCKED) q
		LEFT JOIN LATERAL (` + best + `) b ON true
	),
	m AS (
		SELECT * FROM p WHERE until IS NULL
	),
	` + moved + `,
	parked AS (
		UPDATE turnpike.queue q SET parked = 'pause', wake_at = p.until FROM p WHERE q.job_id = p.job_id AND p.until IS NOT NULL
	),
	freed AS (
		SELECT tenant, concurrency_key FROM p WHERE until IS NOT NULL
	),
	` + letOut + `
	SELECT count(*) FROM p`

// best is the profile that a queue row q with fallbacks is to run on, or to wait for. With
// OFFSET the condition stays in here, and decides whether the function is called at all.
const best = `SELECT * FROM turnpike.place(q.chain, q.busy, q.resume IS NOT NULL, q.lane, q.agent, q.profile) WHERE q.chain IS NOT NULL OFFSET 0`

// placed are the columns, of a queue row q and its best profile b, that moved reads.
const placed = `q.profile, q.lane, q.credential, q.busy[q.profile + 1] AS busy_until,
			b.profile AS to_profile, b.name AS to_name, b.lane AS to_lane, b.agent AS to_agent, b.account AS to_account`

// moved is the common table expressions that take the jobs of m, which are queued, to
// another profile of their chain, and tell why. Lane, agent and credential go with it, so
// that everything else finds the job by what it runs on now.
const moved = `moved AS (
		UPDATE turnpike.queue q SET profile = m.to_profile, lane = m.to_lane, agent = m.to_agent, account = m.to_account
		FROM m WHERE q.job_id = m.job_id
		RETURNING q.job_id
	),
	moving AS (
		INSERT INTO turnpike.events (job_id, what, note)
		SELECT m.job_id, 'moved', concat(CASE m.to_profile WHEN 0 THEN 'back to ' ELSE 'to fallback ' END, m.to_name, coalesce(' because ' || coalesce(
			(SELECT concat(p.scope, ' ', p.name, ' is paused ', CASE p.until WHEN 'infinity' THEN 'until it is resumed'
					ELSE to_char(p.until AT TIME ZONE 'UTC', '"until" YYYY-MM-DD"T"HH24:MI:SS"Z"') END)
				FROM turnpike.pauses p
				WHERE p.until > now() AND ((p.scope = 'lane' AND p.name = m.lane) OR (p.scope = 'account' AND p.name = m.credential))
				ORDER BY p.until DESC LIMIT 1),
			CASE WHEN m.busy_until > now() THEN 'its provider is overloaded' END,
			(SELECT format('account %s is in slow start', s.credential) FROM turnpike.slow_starts() s WHERE s.credential = m.credential)),
			', which has capacity again'))
		FROM m
	)`

// maxLevels is how many levels of jobs that waited in vain one Promote ends.
const maxLevels = 64

// Promote queues what became due, or may go on in a slow start, up to limit, fails what
// is past its deadline, was unready for too long or waited in vain, and has jobs with
// fallbacks leave paused lanes. It returns how many jobs it moved, and when the next one
// is due: zero when none is, and not after now when limit cut it short. It returns
// job.ErrNotLeader.
func (db *DB) Promote(ctx context.Context, epoch int64, limit int) (n int, next time.Time, err error) {
	for _, move := range []stmt{
		{due, args{"most": limit}}, {follow, args{"most": limit}}, {expire, args{"most": limit}}, {giveUp, args{"most": limit, "unready": db.unready}}, {vacate, args{"most": limit}},
	} {
		moved, err := together(ctx, db, "promote", pgx.RowTo[int], holding(epoch), move)
		if err != nil {
			return n, time.Time{}, err
		}
		n += moved[0]
	}
	for range maxLevels {
		moved, err := together(ctx, db, "promote", pgx.RowTo[int], holding(epoch), stmt{dropDoomed, args{"most": limit}})
		if err != nil {
			return n, time.Time{}, err
		}
		n += moved[0]
		if moved[0] == 0 {
			break
		}
	}
	at, err := one(ctx, db, "promote", stmt{nextDue, nil}, pgx.RowTo[*time.Time])
	if err != nil || at == nil {
		return n, time.Time{}, err
	}
	return n, *at, nil
}

// Each tenant's first ready jobs, by skipping along the ready index (the order by both
// its columns leaves the planner no other); then those of the tenants that have least of
// the lane's live jobs for their weight. Who has none comes before all who have one,
// whatever the weights, and of several the oldest job: no backlog and no weight keeps
// another waiting for ever. What is paused, behind a taken key or under a spent budget is
// parked outside the index. A key is taken while a live row has it: that row is locked
// first, so that whoever closes it sees what was parked behind it; who is closing it at
// this moment cannot be locked, and the job stays for the next time. Of several with a
// free key the first goes.
// What has fallbacks goes to the first profile with capacity before that, be it one it
// was moved away from, and is selected there. Of an account in slow start so many go as
// it may have live; of the others the n-th is parked until as many may be live as there
// would be with it, and those with fallbacks are looked at again with these live.
const choose = `
	WITH RECURSIVE tenants AS (
		(SELECT tenant FROM turnpike.queue
		WHERE lane = @lane AND ready IS NOT NULL
			AND NOT EXISTS (SELECT FROM turnpike.pauses p WHERE p.scope = 'lane' AND p.name = @lane AND p.until > now())
		ORDER BY tenant, ready LIMIT 1)
		UNION ALL
		SELECT (
			SELECT q.tenant FROM turnpike.queue q
			WHERE q.lane = @lane AND q.ready IS NOT NULL AND q.tenant > t.tenant
			ORDER BY q.tenant, q.ready LIMIT 1)
		FROM tenants t WHERE t.tenant IS NOT NULL
	),
	live AS MATERIALIZED (
		SELECT tenant, count(*) AS n FROM turnpike.queue
		WHERE lane = @lane AND dispatched_at IS NOT NULL
		GROUP BY tenant
	),
	heads AS (
		SELECT h.job_id, h.ready, (coalesce(live.n, 0) + row_number() OVER (PARTITION BY t.tenant ORDER BY h.ready, h.job_id) - 1)::double precision
			/ coalesce(w.weight, 1) AS turn
		FROM tenants t
		LEFT JOIN live ON live.tenant = t.tenant
		LEFT JOIN turnpike.weights w ON w.tenant = t.tenant
		CROSS JOIN LATERAL (
			SELECT q.job_id, q.ready FROM turnpike.queue q
			WHERE q.lane = @lane AND q.tenant = t.tenant AND q.ready IS NOT NULL
			ORDER BY q.ready
			LIMIT @window) h
		WHERE t.tenant IS NOT NULL
	),
	pauses AS MATERIALIZED (
		SELECT scope, name, until FROM turnpike.pauses WHERE until > now()
	),
	p AS MATERIALIZED (
		SELECT q.job_id, q.rank, q.tenant, q.concurrency_key, q.chain IS NOT NULL AS chained, h.turn, ` + placed + `,
			greatest(b.until, (SELECT max(p.until) FROM pauses p
				WHERE (p.scope <> 'account' OR q.chain IS NULL) AND ` + holds + `)) AS paused_until,
			coalesce(q.deadline <= now(), false) AS expired,
			CASE WHEN EXISTS (SELECT FROM turnpike.budgets) THEN turnpike.budgets_of(q.job_id, q.profile) END AS budgets
		FROM (SELECT job_id, turn FROM heads ORDER BY turn, ready, job_id LIMIT @window) h
		CROSS JOIN LATERAL (
			SELECT * FROM turnpike.queue q WHERE q.job_id = h.job_id AND q.ready IS NOT NULL
			FOR NO KEY UPDATE SKIP LOCKED) q
		LEFT JOIN LATERAL (` + best + `) b ON true
	),
	-- Only what these jobs are under is summed up: nothing, mostly.
	spent AS MATERIALIZED (
		SELECT * FROM turnpike.standing((SELECT array_agg(DISTINCT b) FROM p CROSS JOIN LATERAL unnest(p.budgets) b)) WHERE state = 'spent'
	),
	taken AS MATERIALIZED (
		SELECT l.job_id, l.tenant, l.concurrency_key
		FROM (SELECT DISTINCT tenant, concurrency_key FROM p WHERE concurrency_key IS NOT NULL) k
		CROSS JOIN LATERAL (
			SELECT * FROM turnpike.queue l
			WHERE l.tenant = k.tenant AND l.concurrency_key = k.concurrency_key AND l.dispatched_at IS NOT NULL
			OFFSET 0) l
	),
	held AS MATERIALIZED (
		SELECT l.tenant, l.concurrency_key FROM taken
		CROSS JOIN LATERAL (
			SELECT * FROM turnpike.queue l WHERE l.job_id = taken.job_id AND l.dispatched_at IS NOT NULL
			FOR KEY SHARE SKIP LOCKED) l
	),
	slow AS MATERIALIZED (
		SELECT * FROM turnpike.slow_starts()
	),
	verdict AS (
		SELECT p.*, over.until AS spent_until, over.id AS spent, CASE
			WHEN p.expired THEN 'stay'
			WHEN p.paused_until IS NOT NULL THEN 'pause'
			WHEN p.to_profile <> p.profile THEN 'move'
			WHEN over.id IS NOT NULL THEN 'budget'
			WHEN p.concurrency_key IS NULL THEN 'go'
			WHEN held.tenant IS NOT NULL THEN 'key'
			WHEN taken.tenant IS NOT NULL THEN 'stay'
			WHEN row_number() OVER (PARTITION BY p.tenant, p.concurrency_key, p.expired,
				coalesce(p.to_profile <> p.profile, false), p.paused_until IS NOT NULL, over.id IS NOT NULL ORDER BY p.rank, p.job_id) = 1 THEN 'go'
			ELSE 'behind' END AS ruling
		FROM p
		LEFT JOIN LATERAL (
			SELECT id, until FROM spent WHERE p.budgets IS NOT NULL AND id = ANY (p.budgets) ORDER BY until DESC LIMIT 1) over ON true
		LEFT JOIN taken ON taken.tenant = p.tenant AND taken.concurrency_key = p.concurrency_key
		LEFT JOIN held ON held.tenant = p.tenant AND held.concurrency_key = p.concurrency_key
	),
	nth AS (
		SELECT v.*, s.live_max, s.since, s.slow_until, s.live + row_number() OVER (PARTITION BY v.ruling, v.credential ORDER BY v.turn, v.rank, v.job_id) AS n
		FROM verdict v LEFT JOIN slow s ON s.credential = v.credential
	),
	paced AS (
		SELECT n.*, CASE WHEN ruling = 'go' AND n > live_max THEN CASE WHEN chained THEN 'stay' ELSE 'pause' END ELSE ruling END AS what,
			least(since + ceil(log(2, n)) * (slow_until - since) / 10, slow_until) AS paced_until
		FROM nth n
	),
	placed AS (
		SELECT v.*, row_number() OVER (PARTITION BY v.what ORDER BY v.turn, v.rank, v.job_id) AS place FROM paced v
	),
	g AS MATERIALIZED (
		SELECT job_id, tenant, concurrency_key, turn, rank, budgets, spent, coalesce(paused_until, spent_until, paced_until) AS held_until, CASE
			WHEN what = 'go' AND place > @most THEN 'stay'
			WHEN what = 'behind' THEN CASE WHEN EXISTS (
				SELECT FROM placed f WHERE f.what = 'go' AND f.place <= @most AND f.tenant = placed.tenant AND f.concurrency_key = placed.concurrency_key)
				THEN 'key' ELSE 'stay' END
			ELSE what END AS what
		FROM placed
	),
	go AS (
		SELECT array_agg(job_id ORDER BY turn, rank, job_id) AS jobs FROM g WHERE what = 'go'
	),
	aside AS (
		SELECT array_agg(job_id) AS jobs, array_agg(what) AS whats, array_agg(CASE WHEN what <> 'key' THEN held_until END) AS untils
		FROM g WHERE what IN ('pause', 'budget', 'key')
	),
	dispatched AS (
		UPDATE turnpike.queue q SET state = 'dispatched', dispatched_at = now(), dispatch_no = q.dispatch_no + 1,
			budgets = CASE WHEN EXISTS (SELECT FROM turnpike.budgets) THEN turnpike.budgets_of(q.job_id, q.profile) END
		WHERE q.job_id = ANY (ARRAY(SELECT unnest(jobs) FROM go)) AND q.state = 'queued' AND q.ready IS NOT NULL
		RETURNING q.job_id, q.dispatch_no, q.tenant
	),
	parked AS (
		UPDATE turnpike.queue q SET
			parked = ((SELECT whats FROM aside))[array_position((SELECT jobs FROM aside), q.job_id)],
			wake_at = ((SELECT untils FROM aside))[array_position((SELECT jobs FROM aside), q.job_id)],
			budgets = CASE WHEN EXISTS (SELECT FROM turnpike.budgets) THEN turnpike.budgets_of(q.job_id, q.profile) END
		WHERE q.job_id = ANY (ARRAY(SELECT unnest(jobs) FROM aside)) AND q.state = 'queued' AND q.ready IS NOT NULL
		RETURNING q.job_id
	),
	told AS (
		INSERT INTO turnpike.events (job_id, what, note)
		SELECT g.job_id, 'parked', format('the budget of %s %s per %s is spent: %s of %s USD; until %s',
			s.scope, s.name, s.period, s.spent_usd + s.running_usd, s.limit_usd,
			CASE WHEN isfinite(s.until) THEN to_char(s.until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') ELSE 'it is raised' END)
		FROM g JOIN spent s ON s.id = g.spent WHERE g.what = 'budget' AND g.job_id IN (SELECT job_id FROM parked)
	),
	m AS (
		SELECT * FROM p WHERE job_id = ANY (ARRAY(SELECT job_id FROM g WHERE what = 'move'))
	),
	` + moved + `,
	freed AS (
		SELECT tenant, concurrency_key FROM g WHERE what IN ('pause', 'budget')
	),
	` + letOut + `
	SELECT 'go' AS what, job_id::text, dispatch_no, tenant, array_position((SELECT jobs FROM go), job_id) AS place FROM dispatched
	UNION ALL SELECT 'aside', job_id::text, 0, '', NULL FROM parked
	UNION ALL SELECT 'aside', job_id::text, 0, '', NULL FROM moved
	UNION ALL SELECT 'stay', job_id::text, 0, '', NULL FROM g WHERE what = 'stay'
	ORDER BY place`

// wideWindow is how many jobs a round looks at once one found some that cannot go.
const wideWindow = 512

// Select dispatches up to n jobs of a lane and returns them in the order in which
// to publish them: after it returned, when the commit is known. It returns
// job.ErrNotLeader.
func (db *DB) Select(ctx context.Context, epoch int64, lane job.Lane, n int) ([]job.Selected, error) {
	type looked struct {
		job.Selected
		what  string
		place *int
	}
	var out []job.Selected
	// A job that is looked at is locked, which is a write: so as many as may go are, at
	// first. What has to be parked or moved makes room for others, and a backlog behind one
	// key is parked some hundreds at a time.
	window := n
	for range 16 {
		most := n - len(out)
		if most <= 0 {
			break
		}
		round, err := hot(ctx, db, "select", func(row pgx.CollectableRow) (l looked, err error) {
			l.Version, l.Lane = job.MessageVersion, lane
			err = row.Scan(&l.what, &l.Job, &l.Dispatch, &l.Tenant, &l.place)
			return l, err
		}, selecting(epoch), stmt{choose, args{"lane": lane.String(), "window": window, "most": most}})
		if err != nil {
			if len(out) > 0 {
				return out, nil // committed: to be published. The next call meets the error.
			}
			return nil, fmt.Errorf("lane %s: %w", lane, err)
		}
		counts := make(map[string]int)
		for _, l := range round {
			counts[l.what]++
			if l.what == "go" {
				out = append(out, l.Selected)
			}
		}
		if counts["aside"] == 0 && (counts["stay"] == 0 || window >= wideWindow) {
			break
		}
		window = max(n, wideWindow)
	}
	return out, nil
}

const published = `
	WITH l AS MATERIALIZED (
		SELECT q.job_id
		FROM (SELECT * FROM unnest(@jobs::uuid[], @numbers::integer[]) AS d(job_id, dispatch) ORDER BY job_id) d
		CROSS JOIN LATERAL (
			SELECT q.job_id FROM turnpike.queue q
			WHERE q.job_id = d.job_id AND q.state = 'dispatched' AND q.dispatch_no = d.dispatch AND q.published_at IS NULL
			FOR NO KEY UPDATE SKIP LOCKED) q
	)
	UPDATE turnpike.queue q SET published_at = now()
	WHERE q.job_id = ANY (ARRAY(SELECT job_id FROM l)) AND q.state = 'dispatched' AND q.published_at IS NULL`

// unhurried is planned, for a commit that does not wait for the disk: losing it
// publishes a number again that is there.
var unhurried = stmt{`SELECT set_config('synchronous_commit', 'off', true), ` + byIndex, nil}

// Published records that the stream has acknowledged deliveries. It skips those that
// were claimed or dispatched again meanwhile.
func (db *DB) Published(ctx context.Context, sent []job.Delivery) error {
	if len(sent) == 0 {
		return nil
	}
	jobs, numbers := make([]string, len(sent)), make([]int, len(sent))
	for i, d := range sent {
		jobs[i], numbers[i] = string(d.Job), d.Dispatch
	}
	_, err := hot(ctx, db, "record the publication", pgx.RowTo[int], unhurried, stmt{published, args{"jobs": jobs, "numbers": numbers}})
	return err
}

const unpublished = `
	SELECT job_id::text, dispatch_no, tenant, lane
	FROM turnpike.queue
	WHERE dispatched_at IS NOT NULL AND state = 'dispatched' AND published_at IS NULL
	ORDER BY dispatched_at, job_id
	LIMIT @most`

func toSelected(row pgx.CollectableRow) (s job.Selected, err error) {
	var lane string
	s.Version = job.MessageVersion
	if err := row.Scan(&s.Job, &s.Dispatch, &s.Tenant, &lane); err != nil {
		return s, err
	}
	s.Lane, err = job.ParseLane(lane)
	return s, err
}

// Unpublished lists dispatched jobs whose publication is not on record: what a
// dispatcher that just took over publishes again, under the same number.
func (db *DB) Unpublished(ctx context.Context, epoch int64, limit int) ([]job.Selected, error) {
	return together(ctx, db, "list the unpublished", toSelected, holding(epoch), stmt{unpublished, args{"most": limit}})
}

// What was paused since, or whose budget was spent, goes back to the queue instead: its
// claims are refused.
const redispatch = `
	WITH l AS MATERIALIZED (
		SELECT q.job_id, q.tenant, q.concurrency_key, EXISTS (
			SELECT FROM turnpike.pauses p WHERE p.until > now() AND ` + holds + `)
			OR q.budgets IS NOT NULL AND EXISTS (SELECT FROM turnpike.standing(q.budgets) WHERE state = 'spent') AS paused
		FROM turnpike.queue q
		WHERE q.dispatched_at IS NOT NULL AND q.lane = @lane AND q.state = 'dispatched'
			AND CASE WHEN @all THEN q.published_at IS NOT NULL ELSE coalesce(q.published_at, q.dispatched_at) < now() - @older::interval END
		ORDER BY q.job_id
		LIMIT @most
		FOR NO KEY UPDATE OF q SKIP LOCKED
	),
	u AS (
		UPDATE turnpike.queue q SET
			state = CASE WHEN l.paused THEN 'queued' ELSE 'dispatched' END::turnpike.job_state,
			dispatched_at = CASE WHEN NOT l.paused THEN now() END,
			dispatch_no = q.dispatch_no + (NOT l.paused)::integer,
			published_at = NULL
		FROM l WHERE q.job_id = l.job_id AND q.state = 'dispatched'
		RETURNING q.job_id, q.dispatch_no, q.tenant, q.lane, l.paused, q.rank
	),
	freed AS (
		SELECT tenant, concurrency_key FROM l WHERE paused
	),
	` + letOut + `
	SELECT job_id::text, dispatch_no, tenant, lane FROM u WHERE NOT paused ORDER BY rank, job_id`

// Redispatch gives jobs the next number that were published (or, failing that,
// dispatched) longer than olderThan ago and that nobody claimed; with all, every
// published one, for a stream that was created anew. It returns job.ErrNotLeader.
func (db *DB) Redispatch(ctx context.Context, epoch int64, lane job.Lane, olderThan time.Duration, all bool, limit int) ([]job.Selected, error) {
	return together(ctx, db, "dispatch again", toSelected, holding(epoch),
		stmt{redispatch, args{"lane": lane.String(), "older": olderThan, "all": all, "most": limit}})
}

const unchecked = `
	SELECT q.job_id::text, j.request::text
	FROM turnpike.queue q JOIN turnpike.jobs j ON j.job_id = q.job_id
	WHERE NOT q.checked
	ORDER BY q.job_id
	LIMIT @most`

// Unchecked lists requests that were enqueued in SQL and are yet to be validated.
func (db *DB) Unchecked(ctx context.Context, epoch int64, limit int) ([]job.Unchecked, error) {
	return together(ctx, db, "list the unchecked", func(row pgx.CollectableRow) (u job.Unchecked, err error) {
		var request string
		err = row.Scan(&u.ID, &request)
		u.Request = []byte(request)
		return u, err
	}, holding(epoch), stmt{unchecked, args{"most": limit}})
}

const checked = `
	WITH d AS MATERIALIZED (
		SELECT q.job_id, d.refused
		FROM json_to_recordset(@verdicts) AS d(job_id uuid, refused text)
		JOIN turnpike.queue q ON q.job_id = d.job_id
		WHERE NOT q.checked
		ORDER BY q.job_id
		FOR UPDATE OF q
	),
	fine AS (
		UPDATE turnpike.queue q SET checked = true FROM d WHERE q.job_id = d.job_id AND d.refused IS NULL
	),
	gone AS (
		DELETE FROM turnpike.queue q USING d WHERE q.job_id = d.job_id AND d.refused IS NOT NULL
		RETURNING q.job_id, d.refused
	)
	INSERT INTO turnpike.finished (job_id, state, reason, note, by)
	SELECT job_id, 'failed', 'refused', refused, 'dispatcher' FROM gone`

// Checked lets the jobs of ok be selected and ends those of refused, each with its
// reason. It returns job.ErrNotLeader.
func (db *DB) Checked(ctx context.Context, epoch int64, ok []job.ID, refused map[job.ID]string) error {
	type verdict struct {
		Job     job.ID  `json:"job_id"`
		Refused *string `json:"refused,omitempty"`
	}
	list := make([]verdict, 0, len(ok)+len(refused))
	for _, id := range ok {
		list = append(list, verdict{Job: id})
	}
	for id, why := range refused {
		list = append(list, verdict{id, &why})
	}
	if len(list) == 0 {
		return nil
	}
	encoded, err := encode(list)
	if err != nil {
		return fmt.Errorf("record the check: %w", err)
	}
	_, err = together(ctx, db, "record the check", pgx.RowTo[int], holding(epoch), stmt{checked, args{"verdicts": encoded}})
	return err
}
