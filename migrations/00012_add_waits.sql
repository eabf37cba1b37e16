-- +goose Up

-- Jobs that come after others. The release before writes none of it, and leaves alone
-- what waits; while it leads, nobody ends what waits in vain.
SET LOCAL lock_timeout = '10s';

-- Who waits for whom: both are in the queue, the first of them parked. A row is made
-- while the awaited job's is held, and goes together with it: see resolve below.
CREATE TABLE turnpike.waits (
	job_id uuid NOT NULL,
	awaits uuid NOT NULL,
	strict boolean NOT NULL,            -- it must succeed
	continues boolean NOT NULL,         -- and leave its conversation
	PRIMARY KEY (job_id, awaits)
);
CREATE INDEX waits_awaits ON turnpike.waits (awaits);

-- Why a waiting job can never run: the leader ends it. A job that waits for others is
-- parked whatever its time and whether it was checked or not; its time comes after.
ALTER TABLE turnpike.queue
	ADD COLUMN doomed text,
	DROP CONSTRAINT parking,
	ADD CONSTRAINT parking CHECK (parked IS NULL OR (state = 'queued' AND (parked = 'after' OR (checked
		AND (parked IN ('pause', 'budget') OR (parked = 'key' AND concurrency_key IS NOT NULL)))))),
	ADD CONSTRAINT dooming CHECK (doomed IS NULL OR parked IS NOT DISTINCT FROM 'after');
CREATE INDEX queue_doomed ON turnpike.queue (job_id) WHERE doomed IS NOT NULL;

-- The job whose conversation a job continues.
ALTER TABLE turnpike.jobs ADD COLUMN resume_from uuid;
-- The conversation can be had by another job; NULL in what older workers report.
ALTER TABLE turnpike.attempts ADD COLUMN kept boolean;

