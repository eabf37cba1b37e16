#!/usr/bin/env bash
# Installs what a machine lacks, and nothing else. Debian's packages come through apt, the agent CLIs through npm.
#
#   deps.sh GROUP...     groups: postgres engine images compose race sandbox agents redis, or all
#
# On a terminal it shows the list and asks first; with CI=true, YES=1 or no terminal it goes ahead. On a machine
# without apt it says what to install and fails.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
say() { printf 'deps: %s\n' "$*" >&2; }

missing=()
need() { # need COMMAND PACKAGE...
	command -v "$1" >/dev/null || missing+=("${@:2}")
}
answers() { command -v docker >/dev/null && timeout 10 docker version -f '{{.Server.Version}}' >/dev/null 2>&1; }
postgres_binaries() { command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; }

agents=
group() {
	case $1 in
	postgres) postgres_binaries || missing+=(postgresql) ;;
	engine) answers || { need docker docker.io; need dockerd docker.io; need iptables iptables; } ;;
	images) need mmdebstrap mmdebstrap ;; # makes base images on a machine that can pull none
	compose) docker compose version >/dev/null 2>&1 || need docker-compose docker-compose ;;
	race) need gcc gcc libc6-dev ;; # the race detector links with cgo
	sandbox) need bwrap bubblewrap; need socat socat ;; # what Claude Code's own sandbox is made of
	redis) need redis-server redis-server ;; # for `make bench` alone
	agents) agents=1 ;;
	all) for g in postgres engine compose race sandbox agents; do group "$g"; done ;;
	*) say "unknown group $1"; exit 2 ;;
	esac
}
[ $# -gt 0 ] || set -- all
for g in "$@"; do group "$g"; done

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

agree() { # agree WHAT: asks where somebody can answer
	if [ "${CI:-}" = true ] || [ "${YES:-}" = 1 ] || [ ! -t 0 ]; then return 0; fi
	read -r -p "Install $1? [Y/n] " answer
	case $answer in '' | y | Y | yes) return 0 ;; *) say "not installed: $1"; exit 1 ;; esac
}

# install_packages keeps package scripts from starting services: the engine is engine.sh's to start, a Postgres
# cluster nobody asked for is not wanted, and a machine without an init would fail on either.
install_packages() {
	local log policy=/usr/sbin/policy-rc.d cluster=/etc/postgresql-common/createcluster.conf made=()
	log=$(mktemp)
	if [ ! -e "$policy" ] && [ ! -d /run/systemd/system ]; then
		printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
		as_root chmod 0755 "$policy"
		made+=("$policy")
	fi
	if [[ " $* " == *" postgresql "* && ! -e $cluster ]]; then
		as_root mkdir -p "${cluster%/*}"
		echo 'create_main_cluster = false' | as_root tee "$cluster" >/dev/null
		made+=("$cluster")
	fi
	say "installing $*"
	if ! { as_root apt-get update -qq &&
		as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			-o Dpkg::Options::=--force-confold "$@"; } </dev/null >"$log" 2>&1; then
		tail -20 "$log" >&2
		[ ${#made[@]} -eq 0 ] || as_root rm -f "${made[@]}"
		say "apt failed (see $log)"
		exit 1
	fi
	[ ${#made[@]} -eq 0 ] || as_root rm -f "${made[@]}"
	rm -f "$log"
}

if [ ${#missing[@]} -gt 0 ]; then
	mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
	command -v apt-get >/dev/null || { say "please install the equivalents of: ${missing[*]}"; exit 1; }
	agree "the packages ${missing[*]}"
	install_packages "${missing[@]}"
fi
if [ -n "$agents" ]; then
	command -v npm >/dev/null || { say "npm is needed to install the agent CLIs"; exit 1; }
	"$root/scripts/agents.sh" >/dev/null # it prints where they are
fi
