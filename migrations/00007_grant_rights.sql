-- +goose Up

-- What each kind of caller may do, and nothing else.

-- Column rights cannot say which rows: two things that hold for every caller.

-- +goose StatementBegin
-- A late report fills in what the reaper closed, once. Nothing else rewrites an attempt.
CREATE FUNCTION turnpike.keep_history() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF NOT (OLD.reaped AND NOT OLD.late AND NEW.late) THEN
		RAISE EXCEPTION 'attempt % of job % is on record and is not rewritten', OLD.attempt, OLD.job_id USING ERRCODE = 'insufficient_privilege';
	END IF;
	RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER keep_history BEFORE UPDATE ON turnpike.attempts FOR EACH ROW EXECUTE FUNCTION turnpike.keep_history();

-- +goose StatementBegin
-- A worker pauses accounts, for longer and never for shorter: lifting a pause, and
-- pausing lanes and tenants, is the dispatcher's.
CREATE FUNCTION turnpike.keep_pause() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF NOT pg_has_role(current_user, 'turnpike_dispatcher', 'MEMBER')
		AND (NEW.scope <> 'account' OR TG_OP = 'UPDATE' AND (NEW.until < OLD.until OR NEW.scope <> OLD.scope OR NEW.name <> OLD.name)) THEN
		RAISE EXCEPTION 'a worker may only pause an account, or pause it for longer' USING ERRCODE = 'insufficient_privilege';
	END IF;
	RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER keep_pause BEFORE INSERT OR UPDATE ON turnpike.pauses FOR EACH ROW EXECUTE FUNCTION turnpike.keep_pause();

REVOKE ALL ON ALL TABLES IN SCHEMA turnpike FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA turnpike FROM PUBLIC;

-- A producer enqueues.
GRANT EXECUTE ON FUNCTION turnpike.enqueue(jsonb) TO turnpike_producer;

-- A reporter reads views.
GRANT SELECT ON turnpike.v_jobs, turnpike.v_attempts, turnpike.v_costs, turnpike.v_outcomes, turnpike.v_orphans, turnpike.v_queue,
	turnpike.v_workers, turnpike.v_pauses TO turnpike_reporter;

-- A worker takes what was dispatched, keeps its lease, and writes down what became of
-- it. It cannot make a job, move one to another lane, change what was asked, lead, or
-- take back what is on record.
GRANT SELECT ON turnpike.jobs, turnpike.queue, turnpike.attempts, turnpike.costs, turnpike.outcomes, turnpike.finished,
	turnpike.pauses, turnpike.orphans, turnpike.workers, turnpike.pools TO turnpike_worker;
GRANT UPDATE (state, run_at, parked, wake_at, dispatched_at, published_at, attempt, tries_spent, returns, overloads, crashes, resume, lease_no, token, worker,
	claimed_at, lease_until, started_at, conversation, turns, tool_calls, cost_usd, orphan, cancel_at, cancel_by, cancel_why), DELETE
	ON turnpike.queue TO turnpike_worker;
GRANT INSERT ON turnpike.attempts, turnpike.costs, turnpike.outcomes, turnpike.events TO turnpike_worker;
-- A late result: what it was stays, what it left is filled in.
GRANT UPDATE (late, late_at, late_ending, host, agent_version, model, conversation, resumable, started_at, ended_at, duration_ms, exit_code, signal,
	is_error, error_subtype, timed_out, cost_capped, num_turns, tool_calls, cost_usd, cost_partial, rate_limit, versions, added, session_dir,
	result_text, result) ON turnpike.attempts TO turnpike_worker;
GRANT INSERT, UPDATE ON turnpike.pauses TO turnpike_worker;
-- A worker that is too new for the schema says so instead of failing bit by bit.
GRANT SELECT ON turnpike.goose_db_version TO turnpike_worker;
GRANT INSERT, UPDATE ON turnpike.orphans, turnpike.workers, turnpike.pools TO turnpike_worker;
GRANT EXECUTE ON FUNCTION turnpike.after(text, boolean, boolean, boolean, boolean, boolean, text, integer, integer, bigint, integer, integer, integer, double precision),
	turnpike.backoff(bigint, integer, bigint, double precision) TO turnpike_worker;

-- The dispatcher takes requests in, selects, reaps, cancels and sweeps. What is on
-- record it can add to but not change; history goes only by its own function.
GRANT SELECT ON ALL TABLES IN SCHEMA turnpike TO turnpike_dispatcher;
GRANT INSERT ON turnpike.jobs, turnpike.attempts, turnpike.costs, turnpike.outcomes, turnpike.finished, turnpike.events, turnpike.audit TO turnpike_dispatcher;
GRANT INSERT, UPDATE, DELETE ON turnpike.queue, turnpike.idempotency, turnpike.pauses, turnpike.limits, turnpike.orphans, turnpike.workers TO turnpike_dispatcher;
GRANT UPDATE ON turnpike.leader TO turnpike_dispatcher;
GRANT DELETE ON turnpike.audit TO turnpike_dispatcher;
GRANT EXECUTE ON FUNCTION
	turnpike.after(text, boolean, boolean, boolean, boolean, boolean, text, integer, integer, bigint, integer, integer, integer, double precision),
	turnpike.backoff(bigint, integer, bigint, double precision),
	turnpike.lead(bigint), turnpike.accept(jsonb, json[]), turnpike.uuid7(bigint), turnpike.uuid7_floor(timestamptz), turnpike.uuid7_time(uuid), turnpike.history(),
	turnpike.facts(jsonb), turnpike.member(jsonb, text[], text), turnpike.refuse(text, text), turnpike.one_of(text, text, text[]),
	turnpike.name(text, text), turnpike.line(text, text, integer), turnpike.whole(text, text, integer, integer, integer),
	turnpike.duration_ms(text, text), turnpike.instant(text, text),
	turnpike.extend_history(text, interval), turnpike.drop_history(text, timestamptz)
	TO turnpike_dispatcher;
