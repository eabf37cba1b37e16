package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// The leases about to be closed, in the order of their ids. A statement of its own:
// closing sees what whoever held the rows before has committed, the jobs that
// selection parked behind one of them above all.
const lockLeases = `
	SELECT FROM (SELECT * FROM unnest(@jobs::uuid[], @tokens::uuid[]) AS r(job_id, token) ORDER BY job_id) r
	CROSS JOIN LATERAL (
		SELECT FROM turnpike.queue q WHERE q.job_id = r.job_id AND q.token = r.token
		FOR UPDATE) q`

// reportColumns is job.Report as Postgres reads it.
const reportColumns = `r(lease json, worker text, host text, ending text, reason text, retry_after timestamptz, started boolean,
	started_at timestamptz, ended_at timestamptz, tool_calls bigint, agent text, agent_version text, model text, conversation text,
	resumable boolean, kept boolean, duration_ms bigint, exit_code integer, signal integer, is_error boolean, error_subtype text, result_text text,
	num_turns bigint, timed_out boolean, cost_capped boolean, cost_usd numeric, cost_partial boolean, usage json, outcome json, rate_limit json, versions json,
	added text[], notes text[], session_dir text, "left" json, result json, patch json)`

// closing ends the attempts whose lease the reports bear: the attempt, its costs and
// outcome, what is left over, and what follows for the job, by turnpike.after. A report
// that bears no lease has no effect and no row in the answer. An account that reached
// its limit is paused, and what was dispatched for it goes back. The next job behind
// each key that came free is let out. Held by lockLeases or by the reaper's locks.
const closing = `
	WITH r AS MATERIALIZED (
		SELECT (r.lease ->> 'job')::uuid AS job_id, (r.lease ->> 'attempt')::integer AS attempt, (r.lease ->> 'token')::uuid AS token, r.*
		FROM json_to_recordset(@reports) AS ` + reportColumns + `
	),
	c AS MATERIALIZED (
		SELECT r.*, CASE WHEN elsewhere THEN 'queued' ELSE v.next END AS next, elsewhere, q.chain IS NOT NULL AS chained,
			v.reason AS verdict, v.spent, v.returned, v.resume, v.next IN ('succeeded', 'failed', 'cancelled') AS over,
			q.lease_no, q.dispatch_no, q.profile, q.lane, q.tenant, q.agent AS queued_agent, q.account, q.credential, q.concurrency_key,
			q.worker AS holder, q.run_at, q.dispatched_at, q.claimed_at, q.budgets,
			coalesce(q.started_at, r.started_at, CASE WHEN r.started THEN q.claimed_at END) AS began,
			coalesce(nullif(r.conversation, ''), q.conversation, '') AS conversed,
			greatest(r.num_turns, q.turns) AS turned, greatest(r.tool_calls, q.tool_calls) AS called,
			CASE WHEN r.cost_usd >= 0 THEN least(r.cost_usd, 99999999) ELSE q.cost_usd END AS cost,
			r.ending = 'lost' OR r.cost_usd IS NULL OR r.cost_usd < 0 OR coalesce(r.cost_partial, false) AS partly,
			now() + v.delay_ms * interval '1 ms' AS again_at
		FROM r
		CROSS JOIN LATERAL (
			SELECT * FROM turnpike.queue q
			WHERE q.job_id = r.job_id AND q.token = r.token AND q.attempt = r.attempt AND q.state = 'running'
			OFFSET 0) q
		CROSS JOIN LATERAL turnpike.after(r.ending, coalesce(r.is_error, false), coalesce(r.started, false) OR q.started_at IS NOT NULL,
			greatest(r.tool_calls, q.tool_calls) > 0 OR q.resume IS NOT NULL, coalesce(r.resumable, false), q.cancel_at IS NOT NULL,
			q.policy, q.tries_spent, q.max_tries, q.backoff_ms, q.crashes, q.overloads, q.returns, random()) v
		-- Selection has the job wait for this provider, or run on another.
		CROSS JOIN LATERAL (SELECT q.chain IS NOT NULL AND v.returned AND r.ending = 'overloaded' AS elsewhere) e
	),
	closed AS (
		INSERT INTO turnpike.attempts (job_id, attempt, lease_no, token, dispatch_no, profile, lane, tenant, agent, account, worker, host,
			run_at, dispatched_at, claimed_at, started_at, ended_at, ending, reason, next, verdict, agent_version, model, conversation,
			resumable, kept, duration_ms, exit_code, signal, is_error, error_subtype, timed_out, cost_capped, num_turns, tool_calls, cost_usd,
			cost_partial, rate_limit, versions, added, session_dir, result_text, result, reaped, patch, budgets)
		SELECT job_id, attempt, lease_no, token, dispatch_no, profile, lane, tenant, coalesce(nullif(agent, ''), queued_agent), account, holder,
			coalesce(host, ''), run_at, dispatched_at, claimed_at, began, ended_at, ending, coalesce(reason, ''), next, verdict,
			coalesce(agent_version, ''), coalesce(model, ''), conversed, coalesce(resumable, false), kept, coalesce(duration_ms, 0),
			exit_code, signal, coalesce(is_error, false), coalesce(error_subtype, ''), coalesce(timed_out, false),
			coalesce(cost_capped, false), coalesce(turned, 0), coalesce(called, 0), cost, partly AND cost IS NOT NULL, rate_limit, versions,
			added, coalesce(session_dir, ''), coalesce(result_text, ''), result, @reaped::boolean, patch, budgets
		FROM c
	),
	priced AS (
		INSERT INTO turnpike.costs (job_id, attempt, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd, estimated_usd)
		SELECT c.job_id, c.attempt, ` + usage + `
		WHERE json_typeof(c.usage) = 'array'
		GROUP BY c.job_id, c.attempt, u.model
	),
	spent AS (
		` + spend + `
		SELECT b.id, turnpike.bucket(now(), b.bucket_s), sum(turnpike.counts_for(c.cost, c.partly, ` + byModels + `))
		FROM c JOIN turnpike.budgets b ON b.id = ANY (c.budgets)
		` + spendConflict + `
	),
	reported AS (
		INSERT INTO turnpike.outcomes (job_id, attempt, status, note, work_key, work_tags)
		SELECT c.job_id, c.attempt, c.outcome ->> 'status', coalesce(c.outcome ->> 'note', ''), coalesce(c.outcome #>> '{work,key}', ''),
			ARRAY(SELECT json_array_elements_text(c.outcome #> '{work,tags}') WHERE json_typeof(c.outcome #> '{work,tags}') = 'array')
		FROM c WHERE c.outcome ->> 'status' IS NOT NULL
	),
	leftover AS (
		INSERT INTO turnpike.orphans (job_id, attempt, kind, identity, worker, state_dir, host, state, note, transcript, turns)
		SELECT c.job_id, c.attempt, o.kind, o.identity, c.holder, coalesce(w.state_dir, ''), coalesce(w.host, ''), o.state, o.note, o.transcript, o.turns
		FROM c
		CROSS JOIN LATERAL json_to_recordset(c."left") AS o(kind text, identity jsonb, state text, note text, transcript text, turns bigint)
		LEFT JOIN turnpike.workers w ON w.id = c.holder
		WHERE json_typeof(c."left") = 'array' AND o.state <> 'gone'
		ON CONFLICT DO NOTHING
	),
	finished AS (
		DELETE FROM turnpike.queue q WHERE q.job_id = ANY (ARRAY(SELECT job_id FROM c WHERE over))
	),
	again AS (
		UPDATE turnpike.queue q SET state = c.next,
			run_at = CASE c.next WHEN 'scheduled' THEN c.wake ELSE q.run_at END,
			wake_at = CASE c.next WHEN 'scheduled' THEN c.wake END,
			tries_spent = q.tries_spent + c.spent::integer,
			returns = CASE WHEN c.returned THEN q.returns + 1 ELSE 0 END,
			overloads = q.overloads + (c.returned AND c.ending = 'overloaded')::integer,
			busy = CASE WHEN c.elsewhere THEN (
				SELECT array_agg(CASE i WHEN q.profile + 1 THEN c.again_at ELSE q.busy[i] END ORDER BY i)
				FROM generate_series(1, greatest(q.profile + 1, array_length(q.busy, 1))) i) ELSE q.busy END,
			crashes = q.crashes + (c.ending = 'lost')::integer,
			unready_since = CASE c.ending WHEN 'unready' THEN coalesce(q.unready_since, now()) END,
			resume = CASE WHEN c.resume THEN nullif(c.conversed, '') ELSE q.resume END,
			dispatched_at = NULL, published_at = NULL, token = NULL, worker = NULL, claimed_at = NULL, lease_until = NULL, started_at = NULL,
			conversation = NULL, turns = 0, tool_calls = 0, cost_usd = NULL, orphan = NULL, cancel_at = NULL, cancel_by = NULL, cancel_why = NULL
		FROM (
			-- A fallback need not wait until the provider that was limited has capacity.
			SELECT c.*, CASE WHEN c.retry_after IS NULL OR c.chained THEN c.again_at
				ELSE greatest(c.again_at, least(c.retry_after, now() + interval '31 days')) END AS wake
			FROM c WHERE NOT c.over) c
		WHERE q.job_id = c.job_id AND q.job_id = ANY (ARRAY(SELECT job_id FROM c WHERE NOT over))
	),
	told AS (
		INSERT INTO turnpike.events (job_id, what, note)
		SELECT job_id, CASE WHEN returned THEN 'given back' ELSE 'retry' END, concat_ws(': ', 'attempt ' || attempt || ' ' || ending, nullif(reason, ''))
		FROM c WHERE NOT over
		UNION ALL
		SELECT job_id, 'note', concat('attempt ', attempt, ': ', n) FROM c CROSS JOIN LATERAL unnest(c.notes) n
	),
	p AS MATERIALIZED (
		SELECT DISTINCT ON (credential) credential, ending,
			CASE ending WHEN 'credential' THEN 'infinity'
				ELSE greatest(least(coalesce(retry_after, now() + interval '5 minutes'), now() + interval '31 days'), now() + interval '30 seconds')
			END::timestamptz AS until, job_id, reason
		FROM c WHERE ending IN ('limited', 'credential')
		ORDER BY credential, ending, retry_after DESC NULLS LAST
	),
	paused AS (
		INSERT INTO turnpike.pauses AS old (scope, name, until, reason, by, ending)
		SELECT 'account', credential, until, concat_ws(': ', ending, nullif(reason, '')), 'job ' || job_id, ending FROM p ORDER BY credential
		ON CONFLICT (scope, name) DO UPDATE SET until = excluded.until, reason = excluded.reason, by = excluded.by, ending = excluded.ending, at = now()
		WHERE old.until < excluded.until
	),
	stopped AS MATERIALIZED (
		SELECT q.job_id, q.tenant, q.concurrency_key
		FROM turnpike.queue q
		WHERE EXISTS (SELECT FROM p)
			AND q.dispatched_at IS NOT NULL AND q.state = 'dispatched' AND q.credential = ANY (ARRAY(SELECT credential FROM p))
		ORDER BY q.job_id
		FOR NO KEY UPDATE OF q
	),
	back AS (
		UPDATE turnpike.queue q SET state = 'queued', dispatched_at = NULL, published_at = NULL
		FROM stopped WHERE q.job_id = stopped.job_id AND q.state = 'dispatched'
	),
	freed AS (
		SELECT tenant, concurrency_key FROM c UNION ALL SELECT tenant, concurrency_key FROM stopped
	),
	` + letOut + `
	SELECT job_id::text, attempt, token::text, next::text FROM c`