-- +goose StatementBegin
-- Why a job cannot run after one that is finished; NULL when it can.
CREATE FUNCTION turnpike.hindered(awaited uuid, strict boolean, continues boolean, agent text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	d record;
BEGIN
	SELECT coalesce(f.state, a.next) AS state, concat_ws('/', coalesce(f.state, a.next), nullif(nullif(coalesce(f.reason, a.verdict), ''), 'cancelled')) AS ending,
		a.agent, coalesce(a.kept, a.resumable) AND a.conversation <> '' AS kept INTO d
	FROM (SELECT) one
	LEFT JOIN turnpike.finished f ON f.job_id = awaited
	LEFT JOIN LATERAL (
		SELECT x.next, x.verdict, x.agent, x.conversation, x.kept, x.resumable
		FROM turnpike.attempts x WHERE x.job_id = awaited ORDER BY x.attempt DESC LIMIT 1) a ON true;
	RETURN CASE
		WHEN strict AND d.state <> 'succeeded' THEN format('job %s, which it comes after, ended as %s', awaited, d.ending)
		WHEN continues AND d.kept IS NOT TRUE THEN format('job %s left no conversation that can be continued', awaited)
		WHEN continues AND d.agent <> agent THEN format('the conversation of job %s is one of %s, which %s cannot continue', awaited, d.agent, agent)
	END;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Lets out those of some jobs that wait for nobody any more: to the queue, or until their
-- time comes. Their rows are held.
CREATE FUNCTION turnpike.let_go(jobs uuid[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
	UPDATE turnpike.queue q SET parked = NULL,
		state = CASE WHEN q.run_at > now() THEN 'scheduled' ELSE 'queued' END::turnpike.job_state,
		wake_at = CASE WHEN q.run_at > now() THEN q.run_at END
	WHERE q.job_id = ANY (jobs) AND q.parked = 'after' AND q.doomed IS NULL
		AND NOT EXISTS (SELECT FROM turnpike.waits w WHERE w.job_id = q.job_id)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Every way a job leaves the queue is a DELETE, and comes by here: whoever waited for it
-- waits no longer, or in vain. Statements of their own see what others committed before
-- the locks were had. A row of waits is touched only by who holds the row of its job_id,
-- so that of two who end what a job waits for, the second sees that nothing is left.
CREATE FUNCTION turnpike.resolve() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Plans are kept, and the table is empty when most are made.
SET enable_seqscan = off AS $$
DECLARE
	gone uuid[];
	waited boolean;
	waiters uuid[];
BEGIN
	SELECT array_agg(o.job_id), bool_or(o.parked = 'after') INTO gone, waited FROM o;
	IF waited THEN
		DELETE FROM turnpike.waits w WHERE w.job_id = ANY (gone);
	END IF;
	IF gone IS NULL OR NOT EXISTS (SELECT FROM turnpike.waits w WHERE w.awaits = ANY (gone)) THEN
		RETURN NULL;
	END IF;
	SELECT array_agg(l.job_id) INTO waiters FROM (
		SELECT q.job_id FROM turnpike.queue q
		WHERE q.job_id IN (SELECT w.job_id FROM turnpike.waits w WHERE w.awaits = ANY (gone))
		ORDER BY q.job_id
		FOR NO KEY UPDATE) l;
	WITH met AS (
		DELETE FROM turnpike.waits w WHERE w.awaits = ANY (gone) AND w.job_id = ANY (waiters)
		RETURNING w.*
	)
	UPDATE turnpike.queue q SET doomed = h.why
	FROM (
		SELECT m.job_id, min(turnpike.hindered(m.awaits, m.strict, m.continues, w.agent)) AS why
		FROM met m JOIN turnpike.queue w ON w.job_id = m.job_id
		GROUP BY m.job_id) h
	WHERE q.job_id = h.job_id AND h.why IS NOT NULL AND q.doomed IS NULL;
	PERFORM turnpike.let_go(waiters);
	RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER resolve AFTER DELETE ON turnpike.queue REFERENCING OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION turnpike.resolve();

-- +goose StatementBegin
-- Has new jobs of a batch wait for what they name, by its id or by its place in the
-- batch before them. They are parked, and nobody sees them yet. The rows of what is
-- awaited are held until the commit: whoever finishes one of them waits, and finds who
-- waits for it. What is finished already is met at once.
CREATE FUNCTION turnpike.await(facts jsonb, ids uuid[], known uuid[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	named turnpike.waits[];
	bad record;
BEGIN
	SELECT n.i, n.field, n.ref INTO bad
	FROM turnpike.named(facts, ids, known) n
	WHERE n.awaits IS NULL OR NOT EXISTS (SELECT FROM turnpike.jobs j WHERE j.job_id = n.awaits AND j.tenant = n.tenant)
	ORDER BY n.i, n.field LIMIT 1;
	IF FOUND THEN
		PERFORM turnpike.refuse(CASE WHEN array_length(ids, 1) > 1 THEN format('[%s].', bad.i) ELSE '' END || bad.field, CASE
			WHEN bad.ref LIKE '#%' THEN format('%s is no request of this batch and tenant before this one; the first is #0', bad.ref)
			ELSE format('%s is no job of this tenant, or not any more', bad.ref) END);
	END IF;
	SELECT array_agg((n.job_id, n.awaits, n.strict, n.continues)::turnpike.waits) INTO named FROM (
		SELECT n.job_id, n.awaits, n.strict, bool_or(n.continues) AS continues
		FROM turnpike.named(facts, ids, known) n GROUP BY n.job_id, n.awaits, n.strict) n;

	UPDATE turnpike.jobs j SET resume_from = n.awaits
	FROM unnest(named) n WHERE n.continues AND j.job_id = n.job_id AND j.resume_from IS NULL;
	INSERT INTO turnpike.events (job_id, what, note)
	SELECT n.job_id, 'after', string_agg(format('job %s', n.awaits), ', ' ORDER BY n.awaits) FROM unnest(named) n GROUP BY n.job_id;

	PERFORM FROM turnpike.queue q
	WHERE q.job_id IN (SELECT n.awaits FROM unnest(named) n)
	ORDER BY q.job_id
	FOR KEY SHARE;
	INSERT INTO turnpike.waits
	SELECT n.* FROM unnest(named) n WHERE EXISTS (SELECT FROM turnpike.queue q WHERE q.job_id = n.awaits);
	UPDATE turnpike.queue q SET doomed = h.why
	FROM (
		SELECT n.job_id, min(turnpike.hindered(n.awaits, n.strict, n.continues, w.agent)) AS why
		FROM unnest(named) n JOIN turnpike.queue w ON w.job_id = n.job_id
		WHERE NOT EXISTS (SELECT FROM turnpike.queue a WHERE a.job_id = n.awaits)
		GROUP BY n.job_id) h
	WHERE q.job_id = h.job_id AND h.why IS NOT NULL;
	PERFORM turnpike.let_go(ids);
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- What the new jobs of a batch name, each with the field that does; NULL for what is not
-- before it.
CREATE FUNCTION turnpike.named(facts jsonb, ids uuid[], known uuid[])
RETURNS TABLE (i bigint, job_id uuid, tenant text, field text, ref text, awaits uuid, strict boolean, continues boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT f.i - 1, ids[f.i], f.tenant, r.field, r.ref, CASE
		WHEN r.ref NOT LIKE '#%' THEN r.ref::uuid
		WHEN substr(r.ref, 2)::integer + 1 < f.i THEN coalesce(known[substr(r.ref, 2)::integer + 1], ids[substr(r.ref, 2)::integer + 1]) END,
		NOT coalesce(f.anyway, false), r.continues
	FROM ROWS FROM (jsonb_to_recordset(facts) AS (tenant text, after text[], resume_from text, anyway boolean)) WITH ORDINALITY
		f(tenant, after, resume_from, anyway, i)
	CROSS JOIN LATERAL (
		SELECT format('after.jobs[%s]', a.n - 1) AS field, a.ref, false AS continues FROM unnest(f.after) WITH ORDINALITY a(ref, n)
		UNION ALL
		SELECT 'resume_from', f.resume_from, true WHERE f.resume_from IS NOT NULL) r
	WHERE coalesce(known[f.i], ids[f.i]) = ids[f.i]
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- The conversation that a job's last attempt left.
CREATE FUNCTION turnpike.conversed(job uuid) RETURNS text
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN (SELECT a.conversation FROM turnpike.attempts a WHERE a.job_id = job ORDER BY a.attempt DESC LIMIT 1);
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- A job's id, or the place in its batch of an earlier request: "#0".
CREATE FUNCTION turnpike.reference(field text, ref text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF ref !~ '^(#[0-9]{1,3}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$' THEN
		PERFORM turnpike.refuse(field, format('%L: want the id of a job, or the place of an earlier request of the same batch, such as #0', left(ref, 80)));
	END IF;
	RETURN ref;
END $$;
-- +goose StatementEnd

-- As before, and with what a job comes after.

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
	IF jsonb_path_exists(facts, '$[*].retry_of') THEN
		-- What repeats a job waits for nothing that it waited for, and goes on with the
		-- conversation that it went on with. Where that job is not on record any more, its
		-- worker refuses it: it keeps no other from being repeated.
		SELECT jsonb_agg(CASE WHEN f.o ->> 'retry_of' IS NULL THEN f.o
			ELSE f.o - 'after' - 'resume_from' || jsonb_strip_nulls(jsonb_build_object('resume_from', o.job_id)) END ORDER BY f.i) INTO facts
		FROM jsonb_array_elements(facts) WITH ORDINALITY f(o, i)
		LEFT JOIN turnpike.jobs j ON j.job_id = (f.o ->> 'retry_of')::uuid
		LEFT JOIN turnpike.jobs o ON o.job_id = j.resume_from;
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
			SELECT f.*, coalesce(f.run_at, now()) AS due, num_nonnulls(f.after, f.resume_from) > 0 AS waits
			FROM ROWS FROM (jsonb_to_recordset(facts) AS (name text, tenant text, producer text, lane text, agent text, account text,
				work_key text, work_tags text[], retry_of uuid, priority integer, run_at timestamptz, deadline timestamptz, dedup_key text,
				concurrency_key text, policy text, max_tries smallint, backoff_ms bigint, checked boolean, chain jsonb,
				after text[], resume_from text), unnest(ids), unnest(bodies), unnest(known)) WITH ORDINALITY
				f(name, tenant, producer, lane, agent, account, work_key, work_tags, retry_of, priority, run_at, deadline, dedup_key,
				concurrency_key, policy, max_tries, backoff_ms, checked, chain, after, resume_from, id, body, earlier, i)
			WHERE f.earlier IS NULL
		),
		q AS (
			INSERT INTO turnpike.queue (job_id, rank, run_at, wake_at, deadline, backoff_ms, max_tries, policy, lane, tenant, agent, account,
				concurrency_key, dedup_key, state, parked, checked, chain)
			-- A point of priority is worth a minute of waiting.
			SELECT e.id, (date_part('epoch', e.due) * 1000000)::bigint - e.priority * 60000000::bigint, e.due,
				CASE WHEN e.due > now() AND NOT e.waits THEN e.due END, e.deadline, e.backoff_ms, e.max_tries, e.policy, e.lane, e.tenant, e.agent, e.account,
				e.concurrency_key, e.dedup_key, CASE WHEN e.due > now() AND NOT e.waits THEN 'scheduled' ELSE 'queued' END::turnpike.job_state,
				CASE WHEN e.waits THEN 'after' END, e.checked, e.chain
			FROM e
			ORDER BY e.tenant, e.dedup_key, e.i
			ON CONFLICT (tenant, dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
			RETURNING job_id, state
		),
		j AS (
			INSERT INTO turnpike.jobs (job_id, name, tenant, producer, lane, agent, account, work_key, work_tags, run_at, retry_of, resume_from, request)
			SELECT e.id, e.name, e.tenant, e.producer, e.lane, e.agent, e.account, e.work_key, e.work_tags, e.due, e.retry_of,
				CASE WHEN e.resume_from NOT LIKE '#%' THEN e.resume_from::uuid END, e.body
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

	IF jsonb_path_exists(facts, '$[*] ? (exists (@.after) || exists (@.resume_from))') THEN
		PERFORM turnpike.await(facts, ids, known);
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
		('resume_from', 'string', false),
		('cost_cap_usd', 'string', false),
		('account', 'string', false),
		('work', 'object', false),
		('pool', 'string', false),
		('tenant', 'string', false),
		('priority', 'number', false),
		('run_at', 'string', false),
		('deadline', 'string', false),
		('after', 'object', false),
		('dedup_key', 'string', false),
		('concurrency_key', 'string', false),
		('retry', 'object', false),
		('limits', 'object', false)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION turnpike.chain(request jsonb, pool text, account text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	path text[] := '{profile}';
	at text;
	sandbox text;
	confine boolean;
	one jsonb;
	chain jsonb := '[]';
	-- A conversation goes on with the agent that has it, in the place where it was.
	bound boolean := turnpike.member(request, '{resume_id}', 'string') IS NOT NULL OR turnpike.member(request, '{resume_from}', 'string') IS NOT NULL;
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

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION turnpike.facts(request jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	pool text := coalesce(turnpike.member(request, '{pool}', 'string'), 'default');
	tags jsonb := coalesce(nullif(request #> '{work,tags}', 'null'), '[]');
	tries integer := turnpike.whole('retry.max_tries', turnpike.member(request, '{retry,max_tries}', 'number'), 0, 20, 0);
	backoff bigint := coalesce(turnpike.duration_ms('retry.backoff', turnpike.member(request, '{retry,backoff}', 'string')), 0);
	chain jsonb;
	after jsonb := coalesce(nullif(request #> '{after,jobs}', 'null'), '[]');
	resume_from text := turnpike.reference('resume_from', turnpike.member(request, '{resume_from}', 'string'));
BEGIN
	IF pool !~ '^[a-z0-9-]{1,32}$' THEN
		PERFORM turnpike.refuse('pool', format('%L: want 1 to 32 of a-z, 0-9 and "-"', left(pool, 80)));
	END IF;
	chain := turnpike.chain(request, pool, coalesce(turnpike.name('account', turnpike.member(request, '{account}', 'string')), ''));
	IF jsonb_typeof(tags) <> 'array' OR jsonb_array_length(tags) > 32 OR jsonb_path_exists(tags, '$[*] ? (@.type() != "string")') THEN
		PERFORM turnpike.refuse('work.tags', 'want a list of at most 32 strings');
	END IF;
	PERFORM turnpike.line('work.tags', t, 256) FROM jsonb_array_elements_text(tags) t;
	IF jsonb_typeof(after) <> 'array' OR jsonb_array_length(after) > 32 OR jsonb_path_exists(after, '$[*] ? (@.type() != "string")') THEN
		PERFORM turnpike.refuse('after.jobs', 'want a list of at most 32 job ids');
	ELSIF jsonb_typeof(request -> 'after') = 'object' AND jsonb_array_length(after) = 0 AND resume_from IS NULL THEN
		PERFORM turnpike.refuse('after.jobs', 'names no job to wait for');
	ELSIF resume_from IS NOT NULL AND turnpike.member(request, '{resume_id}', 'string') IS NOT NULL THEN
		PERFORM turnpike.refuse('resume_from', 'goes without resume_id: one of them names the conversation');
	END IF;
	PERFORM turnpike.reference(format('after.jobs[%s]', r.i - 1), r.ref) FROM jsonb_array_elements_text(after) WITH ORDINALITY r(ref, i);
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
		'backoff_ms', CASE backoff WHEN 0 THEN 30000 ELSE backoff END,
		'after', nullif(after, '[]'),
		'resume_from', resume_from,
		'anyway', CASE turnpike.one_of('after.on_failure', turnpike.member(request, '{after,on_failure}', 'string'), '{fail,run}') WHEN 'run' THEN true END));
END $$;
-- +goose StatementEnd

CREATE VIEW turnpike.v_waits AS
SELECT job_id, awaits, CASE WHEN strict THEN 'fail' ELSE 'run' END AS on_failure, continues FROM turnpike.waits;

REVOKE ALL ON FUNCTION turnpike.hindered(uuid, boolean, boolean, text), turnpike.let_go(uuid[]), turnpike.resolve(), turnpike.await(jsonb, uuid[], uuid[]),
	turnpike.named(jsonb, uuid[], uuid[]), turnpike.conversed(uuid), turnpike.reference(text, text) FROM PUBLIC;
-- Nobody writes waits but by accept and resolve.
GRANT SELECT ON turnpike.v_waits TO turnpike_reporter, turnpike_dispatcher;
GRANT EXECUTE ON FUNCTION turnpike.await(jsonb, uuid[], uuid[]), turnpike.reference(text, text) TO turnpike_dispatcher;
GRANT EXECUTE ON FUNCTION turnpike.conversed(uuid) TO turnpike_worker;
GRANT UPDATE (kept) ON turnpike.attempts TO turnpike_worker;
