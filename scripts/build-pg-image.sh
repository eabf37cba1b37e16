#!/usr/bin/env bash
# Builds a Postgres image where none can be pulled: packs the machine's own server with the libraries it links to, a
# static busybox for the shell, and the entrypoint beside this script. Needs no root and no network.
#
#   build-pg-image.sh TAG        PG_MAJOR picks a version, else the newest installed
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tag=${1:?usage: build-pg-image.sh TAG}
fail() { echo "build-pg-image: $*" >&2; exit 1; }

major=${PG_MAJOR:-$(find /usr/lib/postgresql -mindepth 1 -maxdepth 1 -printf '%f\n' 2>/dev/null | sort -V | tail -1)}
bin=/usr/lib/postgresql/$major/bin lib=/usr/lib/postgresql/$major/lib share=/usr/share/postgresql/$major
[ -x "$bin/postgres" ] || fail "no Postgres server here (apt: postgresql)"
busybox=$(command -v busybox) || fail "no busybox here (apt: busybox-static)"
# busybox cannot change the uid and initdb asks `locale` what it may use: those two come from the machine.
tools=("$(command -v setpriv)" "$(command -v locale)")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
r=$work/rootfs
mkdir -p "$r"/{bin,etc,tmp,root,proc,sys,dev,docker-entrypoint-initdb.d,usr/local/bin,var/run/postgresql,var/lib/postgresql/data}

programs=()
for p in postgres initdb pg_ctl pg_isready psql pg_dump pg_restore; do programs+=("$bin/$p"); done
modules=()
for m in "$lib"/*.so; do
	case ${m##*/} in
	llvmjit.so | sepgsql.so | pgxml.so | uuid-ossp.so) ;; # large closures that nothing here uses; llvm alone is 110 MB
	*) modules+=("$m") ;;
	esac
done
mapfile -t libraries < <(ldd "${programs[@]}" "${modules[@]}" "${tools[@]}" 2>/dev/null |
	awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\/.*ld-linux/ && $1 !~ /:$/ { print $1 }' | sort -u)
# The server finds its library and share folders relative to its own path, so the layout is kept.
cp -L --parents "${programs[@]}" "${modules[@]}" "${tools[@]}" "${libraries[@]}" "$r/"
cp -rL --parents "$share" "$r/"
for optional in /usr/share/zoneinfo /usr/lib/locale/C.utf8; do
	[ ! -e "$optional" ] || cp -rL --parents "$optional" "$r/"
done
rm -rf "$r$share/man" "$r"/usr/share/zoneinfo/{right,posix}
echo "listen_addresses = '*'" >>"$r$share/postgresql.conf.sample" # as the public image does
ln -s "$major/bin" "$r/usr/lib/postgresql/bin"
ln -s "${programs[@]}" "$r/usr/local/bin/"

cp "$busybox" "$r/bin/busybox"
for applet in $(busybox --list); do
	case $applet in busybox | setpriv) ;; *) ln -s busybox "$r/bin/$applet" ;; esac
done
printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'postgres:x:999:999::/var/lib/postgresql:/bin/sh' >"$r/etc/passwd"
printf '%s\n' 'root:x:0:' 'postgres:x:999:' >"$r/etc/group"
printf '%s\n' 'passwd: files' 'group: files' 'hosts: files dns' >"$r/etc/nsswitch.conf"
install -m 0755 "$here/pg-entrypoint.sh" "$r/usr/local/bin/docker-entrypoint.sh"
tar -C "$r" --owner=0 --group=0 --numeric-owner -cf "$work/rootfs.tar" .
rm -rf "$r"

# A build and not `docker import`, which refuses STOPSIGNAL: Postgres needs SIGINT, as SIGTERM waits for every client.
cat >"$work/Dockerfile" <<DOCKERFILE
FROM scratch
ADD rootfs.tar /
RUN chmod 1777 /tmp && chown -R 999:999 /var/lib/postgresql /var/run/postgresql \
	&& chmod 2775 /var/run/postgresql && chmod 0700 /var/lib/postgresql/data
ENV PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 PGDATA=/var/lib/postgresql/data PG_MAJOR=$major
LABEL turnpike.built=locally
VOLUME /var/lib/postgresql/data
EXPOSE 5432
STOPSIGNAL SIGINT
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
DOCKERFILE
DOCKER_BUILDKIT=0 docker build -q --network none -t "$tag" "$work" >/dev/null 2>"$work/err" || fail "$(cat "$work/err")"
docker image inspect -f '{{index .RepoTags 0}} {{.Size}} bytes' "$tag"
