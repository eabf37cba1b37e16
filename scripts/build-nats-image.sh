#!/usr/bin/env bash
# Builds a NATS server image where none can be pulled: the very version in go.mod, static, from the Go module proxy.
#
#   build-nats-image.sh TAG
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
tag=${1:?usage: build-nats-image.sh TAG}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The flags are those of `make build`, so that the build cache serves both.
(cd "$root" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$work/nats-server" github.com/nats-io/nats-server/v2)
cat >"$work/Dockerfile" <<'DOCKERFILE'
FROM scratch
COPY nats-server /nats-server
LABEL turnpike.built=locally
VOLUME /data
EXPOSE 4222 8222
ENTRYPOINT ["/nats-server"]
CMD ["-js", "-sd", "/data", "-m", "8222"]
DOCKERFILE
DOCKER_BUILDKIT=0 docker build -q --network none -t "$tag" "$work" >/dev/null 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
docker image inspect -f '{{index .RepoTags 0}} {{.Size}} bytes' "$tag"
