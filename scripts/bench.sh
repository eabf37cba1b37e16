#!/usr/bin/env bash
# Measures Turnpike beside its peers, on one Postgres and one redis, and prints the table. Judges nothing.
#
#   bench.sh [FLAG...]    flags of bench/cmd/bench: -rounds N, -systems NAMES, -figures NAMES, -quick, -out FILE, -doc FILE
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/deps.sh postgres redis
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -C bench -trimpath -o "$dir/" ./cmd/...
mkdir "$dir/programs"
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$dir/programs/" ./cmd/dispatcher ./cmd/worker
chmod 755 "$dir" # Postgres may run as another user
"$dir/bench" -dir "$dir" "$@"
