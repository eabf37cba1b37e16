-- +goose Up

-- To go on without a broker, and without a machine.
--
-- What a machine that never came back left is unreachable: nobody will verify it, and it
-- keeps no history. The release before neither sets nor reads the columns; what it
-- records for such an orphan stays as it is.
SET LOCAL lock_timeout = '10s';

-- Workers may look for what is dispatched: a lane's live rows in the order of their
-- dispatch, which neither a claim nor a beat changes.
CREATE INDEX queue_offered ON turnpike.queue (lane, dispatched_at, tenant) WHERE dispatched_at IS NOT NULL;
DROP INDEX turnpike.queue_live;
ALTER INDEX turnpike.queue_offered RENAME TO queue_live;

ALTER TABLE turnpike.orphans ADD COLUMN host text NOT NULL DEFAULT '', ADD COLUMN abandoned_at timestamptz,
	ADD CONSTRAINT abandoned CHECK (abandoned_at IS NULL OR state IN ('unreachable', 'gone'));

-- +goose StatementBegin
-- Drops the partitions of one table that ended before "before" and returns how many.
-- One that holds a job which is not finished, or something left over that a worker may
-- yet verify, stays. One table per call and per transaction: dropping from several at
-- once deadlocks with readers.
CREATE OR REPLACE FUNCTION turnpike.drop_history(parent text, before timestamptz) RETURNS integer
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
			OR EXISTS (SELECT FROM turnpike.orphans WHERE job_id >= lo AND job_id < hi AND state <> 'gone' AND abandoned_at IS NULL);
		EXECUTE format('ALTER TABLE turnpike.%I DETACH PARTITION turnpike.%I', parent, child);
		EXECUTE format('DROP TABLE turnpike.%I', child);
		dropped := dropped + 1;
	END LOOP;
	RETURN dropped;
END $$;
-- +goose StatementEnd

CREATE OR REPLACE VIEW turnpike.v_orphans AS
SELECT job_id, attempt, kind, identity, worker, state, stopped_by, note, transcript, turns, created_at, gone_at, host, abandoned_at
FROM turnpike.orphans
UNION ALL
SELECT q.job_id, q.attempt, coalesce(q.orphan #>> '{identity,kind}', q.orphan ->> 'kind'), (q.orphan -> 'identity')::jsonb, q.worker, q.orphan ->> 'state',
	NULL, NULL, NULL, q.turns, q.claimed_at, NULL, coalesce(w.host, ''), NULL
FROM turnpike.queue q LEFT JOIN turnpike.workers w ON w.id = q.worker WHERE q.state = 'running';

CREATE OR REPLACE VIEW turnpike.v_workers AS
SELECT id, host, version, state_dir, draining, registered_at, seen_at, seen_at > now() - interval '30 seconds' AS alive,
	l ->> 'lane' AS lane, (l ->> 'slots')::integer AS slots, (l ->> 'free')::integer AS free, coalesce(l ->> 'closed', '') AS closed, lease, inert,
	coalesce(l ->> 'via', '') AS via -- how it finds its jobs; empty where it does not tell
FROM turnpike.workers CROSS JOIN LATERAL jsonb_array_elements(lanes) l;

-- +goose StatementBegin
-- Brings up to date what the planner knows of one table of history as a whole, unless it
-- was done within "fresh": autovacuum sees to its partitions and never to the table
-- itself, by whose numbers whatever reads several partitions is planned.
CREATE FUNCTION turnpike.analyze_history(parent text, fresh interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
	IF parent <> ALL (turnpike.history()) THEN
		RAISE EXCEPTION 'no table of history: %', parent;
	END IF;
	IF EXISTS (SELECT FROM pg_stat_all_tables WHERE relid = format('turnpike.%I', parent)::regclass AND last_analyze > now() - fresh) THEN
		RETURN false;
	END IF;
	EXECUTE format('ANALYZE turnpike.%I', parent);
	RETURN true;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION turnpike.analyze_history(text, interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION turnpike.analyze_history(text, interval) TO turnpike_dispatcher;
