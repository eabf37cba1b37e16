#!/usr/bin/env bash
# Runs every fuzz target of the tree, one after the other, and fails when one of them found something or hangs.
#
#   fuzz.sh [TIME]      TIME, such as 90s, 10m or 2h, is for all targets together: each gets an even share     10m
#
# What a target found stays as a file in its package's testdata/fuzz, to be committed with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."
all=${1:-10m}
case $all in
*h) seconds=$((${all%h} * 3600)) ;;
*m) seconds=$((${all%m} * 60)) ;;
*s) seconds=${all%s} ;;
*) echo "fuzz: $all is no time: want such as 90s, 10m or 2h" >&2; exit 2 ;;
esac

mapfile -t packages < <(git ls-files -co --exclude-standard -- '*_test.go' | xargs grep -l '^func Fuzz' | xargs -n1 dirname | sort -u)
targets=()
for package in "${packages[@]}"; do
	names=$(go test -list '^Fuzz' "./$package" | grep '^Fuzz') || { echo "fuzz: $package lists no target" >&2; exit 1; }
	for name in $names; do targets+=("$package $name"); done
done
share=$((seconds / ${#targets[@]}))
[ "$share" -ge 1 ] || share=1
echo "fuzz: ${#targets[@]} targets, $share s each"

log=$(mktemp) failed=
trap 'rm -f "$log"' EXIT
for target in "${targets[@]}"; do
	read -r package name <<<"$target"
	status=0
	# Minimizing has stalled for minutes on large inputs; a bound of its own keeps the share. The outer one is for a
	# target that hangs: it includes the build and the run of what was found before.
	timeout --kill-after=10 $((share + 300)) go test -run '^$' -fuzz "^$name\$" -fuzztime "${share}s" -fuzzminimizetime 5s \
		"./$package" >"$log" 2>&1 || status=$?
	execs=$({ grep -o "execs: [0-9]*" "$log" || true; } | tail -1 | tr -dc 0-9)
	if [ $status = 0 ]; then
		printf 'ok    %-32s %-20s %12s execs\n' "$package" "$name" "${execs:-0}"
	elif [ $status != 124 ] && ! grep -qE 'Failing input written|panic|--- FAIL: .*seed#|^FAIL.*build failed' "$log" && grep -q 'context deadline exceeded' "$log"; then
		# Go's own fuzzer can be caught by the end of its time between two inputs; nothing was found.
		printf 'ok    %-32s %-20s %12s execs, stopped by the clock\n' "$package" "$name" "${execs:-0}"
	else
		failed=1
		printf 'FAIL  %-32s %-20s\n' "$package" "$name"
		tail -n 60 "$log"
	fi
done
[ -z "$failed" ]
