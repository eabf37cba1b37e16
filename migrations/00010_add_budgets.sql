-- +goose Up

-- Budgets, and what an operator asks about: the lease lengths of the programs, agents
-- whose cost caps have no effect, and since when a job only found workers unready. The
-- release before writes none of it: its attempts count against no budget, and it leaves
-- alone what is parked for one.
SET LOCAL lock_timeout = '10s';

-- What may be spent in any stretch of time of a length. Spending is kept in buckets of
-- a 1440th of that length, so that what a budget has left is a sum over so many rows
-- and not over what it was spent on. A bucket counts until all of it is out of the
-- window: never less than the stretch, and at most a 1440th more.
CREATE TABLE turnpike.budgets (
	id integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
	scope text NOT NULL CHECK (scope IN ('tenant', 'tag', 'profile')),
	name text NOT NULL,
	period_s integer NOT NULL CHECK (period_s BETWEEN 60 AND 31 * 86400),
	bucket_s integer NOT NULL GENERATED ALWAYS AS (greatest(period_s / 1440, 1)) STORED,
	limit_usd numeric(14,6) NOT NULL CHECK (limit_usd >= 0),
	warn_usd numeric(14,6) CHECK (warn_usd BETWEEN 0 AND limit_usd),
	seeded boolean NOT NULL DEFAULT false, -- what was spent before it was set is in it
	level text NOT NULL DEFAULT 'ok' CHECK (level IN ('ok', 'warning', 'spent')), -- as the leader saw it last
	reason text NOT NULL,
	by text NOT NULL,
	at timestamptz NOT NULL DEFAULT now(),
	UNIQUE (scope, name, period_s)
);

CREATE TABLE turnpike.spend (
	budget integer NOT NULL,
	bucket timestamptz NOT NULL,
	usd numeric(14,6) NOT NULL CHECK (usd >= 0),
	PRIMARY KEY (budget, bucket)
);

-- The budgets a job was under when it was selected last, and those an attempt was
-- counted against. NULL is none, and costs nothing anywhere.
ALTER TABLE turnpike.queue ADD COLUMN budgets integer[];
ALTER TABLE turnpike.attempts ADD COLUMN budgets integer[];
CREATE INDEX queue_budgeted ON turnpike.queue (job_id) WHERE budgets IS NOT NULL AND dispatched_at IS NOT NULL;

-- Parked for a budget is as parked for a pause with an end: a time wakes it.
ALTER TABLE turnpike.queue DROP CONSTRAINT waiting, DROP CONSTRAINT parking,
	ADD CONSTRAINT waiting CHECK ((wake_at IS NOT NULL) = (state = 'scheduled' OR coalesce(parked IN ('pause', 'budget'), false))),
	ADD CONSTRAINT parking CHECK (parked IS NULL OR (state = 'queued' AND checked
		AND (parked IN ('pause', 'budget') OR (parked = 'key' AND concurrency_key IS NOT NULL))));

