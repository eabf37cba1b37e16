package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// The rows are locked in the order of their ids, as beats lock theirs. Stale
// numbers, other lanes, pauses and deadlines are refusals; the same token is the
// same claim.
const claim = `
	WITH d AS MATERIALIZED (
		SELECT * FROM unnest(@jobs::uuid[], @numbers::integer[], @tokens::uuid[]) AS d(job_id, dispatch, token)
	),
	pauses AS MATERIALIZED (
		SELECT scope, name FROM turnpike.pauses WHERE until > now()
	),
	l AS MATERIALIZED (
		SELECT q.job_id, d.token
		FROM (SELECT * FROM d ORDER BY job_id) d
		CROSS JOIN LATERAL (
			SELECT q.job_id FROM turnpike.queue q
			WHERE q.job_id = d.job_id AND q.state = 'dispatched' AND q.dispatch_no = d.dispatch AND q.lane = @lane
				AND (q.deadline IS NULL OR q.deadline > now())
				AND NOT EXISTS (
					SELECT FROM pauses p WHERE ` + holds + `)
				AND (q.budgets IS NULL OR NOT EXISTS (
					SELECT FROM turnpike.standing(q.budgets) WHERE state = 'spent'))
			FOR NO KEY UPDATE) q
	),
	granted AS (
		SELECT array_agg(job_id) AS jobs, array_agg(token) AS tokens FROM l
	),
	u AS (
		UPDATE turnpike.queue q SET state = 'running', attempt = q.attempt + 1, lease_no = q.lease_no + 1,
			token = ((SELECT tokens FROM granted))[array_position((SELECT jobs FROM granted), q.job_id)],
			worker = @worker, claimed_at = now(), lease_until = now() + @lease::interval,
			orphan = json_build_object('state', 'creating', 'kind', @kind::text)
		WHERE q.job_id = ANY (ARRAY(SELECT job_id FROM l)) AND q.state = 'dispatched'
		RETURNING q.job_id, q.attempt, q.lease_no, q.token, q.tenant, q.account, q.profile, q.tries_spent, q.resume, q.budgets
	),
	held AS (
		SELECT * FROM u
		UNION ALL
		SELECT q.* FROM d
		CROSS JOIN LATERAL (
			SELECT q.job_id, q.attempt, q.lease_no, q.token, q.tenant, q.account, q.profile, q.tries_spent, q.resume, q.budgets
			FROM turnpike.queue q
			WHERE q.job_id = d.job_id AND q.token = d.token AND q.state = 'running' AND q.worker = @worker AND q.lane = @lane
			OFFSET 0) q
	)
	SELECT h.job_id::text, h.attempt, h.lease_no, h.token::text, j.name, h.tenant, h.account, h.profile, h.tries_spent,
		coalesce(h.resume, ''), j.request::text, j.resume_from::text, coalesce(turnpike.conversed(j.resume_from), ''), b.scope, b.name, b.period_s, (b.left_usd * 1000000)::bigint
	FROM held h
	CROSS JOIN LATERAL (
		SELECT name, request, resume_from FROM turnpike.jobs j WHERE j.job_id = h.job_id OFFSET 0) j
	LEFT JOIN LATERAL (
		SELECT * FROM turnpike.standing(h.budgets) WHERE h.budgets IS NOT NULL ORDER BY left_usd LIMIT 1) b ON true
	ORDER BY h.job_id`

// Claim takes the leases of deliveries on one lane. A delivery missing in the
// answer was refused: the job is not dispatched with this number on this lane, is
// paused, cancelled or past its deadline. Claiming again with the same token returns
// the same lease, so an unknown commit is settled by asking again.
func (db *DB) Claim(ctx context.Context, worker string, lane job.Lane, claims []job.Claim) ([]job.Claimed, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	jobs, numbers, tokens := make([]string, len(claims)), make([]int, len(claims)), make([]string, len(claims))
	for i, c := range claims {
		jobs[i], numbers[i], tokens[i] = string(c.Job), c.Dispatch, string(c.Token)
	}
	ask := stmt{claim, args{"jobs": jobs, "numbers": numbers, "tokens": tokens, "lane": lane.String(), "worker": worker, "lease": db.lease, "kind": leftKind(lane)}}
	toClaimed := func(row pgx.CollectableRow) (job.Claimed, error) {
		c := job.Claimed{Length: db.lease, Lane: lane}
		var request string
		var origin, scope, name *string
		var conversation string
		var per *int64
		var left *job.USD
		err := row.Scan(&c.Job, &c.Attempt, &c.Number, &c.Token, &c.Name, &c.Tenant, &c.Account, &c.Profile, &c.TriesSpent,
			&c.Resume, &request, &origin, &conversation, &scope, &name, &per, &left)
		c.Request = json.RawMessage(request)
		if origin != nil {
			c.Origin = &job.Origin{Job: job.ID(*origin), Conversation: conversation}
		}
		if scope != nil {
			c.Left = &job.Left{Budget: budgetKey(*scope, *name, *per), USD: *left}
		}
		return c, err
	}
	got, err := hot(ctx, db, "claim", toClaimed, planned, ask)
	if err != nil || len(got) == len(claims) {
		return got, err
	}
	// A refusal may be our own doing: the call before, of which we heard no answer,
	// committed while this one waited for its rows. This statement saw the rows as they
	// were before that; the next one sees the leases.
	return hot(ctx, db, "claim", toClaimed, planned, ask)
}

