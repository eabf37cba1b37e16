#!/bin/sh
# Run once by the Postgres image, when it makes its data folder: a login for each program, in the group role whose
# rights the migrations grant. The passwords are the environment's; see compose.yaml.
set -eu
for program in dispatcher worker producer reporter; do
	name=$(echo "$program" | tr '[:lower:]' '[:upper:]')
	eval "password=\$TURNPIKE_PG_${name}_PASSWORD"
	psql --no-psqlrc -q -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" \
		-v login="$program" -v password="$password" -v role="turnpike_$program" <<'SQL'
CREATE ROLE :"role" NOLOGIN NOINHERIT;
CREATE ROLE :"login" LOGIN PASSWORD :'password' IN ROLE :"role";
SQL
done
# A reader must not hold back vacuum for long; settings belong to the role that logs in.
psql --no-psqlrc -q -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" -c "ALTER ROLE reporter SET statement_timeout = '30s'"
