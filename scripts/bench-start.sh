#!/usr/bin/env bash
# Measures what a start costs: a program that does nothing, started plainly, by each of our means, by bubblewrap with the
# same view of the files, and as a hardened container, all in one run. Prints a table; judges nothing.
#
#   bench-start.sh [FLAG...]    flags of internal/agent/confine/benchstart: -n STARTS, -run EXPRESSION
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/deps.sh sandbox
scripts/engine.sh up
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$dir" ./cmd/launcher ./internal/agent/confine/benchstart
image=turnpike-benchstart
"$dir/benchstart" -write "$dir/true"
tar -C "$dir" -cf - true | docker import - "$image" >/dev/null
"$dir/benchstart" -launcher "$dir/launcher" -image "$image" "$@"
docker image rm "$image" >/dev/null
