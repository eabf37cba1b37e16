#!/usr/bin/env bash
# Writes the passwords that compose.yaml needs, one for each client of Postgres and NATS, to .env, where compose finds
# them. Passwords that are there already stay; they are in use.
#
#   compose-env.sh [FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
file=${1:-.env}
umask 077
touch "$file"
names=(POSTGRES_PASSWORD)
for role in dispatcher worker producer reporter; do
	names+=("TURNPIKE_PG_${role^^}_PASSWORD" "TURNPIKE_NATS_${role^^}_PASSWORD")
done
for name in "${names[@]}"; do
	grep -q "^$name=" "$file" && continue
	# A letter first: the NATS configuration would read some passwords as numbers.
	printf '%s=p%s\n' "$name" "$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')" >>"$file"
done
