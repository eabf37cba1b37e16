-- +goose Up

-- What does not wait where it is while its lane is paused: a job with fallbacks goes to
-- another lane, and one with a key is put behind the others of it. The release before
-- looks for the first only, and finds it without this index.
SET LOCAL lock_timeout = '10s';
CREATE INDEX queue_vacate ON turnpike.queue (lane, ready) WHERE ready IS NOT NULL AND (chain IS NOT NULL OR concurrency_key IS NOT NULL);
