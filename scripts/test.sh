#!/usr/bin/env bash
# Runs every test on real parts and fails when a suite did not run.
#
#   test.sh [GO TEST FLAG...] [PACKAGE...]      packages: ./... unless given
#
# Brings up engine and images where missing, and one Postgres that all test processes share, so that not each of them
# starts its own. What it starts, and what a crashed test left, goes with it. With CI=true a skipped test is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/engine.sh up

flags=() packages=()
for arg in "$@"; do
	case $arg in -*) flags+=("$arg") ;; *) packages+=("$arg") ;; esac
done
whole=
[ ${#packages[@]} -gt 0 ] || { packages=(./...) && whole=1; }

run=run-$$-$(date +%s)
export TURNPIKE_TEST_RUN=$run
sweep() {
	local composed=label=com.docker.compose.project=turnpike-e2e-$run
	{
		docker ps -aq --filter "label=turnpike.testenv=$run"
		docker ps -aq --filter "$composed"
	} | xargs -r docker rm -fv >/dev/null || true
	docker network ls -q --filter "$composed" | xargs -r docker network rm >/dev/null || true
	docker volume ls -q --filter "$composed" | xargs -r docker volume rm >/dev/null || true
}
trap sweep EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
postgres=$(docker run -d --label "turnpike.testenv=$run" -p 127.0.0.1::5432 \
	-e POSTGRES_USER=turnpike_test -e "POSTGRES_PASSWORD=$password" -e POSTGRES_DB=postgres "${PG_IMAGE:-postgres:15}" \
	postgres -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=300)
address=$(docker port "$postgres" 5432/tcp | head -1)
# testenv waits until it answers.
export TURNPIKE_TEST_PG_DSN="postgres://turnpike_test:$password@$address/postgres?sslmode=disable"

mkdir -p .cache/bin
(cd tools && go build -o ../.cache/bin/testsum ./testsum && go test ./testsum >/dev/null)

# Every package that has tests must have passed one; a whole run also needs the suites that prove the system.
mapfile -t must < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "${packages[@]}" | sed '/^$/d')
if [ -n "$whole" ]; then
	must+=(turnpike/internal/archtest turnpike/internal/testenv turnpike/internal/e2e turnpike/internal/chaos:TestChaos)
	# Each of the four real CLIs: the suite of its driver, the kills, its example, and a turn in a container.
	for agent in claude codex opencode pi; do
		must+=("turnpike/internal/agent/driver/$agent:TestDriver" "turnpike/internal/agent/killtest:TestKills/$agent"
			"turnpike/internal/e2e:TestExamples/$agent" "turnpike/internal/agent/sandbox/container:TestTurns/$agent")
	done
fi
sum=()
[ "${CI:-}" != true ] || sum+=(-no-skips)
tests() {
	local failed=
	go test -race -count=1 -timeout 20m -json "${flags[@]}" "${packages[@]}" || failed=1
	# A module of its own, so that what it compares with is no dependency of the programs.
	[ -z "$whole" ] || go test -C bench -count=1 -json "${flags[@]}" ./... || failed=1
	[ -z "$failed" ]
}
tests | .cache/bin/testsum "${sum[@]}" "${must[@]}"
