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
mkdir -p "$dir/programs/agent"
# Of one named build, as worker and launcher must be to work together.
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X turnpike/internal/buildinfo.Version=bench' -o "$dir/programs/" ./cmd/...
mv "$dir/agent" "$dir/programs/agent/"
chmod 755 "$dir" # Postgres may run as another user
"$dir/bench" -dir "$dir" "$@"