// usage sums what a report says of each model; a model whose cost is not known in one
// line has no known cost.
const usage = `
		coalesce(u.model, ''), least(coalesce(sum(u.input_tokens), 0), 1e18), least(coalesce(sum(u.output_tokens), 0), 1e18),
			least(coalesce(sum(u.cache_read_tokens), 0), 1e18), least(coalesce(sum(u.cache_write_tokens), 0), 1e18),
			CASE WHEN bool_and(coalesce(u.cost_usd, -1) >= 0) THEN least(sum(u.cost_usd), 99999999) END,
			CASE WHEN bool_or(u.estimated_usd >= 0 AND u.cost_usd IS NULL)
				THEN least(sum(u.estimated_usd) FILTER (WHERE u.estimated_usd >= 0 AND u.cost_usd IS NULL), 99999999) END
		FROM c CROSS JOIN LATERAL json_to_recordset(c.usage) AS u(model text, input_tokens bigint, output_tokens bigint,
			cache_read_tokens bigint, cache_write_tokens bigint, cost_usd numeric, estimated_usd numeric)`

// spend adds what attempts count for to the buckets of their budgets, which are locked
// in one order by everyone.
const (
	spend         = `INSERT INTO turnpike.spend AS s (budget, bucket, usd)`
	spendConflict = `GROUP BY 1, 2
		ORDER BY 1, 2
		ON CONFLICT (budget, bucket) DO UPDATE SET usd = least(s.usd + excluded.usd, 99999999)`

	byModels = `(
			SELECT sum(CASE WHEN u.cost_usd >= 0 THEN u.cost_usd WHEN u.estimated_usd >= 0 THEN u.estimated_usd END)
			FROM json_to_recordset(CASE json_typeof(c.usage) WHEN 'array' THEN c.usage END) AS u(cost_usd numeric, estimated_usd numeric))`
)

