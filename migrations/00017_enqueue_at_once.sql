-- +goose Up

-- A job can go on offer as it is enqueued: on a lane in which nothing else waits, while
-- nothing is paused and no budget is set, there is nothing for selection to decide. And
-- enqueueing is cheaper: what most requests are, with no key and nothing to wait for, is
-- written by one statement that neither joins nor looks for an earlier job. The release
-- before calls it as it did.
SET LOCAL lock_timeout = '10s';

-- Each check is read anew from the catalog by every statement that writes a row, which
-- cost a single enqueue a third of its time: they say the same in fewer words.
ALTER TABLE turnpike.queue
	DROP CONSTRAINT unfinished,
	DROP CONSTRAINT live,
	DROP CONSTRAINT leased,
	DROP CONSTRAINT waiting,
	DROP CONSTRAINT parking,
	DROP CONSTRAINT dooming,
	DROP CONSTRAINT counts,
	DROP CONSTRAINT queue_backoff_ms_check,
	DROP CONSTRAINT queue_max_tries_check,
	DROP CONSTRAINT queue_cost_usd_check,
	ADD CONSTRAINT live CHECK (CASE WHEN dispatched_at IS NULL
		THEN state < 'dispatched' AND published_at IS NULL
		ELSE state >= 'dispatched' AND state <= 'running' AND checked AND dispatch_no > 0 END),
	ADD CONSTRAINT leased CHECK (CASE WHEN token IS NULL
		THEN state <> 'running' AND turns = 0 AND tool_calls = 0
			AND num_nonnulls(worker, claimed_at, lease_until, started_at, conversation, cost_usd, orphan, cancel_at) = 0
		ELSE state = 'running' AND attempt > 0 AND lease_no > 0 AND num_nulls(worker, claimed_at, lease_until, orphan) = 0
			AND coalesce(cost_usd, 0) >= 0 END),
	ADD CONSTRAINT waiting CHECK (CASE WHEN parked IS NULL
		THEN doomed IS NULL AND (wake_at IS NOT NULL) = (state = 'scheduled')
		ELSE state = 'queued' AND CASE parked
			WHEN 'after' THEN wake_at IS NULL
			WHEN 'key' THEN checked AND doomed IS NULL AND wake_at IS NULL AND concurrency_key IS NOT NULL
			ELSE parked IN ('pause', 'budget') AND checked AND doomed IS NULL AND wake_at IS NOT NULL END END),
	ADD CONSTRAINT counts CHECK (tries_spent >= 0 AND tries_spent < max_tries AND max_tries <= 20 AND returns >= 0
		AND overloads >= 0 AND overloads <= 5 AND crashes >= 0 AND crashes <= 2 AND backoff_ms >= 0);

