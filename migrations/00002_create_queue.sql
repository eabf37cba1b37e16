-- +goose Up

CREATE TYPE turnpike.job_state AS ENUM
	('scheduled', 'queued', 'dispatched', 'running', 'succeeded', 'failed', 'cancelled');

-- The one leader. Whatever selects, parks or reaps locks this row first, so that
-- no two do at once and none does after another took over.
CREATE TABLE turnpike.leader (
	one boolean PRIMARY KEY DEFAULT true CHECK (one),
	epoch bigint NOT NULL DEFAULT 0,
	holder text NOT NULL DEFAULT '',
	until timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO turnpike.leader DEFAULT VALUES;

-- +goose StatementBegin
-- Holds the leadership until the transaction ends, or fails with TQ004. Called in a
-- statement of its own, so that what follows sees everything the last holder committed.
CREATE FUNCTION turnpike.lead(as_of bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM FROM turnpike.leader WHERE epoch = as_of FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'epoch % is over', as_of USING ERRCODE = 'TQ004';
	END IF;
END $$;
-- +goose StatementEnd

-- A job that is not finished. Beats and claims must stay HOT updates: no index,
-- and no index's predicate, names a column they change. Selection's index key is
-- "ready", which only rows that may be selected have; dispatched_at marks the live
-- ones, and neither a claim nor a beat changes it.
CREATE TABLE turnpike.queue (
	job_id uuid PRIMARY KEY,

	-- What it asked for.
	rank bigint NOT NULL,               -- microseconds: run_at less the weight of the priority
	run_at timestamptz NOT NULL,
	deadline timestamptz,
	backoff_ms bigint NOT NULL CHECK (backoff_ms >= 0),
	max_tries smallint NOT NULL CHECK (max_tries BETWEEN 1 AND 20),
	policy text NOT NULL CHECK (policy IN ('never', 'if_not_started', 'resume', 'always')),
	lane text NOT NULL,
	tenant text NOT NULL,
	agent text NOT NULL,
	account text NOT NULL,              -- '' is the credential the worker has for the agent
	credential text NOT NULL GENERATED ALWAYS AS (CASE account WHEN '' THEN '~' || agent ELSE account END) STORED,
	concurrency_key text,
	dedup_key text,

	-- Where it stands.
	state turnpike.job_state NOT NULL,
	checked boolean NOT NULL,           -- the whole request was validated
	parked text,                        -- why a queued job may not be selected
	wake_at timestamptz,                -- when scheduled or paused is over
	ready bigint GENERATED ALWAYS AS (CASE WHEN state = 'queued' AND checked AND parked IS NULL THEN rank END) STORED,
	dispatch_no integer NOT NULL DEFAULT 0,
	dispatched_at timestamptz,
	published_at timestamptz,
	attempt integer NOT NULL DEFAULT 0,
	profile smallint NOT NULL DEFAULT 0,
	tries_spent smallint NOT NULL DEFAULT 0,
	returns integer NOT NULL DEFAULT 0, -- attempts given back in a row
	overloads smallint NOT NULL DEFAULT 0,
	crashes smallint NOT NULL DEFAULT 0,
	resume text,                        -- the conversation the next attempt continues

	-- The lease, and what its holder told.
	lease_no bigint NOT NULL DEFAULT 0,
	token uuid,
	worker text,
	claimed_at timestamptz,
	lease_until timestamptz,
	started_at timestamptz,
	conversation text,
	turns bigint NOT NULL DEFAULT 0,
	tool_calls bigint NOT NULL DEFAULT 0,
	cost_usd numeric(14,6) CHECK (cost_usd >= 0),
	orphan json,                        -- what would be left if the worker died now

	cancel_at timestamptz,
	cancel_by text,
	cancel_why text,

	CONSTRAINT unfinished CHECK (state IN ('scheduled', 'queued', 'dispatched', 'running')),
	CONSTRAINT live CHECK ((state IN ('dispatched', 'running')) = (dispatched_at IS NOT NULL)
		AND (dispatched_at IS NULL OR (checked AND dispatch_no > 0))
		AND (dispatched_at IS NOT NULL OR published_at IS NULL)),
	CONSTRAINT leased CHECK (CASE WHEN state = 'running'
		THEN num_nulls(token, worker, claimed_at, lease_until, orphan) = 0 AND attempt > 0 AND lease_no > 0
		ELSE num_nonnulls(token, worker, claimed_at, lease_until, started_at, conversation, cost_usd, orphan, cancel_at) = 0
			AND turns = 0 AND tool_calls = 0 END),
	CONSTRAINT waiting CHECK ((wake_at IS NOT NULL) = (state = 'scheduled' OR parked IS NOT DISTINCT FROM 'pause')),
	CONSTRAINT parking CHECK (parked IS NULL OR (state = 'queued' AND checked
		AND (parked = 'pause' OR (parked = 'key' AND concurrency_key IS NOT NULL)))),
	CONSTRAINT counts CHECK (tries_spent >= 0 AND tries_spent < max_tries AND returns >= 0
		AND overloads BETWEEN 0 AND 5 AND crashes BETWEEN 0 AND 2)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX queue_ready ON turnpike.queue (lane, tenant, ready) WHERE ready IS NOT NULL;
CREATE INDEX queue_live ON turnpike.queue (lane, tenant) WHERE dispatched_at IS NOT NULL;
-- At most one live job of a key; selection sees to it, this refuses anything else.
CREATE UNIQUE INDEX queue_key ON turnpike.queue (tenant, concurrency_key)
	WHERE dispatched_at IS NOT NULL AND concurrency_key IS NOT NULL;
CREATE INDEX queue_parked ON turnpike.queue (tenant, concurrency_key, rank) WHERE parked = 'key';
CREATE INDEX queue_wake ON turnpike.queue (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX queue_deadline ON turnpike.queue (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX queue_unchecked ON turnpike.queue (job_id) WHERE NOT checked;
CREATE INDEX queue_tenant ON turnpike.queue (tenant);
-- A dedup key is taken exactly as long as its row is here.
CREATE UNIQUE INDEX queue_dedup ON turnpike.queue (tenant, dedup_key) WHERE dedup_key IS NOT NULL;

-- What may not run at the moment. An account that reached a limit, and whatever a
-- person stopped.
CREATE TABLE turnpike.pauses (
	scope text NOT NULL CHECK (scope IN ('lane', 'tenant', 'account')),
	name text NOT NULL,
	until timestamptz NOT NULL,         -- infinity: until a person lifts it
	reason text NOT NULL,
	by text NOT NULL,
	at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (scope, name)
);

-- How many unfinished jobs a tenant may have; '*' is for those not named. It is
-- held by what each enqueue sees committed: a few at once may pass it by as many.
CREATE TABLE turnpike.limits (
	tenant text PRIMARY KEY,
	max_unfinished integer NOT NULL CHECK (max_unfinished >= 0)
);

CREATE TABLE turnpike.idempotency (
	producer text NOT NULL,
	key text NOT NULL,
	hash bytea NOT NULL,
	job_id uuid NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (producer, key)
);
CREATE INDEX idempotency_age ON turnpike.idempotency (created_at);

CREATE TABLE turnpike.workers (
	id text PRIMARY KEY,
	host text NOT NULL,
	version text NOT NULL,
	ceiling text NOT NULL,
	state_dir text NOT NULL,
	draining boolean NOT NULL,
	lanes jsonb NOT NULL,               -- [{lane, pool, slots, free, closed}]
	registered_at timestamptz NOT NULL DEFAULT now(),
	seen_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX workers_seen ON turnpike.workers (seen_at);

-- A pool's workers are alike: one ceiling.
CREATE TABLE turnpike.pools (
	pool text PRIMARY KEY,
	ceiling text NOT NULL,
	registered_at timestamptz NOT NULL DEFAULT now()
);

-- What may have outlived its worker. A running attempt's is in its queue row; here
-- is what was left over.
CREATE TABLE turnpike.orphans (
	job_id uuid NOT NULL,
	attempt integer NOT NULL,
	kind text NOT NULL,
	identity jsonb,
	worker text NOT NULL,
	state_dir text NOT NULL DEFAULT '',
	state text NOT NULL CHECK (state IN ('creating', 'live', 'reaping', 'gone', 'unreachable')),
	stopped_by text,
	note text,
	transcript text,
	turns bigint,
	created_at timestamptz NOT NULL DEFAULT now(),
	gone_at timestamptz,
	PRIMARY KEY (job_id, attempt, kind),
	CHECK ((state = 'gone') = (gone_at IS NOT NULL))
);
CREATE INDEX orphans_left ON turnpike.orphans (worker) WHERE state <> 'gone';

-- What operators did that concerns no single job.
CREATE TABLE turnpike.audit (
	at timestamptz NOT NULL DEFAULT now(),
	who text NOT NULL,
	what text NOT NULL,
	subject text NOT NULL,
	note text
);
CREATE INDEX audit_at ON turnpike.audit (at);
