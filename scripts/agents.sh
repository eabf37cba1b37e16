#!/bin/sh
# Installs the agent CLIs pinned in agents/package-lock.json and prints the
# directory to put in front of PATH. Does nothing, and needs no network, when
# what is installed already matches the lock file.
#
#   PATH="$(scripts/agents.sh):$PATH"
set -eu

say() { echo "agents: $*" >&2; }
die() { say "$*"; exit 1; }

case "$(uname -s)/$(uname -m)" in
Linux/x86_64) platform=linux-x64 triple=x86_64-unknown-linux-musl ;;
Linux/aarch64) platform=linux-arm64 triple=aarch64-unknown-linux-musl ;;
*) die "no pinned CLIs for $(uname -s) on $(uname -m); they are pinned for Linux on x86_64 and aarch64" ;;
esac

# One line for each program: its name, the npm package that holds it, and the
# file inside that runs it. Native executables are linked past their packages'
# node wrappers and install scripts, which download things or pick another
# version; a .js file gets a script that runs it on the pinned node, since that
# of the machine may be too old.
programs="
node    node-$platform                       bin/node
claude  @anthropic-ai/claude-code-$platform  claude
codex   @openai/codex-$platform              vendor/$triple/bin/codex
pi      @earendil-works/pi-coding-agent      dist/bundle/cli.js
"
if [ $platform = linux-x64 ]; then
	# The baseline build also runs on processors without AVX2.
	programs="${programs}opencode  opencode-$platform-baseline  bin/opencode
"
else
	say "opencode is pinned for linux-x64 only; its tests will fail here"
fi
programs=$(echo "$programs" | sed '/^$/d')

root=$(cd "$(dirname "$0")/.." && pwd)
pins=$root/agents
cache=$root/.cache/agents
bin=$cache/bin
new=$cache/new
want="$platform $(cat "$pins/package-lock.json" "$0" | sha256sum | cut -d' ' -f1)"

mkdir -p "$cache"
[ -e "$root/.cache/.gitignore" ] || echo '*' >"$root/.cache/.gitignore"

current() {
	[ "$(cat "$cache/stamp" 2>/dev/null)" = "$want" ] || return 1
	echo "$programs" | while read -r name _; do [ -x "$bin/$name" ] || return 1; done
}

# provide NAME PACKAGE FILE: makes bin/NAME, and shows that it runs. A CLI that is
# there but cannot run here must fail now, not in a turn.
provide() {
	home=$new/node_modules/$2
	[ -e "$home/$3" ] || die "npm did not install $2"
	case $3 in
	*.js)
		cat >"$new/bin/$1" <<-WRAPPER
			#!/bin/sh
			self=\$(readlink -f "\$0")
			agents=\${self%/bin/*}
			exec "\$agents/bin/node" "\$agents/node_modules/$2/$3" "\$@"
		WRAPPER
		chmod +x "$new/bin/$1"
		;;
	*) ln -s "../node_modules/$2/$3" "$new/bin/$1" ;;
	esac
	pinned=$(sed -n 's/^[[:space:]]*"version": *"\(.*\)".*/\1/p' "$home/package.json" | head -1)
	pinned=${pinned%-"$platform"}
	got=$(HOME=$new/home TMPDIR=$new/tmp "$new/bin/$1" --version) || die "$1 does not run on this machine"
	case $got in
	*"$pinned"*) say "$1 $pinned, $(du -sm "$home" | cut -f1) MB" ;;
	*) die "$1 says it is '$got', pinned is $pinned" ;;
	esac
}

install() {
	command -v npm >/dev/null || die "npm is needed to install the agent CLIs: run 'make deps'"
	say "installing the pinned agent CLIs into ${cache#"$root"/} (some 1.3 GB, once)"
	start=$(date +%s)
	# What is installed stays in use until all of the new is there and runs.
	trap 'rm -rf "$new"' EXIT
	rm -rf "$new"
	mkdir -p "$new/bin" "$new/home" "$new/tmp"
	cp "$pins/package.json" "$pins/package-lock.json" "$pins/.npmrc" "$new"
	# Errors only: npm would warn that a node older than the CLIs ask for installs
	# them, which does not matter to how they are run.
	(cd "$new" && npm ci --ignore-scripts --loglevel=error --no-progress >&2) ||
		die "npm ci failed; is its registry reachable?"
	while read -r name package file; do
		provide "$name" "$package" "$file"
	done <<-LIST
		$programs
	LIST
	rm -rf "$cache/stamp" "$bin" "$cache/node_modules"
	mv "$new/node_modules" "$new/bin" "$cache"
	echo "$want" >"$cache/stamp"
	say "$(du -sm "$cache/node_modules" | cut -f1) MB in $(($(date +%s) - start)) s"
}

# Two builds of one tree may ask at the same time.
exec 9>"$cache/lock"
if command -v flock >/dev/null; then flock 9; fi
current || install
echo "$bin"