-- +goose StatementBegin
-- An id of a microsecond since 1970, in uuid7's form. It is written into the statement
-- that calls it.
CREATE FUNCTION turnpike.uuid7_at(us bigint) RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
	SELECT encode(int8send((us / 1000) << 16 | 28672 | us % 1000 * 4096 / 1000) || substring(uuid_send(gen_random_uuid()) from 9), 'hex')::uuid
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Refuses what brought one of some tenants over its limit. It sees the new jobs.
CREATE FUNCTION turnpike.within_limits(tenants text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	over record;
BEGIN
	SELECT t.tenant, l.max_unfinished INTO over
	FROM (SELECT DISTINCT u.tenant FROM unnest(tenants) u(tenant)) t
	CROSS JOIN LATERAL (
		SELECT l.max_unfinished FROM turnpike.limits l
		WHERE l.tenant IN (t.tenant, '*') ORDER BY l.tenant = '*' LIMIT 1) l
	WHERE l.max_unfinished < (
		SELECT count(*) FROM (
			SELECT FROM turnpike.queue q WHERE q.tenant = t.tenant LIMIT l.max_unfinished + 1) few)
	LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'tenant % has % unfinished jobs, its limit', quote_literal(over.tenant), over.max_unfinished USING ERRCODE = 'TQ002';
	END IF;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Those of some lanes on which nothing has to be decided about a job without key and
-- fallbacks.
CREATE FUNCTION turnpike.calm(lanes text[]) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
-- Its plans are kept, and the tables are empty when they are made.
SET enable_seqscan = off AS $$
BEGIN
	IF EXISTS (SELECT FROM turnpike.budgets) OR EXISTS (SELECT FROM turnpike.pauses p WHERE p.until > now())
		OR EXISTS (SELECT FROM turnpike.slow_starts()) THEN
		RETURN '{}';
	END IF;
	RETURN ARRAY(SELECT l FROM unnest(lanes) l WHERE NOT EXISTS (SELECT FROM turnpike.queue q WHERE q.lane = l AND q.ready IS NOT NULL));
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Whether an entry goes on offer as it is written. It is written into the statement that
-- calls it.
CREATE FUNCTION turnpike.at_once(offer boolean, lane text, calm text[], checked boolean, concurrency_key text, chain jsonb, run_at timestamptz, deadline timestamptz)
RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
	SELECT coalesce(offer, false) AND lane = ANY (calm) AND checked AND concurrency_key IS NULL AND chain IS NULL
		AND coalesce(run_at <= now(), true) AND coalesce(deadline > now(), true)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Writes jobs and their queue rows, all or none, and answers with them in no order: n is
-- an entry's place. facts are what turnpike.facts reads from a request and who enqueues.
-- An entry that is an offer is written as dispatched, under number 1, where nothing has to
-- be decided about it; who asked for that publishes it.
CREATE OR REPLACE FUNCTION turnpike.accept(facts jsonb, bodies json[])
RETURNS TABLE (n bigint, job_id uuid, lane text, state text, existing boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
	total bigint := jsonb_array_length(facts);
	-- Ids are a microsecond apart, so that they sort as the entries came.
	minted bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
	calm text[] := '{}';
BEGIN
	IF total IS DISTINCT FROM coalesce(array_length(bodies, 1), 0)::bigint THEN
		RAISE EXCEPTION 'accept: % facts for % bodies', total, array_length(bodies, 1);
	END IF;
	IF jsonb_path_exists(facts, '$[*].offer') THEN
		calm := turnpike.calm(ARRAY(SELECT DISTINCT f.lane FROM jsonb_to_recordset(facts) AS f(lane text, offer boolean) WHERE f.offer));
	END IF;
	IF jsonb_path_exists(facts, '$[*] ? (exists (@.dedup_key) || exists (@.idempotency_key) || exists (@.after)
		|| exists (@.resume_from) || exists (@.retry_of))') THEN
		RETURN QUERY SELECT * FROM turnpike.accept_keyed(facts, bodies, minted, calm);
		RETURN;
	END IF;

	RETURN QUERY
	WITH e AS MATERIALIZED (
		SELECT f.*, turnpike.at_once(f.offer, f.lane, calm, f.checked, f.concurrency_key, f.chain, f.run_at, f.deadline) AS offered,
			turnpike.uuid7_at(minted + f.i) AS id, coalesce(f.run_at, now()) AS due, CASE WHEN f.run_at > now() THEN f.run_at END AS wake_at
		FROM ROWS FROM (jsonb_to_recordset(facts) AS (name text, tenant text, producer text, lane text, agent text, account text,
			work_key text, work_tags text[], priority integer, run_at timestamptz, deadline timestamptz, concurrency_key text,
			policy text, max_tries smallint, backoff_ms bigint, checked boolean, chain jsonb, offer boolean)) WITH ORDINALITY
			f(name, tenant, producer, lane, agent, account, work_key, work_tags, priority, run_at, deadline, concurrency_key,
			policy, max_tries, backoff_ms, checked, chain, offer, i)
	),
	q AS (
		INSERT INTO turnpike.queue (job_id, rank, run_at, wake_at, deadline, backoff_ms, max_tries, policy, lane, tenant, agent, account,
			concurrency_key, state, checked, chain, dispatched_at, dispatch_no)
		-- A point of priority is worth a minute of waiting.
		SELECT e.id, (date_part('epoch', e.due) * 1000000)::bigint - e.priority * 60000000::bigint, e.due, e.wake_at, e.deadline,
			e.backoff_ms, e.max_tries, e.policy, e.lane, e.tenant, e.agent, e.account, e.concurrency_key,
			CASE WHEN e.offered THEN 'dispatched' WHEN e.wake_at IS NULL THEN 'queued' ELSE 'scheduled' END::turnpike.job_state, e.checked, e.chain,
			CASE WHEN e.offered THEN now() END, e.offered::integer
		FROM e
	),
	j AS (
		INSERT INTO turnpike.jobs (job_id, name, tenant, producer, lane, agent, account, work_key, work_tags, run_at, request)
		SELECT e.id, e.name, e.tenant, e.producer, e.lane, e.agent, e.account, e.work_key, e.work_tags, e.due,
			bodies[e.i::integer] -- not by way of e, which would copy them
		FROM e
	)
	SELECT e.i, e.id, e.lane, CASE WHEN e.offered THEN 'dispatched' WHEN e.wake_at IS NULL THEN 'queued' ELSE 'scheduled' END, false
	FROM e;

	IF EXISTS (SELECT FROM turnpike.limits) THEN
		PERFORM turnpike.within_limits(ARRAY(SELECT f.tenant FROM jsonb_to_recordset(facts) AS f(tenant text)));
	END IF;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- accept for entries of which an earlier job may take the place of one, or that wait for
-- others.
CREATE FUNCTION turnpike.accept_keyed(facts jsonb, bodies json[], minted bigint, calm text[])
RETURNS TABLE (n bigint, job_id uuid, lane text, state text, existing boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
	ids uuid[];       -- of the entries, as minted
	known uuid[];     -- the earlier job that stands for the entry
	total bigint := jsonb_array_length(facts);
	rows bigint;
	whose text;
BEGIN
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
	SELECT array_agg(turnpike.uuid7_at(minted + i) ORDER BY i), array_agg(NULL::uuid) INTO ids, known FROM generate_series(1, total) i;

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
			SELECT f.*, p.parked IS NULL AND turnpike.at_once(f.offer, f.lane, calm, f.checked, f.concurrency_key, f.chain, f.run_at, f.deadline) AS offered,
				coalesce(f.run_at, now()) AS due, p.parked, CASE WHEN f.run_at > now() AND p.parked IS NULL THEN f.run_at END AS wake_at
			FROM ROWS FROM (jsonb_to_recordset(facts) AS (name text, tenant text, producer text, lane text, agent text, account text,
				work_key text, work_tags text[], retry_of uuid, priority integer, run_at timestamptz, deadline timestamptz, dedup_key text,
				concurrency_key text, policy text, max_tries smallint, backoff_ms bigint, checked boolean, chain jsonb,
				after text[], resume_from text, offer boolean), unnest(ids), unnest(known)) WITH ORDINALITY
				f(name, tenant, producer, lane, agent, account, work_key, work_tags, retry_of, priority, run_at, deadline, dedup_key,
				concurrency_key, policy, max_tries, backoff_ms, checked, chain, after, resume_from, offer, id, earlier, i)
			CROSS JOIN LATERAL (SELECT CASE WHEN num_nonnulls(f.after, f.resume_from) > 0 THEN 'after' END) p(parked)
			WHERE f.earlier IS NULL
		),
		q AS (
			INSERT INTO turnpike.queue (job_id, rank, run_at, wake_at, deadline, backoff_ms, max_tries, policy, lane, tenant, agent, account,
				concurrency_key, dedup_key, state, parked, checked, chain, dispatched_at, dispatch_no)
			SELECT e.id, (date_part('epoch', e.due) * 1000000)::bigint - e.priority * 60000000::bigint, e.due, e.wake_at, e.deadline,
				e.backoff_ms, e.max_tries, e.policy, e.lane, e.tenant, e.agent, e.account, e.concurrency_key, e.dedup_key,
				CASE WHEN e.offered THEN 'dispatched' WHEN e.wake_at IS NULL THEN 'queued' ELSE 'scheduled' END::turnpike.job_state, e.parked, e.checked, e.chain,
				CASE WHEN e.offered THEN now() END, e.offered::integer
			FROM e
			ORDER BY e.tenant, e.dedup_key, e.i
			ON CONFLICT (tenant, dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
			RETURNING job_id
		),
		-- IS TRUE keeps the lookup of what was written a hash, whatever the planner takes
		-- the number of entries for.
		j AS (
			INSERT INTO turnpike.jobs (job_id, name, tenant, producer, lane, agent, account, work_key, work_tags, run_at, retry_of, resume_from, request)
			SELECT e.id, e.name, e.tenant, e.producer, e.lane, e.agent, e.account, e.work_key, e.work_tags, e.due, e.retry_of,
				CASE WHEN e.resume_from NOT LIKE '#%' THEN e.resume_from::uuid END, bodies[e.i::integer]
			FROM e WHERE (e.id IN (SELECT q.job_id FROM q)) IS TRUE
		)
		SELECT e.i, e.id, e.lane, CASE WHEN e.offered THEN 'dispatched' WHEN e.wake_at IS NULL THEN 'queued' ELSE 'scheduled' END, false
		FROM e WHERE (e.id IN (SELECT q.job_id FROM q)) IS TRUE;
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
		PERFORM turnpike.within_limits(ARRAY(
			SELECT f.tenant
			FROM ROWS FROM (jsonb_to_recordset(facts) AS (tenant text), unnest(ids), unnest(known)) f(tenant, id, earlier)
			WHERE coalesce(f.earlier, f.id) = f.id));
	END IF;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION turnpike.uuid7_at(bigint), turnpike.within_limits(text[]), turnpike.calm(text[]), turnpike.at_once(boolean, text, text[], boolean, text, jsonb, timestamptz, timestamptz),
	turnpike.accept_keyed(jsonb, json[], bigint, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION turnpike.uuid7_at(bigint), turnpike.within_limits(text[]), turnpike.calm(text[]), turnpike.at_once(boolean, text, text[], boolean, text, jsonb, timestamptz, timestamptz),
	turnpike.accept_keyed(jsonb, json[], bigint, text[]) TO turnpike_dispatcher;
