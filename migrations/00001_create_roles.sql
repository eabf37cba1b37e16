-- +goose Up

-- The four kinds of caller. They are group roles without a login: an operator
-- makes logins and puts each into one of them. What each may do is granted where
-- the tables are.
--
-- Roles belong to the whole server, and several databases of one server may be
-- migrated at once: each step takes "somebody else just did it" for an answer.

-- +goose StatementBegin
DO $$
DECLARE
	role text;
	tries int;
BEGIN
	IF current_setting('server_encoding') <> 'UTF8' THEN
		RAISE EXCEPTION 'the database''s encoding is %, Turnpike needs UTF8', current_setting('server_encoding');
	END IF;
	FOREACH role IN ARRAY ARRAY['turnpike_producer', 'turnpike_dispatcher', 'turnpike_worker', 'turnpike_reporter'] LOOP
		IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
			BEGIN
				EXECUTE format('CREATE ROLE %I NOLOGIN NOINHERIT', role);
			EXCEPTION WHEN duplicate_object OR unique_violation THEN
				NULL;
			END;
		END IF;
	END LOOP;
	-- A reader must not hold back vacuum for long. Settings belong to the role that
	-- logs in, so a login of its own needs the same line.
	FOR tries IN 1..50 LOOP
		EXIT WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = 'turnpike_reporter'
			AND 'statement_timeout=30s' = ANY (rolconfig));
		BEGIN
			ALTER ROLE turnpike_reporter SET statement_timeout = '30s';
		EXCEPTION WHEN internal_error THEN -- "tuple concurrently updated"
			PERFORM pg_sleep(0.05);
		END;
	END LOOP;
END $$;
-- +goose StatementEnd

CREATE SCHEMA IF NOT EXISTS turnpike;
REVOKE ALL ON SCHEMA turnpike FROM PUBLIC;
GRANT USAGE ON SCHEMA turnpike TO turnpike_producer, turnpike_dispatcher, turnpike_worker, turnpike_reporter;
