#!/usr/bin/env bash
# Makes a Debian base image where none can be pulled, with what the Dockerfile would install on one.
#
#   build-base-image.sh TAG
set -euo pipefail
tag=${1:?usage: build-base-image.sh TAG}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC1091
mmdebstrap --quiet --variant=essential --include=bash,ca-certificates,git,libstdc++6,passwd \
	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
	"$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/rootfs.tar" 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
docker import -c 'LABEL turnpike.built=locally' -c 'CMD ["bash"]' "$work/rootfs.tar" "$tag" >/dev/null
docker image inspect -f '{{index .RepoTags 0}} {{.Size}} bytes' "$tag"