// letOut is the common table expression that lets out the first job parked behind
// each key of freed. Who comes second may find it locked and let out the next:
// selection parks that one again.
const letOut = `out AS (
		UPDATE turnpike.queue q SET parked = NULL
		FROM (
			SELECT (
				SELECT w.job_id FROM turnpike.queue w
				WHERE w.tenant = k.tenant AND w.concurrency_key = k.concurrency_key AND w.parked = 'key'
				ORDER BY w.rank LIMIT 1
				FOR UPDATE SKIP LOCKED) AS job_id
			FROM (SELECT DISTINCT tenant, concurrency_key FROM freed WHERE concurrency_key IS NOT NULL) k) w
		WHERE q.job_id = w.job_id
	)`

// late meets the reports that bore no lease. The attempt the reaper closed is filled
// in, once: what it cost and left is on record, what followed from it stays. The same
// token on a closed attempt is a repeat.
const late = `
	WITH r AS MATERIALIZED (
		SELECT (r.lease ->> 'job')::uuid AS job_id, (r.lease ->> 'attempt')::integer AS attempt, (r.lease ->> 'token')::uuid AS token, r.*
		FROM json_to_recordset(@reports) AS ` + reportColumns + `
	),
	f AS (
		UPDATE turnpike.attempts a SET late = true, late_at = now(), late_ending = r.ending,
			host = coalesce(r.host, ''), agent_version = coalesce(r.agent_version, ''), model = coalesce(r.model, ''),
			conversation = coalesce(nullif(r.conversation, ''), a.conversation), resumable = coalesce(r.resumable, false), kept = r.kept,
			started_at = coalesce(a.started_at, r.started_at, CASE WHEN r.started THEN a.claimed_at END),
			ended_at = r.ended_at, duration_ms = coalesce(r.duration_ms, 0), exit_code = r.exit_code, signal = r.signal,
			is_error = coalesce(r.is_error, false), error_subtype = coalesce(r.error_subtype, ''), timed_out = coalesce(r.timed_out, false),
			cost_capped = coalesce(r.cost_capped, false), num_turns = greatest(r.num_turns, a.num_turns),
			tool_calls = greatest(r.tool_calls, a.tool_calls),
			cost_usd = CASE WHEN r.cost_usd >= 0 THEN least(r.cost_usd, 99999999) ELSE a.cost_usd END,
			-- Whoever reports a turn that outlived its worker knows what that one read, which may not be all.
			cost_partial = (r.ending = 'lost' OR r.cost_usd IS NULL OR r.cost_usd < 0 OR coalesce(r.cost_partial, false)) AND coalesce(r.cost_usd >= 0 OR a.cost_usd IS NOT NULL, false),
			rate_limit = r.rate_limit, versions = r.versions, added = r.added, session_dir = coalesce(r.session_dir, ''),
			result_text = coalesce(r.result_text, ''), result = r.result, patch = r.patch
		FROM r
		WHERE a.job_id = r.job_id AND a.attempt = r.attempt AND a.token = r.token AND a.reaped AND NOT a.late
		RETURNING a.job_id, a.attempt
	),
	c AS MATERIALIZED (
		SELECT r.*, a.budgets, a.cost_usd AS counted, CASE WHEN r.cost_usd >= 0 THEN least(r.cost_usd, 99999999) ELSE a.cost_usd END AS cost,
			r.ending = 'lost' OR r.cost_usd IS NULL OR r.cost_usd < 0 OR coalesce(r.cost_partial, false) AS partly
		FROM r JOIN f ON f.job_id = r.job_id AND f.attempt = r.attempt
		JOIN turnpike.attempts a ON a.job_id = r.job_id AND a.attempt = r.attempt -- as the reaper wrote it
	),
	-- What the reaper did not know counts from now on.
	spent AS (
		` + spend + `
		SELECT b.id, turnpike.bucket(now(), b.bucket_s),
			sum(greatest(turnpike.counts_for(c.cost, c.partly, ` + byModels + `) - coalesce(c.counted, 0), 0))
		FROM c JOIN turnpike.budgets b ON b.id = ANY (c.budgets)
		` + spendConflict + `
	),
	priced AS (
		INSERT INTO turnpike.costs (job_id, attempt, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd, estimated_usd)
		SELECT c.job_id, c.attempt, ` + usage + `
		WHERE json_typeof(c.usage) = 'array'
		GROUP BY c.job_id, c.attempt, u.model
	),
	-- Its own worker, or the next of its state directory, saw to what it started, but for
	-- what it lists as not gone.
	gone AS (
		UPDATE turnpike.orphans o SET state = 'gone', gone_at = now(), stopped_by = c.worker, note = 'settled late'
		FROM c
		WHERE o.job_id = c.job_id AND o.attempt = c.attempt AND o.state <> 'gone'
			AND NOT EXISTS (SELECT FROM json_to_recordset(coalesce(c."left", '[]')) AS x(kind text, state text)
				WHERE x.kind = o.kind AND x.state <> 'gone')
	),
	told AS (
		INSERT INTO turnpike.events (job_id, what, note)
		SELECT job_id, 'late result', 'attempt ' || attempt || ' ' || ending FROM c
		UNION ALL
		SELECT job_id, 'note', concat('attempt ', attempt, ': ', n) FROM c CROSS JOIN LATERAL unnest(c.notes) n
	)
	SELECT r.job_id::text, r.attempt, r.token::text,
		CASE WHEN f.job_id IS NOT NULL THEN 'late' WHEN a.job_id IS NOT NULL THEN 'repeat' ELSE 'unknown' END,
		coalesce(q.state, d.state, x.next)::text
	FROM r
	LEFT JOIN f ON f.job_id = r.job_id AND f.attempt = r.attempt
	LEFT JOIN turnpike.attempts a ON a.job_id = r.job_id AND a.attempt = r.attempt AND a.token = r.token
	LEFT JOIN turnpike.queue q ON q.job_id = r.job_id
	LEFT JOIN turnpike.finished d ON d.job_id = r.job_id
	LEFT JOIN turnpike.attempts x ON x.job_id = r.job_id AND x.final`

