#!/usr/bin/env bash
# Builds the image that turns in containers run in: the target `agents` of the Dockerfile, with the pinned agent CLIs. Does
# nothing where the image already holds these very CLIs.
#
#   build-agent-image.sh [TAG]      turnpike-agents:latest unless given
#
# Settings
#   TURNPIKE_BASE     the base image      debian:12-slim
#   TURNPIKE_IMAGES   pull, build or auto, as in engine.sh
set -euo pipefail
cd "$(dirname "$0")/.."
tag=${1:-turnpike-agents:latest} base=${TURNPIKE_BASE:-debian:12-slim}
fail() { echo "build-agent-image: $*" >&2; exit 1; }

# Two tests of one machine may ask at the same time.
exec 7>"${TMPDIR:-/tmp}/turnpike-agent-image.$(id -u).lock"
flock -w 1800 7
scripts/agents.sh >/dev/null
scripts/engine.sh image "$base" build-base-image.sh
# Of the Dockerfile, what this target is made of.
recipe=$(sed -n '/ AS base$/,/ AS dispatcher$/p' Dockerfile | sha256sum | cut -d' ' -f1)
want="$(cat .cache/agents/stamp) $recipe $(docker image inspect -f '{{.Id}}' "$base")"
if [ "$(docker image inspect -f '{{index .Config.Labels "turnpike.agents"}}' "$tag" 2>/dev/null)" != "$want" ]; then
	old=$(docker image inspect -f '{{.Id}}' "$tag" 2>/dev/null || true)
	log=$(mktemp)
	trap 'rm -f "$log"' EXIT
	# One layer, and a context with nothing else. Headers and wrapper packages are no part of what runs.
	tar -c --exclude='*/node-linux-*/include' --exclude='*/@openai/codex' --exclude='*/@anthropic-ai/claude-code' \
		Dockerfile .cache/agents/bin .cache/agents/node_modules |
		DOCKER_BUILDKIT=0 docker build --network none --build-arg "BASE=$base" --target agents --label "turnpike.agents=$want" -t "$tag" - >"$log" 2>&1 ||
		fail "$(cat "$log")"
	[ -z "$old" ] || docker image rm "$old" >/dev/null 2>&1 || true # unless something still runs in it
fi
docker image inspect -f '{{index .RepoTags 0}} {{.Size}} bytes' "$tag"
