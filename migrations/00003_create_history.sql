-- +goose Up

-- What is written once and kept. Every table here is partitioned by the job id,
-- whose first 48 bits are its time: a job's rows are in one partition of each, it
-- stays unique across them, and history goes by dropping partitions.
--
-- No foreign keys: they cost a fifth of the drain and half of the enqueues. Tests
-- hold the invariant.

CREATE TABLE turnpike.jobs (
	job_id uuid PRIMARY KEY,
	created_at timestamptz NOT NULL DEFAULT now(),
	name text NOT NULL,
	tenant text NOT NULL,
	producer text NOT NULL,
	lane text NOT NULL,
	agent text NOT NULL,
	account text NOT NULL,
	work_key text NOT NULL,
	work_tags text[] NOT NULL,
	run_at timestamptz NOT NULL,
	retry_of uuid,
	request json NOT NULL               -- as text: parsed only where it is asked
) PARTITION BY RANGE (job_id);

-- An attempt that ended. The last one of a job bears the job's final state.
CREATE TABLE turnpike.attempts (
	job_id uuid NOT NULL,
	attempt integer NOT NULL CHECK (attempt > 0),
	lease_no bigint NOT NULL,
	token uuid NOT NULL,
	dispatch_no integer NOT NULL,
	profile smallint NOT NULL,
	lane text NOT NULL,
	tenant text NOT NULL,
	agent text NOT NULL,
	account text NOT NULL,
	worker text NOT NULL,
	host text NOT NULL DEFAULT '',
	run_at timestamptz NOT NULL,
	dispatched_at timestamptz NOT NULL,
	claimed_at timestamptz NOT NULL,
	started_at timestamptz,             -- NULL: nothing was started
	ended_at timestamptz NOT NULL,      -- by the worker's clock
	closed_at timestamptz NOT NULL DEFAULT now(),
	ending text NOT NULL CHECK (ending IN ('refused', 'unready', 'done', 'limited', 'overloaded', 'credential',
		'capped', 'timeout', 'cancelled', 'drained', 'lost', 'fenced')),
	reason text NOT NULL DEFAULT '',
	next turnpike.job_state NOT NULL,   -- what followed for the job
	verdict text NOT NULL,              -- why: the word after the slash of failed/agent
	final boolean GENERATED ALWAYS AS (next IN ('succeeded', 'failed', 'cancelled')) STORED,
	reaped boolean NOT NULL DEFAULT false, -- closed because its lease lapsed: a report may still come
	late boolean NOT NULL DEFAULT false,
	late_at timestamptz,
	late_ending text,
	agent_version text NOT NULL DEFAULT '',
	model text NOT NULL DEFAULT '',
	conversation text NOT NULL DEFAULT '',
	resumable boolean NOT NULL DEFAULT false,
	duration_ms bigint NOT NULL DEFAULT 0,
	exit_code integer,
	signal integer,
	is_error boolean NOT NULL DEFAULT false,
	error_subtype text NOT NULL DEFAULT '',
	timed_out boolean NOT NULL DEFAULT false,
	cost_capped boolean NOT NULL DEFAULT false,
	num_turns bigint NOT NULL DEFAULT 0,
	tool_calls bigint NOT NULL DEFAULT 0,
	cost_usd numeric(14,6) CHECK (cost_usd >= 0), -- NULL is unknown, never zero
	cost_partial boolean NOT NULL DEFAULT false,  -- only what the beats told
	rate_limit json,
	versions json,
	added text[],
	session_dir text NOT NULL DEFAULT '',
	result_text text NOT NULL DEFAULT '',
	result json,
	PRIMARY KEY (job_id, attempt),
	CHECK (late = (late_at IS NOT NULL)),
	CHECK (NOT late OR reaped),
	CHECK (NOT reaped OR ending = 'lost'),
	CHECK (next <> 'dispatched' AND next <> 'running'),
	CHECK (next <> 'succeeded' OR (ending = 'done' AND NOT is_error))
) PARTITION BY RANGE (job_id);
CREATE UNIQUE INDEX attempts_final ON turnpike.attempts (job_id) WHERE final;

