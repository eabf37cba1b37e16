#!/usr/bin/env bash
# Builds a Postgres image where none can be pulled: Debian's own packages on a Debian base, made by mmdebstrap with the
# machine's apt settings, and the entrypoint beside this script.
#
#   build-pg-image.sh TAG        PG_MAJOR picks the version
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tag=${1:?usage: build-pg-image.sh TAG}
major=${PG_MAJOR:-15}
fail() { echo "build-pg-image: $*" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC1091,SC2016 # in hooks, $1 is the new root
mmdebstrap --quiet --variant=essential --include="postgresql-$major" \
	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-exclude=*/llvmjit*' --dpkgopt='path-exclude=*/libLLVM*' `# without it there is no JIT, and 110 MB less` \
	--dpkgopt='path-exclude=*/bitcode/*' \
	--essential-hook='mkdir -p "$1/etc/postgresql-common"' \
	--essential-hook='echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.conf"' \
	--customize-hook='mkdir -p "$1/docker-entrypoint-initdb.d"' \
	--customize-hook="echo \"listen_addresses = '*'\" >>\"\$1/usr/share/postgresql/$major/postgresql.conf.sample\"" \
	"$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/rootfs.tar" 2>"$work/err" || fail "$(cat "$work/err")"

install -m 0755 "$here/pg-entrypoint.sh" "$work/"
# A build and not `docker import`, which refuses STOPSIGNAL: Postgres needs SIGINT, as SIGTERM waits for every client.
cat >"$work/Dockerfile" <<DOCKERFILE
FROM scratch
ADD rootfs.tar /
COPY pg-entrypoint.sh /usr/local/bin/
ENV PATH=/usr/lib/postgresql/$major/bin:/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 PGDATA=/var/lib/postgresql/data
LABEL turnpike.built=locally
VOLUME /var/lib/postgresql/data
EXPOSE 5432
STOPSIGNAL SIGINT
ENTRYPOINT ["/usr/local/bin/pg-entrypoint.sh"]
CMD ["postgres"]
DOCKERFILE
DOCKER_BUILDKIT=0 docker build -q --network none -t "$tag" "$work" >/dev/null 2>"$work/err" || fail "$(cat "$work/err")"
docker image inspect -f '{{index .RepoTags 0}} {{.Size}} bytes' "$tag"
