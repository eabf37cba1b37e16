-- +goose Up

-- What is paused at the moment, by an index: a few rows, which a scan would find as fast.
-- But the hot statements are planned with scans switched off, and a part for which there
-- is nothing else is so dear to the planner that it sees no difference between ways to
-- do the rest: a claim read the whole queue in the order of its ids. The release before
-- is planned better, too.
SET LOCAL lock_timeout = '10s';
CREATE INDEX pauses_until ON turnpike.pauses (until);

-- Nothing leaves the queue but with its end on record. Whoever settles may delete there,
-- and could make jobs vanish. It is asked of all jobs of a statement at once, which costs some
-- microseconds each. The rest is as before.

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION turnpike.resolve() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Plans are kept, and the tables are empty when most are made.
SET enable_seqscan = off AS $$
DECLARE
	gone uuid[];
	waited boolean;
	waiters uuid[];
	had bigint;
BEGIN
	SELECT array_agg(o.job_id), bool_or(o.parked = 'after') INTO gone, waited FROM o;
	IF gone IS NULL THEN
		RETURN NULL;
	END IF;
	had := (SELECT count(*) FROM turnpike.attempts a WHERE a.job_id = ANY (gone) AND a.final);
	IF had < cardinality(gone) AND had + (SELECT count(*) FROM turnpike.finished f WHERE f.job_id = ANY (gone)) < cardinality(gone) THEN
		RAISE EXCEPTION 'a job would leave the queue without its final state' USING ERRCODE = 'insufficient_privilege';
	END IF;
	IF waited THEN
		DELETE FROM turnpike.waits w WHERE w.job_id = ANY (gone);
	END IF;
	IF NOT EXISTS (SELECT FROM turnpike.waits w WHERE w.awaits = ANY (gone)) THEN
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

-- The least id of a time: with it a report reads only the weeks it is about.
GRANT EXECUTE ON FUNCTION turnpike.uuid7_floor(timestamptz) TO turnpike_reporter;
