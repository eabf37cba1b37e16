-- +goose Up

-- What a turn changed in a workspace with a history. The release before writes attempts
-- without it, and reads none of it.
SET LOCAL lock_timeout = '10s';
ALTER TABLE turnpike.attempts ADD COLUMN patch json;

GRANT UPDATE (patch) ON turnpike.attempts TO turnpike_worker;

CREATE VIEW turnpike.v_patches AS
SELECT job_id, attempt, tenant, agent, (patch ->> 'bytes')::bigint AS bytes, (patch ->> 'files')::integer AS files,
	(patch ->> 'lines_added')::integer AS lines_added, (patch ->> 'lines_deleted')::integer AS lines_deleted, patch ->> 'problem' AS problem
FROM turnpike.attempts WHERE patch IS NOT NULL;
GRANT SELECT ON turnpike.v_patches TO turnpike_reporter;