-- +goose StatementBegin
CREATE FUNCTION turnpike.bucket(at timestamptz, seconds integer) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT to_timestamp(floor(date_part('epoch', at) / seconds) * seconds)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- The budgets of a job that runs the profile at an index of its chain. A request is
-- parsed only where there is a budget of a profile.
CREATE FUNCTION turnpike.budgets_of(job uuid, profile integer) RETURNS integer[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT array_agg(b.id ORDER BY b.id)
	FROM turnpike.jobs j
	CROSS JOIN LATERAL (
		SELECT CASE WHEN EXISTS (SELECT FROM turnpike.budgets WHERE scope = 'profile')
			THEN j.request #>> (ARRAY['profile'] || array_fill('fallback'::text, ARRAY[profile]) || ARRAY['name']) END AS name) p
	JOIN turnpike.budgets b ON CASE b.scope WHEN 'tenant' THEN b.name = j.tenant WHEN 'tag' THEN b.name = ANY (j.work_tags) ELSE b.name = p.name END
	WHERE j.job_id = job
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- What an attempt counts for: its cost where that is known, else what is known of it,
-- or what the price list makes of its tokens where that is more.
CREATE FUNCTION turnpike.counts_for(cost numeric, partly boolean, by_models numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT least(CASE WHEN cost IS NOT NULL AND NOT partly THEN cost ELSE greatest(cost, by_models, 0) END, 99999999)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Counts what was spent before the budget was set. Nothing is settled meanwhile, so
-- that no attempt is counted twice or not at all.
CREATE FUNCTION turnpike.seed_budget(which integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
	LOCK TABLE turnpike.attempts IN SHARE MODE;
	DELETE FROM turnpike.spend WHERE budget = which;
	INSERT INTO turnpike.spend (budget, bucket, usd)
	SELECT b.id, turnpike.bucket(coalesce(a.late_at, a.closed_at), b.bucket_s), sum(CASE WHEN a.cost_usd IS NOT NULL AND NOT a.cost_partial THEN a.cost_usd
		ELSE turnpike.counts_for(a.cost_usd, a.cost_partial, (
			SELECT sum(coalesce(c.cost_usd, c.estimated_usd)) FROM turnpike.costs c WHERE c.job_id = a.job_id AND c.attempt = a.attempt)) END)
	FROM turnpike.budgets b
	JOIN turnpike.attempts a ON coalesce(a.late_at, a.closed_at) > now() - make_interval(secs => b.period_s + b.bucket_s)
	WHERE b.id = which AND CASE b.scope
		WHEN 'tenant' THEN a.tenant = b.name
		WHEN 'tag' THEN b.name = ANY (ARRAY(SELECT unnest(j.work_tags) FROM turnpike.jobs j WHERE j.job_id = a.job_id))
		ELSE b.id = ANY (turnpike.budgets_of(a.job_id, a.profile)) END
	GROUP BY 1, 2;
	UPDATE turnpike.budgets SET seeded = true WHERE id = which;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- A worker adds to what was spent; it takes nothing back.
CREATE FUNCTION turnpike.keep_spend() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF NEW.usd < OLD.usd THEN
		RAISE EXCEPTION 'what was spent is on record and does not become less' USING ERRCODE = 'insufficient_privilege';
	END IF;
	RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER keep_spend BEFORE UPDATE ON turnpike.spend FOR EACH ROW EXECUTE FUNCTION turnpike.keep_spend();

-- How budgets stand: spent_usd is settled, running_usd what the beats of running
-- attempts told. A spent budget has its time, when enough will be out of the window.
CREATE VIEW turnpike.v_budgets AS
SELECT b.id, b.scope, b.name, make_interval(secs => b.period_s) AS period, b.period_s, b.limit_usd, b.warn_usd, s.usd AS spent_usd, r.usd AS running_usd,
	greatest(b.limit_usd - s.usd - r.usd, 0) AS left_usd,
	CASE WHEN s.usd + r.usd >= b.limit_usd THEN 'spent' WHEN s.usd + r.usd >= b.warn_usd THEN 'warning' ELSE 'ok' END AS state,
	CASE
		WHEN s.usd + r.usd < b.limit_usd THEN NULL
		WHEN b.limit_usd = 0 THEN 'infinity'
		WHEN r.usd >= b.limit_usd THEN now() + interval '30 seconds' -- what runs may cost less in the end than its beats told
		ELSE (
			SELECT x.bucket + make_interval(secs => b.period_s + b.bucket_s)
			FROM (
				SELECT p.bucket, sum(p.usd) OVER (ORDER BY p.bucket DESC) AS since FROM turnpike.spend p
				WHERE p.budget = b.id AND p.bucket > now() - make_interval(secs => b.period_s + b.bucket_s)) x
			WHERE x.since + r.usd >= b.limit_usd ORDER BY x.bucket DESC LIMIT 1)
	END::timestamptz AS until,
	b.reason, b.by, b.at
FROM turnpike.budgets b
CROSS JOIN LATERAL (
	SELECT coalesce(sum(p.usd), 0) AS usd FROM turnpike.spend p
	WHERE p.budget = b.id AND p.bucket > now() - make_interval(secs => b.period_s + b.bucket_s)) s
CROSS JOIN LATERAL (
	SELECT coalesce(sum(q.cost_usd), 0) AS usd FROM turnpike.queue q
	WHERE q.dispatched_at IS NOT NULL AND q.budgets IS NOT NULL AND b.id = ANY (q.budgets)) r;

-- +goose StatementBegin
-- How some budgets stand. A function, so that selection and claims of jobs under none,
-- which pass NULL, neither plan nor run any of it.
CREATE FUNCTION turnpike.standing(of_these integer[]) RETURNS SETOF turnpike.v_budgets
LANGUAGE plpgsql STABLE STRICT ROWS 2 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN QUERY SELECT * FROM turnpike.v_budgets v WHERE v.id = ANY (of_these);
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION turnpike.standing(integer[]), turnpike.bucket(timestamptz, integer), turnpike.budgets_of(uuid, integer), turnpike.counts_for(numeric, boolean, numeric),
	turnpike.seed_budget(integer), turnpike.keep_spend() FROM PUBLIC;
GRANT SELECT ON turnpike.v_budgets TO turnpike_reporter, turnpike_worker, turnpike_dispatcher;
GRANT SELECT ON turnpike.budgets, turnpike.spend TO turnpike_worker, turnpike_dispatcher;
GRANT INSERT, UPDATE (usd) ON turnpike.spend TO turnpike_worker, turnpike_dispatcher;
GRANT DELETE ON turnpike.spend TO turnpike_dispatcher;
GRANT INSERT, UPDATE, DELETE ON turnpike.budgets TO turnpike_dispatcher;
GRANT EXECUTE ON FUNCTION turnpike.standing(integer[]), turnpike.bucket(timestamptz, integer), turnpike.counts_for(numeric, boolean, numeric) TO turnpike_worker, turnpike_dispatcher;
GRANT EXECUTE ON FUNCTION turnpike.budgets_of(uuid, integer), turnpike.seed_budget(integer) TO turnpike_dispatcher;

-- The leader's lease length, and each worker's: they must be the same.
ALTER TABLE turnpike.leader ADD COLUMN lease interval;
GRANT SELECT (lease, until) ON turnpike.leader TO turnpike_worker;
ALTER TABLE turnpike.workers ADD COLUMN lease interval;
-- Agents that never tell what their turns cost.
ALTER TABLE turnpike.workers ADD COLUMN inert text[] NOT NULL DEFAULT '{}';

CREATE OR REPLACE VIEW turnpike.v_workers AS
SELECT id, host, version, state_dir, draining, registered_at, seen_at, seen_at > now() - interval '30 seconds' AS alive,
	l ->> 'lane' AS lane, (l ->> 'slots')::integer AS slots, (l ->> 'free')::integer AS free, coalesce(l ->> 'closed', '') AS closed, lease, inert
FROM turnpike.workers CROSS JOIN LATERAL jsonb_array_elements(lanes) l;

-- Since when every attempt of the job ended unready; NULL when the last did not.
ALTER TABLE turnpike.queue ADD COLUMN unready_since timestamptz;
CREATE INDEX queue_unready ON turnpike.queue (unready_since) WHERE unready_since IS NOT NULL;
GRANT UPDATE (unready_since) ON turnpike.queue TO turnpike_worker;
