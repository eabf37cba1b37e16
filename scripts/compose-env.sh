#!/usr/bin/env bash
# Writes what compose.yaml needs to know and nobody else may: a password for each client of Postgres and NATS and an
# operator's token for the HTTP API, to .env, where compose finds them; and the token's hash to the tokens file beside
# it. What is there already stays: it is in use.
#
#   compose-env.sh [FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
file=${1:-.env}
tokens=$(cd "$(dirname "$file")" && pwd)/.tokens.yaml
umask 077
touch "$file"

# A letter first: the NATS configuration would read some passwords as numbers.
secret() { printf 'p%s' "$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')"; }
set_once() { # set_once NAME VALUE
	grep -q "^$1=" "$file" || printf '%s=%s\n' "$1" "$2" >>"$file"
}

set_once POSTGRES_PASSWORD "$(secret)"
for role in DISPATCHER WORKER PRODUCER REPORTER; do
	set_once "TURNPIKE_PG_${role}_PASSWORD" "$(secret)"
	set_once "TURNPIKE_NATS_${role}_PASSWORD" "$(secret)"
done
set_once TURNPIKE_TOKEN "$(secret)"
set_once TURNPIKE_TOKENS_FILE "$tokens"
if [ ! -e "$tokens" ]; then
	token=$(sed -n 's/^TURNPIKE_TOKEN=//p' "$file")
	printf -- '- {name: operator, role: operator, sha256: %s}\n' \
		"$(printf %s "$token" | sha256sum | cut -d' ' -f1)" >"$tokens"
	chmod 0644 "$tokens" # a hash, for the container's user to read
fi