CREATE TABLE turnpike.costs (
	job_id uuid NOT NULL,
	attempt integer NOT NULL,
	model text NOT NULL,
	input_tokens bigint NOT NULL DEFAULT 0,
	output_tokens bigint NOT NULL DEFAULT 0,
	cache_read_tokens bigint NOT NULL DEFAULT 0,
	cache_write_tokens bigint NOT NULL DEFAULT 0,
	cost_usd numeric(14,6) CHECK (cost_usd >= 0), -- NULL is unknown, never zero
	estimated_usd numeric(14,6) CHECK (estimated_usd >= 0),
	PRIMARY KEY (job_id, attempt, model)
) PARTITION BY RANGE (job_id);

CREATE TABLE turnpike.outcomes (
	job_id uuid NOT NULL,
	attempt integer NOT NULL,
	status text NOT NULL,
	note text NOT NULL,
	work_key text NOT NULL,
	work_tags text[] NOT NULL,
	PRIMARY KEY (job_id, attempt)
) PARTITION BY RANGE (job_id);

-- The final state of a job that ended while no attempt ran.
CREATE TABLE turnpike.finished (
	job_id uuid PRIMARY KEY,
	state turnpike.job_state NOT NULL CHECK (state IN ('failed', 'cancelled')),
	reason text NOT NULL,
	note text NOT NULL,
	by text NOT NULL,
	finished_at timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (job_id);

-- What happened to a job beyond what its rows tell.
CREATE TABLE turnpike.events (
	job_id uuid NOT NULL,
	at timestamptz NOT NULL DEFAULT clock_timestamp(),
	what text NOT NULL,
	note text NOT NULL DEFAULT ''
) PARTITION BY RANGE (job_id);
CREATE INDEX events_job ON turnpike.events (job_id);

-- Ids. 48 bits of milliseconds, 12 bits of the fraction of that millisecond, 62
-- random bits: by the database's clock, so that they sort by time whoever asks.

-- +goose StatementBegin
CREATE FUNCTION turnpike.uuid7(later_us bigint DEFAULT 0) RETURNS uuid
LANGUAGE plpgsql VOLATILE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	us bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint + later_us;
BEGIN
	RETURN encode(substring(int8send(us / 1000) from 3)
		|| int2send((28672 + (us % 1000) * 4096 / 1000)::int2)
		|| substring(uuid_send(gen_random_uuid()) from 9), 'hex')::uuid;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- The least id of that time.
CREATE FUNCTION turnpike.uuid7_floor(at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT encode(substring(int8send(floor(date_part('epoch', at) * 1000)::bigint) from 3)
		|| '\x00000000000000000000'::bytea, 'hex')::uuid
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION turnpike.uuid7_time(id uuid) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT to_timestamp(('x' || translate(left(id::text, 13), '-', ''))::bit(48)::bigint / 1000.0)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- The tables of history, in the order in which their partitions may go.
CREATE FUNCTION turnpike.history() RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT ARRAY['events', 'outcomes', 'costs', 'attempts', 'finished', 'jobs']
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Creates the weekly partitions of one table from now until "ahead", and those of
-- what waits in its default partition because nobody had. A partition is attached,
-- not created in place: that locks only the default partition against readers.
CREATE FUNCTION turnpike.extend_history(parent text, ahead interval) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' SET timezone = 'UTC' AS $$
DECLARE
	week timestamptz := date_trunc('week', now());
	early uuid;
	child text;
	lo uuid;
	hi uuid;
	made integer := 0;
BEGIN
	IF parent <> ALL (turnpike.history()) THEN
		RAISE EXCEPTION 'no table of history: %', parent;
	END IF;
	-- Two dispatchers may do this at once.
	EXECUTE format('LOCK TABLE turnpike.%I IN SHARE UPDATE EXCLUSIVE MODE', parent);
	EXECUTE format('SELECT job_id FROM turnpike.%I ORDER BY job_id LIMIT 1', parent || '_default') INTO early;
	IF early IS NOT NULL THEN
		week := least(week, date_trunc('week', turnpike.uuid7_time(early)));
	END IF;
	WHILE week < now() + ahead LOOP
		child := parent || to_char(week, '_YYYYMMDD');
		IF to_regclass(format('turnpike.%I', child)) IS NULL THEN
			lo := turnpike.uuid7_floor(week);
			hi := turnpike.uuid7_floor(week + interval '7 days');
			EXECUTE format('CREATE TABLE turnpike.%I (LIKE turnpike.%I INCLUDING ALL)', child, parent);
			EXECUTE format('LOCK TABLE turnpike.%I IN ACCESS EXCLUSIVE MODE', parent || '_default');
			EXECUTE format('SELECT job_id FROM turnpike.%I WHERE job_id >= %L AND job_id < %L LIMIT 1', parent || '_default', lo, hi) INTO early;
			IF early IS NOT NULL THEN
				PERFORM turnpike.move_history(parent || '_default', child, lo, hi);
			END IF;
			EXECUTE format('ALTER TABLE turnpike.%I ATTACH PARTITION turnpike.%I FOR VALUES FROM (%L) TO (%L)', parent, child, lo, hi);
			made := made + 1;
		END IF;
		week := week + interval '7 days';
	END LOOP;
	RETURN made;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION turnpike.move_history(source text, target text, lo uuid, hi uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	cols text; -- generated columns are not written
BEGIN
	SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO cols FROM pg_attribute
	WHERE attrelid = format('turnpike.%I', source)::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
	EXECUTE format('WITH moved AS (DELETE FROM turnpike.%I WHERE job_id >= %L AND job_id < %L RETURNING *)
		INSERT INTO turnpike.%I (%s) SELECT %s FROM moved', source, lo, hi, target, cols, cols);
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Drops the partitions of one table that ended before "before" and returns how many.
-- One that holds a job which is not finished, or something left over that is not
-- gone, stays. One table per call and per transaction: dropping from several at once
-- deadlocks with readers.
CREATE FUNCTION turnpike.drop_history(parent text, before timestamptz) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' SET timezone = 'UTC' AS $$
DECLARE
	child text;
	week timestamptz;
	lo uuid;
	hi uuid;
	dropped integer := 0;
BEGIN
	IF parent <> ALL (turnpike.history()) THEN
		RAISE EXCEPTION 'no table of history: %', parent;
	END IF;
	FOR child IN
		SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = format('turnpike.%I', parent)::regclass AND c.relname ~ '_[0-9]{8}$'
		ORDER BY c.relname
	LOOP
		week := to_timestamp(right(child, 8), 'YYYYMMDD');
		CONTINUE WHEN week + interval '7 days' > before;
		lo := turnpike.uuid7_floor(week);
		hi := turnpike.uuid7_floor(week + interval '7 days');
		CONTINUE WHEN EXISTS (SELECT FROM turnpike.queue WHERE job_id >= lo AND job_id < hi)
			OR EXISTS (SELECT FROM turnpike.orphans WHERE job_id >= lo AND job_id < hi AND state <> 'gone');
		EXECUTE format('ALTER TABLE turnpike.%I DETACH PARTITION turnpike.%I', parent, child);
		EXECUTE format('DROP TABLE turnpike.%I', child);
		dropped := dropped + 1;
	END LOOP;
	RETURN dropped;
END $$;
-- +goose StatementEnd

CREATE TABLE turnpike.jobs_default PARTITION OF turnpike.jobs DEFAULT;
CREATE TABLE turnpike.attempts_default PARTITION OF turnpike.attempts DEFAULT;
CREATE TABLE turnpike.costs_default PARTITION OF turnpike.costs DEFAULT;
CREATE TABLE turnpike.outcomes_default PARTITION OF turnpike.outcomes DEFAULT;
CREATE TABLE turnpike.finished_default PARTITION OF turnpike.finished DEFAULT;
CREATE TABLE turnpike.events_default PARTITION OF turnpike.events DEFAULT;

SELECT turnpike.extend_history(t, interval '28 days') FROM unnest(turnpike.history()) t;
