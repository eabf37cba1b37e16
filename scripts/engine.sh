#!/usr/bin/env bash
# Brings a machine to: a container engine that answers, and the images that tests and compose need.
#
#   engine.sh up        starts and builds what is missing; changes nothing where all is there
#   engine.sh status    0 when the engine answers and the images are there
#   engine.sh down      ends only an engine that `up` started, and only that very process
#   engine.sh image NAME BUILDER    has one more image there: pulled, or built by scripts/BUILDER NAME
#
# Safe to run twice and from two shells at once.
#
# Settings
#   TURNPIKE_ENGINE_DIR   state of an engine started here      /var/lib/turnpike-engine
#   TURNPIKE_IMAGES       pull, build, or auto: pull where a registry answers, else build     auto
#   PG_IMAGE, NATS_IMAGE  names of the images      postgres:15, nats:2.15
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${TURNPIKE_ENGINE_DIR:-/var/lib/turnpike-engine}
images=${TURNPIKE_IMAGES:-auto}
PG_IMAGE=${PG_IMAGE:-postgres:15} NATS_IMAGE=${NATS_IMAGE:-nats:2.15}

say() { printf 'engine: %s\n' "$*" >&2; }
answers() { command -v docker >/dev/null && timeout 10 docker version -f '{{.Server.Version}}' 2>/dev/null; }
have() { docker image inspect "$1" >/dev/null 2>&1; }
started() { awk '{print $22}' "/proc/$1/stat" 2>/dev/null; } # pids are reused; pid and start time are not

ours() { # the pid that `up` wrote down, if it is still that process
	local pid since
	read -r pid since 2>/dev/null <"$dir/owner" || return 1
	[ "$(started "$pid")" = "$since" ] && echo "$pid"
}

start_engine() {
	"$here/deps.sh" engine
	if v=$(answers); then say "running ($v)"; return; fi # a package script started it
	if [ "$(id -u)" != 0 ] || [ -d /run/systemd/system ]; then
		say "the container engine does not answer: start it (systemctl start docker), and join the group docker"
		exit 1
	fi
	mountpoint -q /sys/fs/cgroup || { say "no cgroups are mounted here: an engine cannot run"; exit 1; }
	mkdir -p "$dir"
	rm -f "$dir/pid" "$dir/owner"
	say "starting dockerd in $dir"
	# A session of its own and no inherited descriptors: it outlives this script and holds neither its pipes nor the lock.
	# shellcheck disable=SC2016
	setsid -f bash -c 'exec dockerd --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/pid" \
		-H unix:///var/run/docker.sock >>"$1/log" 2>&1 </dev/null 8>&- 9>&-' _ "$dir"
	for _ in $(seq 300); do
		if [ -s "$dir/pid" ] && v=$(answers); then break; fi
		sleep 0.2
	done
	[ -n "${v:-}" ] || { tail -20 "$dir/log" >&2; say "dockerd did not come up"; exit 1; }
	local pid
	pid=$(cat "$dir/pid")
	echo "$pid $(started "$pid")" >"$dir/owner"
	say "running ($v), pid $pid"
}

# pull answers within 15 s where no registry does: a pull that has found its image says so at once, and only then
# may it take its time. One silent registry is not asked again.
registry=unknown
pull() { # pull IMAGE
	[ "$registry" != silent ] || return 1
	local log pid rc=1
	log=$(mktemp)
	timeout 900 docker pull "$1" >"$log" 2>&1 </dev/null &
	pid=$!
	for _ in $(seq 75); do
		if grep -q 'Pulling from' "$log"; then
			registry=answers
			say "pulling $1"
			break
		fi
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.2
	done
	if [ "$registry" != answers ] && kill "$pid" 2>/dev/null; then :; fi
	if wait "$pid"; then rc=0; fi
	rm -f "$log"
	[ $rc = 0 ] || [ "$registry" = answers ] || registry=silent
	return $rc
}

image() { # image NAME BUILDER
	if have "$1"; then return; fi
	if [ "$images" != build ] && pull "$1"; then return; fi
	[ "$images" != pull ] || { say "cannot pull $1"; exit 1; }
	"$here/deps.sh" images
	say "building $1 from this machine's own packages"
	"$here/$2" "$1" >&2
}

up() {
	# Two shells at once: the second waits for the first and finds everything there.
	exec 8>"${TMPDIR:-/tmp}/turnpike-engine.$(id -u).lock"
	flock -w 900 8
	local v
	if v=$(answers); then say "already running ($v)"; else start_engine; fi
	image "$PG_IMAGE" build-pg-image.sh
	image "$NATS_IMAGE" build-nats-image.sh
	say ready
}

down() {
	local pid
	pid=$(ours) || { say "no engine of this script's is running"; return; }
	docker ps -q | xargs -r docker stop -t 5 >/dev/null 2>&1 || true
	kill -TERM "$pid"
	for _ in $(seq 150); do
		[ -e "/proc/$pid" ] || { rm -f "$dir/owner" "$dir/pid"; say stopped; return; }
		sleep 0.2
	done
	say "pid $pid did not end"
	exit 1
}

case ${1:-up} in
up) up ;;
status) answers >/dev/null && have "$PG_IMAGE" && have "$NATS_IMAGE" ;;
down) down ;;
image) image "${2:?name}" "${3:?builder}" ;;
*) echo "usage: $0 up|status|down|image NAME BUILDER" >&2; exit 2 ;;
esac