// leftKind is what a lane's turn would leave behind, while no more is known: the
// kinds of package agent.
func leftKind(lane job.Lane) string {
	switch lane.Placement {
	case "container":
		return "container"
	case "sbx":
		return "sandbox"
	}
	return "process"
}

// No index and no index's predicate names a column that this changes: these are HOT
// updates. Nor does it wait for any row, or one that is being settled would hold up the
// leases of all its worker's others: what is locked has no answer.
const beat = `
	WITH d AS MATERIALIZED (
		SELECT * FROM json_to_recordset(@beats) AS d(n integer, job_id uuid, token uuid, started_at timestamptz, conversation text,
			turns bigint, tool_calls bigint, cost_usd numeric, running json)
	),
	l AS MATERIALIZED (
		SELECT d.*
		FROM d
		CROSS JOIN LATERAL (
			SELECT FROM turnpike.queue q
			WHERE q.job_id = d.job_id AND q.token = d.token AND q.state = 'running' AND q.worker = @worker
			FOR NO KEY UPDATE SKIP LOCKED) q
	),
	u AS (
		UPDATE turnpike.queue q SET lease_until = now() + @lease::interval,
			started_at = coalesce(q.started_at, l.started_at),
			conversation = coalesce(nullif(l.conversation, ''), q.conversation),
			turns = greatest(q.turns, l.turns), tool_calls = greatest(q.tool_calls, l.tool_calls),
			cost_usd = CASE WHEN l.cost_usd >= 0 THEN l.cost_usd ELSE q.cost_usd END,
			orphan = CASE WHEN l.running IS NULL THEN q.orphan ELSE json_build_object('state', 'live', 'identity', l.running) END
		FROM l
		WHERE q.job_id = l.job_id AND q.job_id = ANY (ARRAY(SELECT job_id FROM l)) AND q.token = l.token AND q.state = 'running'
		RETURNING q.job_id, q.token, q.cancel_at, q.cancel_by, q.cancel_why, q.budgets IS NOT NULL AS budgeted
	)
	SELECT d.job_id::text, u.job_id IS NOT NULL, u.cancel_at IS NOT NULL, coalesce(u.cancel_by, ''), coalesce(u.cancel_why, ''),
		coalesce(u.budgeted, false)
	FROM d LEFT JOIN u ON u.job_id = d.job_id AND u.token = d.token
	WHERE u.job_id IS NOT NULL OR NOT EXISTS (
		SELECT FROM turnpike.queue q
		WHERE q.job_id = d.job_id AND q.token = d.token AND q.state = 'running' AND q.worker = @worker)
	ORDER BY d.n`

// Beat renews the leases of one worker's attempts and keeps what they tell. Beats are
// answered in order, but for those whose job somebody else is changing just now: whose
// their leases are the next beat will tell. A lease that lapsed is renewed too, as long as nobody
// reaped it: the turn still runs, and two of it would be worse.
func (db *DB) Beat(ctx context.Context, worker string, beats []job.Beat) ([]job.Beaten, error) {
	if len(beats) == 0 {
		return nil, nil
	}
	type told struct {
		N            int             `json:"n"`
		Job          job.ID          `json:"job_id"`
		Token        string          `json:"token"`
		StartedAt    time.Time       `json:"started_at,omitzero"`
		Conversation string          `json:"conversation,omitempty"`
		Turns        int             `json:"turns"`
		ToolCalls    int             `json:"tool_calls"`
		CostUSD      *job.USD        `json:"cost_usd,omitempty"`
		Running      json.RawMessage `json:"running,omitempty"`
	}
	list := make([]told, len(beats))
	for i, b := range beats {
		list[i] = told{i, b.Job, string(b.Token), b.StartedAt, b.Conversation, b.Turns, b.ToolCalls, b.CostUSD, b.Running}
	}
	encoded, err := encode(list)
	if err != nil {
		return nil, fmt.Errorf("beat: %w", err)
	}
	var budgeted []string
	answers, err := hot(ctx, db, "beat",
		func(row pgx.CollectableRow) (b job.Beaten, err error) {
			var cancelled, under bool
			var by, why string
			err = row.Scan(&b.Job, &b.Ours, &cancelled, &by, &why, &under)
			if cancelled {
				b.Cancelled = &job.Cancelled{By: by, Why: why}
			}
			if under {
				budgeted = append(budgeted, string(b.Job))
			}
			return b, err
		}, planned, stmt{beat, args{"beats": encoded, "worker": worker, "lease": db.lease}})
	if err != nil || len(budgeted) == 0 {
		return answers, err
	}
	// In a statement after the beats' commit: what they told counts.
	over, err := db.overBudget(ctx, budgeted)
	for i := range answers {
		if answers[i].Ours {
			answers[i].Over = over[answers[i].Job]
		}
	}
	return answers, err
}