// Settle records what attempts left and decides what follows, in one transaction.
// Each report is answered, in order, and each case of job.SettleCase is a success:
// settling again is harmless, and after job.ErrUnavailable the way to learn what
// happened.
func (db *DB) Settle(ctx context.Context, reports []job.Report) ([]job.Settled, error) {
	if len(reports) == 0 {
		return nil, nil
	}
	for i, r := range reports {
		if !slices.Contains(job.Endings(), r.Ending) {
			return nil, fmt.Errorf("settle job %s: %w", r.Lease.Job, &job.FieldError{Field: "ending", Problem: fmt.Sprintf("%q is not how an attempt ends (report %d)", r.Ending, i)})
		}
	}
	// The same report twice in one batch is one report.
	var unique []job.Report
	answers := make(map[bearer]job.Settled, len(reports))
	for _, r := range reports {
		if _, seen := answers[of(r.Lease)]; !seen {
			answers[of(r.Lease)] = job.Settled{}
			unique = append(unique, r)
		}
	}
	encoded, err := encodeReports(unique)
	if err != nil {
		return nil, err
	}
	jobs, tokens := make([]string, len(unique)), make([]string, len(unique))
	for i, r := range unique {
		jobs[i], tokens[i] = string(r.Lease.Job), string(r.Lease.Token)
	}
	now, err := locking(ctx, db, "settle", toClosed, &stmt{closing, args{"reports": "[]", "reaped": false}}, planned,
		stmt{lockLeases, args{"jobs": jobs, "tokens": tokens}},
		stmt{closing, args{"reports": encoded, "reaped": false}})
	if err != nil {
		return nil, err
	}
	for _, c := range now {
		answers[c.bearer] = c.Settled
	}
	rest := slices.DeleteFunc(unique, func(r job.Report) bool { return answers[of(r.Lease)].How != "" })
	if len(rest) > 0 {
		if encoded, err = encodeReports(rest); err != nil {
			return nil, err
		}
		// After the first transaction, so that what the reaper committed while
		// it waited is seen.
		after, err := many(ctx, db, "settle late", stmt{late, args{"reports": encoded}}, toLate)
		if err != nil {
			return nil, err
		}
		for _, c := range after {
			answers[c.bearer] = c.Settled
		}
	}
	out := make([]job.Settled, len(reports))
	for i, r := range reports {
		s := answers[of(r.Lease)]
		out[i] = s
		if s.How != job.SettledNever {
			s.How = job.SettledBefore
			answers[of(r.Lease)] = s
		}
	}
	return out, nil
}

