-- +goose Up

-- Where a job runs whose profile has fallbacks. Both columns are NULL for most jobs; no
-- beat and no claim changes them. The release before reads neither: while it selects, a
-- job waits for the profile it is at.
SET LOCAL lock_timeout = '10s';
ALTER TABLE turnpike.queue
	ADD COLUMN chain jsonb,        -- [{profile, name, lane, agent, account}], from the request
	ADD COLUMN busy timestamptz[]; -- until when the provider of a profile is not asked again

CREATE INDEX queue_chain ON turnpike.queue (lane, ready) WHERE ready IS NOT NULL AND chain IS NOT NULL;

-- +goose StatementBegin
-- The profile of a chain to run now: the first with capacity, which is one whose lane and
-- credential are not paused and whose provider was not found overloaded. Where none has
-- any, "until" is when the first of them has, and the profile is that one. A conversation
-- is continued by the agent that has it, in the place where it was.
CREATE FUNCTION turnpike.place(chain jsonb, busy timestamptz[], bound boolean, bound_lane text, bound_agent text)
RETURNS TABLE (profile smallint, name text, lane text, agent text, account text, until timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
	SELECT e.profile, coalesce(e.name, e.agent), e.lane, e.agent, e.account, h.until
	FROM jsonb_to_recordset(chain) AS e(profile smallint, name text, lane text, agent text, account text)
	CROSS JOIN LATERAL (
		SELECT greatest(
			CASE WHEN busy[e.profile + 1] > now() THEN busy[e.profile + 1] END,
			(SELECT max(p.until) FROM turnpike.pauses p WHERE p.until > now()
				AND ((p.scope = 'lane' AND p.name = e.lane)
					OR (p.scope = 'account' AND p.name = CASE e.account WHEN '' THEN '~' || e.agent ELSE e.account END)))) AS until) h
	WHERE NOT bound OR (e.lane = bound_lane AND e.agent = bound_agent)
	ORDER BY h.until NULLS FIRST, e.profile
	LIMIT 1
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- The profiles of a request that may run it, in order: at least the first.
CREATE FUNCTION turnpike.chain(request jsonb, pool text, account text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	path text[] := '{profile}';
	at text;
	sandbox text;
	confine boolean;
	one jsonb;
	chain jsonb := '[]';
	-- A conversation goes on with the agent that has it, in the place where it was.
	bound boolean := turnpike.member(request, '{resume_id}', 'string') IS NOT NULL;
BEGIN
	FOR n IN 0..9 LOOP
		at := array_to_string(path, '.');
		IF n > 0 THEN
			EXIT WHEN coalesce(jsonb_typeof(request #> path), 'null') = 'null';
			IF jsonb_typeof(request #> path) <> 'object' THEN
				PERFORM turnpike.refuse(at, format('is a JSON %s, want an object', jsonb_typeof(request #> path)));
			ELSIF n > 8 THEN
				PERFORM turnpike.refuse(at, 'more than 8 fallbacks');
			END IF;
		END IF;
		sandbox := coalesce(turnpike.one_of(at || '.sandbox', turnpike.member(request, path || 'sandbox'::text, 'string'),
			'{none,claude,container,sbx}'), 'none');
		confine := coalesce(turnpike.member(request, path || 'confine'::text, 'boolean')::boolean, false);
		IF confine AND sandbox NOT IN ('none', 'claude') THEN
			PERFORM turnpike.refuse(at || '.confine', 'goes with sandbox "none" or "claude" only');
		END IF;
		one := jsonb_strip_nulls(jsonb_build_object(
			'profile', n,
			'name', turnpike.line(at || '.name', turnpike.member(request, path || 'name'::text, 'string'), 128),
			'lane', sandbox || CASE WHEN confine THEN '-confined' ELSE '' END || '/' || pool,
			'agent', coalesce(turnpike.one_of(at || '.agent', turnpike.member(request, path || 'agent'::text, 'string'),
				'{claude,codex,opencode,pi}'), 'claude'),
			'account', coalesce(turnpike.name(at || '.account', turnpike.member(request, path || 'account'::text, 'string')), account)));
		IF n = 0 OR NOT bound OR (one -> 'agent' = chain #> '{0,agent}' AND one -> 'lane' = chain #> '{0,lane}') THEN
			chain := chain || one;
		END IF;
		path := path || 'fallback'::text;
	END LOOP;
	RETURN chain;
END $$;
-- +goose StatementEnd

-- As before, and with the chain.

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION turnpike.accept(facts jsonb, bodies json[])
RETURNS TABLE (n bigint, job_id uuid, lane text, state text, existing boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
	ids uuid[];       -- of the entries, as minted
	known uuid[];     -- the earlier job that stands for the entry
	total bigint := jsonb_array_length(facts);
	rows bigint;
	whose text;
	most integer;
BEGIN
	IF total IS DISTINCT FROM coalesce(array_length(bodies, 1), 0)::bigint THEN
		RAISE EXCEPTION 'accept: % facts for % bodies', total, array_length(bodies, 1);
	END IF;
	-- A microsecond apart, so that they sort as they came.
	SELECT array_agg(turnpike.uuid7(i) ORDER BY i), array_agg(NULL::uuid) INTO ids, known FROM generate_series(1, total) i;

	IF jsonb_path_exists(facts, '$[*].idempotency_key') THEN
		INSERT INTO turnpike.idempotency (producer, key, hash, job_id)
		SELECT f.producer, f.idempotency_key, sha256(convert_to(f.body::text, 'UTF8')), f.id
		FROM ROWS FROM (jsonb_to_recordset(facts) AS (producer text, idempotency_key text), unnest(ids), unnest(bodies)) f(producer, idempotency_key, id, body)
		WHERE f.idempotency_key IS NOT NULL
		ORDER BY f.producer, f.idempotency_key
		ON CONFLICT DO NOTHING;

		SELECT f.idempotency_key INTO whose
		FROM ROWS FROM (jsonb_to_recordset(facts) AS (producer text, idempotency_key text), unnest(ids), unnest(bodies)) f(producer, idempotency_key, id, body)
		JOIN turnpike.idempotency k ON k.producer = f.producer AND k.key = f.idempotency_key
		WHERE k.hash <> sha256(convert_to(f.body::text, 'UTF8'))
		LIMIT 1;
		IF FOUND THEN
			RAISE EXCEPTION 'idempotency key % came before with another request', quote_literal(whose) USING ERRCODE = 'TQ001';
		END IF;

		SELECT array_agg(CASE WHEN k.job_id <> f.id THEN k.job_id END ORDER BY f.i) INTO known
		FROM ROWS FROM (jsonb_to_recordset(facts) AS (producer text, idempotency_key text), unnest(ids)) WITH ORDINALITY f(producer, idempotency_key, id, i)
		LEFT JOIN turnpike.idempotency k ON k.producer = f.producer AND k.key = f.idempotency_key;
	END IF;

	FOR tries IN 1..10 LOOP
		RETURN QUERY
		WITH e AS MATERIALIZED (
			SELECT f.*, coalesce(f.run_at, now()) AS due
			FROM ROWS FROM (jsonb_to_recordset(facts) AS (name text, tenant text, producer text, lane text, agent text, account text,
				work_key text, work_tags text[], retry_of uuid, priority integer, run_at timestamptz, deadline timestamptz, dedup_key text,
				concurrency_key text, policy text, max_tries smallint, backoff_ms bigint, checked boolean, chain jsonb), unnest(ids), unnest(bodies), unnest(known)) WITH ORDINALITY
				f(name, tenant, producer, lane, agent, account, work_key, work_tags, retry_of, priority, run_at, deadline, dedup_key,
				concurrency_key, policy, max_tries, backoff_ms, checked, chain, id, body, earlier, i)
			WHERE f.earlier IS NULL
		),
		q AS (
			INSERT INTO turnpike.queue (job_id, rank, run_at, wake_at, deadline, backoff_ms, max_tries, policy, lane, tenant, agent, account,
				concurrency_key, dedup_key, state, checked, chain)
			-- A point of priority is worth a minute of waiting.
			SELECT e.id, (date_part('epoch', e.due) * 1000000)::bigint - e.priority * 60000000::bigint, e.due,
				CASE WHEN e.due > now() THEN e.due END, e.deadline, e.backoff_ms, e.max_tries, e.policy, e.lane, e.tenant, e.agent, e.account,
				e.concurrency_key, e.dedup_key, CASE WHEN e.due > now() THEN 'scheduled' ELSE 'queued' END::turnpike.job_state, e.checked, e.chain
			FROM e
			ORDER BY e.tenant, e.dedup_key, e.i
			ON CONFLICT (tenant, dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
			RETURNING job_id, state
		),
		j AS (
			INSERT INTO turnpike.jobs (job_id, name, tenant, producer, lane, agent, account, work_key, work_tags, run_at, retry_of, request)
			SELECT e.id, e.name, e.tenant, e.producer, e.lane, e.agent, e.account, e.work_key, e.work_tags, e.due, e.retry_of, e.body
			FROM e JOIN q ON q.job_id = e.id
		)
		SELECT e.i, q.job_id, e.lane, q.state::text, false
		FROM e JOIN q ON q.job_id = e.id;
		GET DIAGNOSTICS rows = ROW_COUNT;
		EXIT WHEN rows = total;

		-- The rest has an earlier job: by its idempotency key, or by its dedup key
		-- unless that one finished since; then it is tried again.
		SELECT array_agg(coalesce(f.earlier, CASE WHEN mine.job_id IS NULL THEN other.job_id ELSE f.id END) ORDER BY f.i) INTO known
		FROM ROWS FROM (jsonb_to_recordset(facts) AS (tenant text, dedup_key text), unnest(ids), unnest(known)) WITH ORDINALITY f(tenant, dedup_key, id, earlier, i)
		LEFT JOIN turnpike.queue mine ON mine.job_id = f.id
		LEFT JOIN turnpike.queue other ON other.tenant = f.tenant AND other.dedup_key = f.dedup_key;
		EXIT WHEN array_position(known, NULL) IS NULL;
		IF tries = 10 THEN
			RAISE EXCEPTION 'a dedup key keeps changing hands' USING ERRCODE = 'serialization_failure';
		END IF;
	END LOOP;

	IF rows < total THEN
		UPDATE turnpike.idempotency k SET job_id = u.earlier
		FROM unnest(ids, known) u(id, earlier)
		WHERE k.job_id = u.id AND u.earlier <> u.id
			AND (k.producer, k.key) IN (
				SELECT f.producer, f.idempotency_key
				FROM jsonb_to_recordset(facts) AS f(producer text, idempotency_key text)
				WHERE f.idempotency_key IS NOT NULL);

		RETURN QUERY
		SELECT u.i, u.earlier, j.lane, coalesce(w.state, d.state, a.next)::text, true
		FROM unnest(ids, known) WITH ORDINALITY u(id, earlier, i)
		JOIN turnpike.jobs j ON j.job_id = u.earlier
		LEFT JOIN turnpike.queue w ON w.job_id = j.job_id
		LEFT JOIN turnpike.finished d ON d.job_id = j.job_id
		LEFT JOIN turnpike.attempts a ON a.job_id = j.job_id AND a.final
		WHERE u.earlier <> u.id;
	END IF;

	IF EXISTS (SELECT FROM turnpike.limits) THEN
		SELECT t.tenant, l.max_unfinished INTO whose, most
		FROM (SELECT DISTINCT f.tenant FROM jsonb_to_recordset(facts) AS f(tenant text)) t
		CROSS JOIN LATERAL (
			SELECT l.max_unfinished FROM turnpike.limits l
			WHERE l.tenant IN (t.tenant, '*') ORDER BY l.tenant = '*' LIMIT 1) l
		WHERE l.max_unfinished < (
			SELECT count(*) FROM (
				SELECT FROM turnpike.queue q WHERE q.tenant = t.tenant LIMIT l.max_unfinished + 1) few)
			AND EXISTS (SELECT FROM turnpike.queue q WHERE q.tenant = t.tenant AND q.job_id = ANY (ids))
		LIMIT 1;
		IF FOUND THEN
			RAISE EXCEPTION 'tenant % has % unfinished jobs, its limit', quote_literal(whose), most USING ERRCODE = 'TQ002';
		END IF;
	END IF;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION turnpike.request_members()
RETURNS TABLE (member text, kind text, required boolean)
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	VALUES
		('api_version', 'string', true),
		('name', 'string', false),
		('prompt', 'string', true),
		('restricted', 'boolean', false),
		('system_prompt', 'string', false),
		('profile', 'object', false),
		('grants', 'object', false),
		('valid_outcomes', 'array', false),
		('workspace', 'object', true),
		('env', 'object', false),
		('container_env', 'object', false),
		('vcs_env', 'object', false),
		('vcs_container_env', 'object', false),
		('vcs_container_path', 'array', false),
		('host_mcp', 'string', false),
		('resume_id', 'string', false),
		('cost_cap_usd', 'string', false),
		('account', 'string', false),
		('work', 'object', false),
		('pool', 'string', false),
		('tenant', 'string', false),
		('priority', 'number', false),
		('run_at', 'string', false),
		('deadline', 'string', false),
		('dedup_key', 'string', false),
		('concurrency_key', 'string', false),
		('retry', 'object', false),
		('limits', 'object', false)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION turnpike.enqueue(request jsonb) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	bad record;
	id uuid;
BEGIN
	IF request IS NULL OR jsonb_typeof(request) <> 'object' THEN
		PERFORM turnpike.refuse('request', 'want a JSON object');
	END IF;
	SELECT coalesce(m.member, r.key) AS member, m.kind, jsonb_typeof(r.value) AS is_a INTO bad
	FROM jsonb_each(request) r
	FULL JOIN turnpike.request_members() m ON m.member = r.key
	WHERE m.member IS NULL
		OR (m.required AND (r.key IS NULL OR jsonb_typeof(r.value) = 'null'))
		OR jsonb_typeof(r.value) NOT IN (m.kind, 'null')
	ORDER BY m.member IS NULL DESC, 1 LIMIT 1;
	IF FOUND THEN
		PERFORM turnpike.refuse(left(bad.member, 80), CASE
			WHEN bad.kind IS NULL THEN 'is not a member of a request'
			WHEN bad.is_a IS NULL OR bad.is_a = 'null' THEN 'is required'
			ELSE format('is a JSON %s, want a %s', bad.is_a, bad.kind) END);
	END IF;
	IF request -> 'restricted' = 'true' THEN
		IF jsonb_typeof(request -> 'grants') <> 'null' THEN
			PERFORM turnpike.refuse('grants', 'are fixed for a restricted turn: leave them out');
		END IF;
	ELSIF coalesce(jsonb_typeof(request -> 'grants'), 'null') = 'null' THEN
		PERFORM turnpike.refuse('grants', 'is required');
	END IF;
	IF request ->> 'api_version' <> 'turnpike/v1' THEN
		PERFORM turnpike.refuse('api_version', 'want "turnpike/v1"');
	END IF;
	IF octet_length(request ->> 'prompt') > 524288 THEN
		PERFORM turnpike.refuse('prompt', format('is %s bytes; at most 524288 are taken: put large material into the workspace', octet_length(request ->> 'prompt')));
	ELSIF btrim(request ->> 'prompt', E' \t\r\n') = '' THEN
		PERFORM turnpike.refuse('prompt', 'is required: it is the task the agent is given');
	END IF;
	IF octet_length(request::text) > 1048576 THEN
		PERFORM turnpike.refuse('request', format('is %s bytes; at most 1048576 are taken: put large material into the workspace', octet_length(request::text)));
	END IF;
	SELECT a.job_id INTO STRICT id
	FROM turnpike.accept(
		jsonb_build_array(turnpike.facts(request) || jsonb_build_object('producer', session_user, 'checked', false)),
		ARRAY[request::json]) a;
	RETURN id;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION turnpike.facts(request jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	pool text := coalesce(turnpike.member(request, '{pool}', 'string'), 'default');
	tags jsonb := coalesce(nullif(request #> '{work,tags}', 'null'), '[]');
	tries integer := turnpike.whole('retry.max_tries', turnpike.member(request, '{retry,max_tries}', 'number'), 0, 20, 0);
	backoff bigint := coalesce(turnpike.duration_ms('retry.backoff', turnpike.member(request, '{retry,backoff}', 'string')), 0);
	chain jsonb;
BEGIN
	IF pool !~ '^[a-z0-9-]{1,32}$' THEN
		PERFORM turnpike.refuse('pool', format('%L: want 1 to 32 of a-z, 0-9 and "-"', left(pool, 80)));
	END IF;
	chain := turnpike.chain(request, pool, coalesce(turnpike.name('account', turnpike.member(request, '{account}', 'string')), ''));
	IF jsonb_typeof(tags) <> 'array' OR jsonb_array_length(tags) > 32 OR jsonb_path_exists(tags, '$[*] ? (@.type() != "string")') THEN
		PERFORM turnpike.refuse('work.tags', 'want a list of at most 32 strings');
	END IF;
	PERFORM turnpike.line('work.tags', t, 256) FROM jsonb_array_elements_text(tags) t;
	RETURN jsonb_strip_nulls(jsonb_build_object(
		'name', coalesce(turnpike.line('name', turnpike.member(request, '{name}', 'string'), 128), ''),
		'tenant', coalesce(turnpike.name('tenant', turnpike.member(request, '{tenant}', 'string')), 'default'),
		'lane', chain #> '{0,lane}',
		'agent', chain #> '{0,agent}',
		'account', chain #> '{0,account}',
		'chain', CASE WHEN jsonb_array_length(chain) > 1 THEN chain END,
		'work_key', coalesce(turnpike.line('work.key', turnpike.member(request, '{work,key}', 'string'), 256), ''),
		'work_tags', tags,
		'priority', turnpike.whole('priority', turnpike.member(request, '{priority}', 'number'), -100, 100, 0),
		'run_at', turnpike.instant('run_at', turnpike.member(request, '{run_at}', 'string')),
		'deadline', turnpike.instant('deadline', turnpike.member(request, '{deadline}', 'string')),
		'dedup_key', turnpike.line('dedup_key', turnpike.member(request, '{dedup_key}', 'string'), 256),
		'concurrency_key', turnpike.line('concurrency_key', turnpike.member(request, '{concurrency_key}', 'string'), 256),
		-- What only reads may be begun anew whatever it did.
		'policy', coalesce(turnpike.one_of('retry.policy', turnpike.member(request, '{retry,policy}', 'string'),
			'{never,if_not_started,resume,always}'), CASE WHEN request -> 'restricted' = 'true' THEN 'always' ELSE 'if_not_started' END),
		'max_tries', CASE tries WHEN 0 THEN 3 ELSE tries END,
		'backoff_ms', CASE backoff WHEN 0 THEN 30000 ELSE backoff END));
END $$;
-- +goose StatementEnd

-- What ran, and what it is estimated to have cost: apart from what is known.

CREATE OR REPLACE VIEW turnpike.v_attempts AS
SELECT a.job_id, a.attempt, a.ending, a.reason, a.next::text AS next, a.verdict, a.final, a.late, a.late_ending,
	split_part(a.lane, '/', 1) AS placement, split_part(a.lane, '/', 2) AS pool, a.lane, a.tenant, a.agent, a.agent_version, a.model, a.account,
	a.worker, a.host, a.run_at, a.dispatched_at, a.claimed_at, a.started_at, a.ended_at, a.closed_at,
	a.claimed_at - a.run_at AS waited, a.closed_at - a.claimed_at AS held, a.duration_ms,
	a.num_turns, a.tool_calls, a.exit_code, a.signal, a.is_error, a.error_subtype, a.timed_out, a.cost_capped,
	a.cost_usd, a.cost_partial, a.started_at IS NOT NULL AND a.cost_usd IS NULL AS unpriced,
	o.status AS outcome, o.note AS outcome_note, a.conversation, a.session_dir, a.result_text, a.result,
	a.profile, (SELECT sum(c.estimated_usd) FROM turnpike.costs c WHERE c.job_id = a.job_id AND c.attempt = a.attempt) AS estimated_usd
FROM turnpike.attempts a
LEFT JOIN turnpike.outcomes o ON o.job_id = a.job_id AND o.attempt = a.attempt;

-- Lane, agent and account are those of where it runs, or ran last.
CREATE OR REPLACE VIEW turnpike.v_jobs AS
SELECT j.job_id, j.name, j.tenant, j.producer, split_part(coalesce(q.lane, a.lane, j.lane), '/', 1) AS placement,
	split_part(coalesce(q.lane, a.lane, j.lane), '/', 2) AS pool, coalesce(q.lane, a.lane, j.lane) AS lane,
	coalesce(q.agent, a.agent, j.agent) AS agent, coalesce(q.account, a.account, j.account) AS account, coalesce(nullif(o.work_key, ''), j.work_key) AS work_key,
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
	o.status AS outcome, o.note AS outcome_note, coalesce(q.worker, a.worker, '') AS worker,
	(SELECT sum(c.estimated_usd) FROM turnpike.costs c WHERE c.job_id = j.job_id) AS estimated_usd
FROM turnpike.jobs j
LEFT JOIN turnpike.queue q ON q.job_id = j.job_id
LEFT JOIN turnpike.finished f ON f.job_id = j.job_id
LEFT JOIN LATERAL (
	SELECT x.next, x.verdict, x.reason, x.started_at, x.closed_at, x.worker, x.attempt, x.lane, x.agent, x.account
	FROM turnpike.attempts x WHERE x.job_id = j.job_id ORDER BY x.attempt DESC LIMIT 1) a ON true
LEFT JOIN LATERAL (
	SELECT count(*) AS attempts, sum(x.duration_ms)::bigint AS duration_ms, sum(x.num_turns)::bigint AS num_turns, sum(x.cost_usd) AS cost_usd,
		count(*) FILTER (WHERE x.started_at IS NOT NULL AND x.cost_usd IS NULL) AS unpriced_attempts
	FROM turnpike.attempts x WHERE x.job_id = j.job_id) s ON true
LEFT JOIN turnpike.outcomes o ON o.job_id = j.job_id AND o.attempt = a.attempt;

REVOKE ALL ON FUNCTION turnpike.place(jsonb, timestamptz[], boolean, text, text), turnpike.chain(jsonb, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION turnpike.place(jsonb, timestamptz[], boolean, text, text), turnpike.chain(jsonb, text, text) TO turnpike_dispatcher;
-- A worker tells that a provider is overloaded; it moves no job.
GRANT UPDATE (busy) ON turnpike.queue TO turnpike_worker;
