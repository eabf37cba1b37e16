-- +goose Up

-- A job can go on offer as it is enqueued: on a lane in which nothing else waits, while
-- nothing is paused and no budget is set, there is nothing for selection to decide. The
-- release before asks for no such offer.
SET LOCAL lock_timeout = '10s';

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
	IF jsonb_path_exists(facts, '$[*] ? (exists (@.dedup_key) || exists (@.idempotency_key) || exists (@.after)
		|| exists (@.resume_from) || exists (@.retry_of))') THEN
		RETURN QUERY SELECT * FROM turnpike.accept_keyed(facts, bodies, minted);
		RETURN;
	END IF;
	IF jsonb_path_exists(facts, '$[*].offer') THEN
		calm := turnpike.calm(ARRAY(SELECT DISTINCT f.lane FROM jsonb_to_recordset(facts) AS f(lane text, offer boolean) WHERE f.offer));
	END IF;

	RETURN QUERY
	WITH e AS MATERIALIZED (
		SELECT f.*, coalesce(f.offer, false) AND f.lane = ANY (calm) AND f.checked AND f.concurrency_key IS NULL AND f.chain IS NULL
				AND coalesce(f.run_at <= now(), true) AND coalesce(f.deadline > now(), true) AS offered,
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

REVOKE ALL ON FUNCTION turnpike.calm(text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION turnpike.calm(text[]) TO turnpike_dispatcher;
