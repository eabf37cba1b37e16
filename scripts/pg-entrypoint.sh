#!/bin/sh
# Entrypoint of the locally built Postgres image. It keeps the part of the public image's contract that compose files
# and testcontainers rely on:
#
#   POSTGRES_PASSWORD, POSTGRES_USER, POSTGRES_DB, each also as NAME_FILE
#   POSTGRES_INITDB_ARGS, POSTGRES_HOST_AUTH_METHOD, PGDATA
#   /docker-entrypoint-initdb.d/*.sh and *.sql, run once and in order of their names
#
# On a first start a private server takes the set-up, so "ready to accept connections" is logged twice.
set -eu
PGDATA=${PGDATA:-/var/lib/postgresql/data}
export PGDATA

case ${1:-postgres} in
-*) set -- postgres "$@" ;;         # only options: they are the server's
postgres) [ $# -gt 0 ] || set -- postgres ;;
*) exec "$@" ;;                     # another program, as asked
esac

# The server refuses to run as root. setpriv execs, so the server is pid 1 and gets the stop signal itself.
if [ "$(id -u)" = 0 ]; then
	mkdir -p "$PGDATA" /var/run/postgresql
	chown -R postgres:postgres "$PGDATA" /var/run/postgresql
	chmod 0700 "$PGDATA"
	exec setpriv --reuid=postgres --regid=postgres --clear-groups "$0" "$@"
fi

[ ! -s "$PGDATA/PG_VERSION" ] || exec "$@"

from_file() { # from_file NAME: sets NAME from the file that NAME_FILE points at
	eval "path=\${$1_FILE:-}"
	[ -z "$path" ] || eval "$1=\$(cat \"\$path\")"
}
from_file POSTGRES_PASSWORD
from_file POSTGRES_USER
from_file POSTGRES_DB
user=${POSTGRES_USER:-postgres}
db=${POSTGRES_DB:-$user}
auth=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}
if [ -z "${POSTGRES_PASSWORD:-}" ] && [ "$auth" != trust ]; then
	echo "POSTGRES_PASSWORD must be set for the first start" >&2
	exit 1
fi

secret=$(mktemp)
printf '%s\n' "${POSTGRES_PASSWORD:-unused}" >"$secret"
# shellcheck disable=SC2086 # the arguments are meant to be split
initdb --username="$user" --pwfile="$secret" --auth-local=trust --auth-host="$auth" \
	--encoding=UTF8 --locale=C.UTF-8 --no-sync ${POSTGRES_INITDB_ARGS:-} >/dev/null
rm -f "$secret"
echo "host all all all $auth" >>"$PGDATA/pg_hba.conf"

run_sql() { psql --no-psqlrc -q -v ON_ERROR_STOP=1 -U "$user" "$@"; }
# Over its socket only: nobody outside meets a half-made database.
pg_ctl -D "$PGDATA" -w -o "-c listen_addresses='' -c fsync=off" start
[ "$db" = postgres ] || echo 'CREATE DATABASE :"db"' | run_sql -d postgres -v db="$db"
for f in /docker-entrypoint-initdb.d/*; do
	case $f in
	*.sh) if [ -x "$f" ]; then "$f"; else sh "$f"; fi ;;
	*.sql) run_sql -d "$db" -f "$f" ;;
	esac
done
pg_ctl -D "$PGDATA" -m fast -w stop
exec "$@"
