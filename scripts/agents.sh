#!/bin/sh
# Installs the agent CLIs pinned in agents/package-lock.json and prints the
# directory to put in front of PATH. Does nothing, and needs no network, when
# what is installed already matches the lock file.
#
#   PATH="$(scripts/agents.sh):$PATH"
set -eu

# One line for each program: its name, the npm package that holds the native
# executable, and the executable inside it. PLATFORM stands for e.g. linux-x64.
# Executables are linked past their packages' node wrappers and install
# scripts, which download things or pick another version.
programs='
claude  @anthropic-ai/claude-code-PLATFORM  claude
node    node-PLATFORM                       bin/node
'

say() { echo "agents: $*" >&2; }
die() { say "$*"; exit 1; }

case "$(uname -s)/$(uname -m)" in
Linux/x86_64) platform=linux-x64 ;;
Linux/aarch64) platform=linux-arm64 ;;
*) die "no pinned CLIs for $(uname -s) on $(uname -m); they are pinned for Linux on x86_64 and aarch64" ;;
esac
programs=$(echo "$programs" | sed -e '/^$/d' -e "s/PLATFORM/$platform/")

root=$(cd "$(dirname "$0")/.." && pwd)
pins=$root/agents
cache=$root/.cache/agents
bin=$cache/bin
want="$platform $(cat "$pins/package-lock.json" "$0" | sha256sum | cut -d' ' -f1)"

mkdir -p "$cache"
[ -e "$root/.cache/.gitignore" ] || echo '*' >"$root/.cache/.gitignore"

current() {
	[ "$(cat "$cache/stamp" 2>/dev/null)" = "$want" ] || return 1
	echo "$programs" | while read -r name _; do [ -x "$bin/$name" ] || return 1; done
}

install() {
	command -v npm >/dev/null || die "npm is needed to install the agent CLIs: run 'make deps'"
	say "installing the pinned agent CLIs into ${cache#"$root"/} (some 500 MB, once)"
	rm -rf "$cache/stamp" "$bin"
	cp "$pins/package.json" "$pins/package-lock.json" "$pins/.npmrc" "$cache"
	# Errors only: npm would warn that a node older than the CLIs ask for runs
	# it, which does not matter to the native executables linked below.
	(cd "$cache" && npm ci --ignore-scripts --loglevel=error --no-progress >&2) ||
		die "npm ci failed; is its registry reachable?"
	mkdir -p "$bin"
	echo "$programs" | while read -r name package file; do
		home=$cache/node_modules/$package
		[ -x "$home/$file" ] || die "npm did not install $package"
		ln -s "../node_modules/$package/$file" "$bin/$name"
		# A CLI that is there but cannot run here must fail now, not in a turn.
		pinned=$(sed -n 's/^ *"version": *"\(.*\)".*/\1/p' "$home/package.json")
		got=$("$bin/$name" --version) || die "$name does not run on this machine"
		case $got in
		*"$pinned"*) say "$name $pinned" ;;
		*) die "$name says it is '$got', pinned is $pinned" ;;
		esac
	done
	echo "$want" >"$cache/stamp"
}

# Two builds of one tree may ask at the same time.
exec 9>"$cache/lock"
if command -v flock >/dev/null; then flock 9; fi
current || install
echo "$bin"
