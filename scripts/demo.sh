#!/usr/bin/env bash
# From nothing to a finished, recorded turn, for a person to watch: `make demo` installs and builds first.
#
# Runs a whole installation (private Postgres, NATS, dispatcher, worker) under a state directory of its own, enqueues
# examples/request.json, follows it, and reads cost, duration and outcome back from Postgres in SQL. The agent is the
# real Claude Code CLI, confined by the kernel. Its model is scripted, unless ANTHROPIC_API_KEY is set.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" = 0 ]; then home=/var/lib/turnpike; else home=${XDG_STATE_HOME:-$HOME/.local/state}/turnpike; fi
dir=${TURNPIKE_DEMO_DIR:-$home/demo}
listen=127.0.0.1:${TURNPIKE_DEMO_PORT:-8430}
mkdir -p "$dir"
export TURNPIKE_SERVER=http://$listen TURNPIKE_TOKEN_FILE=$dir/token

step() { printf '\n\033[1m== %s\033[0m\n' "$*" | { [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && cat || sed 's/\x1b\[[0-9]*m//g'; }; }
pids=()
finish() {
	status=$?
	trap - EXIT
	for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
		kill -TERM "${pids[i]}" 2>/dev/null && wait "${pids[i]}" 2>/dev/null || true
	done
	if [ $status -ne 0 ]; then
		echo "demo: failed; the end of $dir/dev.log:" >&2
		tail -n 20 "$dir/dev.log" >&2 || true
	fi
	exit $status
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ -n "${ANTHROPIC_API_KEY:-}" ]; then
	step "model: the real API (ANTHROPIC_API_KEY is set)"
else
	step "model: scripted (set ANTHROPIC_API_KEY for the real one)"
	go build -o bin/provider ./internal/agent/agenttest/provider
	bin/provider --addr 127.0.0.1:0 >"$dir/provider.log" 2>&1 &
	pids+=($!)
	for _ in $(seq 100); do
		url=$(grep -om1 'http://127\.0\.0\.1:[0-9]*' "$dir/provider.log" || true)
		[ -z "$url" ] || break
		sleep 0.1
	done
	[ -n "$url" ] || { cat "$dir/provider.log" >&2; exit 1; }
	export ANTHROPIC_BASE_URL=$url ANTHROPIC_API_KEY=scripted
fi

step "starting Postgres, NATS, a dispatcher and a worker in $dir"
bin/dispatcher dev --dir "$dir" --listen "$listen" --nats-port 0 --bin claude=.cache/agents/bin/claude >"$dir/dev.log" 2>&1 &
dev=$!
pids+=($dev)
for _ in $(seq 600); do
	bin/dispatcher health --listen "$listen" >/dev/null 2>&1 && ready=1 && break
	kill -0 "$dev" 2>/dev/null || break
	sleep 0.1
done
[ -n "${ready:-}" ] || { echo "demo: the dispatcher does not come up" >&2; exit 1; }

step "enqueueing examples/request.json"
job=$(bin/dispatcher enqueue -f examples/request.json -o name)
bin/dispatcher get "$job"

step "the transcript, as it runs"
bin/dispatcher logs -f "$job"

step "the job, its attempt and its outcome"
bin/dispatcher get "$job"

step "cost, duration and outcome, in SQL as the reporter role"
sql="SELECT job_id, name, state, lane, outcome, cost_usd, took FROM turnpike.v_jobs ORDER BY created_at DESC LIMIT 5"
echo "$sql"
PGSERVICEFILE=$dir/pg_service.conf psql -X service=turnpike -c "$sql"

state=$(bin/dispatcher list --limit 1 -o json | grep -o '"state": "[a-z]*"' | head -1 | cut -d'"' -f4)
[ "$state" = succeeded ] || { echo "demo: the job ended $state" >&2; exit 1; }
step "job $job succeeded"
