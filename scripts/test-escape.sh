#!/usr/bin/env bash
# Plays every attack of internal/agent/confine as the agent, under every placement that this machine can run and as root and
# as an ordinary user, and prints the table: attempt, what became of it in each placement, and what holds it. Ends non-zero
# where anything is not as internal/agent/confine/testdata/verdicts has it. The claude placement, whose sandbox is the CLI's
# own, is tried through the CLI (internal/agent/driver/claude, TestOwnSandbox).
#
#   test-escape.sh [FLAG...]    flags of go test; -update records what was found
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || echo "test-escape: not root: only the columns of an ordinary user are played" >&2
scripts/deps.sh engine images sandbox agents
scripts/engine.sh up
CGO_ENABLED=0 go test -count=1 -v -run '^TestAttacks$' ./internal/agent/confine "$@"
go test -count=1 -run '^TestOwnSandbox' ./internal/agent/driver/claude
