-- +goose Up

-- What follows for a job whose attempt ended. This is the only place that decides
-- it: settling and reaping both ask here.
CREATE TYPE turnpike.verdict AS (
	next turnpike.job_state, -- final, or queued (given back at once), or scheduled
	reason text,             -- the word after the slash: failed/agent
	spent boolean,           -- a try was used up
	returned boolean,        -- the attempt was given back
	resume boolean,          -- the next attempt continues this one's conversation
	delay_ms bigint          -- until it may be queued again
);

-- +goose StatementBegin
-- Twice as long each time, up to a limit, the last half of it by chance.
CREATE FUNCTION turnpike.backoff(first_ms bigint, nth integer, most_ms bigint, jitter double precision) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT floor(least(first_ms * power(2, least(nth, 20)), greatest(most_ms, first_ms)) * (0.5 + 0.5 * jitter))::bigint
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION turnpike.after(
	ending text,
	is_error boolean,
	started boolean,      -- something was executed
	touched boolean,      -- a tool was called, in this attempt or in one whose conversation it continued
	resumable boolean,    -- the conversation can be continued
	cancelled boolean,    -- a person asked to stop it
	policy text,
	tries_spent integer,  -- before this attempt
	max_tries integer,
	backoff_ms bigint,
	crashes integer,      -- before this attempt, and so on
	overloads integer,
	returns integer,
	jitter double precision
) RETURNS turnpike.verdict
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	again boolean;
BEGIN
	-- Ended by itself: kept even if a cancel came at the same time.
	CASE ending
	WHEN 'done' THEN
		IF is_error THEN
			RETURN ('failed', 'agent', true, false, false, 0)::turnpike.verdict;
		END IF;
		RETURN ('succeeded', '', true, false, false, 0)::turnpike.verdict;
	WHEN 'refused' THEN
		RETURN ('failed', 'refused', false, false, false, 0)::turnpike.verdict;
	WHEN 'capped' THEN
		RETURN ('failed', 'capped', true, false, false, 0)::turnpike.verdict;
	ELSE
		NULL;
	END CASE;

	IF cancelled OR ending = 'cancelled' THEN
		RETURN ('cancelled', 'cancelled', started, false, false, 0)::turnpike.verdict;
	END IF;

	-- Given back, which spends nothing: the cause was outside and nothing was done yet.
	CASE ending
	WHEN 'unready' THEN
		RETURN ('scheduled', 'unready', false, true, false,
			turnpike.backoff(5000, returns, 600000, jitter))::turnpike.verdict;
	WHEN 'limited', 'credential' THEN -- the account is paused meanwhile
		IF NOT touched THEN
			RETURN ('queued', ending, false, true, false, 0)::turnpike.verdict;
		ELSIF policy = 'resume' AND resumable THEN
			RETURN ('queued', ending, false, true, true, 0)::turnpike.verdict;
		END IF;
	WHEN 'overloaded' THEN
		IF NOT touched AND overloads < 5 THEN
			RETURN ('scheduled', 'overloaded', false, true, false,
				turnpike.backoff(10000, overloads, 300000, jitter))::turnpike.verdict;
		END IF;
	WHEN 'drained' THEN
		IF NOT started THEN
			RETURN ('queued', 'drained', false, true, false, 0)::turnpike.verdict;
		ELSIF resumable THEN
			RETURN ('queued', 'drained', false, true, true, 0)::turnpike.verdict;
		END IF;
	WHEN 'lost' THEN
		IF crashes >= 2 THEN
			RETURN ('failed', 'crashed', true, false, false, 0)::turnpike.verdict;
		END IF;
		-- Nobody knows what it did after its last beat.
		touched := touched OR started;
	ELSE
		NULL;
	END CASE;

	again := CASE policy
		WHEN 'never' THEN false
		WHEN 'if_not_started' THEN NOT touched
		WHEN 'resume' THEN NOT touched OR resumable
		WHEN 'always' THEN true
	END;
	IF again AND tries_spent + 1 < max_tries THEN
		RETURN ('scheduled', ending, true, false, policy = 'resume' AND touched,
			turnpike.backoff(backoff_ms, tries_spent, 3600000, jitter))::turnpike.verdict;
	END IF;
	RETURN ('failed', ending, true, false, false, 0)::turnpike.verdict;
END $$;
-- +goose StatementEnd