// bearer is an attempt and the token that is good for it.
type bearer struct {
	job    job.ID
	number int
	token  job.Token
}

func of(l job.Lease) bearer { return bearer{l.Job, l.Attempt, l.Token} }

type closed struct {
	bearer
	job.Settled
}

func toClosed(row pgx.CollectableRow) (c closed, err error) {
	err = row.Scan(&c.job, &c.number, &c.token, &c.State)
	c.Settled = job.Settled{Job: c.job, Attempt: c.number, How: job.SettledNow, State: c.State}
	return c, err
}

func toLate(row pgx.CollectableRow) (c closed, err error) {
	var state *job.State
	err = row.Scan(&c.job, &c.number, &c.token, &c.How, &state)
	c.Job, c.Attempt = c.job, c.number
	if state != nil {
		c.State = *state
	}
	return c, err
}

// encodeReports writes reports as JSON. A part that is no JSON itself is kept as
// text: a report is settled whatever an agent printed.
func encodeReports(reports []job.Report) (string, error) {
	list := slices.Clone(reports)
	for i := range list {
		r := &list[i]
		r.Result, r.RateLimit = asJSON(r.Result), asJSON(r.RateLimit)
		r.Left = slices.Clone(r.Left)
		for k := range r.Left {
			r.Left[k].Identity = asJSON(r.Left[k].Identity)
		}
		// Reasons are for people: one line.
		r.Reason = strings.Join(strings.Fields(r.Reason), " ")
	}
	s, err := encode(list)
	if err != nil {
		return "", fmt.Errorf("settle: %w", err)
	}
	return s, nil
}

func asJSON(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || json.Valid(raw) {
		return raw
	}
	quoted, err := json.Marshal(string(raw))
	if err != nil { // a string always has a JSON form
		return nil
	}
	return quoted
}
