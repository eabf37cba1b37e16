-- +goose Up

-- A report that a worker could not bring to Postgres comes by the results stream, and may
-- find its attempt closed by the reaper: a dispatcher that settles it fills in what it
-- left, as the worker would. Which attempts, and how often, keep_history says to both.
-- Without the right, a report that its worker had settled meanwhile failed, too, and was
-- offered again for ever. The release before has use for it as well.
SET LOCAL lock_timeout = '10s';
GRANT UPDATE (late, late_at, late_ending, host, agent_version, model, conversation, resumable, kept, started_at, ended_at, duration_ms, exit_code, signal,
	is_error, error_subtype, timed_out, cost_capped, num_turns, tool_calls, cost_usd, cost_partial, rate_limit, versions, added, session_dir,
	result_text, result, patch) ON turnpike.attempts TO turnpike_dispatcher;
