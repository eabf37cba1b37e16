-- +goose Up

-- Requests that are enqueued at the times of a cron expression. The release before reads
-- none of it: while it leads, nothing fires, and what was missed is dealt with after.

CREATE TABLE turnpike.schedules (
	id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
	tenant text NOT NULL,
	name text NOT NULL,
	version integer NOT NULL DEFAULT 1, -- grows with each change that a person makes
	cron text NOT NULL,
	tz text NOT NULL,
	missed text NOT NULL CHECK (missed IN ('skip', 'once', 'all')),
	overlap text NOT NULL CHECK (overlap IN ('skip', 'queue', 'cancel')),
	not_before timestamptz,
	not_after timestamptz,
	request json NOT NULL,
	producer text NOT NULL,             -- who set it, and whose its jobs are
	set_at timestamptz NOT NULL DEFAULT now(),
	paused_at timestamptz,
	paused_by text,
	paused_why text,

	next_at timestamptz,                -- NULL: no time is left
	retry_at timestamptz,               -- it could not fire; not before then
	last_at timestamptz,                -- the time its last job was made for
	last_job uuid,
	fired bigint NOT NULL DEFAULT 0,    -- jobs made
	skipped bigint NOT NULL DEFAULT 0,  -- times without a job of their own
	note text NOT NULL DEFAULT '',      -- what was out of the ordinary last
	note_at timestamptz,
	UNIQUE (tenant, name),
	CHECK (num_nulls(paused_at, paused_by, paused_why) IN (0, 3)),
	CHECK ((last_at IS NULL) = (last_job IS NULL))
);
CREATE INDEX schedules_next ON turnpike.schedules (next_at) WHERE next_at IS NOT NULL AND paused_at IS NULL;

CREATE VIEW turnpike.v_schedules AS
SELECT s.tenant, s.name, s.cron, s.tz, s.missed, s.overlap, s.not_before, s.not_after, s.producer, s.set_at,
	CASE WHEN s.paused_at IS NULL THEN s.next_at END AS next_at, s.last_at, s.last_job,
	coalesce(
		(SELECT q.state FROM turnpike.queue q WHERE q.job_id = s.last_job),
		(SELECT f.state FROM turnpike.finished f WHERE f.job_id = s.last_job),
		(SELECT a.next FROM turnpike.attempts a WHERE a.job_id = s.last_job AND a.final))::text AS last_state,
	s.fired, s.skipped, s.note, s.note_at, s.paused_at, s.paused_by, s.paused_why
FROM turnpike.schedules s;

GRANT SELECT ON turnpike.v_schedules TO turnpike_reporter, turnpike_dispatcher;
GRANT SELECT, INSERT, UPDATE, DELETE ON turnpike.schedules TO turnpike_dispatcher;
