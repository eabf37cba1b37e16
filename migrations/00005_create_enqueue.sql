-- +goose Up

-- +goose StatementBegin
-- Writes jobs and their queue rows, all or none. Entry n is described by the n-th
-- element of facts (what the queue needs to know of the request, already validated)
-- and kept as the n-th body. Idempotency keys first, then dedup keys, each in the
-- order of the keys: whoever enqueues the same ones at once waits for the other's
-- commit and then finds the job there.
--
-- Errors: TQ001 an idempotency key came with another body, TQ002 a tenant's limit.
CREATE FUNCTION turnpike.accept(facts jsonb, bodies json[])
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
				concurrency_key text, policy text, max_tries smallint, backoff_ms bigint, checked boolean), unnest(ids), unnest(bodies), unnest(known)) WITH ORDINALITY
				f(name, tenant, producer, lane, agent, account, work_key, work_tags, retry_of, priority, run_at, deadline, dedup_key,
				concurrency_key, policy, max_tries, backoff_ms, checked, id, body, earlier, i)
			WHERE f.earlier IS NULL
		),
		q AS (
			INSERT INTO turnpike.queue (job_id, rank, run_at, wake_at, deadline, backoff_ms, max_tries, policy, lane, tenant, agent, account,
				concurrency_key, dedup_key, state, checked)
			-- A point of priority is worth a minute of waiting.
			SELECT e.id, (date_part('epoch', e.due) * 1000000)::bigint - e.priority * 60000000::bigint, e.due,
				CASE WHEN e.due > now() THEN e.due END, e.deadline, e.backoff_ms, e.max_tries, e.policy, e.lane, e.tenant, e.agent, e.account,
				e.concurrency_key, e.dedup_key, CASE WHEN e.due > now() THEN 'scheduled' ELSE 'queued' END::turnpike.job_state, e.checked
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
-- The members of a request, as package job has them; a test holds them equal.
CREATE FUNCTION turnpike.request_members()
RETURNS TABLE (member text, kind text, required boolean)
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	VALUES
		('api_version', 'string', true),
		('name', 'string', false),
		('prompt', 'string', true),
		('system_prompt', 'string', false),
		('profile', 'object', false),
		('grants', 'object', true),
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
CREATE FUNCTION turnpike.refuse(field text, problem text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RAISE EXCEPTION '%: %', field, problem USING ERRCODE = 'TQ003', COLUMN = field, DETAIL = problem;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- One member of an object as text, of one kind or absent; null is absent.
CREATE FUNCTION turnpike.member(o jsonb, path text[], kind text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	is_a text := jsonb_typeof(o #> path);
BEGIN
	IF is_a IS NULL OR is_a = 'null' THEN
		RETURN NULL;
	ELSIF is_a <> kind THEN
		PERFORM turnpike.refuse(array_to_string(path, '.'), format('is a JSON %s, want a %s', is_a, kind));
	END IF;
	RETURN nullif(o #>> path, '');
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- A duration in Go's form, "1h30m", in milliseconds, rounded up: only zero is none.
CREATE FUNCTION turnpike.duration_ms(field text, d text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	ms numeric;
BEGIN
	IF d IS NULL THEN
		RETURN NULL;
	ELSIF d !~ '^\+?(0|([0-9]{1,12}(\.[0-9]{0,12})?(h|m|s|ms|us|µs|ns))+)$' THEN
		PERFORM turnpike.refuse(field, format('%L is not a duration; want a form like 1h30m', left(d, 80)));
	END IF;
	SELECT coalesce(sum(m[1]::numeric * CASE m[2] WHEN 'h' THEN 3600000 WHEN 'm' THEN 60000 WHEN 's' THEN 1000
		WHEN 'ms' THEN 1 WHEN 'ns' THEN 0.000001 ELSE 0.001 END), 0) INTO ms
	FROM regexp_matches(d, '([0-9]+\.?[0-9]*)(h|ms|m|s|us|µs|ns)', 'g') m;
	IF ms > 86400000 THEN
		PERFORM turnpike.refuse(field, 'is more than 24h');
	END IF;
	RETURN ceil(ms)::bigint;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION turnpike.instant(field text, at text) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	t timestamptz;
BEGIN
	IF at IS NULL THEN
		RETURN NULL;
	ELSIF at !~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$' THEN
		PERFORM turnpike.refuse(field, format('%L is not a time; want a form like 2026-01-31T15:04:05Z', left(at, 80)));
	END IF;
	BEGIN
		t := at::timestamptz;
	EXCEPTION WHEN data_exception THEN
		PERFORM turnpike.refuse(field, format('%L is not a time', at));
	END;
	IF t = timestamptz '0001-01-01T00:00:00Z' THEN
		RETURN NULL;
	ELSIF t < timestamptz '2020-01-01T00:00:00Z' OR t >= timestamptz '2201-01-01T00:00:00Z' THEN
		PERFORM turnpike.refuse(field, format('%L is not in the years 2020 to 2200', at));
	END IF;
	RETURN t;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION turnpike.name(field text, s text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF s !~ '^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$' THEN
		PERFORM turnpike.refuse(field, format('%L: want a name of letters, digits and . _ : @ / -, at most 128', left(s, 80)));
	END IF;
	RETURN s;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION turnpike.line(field text, s text, most integer) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF octet_length(s) > most THEN
		PERFORM turnpike.refuse(field, format('is %s bytes; at most %s', octet_length(s), most));
	ELSIF s ~ '[\x01-\x1f\x7f-\x9f]' THEN
		PERFORM turnpike.refuse(field, 'contains a control character');
	END IF;
	RETURN s;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION turnpike.one_of(field text, s text, choices text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF s <> ALL (choices) THEN
		PERFORM turnpike.refuse(field, format('%L: want one of %s', left(s, 80), array_to_string(choices, ', ')));
	END IF;
	RETURN s;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION turnpike.whole(field text, n text, least_ integer, most integer, standard integer) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF n IS NULL THEN
		RETURN standard;
	ELSIF n !~ '^-?[0-9]{1,9}$' OR n::integer NOT BETWEEN least_ AND most THEN
		PERFORM turnpike.refuse(field, format('is %s; want %s to %s', left(n, 80), least_, most));
	END IF;
	RETURN n::integer;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- What the queue needs to know of a request, with the defaults of package job. It
-- refuses what it cannot read; the rest is checked before selection.
CREATE FUNCTION turnpike.facts(request jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	sandbox text := coalesce(turnpike.one_of('profile.sandbox', turnpike.member(request, '{profile,sandbox}', 'string'),
		'{none,claude,container,sbx}'), 'none');
	confine boolean := coalesce(turnpike.member(request, '{profile,confine}', 'boolean')::boolean, false);
	pool text := coalesce(turnpike.member(request, '{pool}', 'string'), 'default');
	tags jsonb := coalesce(nullif(request #> '{work,tags}', 'null'), '[]');
	tries integer := turnpike.whole('retry.max_tries', turnpike.member(request, '{retry,max_tries}', 'number'), 0, 20, 0);
	backoff bigint := coalesce(turnpike.duration_ms('retry.backoff', turnpike.member(request, '{retry,backoff}', 'string')), 0);
BEGIN
	IF pool !~ '^[a-z0-9-]{1,32}$' THEN
		PERFORM turnpike.refuse('pool', format('%L: want 1 to 32 of a-z, 0-9 and "-"', left(pool, 80)));
	END IF;
	IF confine AND sandbox NOT IN ('none', 'claude') THEN
		PERFORM turnpike.refuse('profile.confine', 'goes with sandbox "none" or "claude" only');
	END IF;
	IF jsonb_typeof(tags) <> 'array' OR jsonb_array_length(tags) > 32 OR jsonb_path_exists(tags, '$[*] ? (@.type() != "string")') THEN
		PERFORM turnpike.refuse('work.tags', 'want a list of at most 32 strings');
	END IF;
	PERFORM turnpike.line('work.tags', t, 256) FROM jsonb_array_elements_text(tags) t;
	RETURN jsonb_strip_nulls(jsonb_build_object(
		'name', coalesce(turnpike.line('name', turnpike.member(request, '{name}', 'string'), 128), ''),
		'tenant', coalesce(turnpike.name('tenant', turnpike.member(request, '{tenant}', 'string')), 'default'),
		'lane', sandbox || CASE WHEN confine THEN '-confined' ELSE '' END || '/' || pool,
		'agent', coalesce(turnpike.one_of('profile.agent', turnpike.member(request, '{profile,agent}', 'string'),
			'{claude,codex,opencode,pi}'), 'claude'),
		'account', coalesce(turnpike.name('account', turnpike.member(request, '{account}', 'string')), ''),
		'work_key', coalesce(turnpike.line('work.key', turnpike.member(request, '{work,key}', 'string'), 256), ''),
		'work_tags', tags,
		'priority', turnpike.whole('priority', turnpike.member(request, '{priority}', 'number'), -100, 100, 0),
		'run_at', turnpike.instant('run_at', turnpike.member(request, '{run_at}', 'string')),
		'deadline', turnpike.instant('deadline', turnpike.member(request, '{deadline}', 'string')),
		'dedup_key', turnpike.line('dedup_key', turnpike.member(request, '{dedup_key}', 'string'), 256),
		'concurrency_key', turnpike.line('concurrency_key', turnpike.member(request, '{concurrency_key}', 'string'), 256),
		'policy', coalesce(turnpike.one_of('retry.policy', turnpike.member(request, '{retry,policy}', 'string'),
			'{never,if_not_started,resume,always}'), 'if_not_started'),
		'max_tries', CASE tries WHEN 0 THEN 3 ELSE tries END,
		'backoff_ms', CASE backoff WHEN 0 THEN 30000 ELSE backoff END));
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Enqueues a job inside the caller's own transaction and returns its id. It checks
-- which members there are, their kinds and sizes; everything else is checked before
-- the job is selected, and ends it as failed/refused.
--
-- Its errors have SQLSTATE TQ003 (a bad request: the column names the member) and
-- TQ002 (the tenant's limit).
CREATE FUNCTION turnpike.enqueue(request jsonb) RETURNS uuid
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
