-- +goose Up

-- What is paused at the moment, by an index: a few rows, which a scan would find as fast.
-- But the hot statements are planned with scans switched off, and a part for which there
-- is nothing else is so dear to the planner that it sees no difference between ways to
-- do the rest: a claim read the whole queue in the order of its ids. The release before
-- is planned better, too.
SET LOCAL lock_timeout = '10s';
CREATE INDEX pauses_until ON turnpike.pauses (until);
