-- +goose Up

-- The reporting side: cost, duration and outcome in plain SQL. A view reads with
-- its owner's rights, so a reporter needs nothing of the tables.
--
-- Costs are what is known. NULL is "nothing known"; unpriced_attempts counts the
-- attempts that ran and whose cost nobody knows.

CREATE VIEW turnpike.v_attempts AS
SELECT a.job_id, a.attempt, a.ending, a.reason, a.next::text AS next, a.verdict, a.final, a.late, a.late_ending,
	split_part(a.lane, '/', 1) AS placement, split_part(a.lane, '/', 2) AS pool, a.lane, a.tenant, a.agent, a.agent_version, a.model, a.account,
	a.worker, a.host, a.run_at, a.dispatched_at, a.claimed_at, a.started_at, a.ended_at, a.closed_at,
	a.claimed_at - a.run_at AS waited, a.closed_at - a.claimed_at AS held, a.duration_ms,
	a.num_turns, a.tool_calls, a.exit_code, a.signal, a.is_error, a.error_subtype, a.timed_out, a.cost_capped,
	a.cost_usd, a.cost_partial, a.started_at IS NOT NULL AND a.cost_usd IS NULL AS unpriced,
	o.status AS outcome, o.note AS outcome_note, a.conversation, a.session_dir, a.result_text, a.result
FROM turnpike.attempts a
LEFT JOIN turnpike.outcomes o ON o.job_id = a.job_id AND o.attempt = a.attempt;

CREATE VIEW turnpike.v_jobs AS
SELECT j.job_id, j.name, j.tenant, j.producer, split_part(j.lane, '/', 1) AS placement, split_part(j.lane, '/', 2) AS pool, j.lane,
	j.agent, j.account, coalesce(nullif(o.work_key, ''), j.work_key) AS work_key,
	CASE WHEN o.work_tags <> '{}' THEN o.work_tags ELSE j.work_tags END AS work_tags, j.retry_of,
	coalesce(q.state, f.state, a.next)::text AS state,
	CASE WHEN q.job_id IS NOT NULL THEN CASE WHEN q.parked IS NOT NULL THEN 'parked: ' || q.parked WHEN NOT q.checked THEN 'unchecked' ELSE '' END
		ELSE coalesce(f.reason, a.verdict) END AS reason,
	coalesce(f.note, a.reason) AS note,
	j.created_at, coalesce(q.run_at, j.run_at) AS run_at, coalesce(q.started_at, a.started_at) AS started_at,
	CASE WHEN q.job_id IS NULL THEN coalesce(f.finished_at, a.closed_at) END AS ended_at,
	CASE WHEN q.job_id IS NULL THEN coalesce(f.finished_at, a.closed_at) - j.created_at END AS took,
	CASE WHEN q.state = 'running' THEN q.attempt ELSE coalesce(s.attempts, 0) END AS attempt,
	coalesce(s.attempts, 0) AS attempts, coalesce(s.duration_ms, 0) AS duration_ms, coalesce(s.num_turns, 0) + coalesce(q.turns, 0) AS num_turns,
	CASE WHEN s.cost_usd IS NOT NULL OR q.cost_usd IS NOT NULL THEN coalesce(s.cost_usd, 0) + coalesce(q.cost_usd, 0) END AS cost_usd,
	coalesce(s.unpriced_attempts, 0) AS unpriced_attempts,
	o.status AS outcome, o.note AS outcome_note, coalesce(q.worker, a.worker, '') AS worker
FROM turnpike.jobs j
LEFT JOIN turnpike.queue q ON q.job_id = j.job_id
LEFT JOIN turnpike.finished f ON f.job_id = j.job_id
LEFT JOIN LATERAL (
	SELECT x.next, x.verdict, x.reason, x.started_at, x.closed_at, x.worker, x.attempt
	FROM turnpike.attempts x WHERE x.job_id = j.job_id ORDER BY x.attempt DESC LIMIT 1) a ON true
LEFT JOIN LATERAL (
	SELECT count(*) AS attempts, sum(x.duration_ms)::bigint AS duration_ms, sum(x.num_turns)::bigint AS num_turns, sum(x.cost_usd) AS cost_usd,
		count(*) FILTER (WHERE x.started_at IS NOT NULL AND x.cost_usd IS NULL) AS unpriced_attempts
	FROM turnpike.attempts x WHERE x.job_id = j.job_id) s ON true
LEFT JOIN turnpike.outcomes o ON o.job_id = j.job_id AND o.attempt = a.attempt;

CREATE VIEW turnpike.v_costs AS
SELECT c.job_id, c.attempt, a.tenant, a.agent, split_part(a.lane, '/', 2) AS pool, a.account, a.ended_at, c.model,
	c.input_tokens, c.output_tokens, c.cache_read_tokens, c.cache_write_tokens, c.cost_usd, c.estimated_usd
FROM turnpike.costs c
JOIN turnpike.attempts a ON a.job_id = c.job_id AND a.attempt = c.attempt;

CREATE VIEW turnpike.v_outcomes AS
SELECT o.job_id, o.attempt, j.name, j.tenant, o.status, o.note, o.work_key, o.work_tags
FROM turnpike.outcomes o
JOIN turnpike.jobs j ON j.job_id = o.job_id;

CREATE VIEW turnpike.v_orphans AS
SELECT job_id, attempt, kind, identity, worker, state, stopped_by, note, transcript, turns, created_at, gone_at
FROM turnpike.orphans
UNION ALL
SELECT job_id, attempt, coalesce(orphan #>> '{identity,kind}', orphan ->> 'kind'), (orphan -> 'identity')::jsonb, worker, orphan ->> 'state',
	NULL, NULL, NULL, turns, claimed_at, NULL
FROM turnpike.queue WHERE state = 'running';

CREATE VIEW turnpike.v_queue AS
SELECT lane, tenant, state::text AS state, parked, count(*) AS jobs, min(run_at) AS oldest,
	count(*) FILTER (WHERE state = 'running' AND lease_until < now()) AS lapsed, min(lease_until) AS first_lease_until
FROM turnpike.queue GROUP BY lane, tenant, state, parked;

CREATE VIEW turnpike.v_workers AS
SELECT id, host, version, state_dir, draining, registered_at, seen_at, seen_at > now() - interval '30 seconds' AS alive,
	l ->> 'lane' AS lane, (l ->> 'slots')::integer AS slots, (l ->> 'free')::integer AS free, coalesce(l ->> 'closed', '') AS closed
FROM turnpike.workers CROSS JOIN LATERAL jsonb_array_elements(lanes) l;

CREATE VIEW turnpike.v_pauses AS
SELECT scope, name, until, until > now() AS active, reason, by, at FROM turnpike.pauses;
