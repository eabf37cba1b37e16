#!/usr/bin/env bash
# Builds the images of the Dockerfile, turnpike-dispatcher and turnpike-worker, from the programs in bin/ and the pinned
# agent CLI. Where no registry answers, the Debian base is made here, by mmdebstrap with the machine's apt settings.
#
#   build-images.sh
#
# Settings
#   TURNPIKE_BASE     the base image; its absence is what makes this script pull or build one     debian:12-slim
#   TURNPIKE_TAG      tag of the images      latest
#   TURNPIKE_IMAGES   pull, build or auto, as in engine.sh
set -euo pipefail
cd "$(dirname "$0")/.."
base=${TURNPIKE_BASE:-debian:12-slim} tag=${TURNPIKE_TAG:-latest}
fail() { echo "build-images: $*" >&2; exit 1; }
for program in bin/dispatcher bin/worker bin/launcher; do [ -x "$program" ] || fail "$program is missing: make build"; done
scripts/agents.sh >/dev/null
scripts/engine.sh image "$base" build-base-image.sh

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The builder of old works without a registry; its successor is not everywhere.
for program in dispatcher worker; do
	DOCKER_BUILDKIT=0 docker build --build-arg "BASE=$base" --target "$program" -t "turnpike-$program:$tag" . >"$log" 2>&1 ||
		fail "turnpike-$program: $(cat "$log")"
	docker image inspect -f '{{index .RepoTags 0}} {{.Size}} bytes' "turnpike-$program:$tag"
done
