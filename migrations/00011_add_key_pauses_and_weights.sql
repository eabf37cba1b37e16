-- +goose Up

-- What may run: pauses of concurrency keys, weights of tenants, the slow start of an
-- account whose limit is over, and what redriving looks for. The release before pauses
-- no key, gives every tenant the same weight and starts at once.
SET LOCAL lock_timeout = '10s';

-- A key is named TENANT/KEY.
ALTER TABLE turnpike.pauses DROP CONSTRAINT pauses_scope_check,
	ADD CONSTRAINT pauses_scope_check CHECK (scope IN ('lane', 'tenant', 'account', 'key')),
	-- How the attempt ended that made it; NULL is a person's.
	ADD COLUMN ending text;

-- How many live jobs a tenant is given beside another's, on a lane; 1 for those not named.
CREATE TABLE turnpike.weights (
	tenant text PRIMARY KEY,
	weight integer NOT NULL CHECK (weight BETWEEN 2 AND 100),
	by text NOT NULL,
	at timestamptz NOT NULL DEFAULT now()
);

-- The step of slow starts, as the leader has it; NULL or zero is none.
ALTER TABLE turnpike.leader ADD COLUMN slow_start interval;

-- How pauses stand. Once a pause is over that a limit made, its account is in slow start
-- for ten steps, with at most live_max live jobs: one, and twice as many each step. All
-- of it follows from the time that has passed. "live" is only for those in slow start.
CREATE OR REPLACE VIEW turnpike.v_pauses AS
SELECT p.scope, p.name, p.until, p.until > now() AS active, p.reason, p.by, p.at,
	CASE WHEN p.until > now() THEN 'active' WHEN s.step > 0 THEN 'slow start' ELSE 'over' END AS state,
	CASE WHEN s.step > 0 THEN power(2, s.step - 1)::integer END AS live_max,
	CASE WHEN s.step > 0 THEN (SELECT count(*) FROM turnpike.queue q WHERE q.dispatched_at IS NOT NULL AND q.credential = p.name) END AS live,
	CASE WHEN s.step > 0 THEN p.until + s.step * l.slow_start END AS more_at,
	CASE WHEN s.step > 0 THEN p.until + 10 * l.slow_start END AS slow_until
FROM turnpike.pauses p
CROSS JOIN turnpike.leader l
CROSS JOIN LATERAL (
	-- From 1 to 10 while it lasts. What is not over may have no end to subtract.
	SELECT CASE WHEN p.ending = 'limited' AND p.scope = 'account' AND l.slow_start > interval '0' AND p.until <= now() AND p.until > now() - 10 * l.slow_start
		THEN floor(date_part('epoch', now() - p.until) / date_part('epoch', l.slow_start))::integer + 1 END AS step) s;

-- +goose StatementBegin
-- The accounts in slow start. A function, so that selection plans nothing of it while
-- there are none.
CREATE FUNCTION turnpike.slow_starts()
RETURNS TABLE (credential text, since timestamptz, live integer, live_max integer, more_at timestamptz, slow_until timestamptz)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF EXISTS (SELECT FROM turnpike.pauses p WHERE p.ending = 'limited' AND p.until <= now()) THEN
		RETURN QUERY SELECT v.name, v.until, v.live::integer, v.live_max, v.more_at, v.slow_until FROM turnpike.v_pauses v WHERE v.state = 'slow start';
	END IF;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- As turnpike.place of five arguments, which the release before calls, and with slow
-- starts: a profile whose account has as many live jobs as it may has no capacity until
-- it may have more; while it may have more, a job that is elsewhere comes to it only where
-- no other profile has capacity.
CREATE FUNCTION turnpike.place(chain jsonb, busy timestamptz[], bound boolean, bound_lane text, bound_agent text, at smallint)
RETURNS TABLE (profile smallint, name text, lane text, agent text, account text, until timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
	SELECT e.profile, coalesce(e.name, e.agent), e.lane, e.agent, e.account, h.until
	FROM jsonb_to_recordset(chain) AS e(profile smallint, name text, lane text, agent text, account text)
	CROSS JOIN LATERAL (SELECT CASE e.account WHEN '' THEN '~' || e.agent ELSE e.account END AS credential) c
	LEFT JOIN LATERAL turnpike.slow_starts() s ON s.credential = c.credential
	CROSS JOIN LATERAL (
		SELECT greatest(
			CASE WHEN busy[e.profile + 1] > now() THEN busy[e.profile + 1] END,
			CASE WHEN s.live >= s.live_max THEN s.more_at END,
			(SELECT max(p.until) FROM turnpike.pauses p WHERE p.until > now()
				AND ((p.scope = 'lane' AND p.name = e.lane) OR (p.scope = 'account' AND p.name = c.credential)))) AS until) h
	WHERE NOT bound OR (e.lane = bound_lane AND e.agent = bound_agent)
	ORDER BY h.until NULLS FIRST, s.credential IS NOT NULL AND e.profile <> at, e.profile
	LIMIT 1
$$;
-- +goose StatementEnd

-- What was repeated: redriving passes it over. Nobody repeats most jobs.
CREATE INDEX jobs_retries ON turnpike.jobs (retry_of) WHERE retry_of IS NOT NULL;

-- +goose StatementBegin
-- What the queue must know of a request on record, or NULL where it would not be taken
-- any more: one such keeps no other from being redriven.
CREATE FUNCTION turnpike.facts_again(request json) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN turnpike.facts(request::jsonb) - 'run_at' - 'deadline'; -- its time came already
EXCEPTION WHEN SQLSTATE 'TQ003' THEN
	RETURN NULL;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION turnpike.slow_starts(), turnpike.place(jsonb, timestamptz[], boolean, text, text, smallint), turnpike.facts_again(json) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION turnpike.slow_starts(), turnpike.place(jsonb, timestamptz[], boolean, text, text, smallint), turnpike.facts_again(json) TO turnpike_dispatcher;
GRANT SELECT, INSERT, UPDATE, DELETE ON turnpike.weights TO turnpike_dispatcher;
