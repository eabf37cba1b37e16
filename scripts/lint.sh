#!/usr/bin/env bash
# Everything that is judged without running the program: formatting, vet, the import map, and golangci-lint with
# .golangci.yaml. The linter is built once, from the version that tools/go.mod pins.
#
#   lint.sh [PACKAGE...]      packages: ./... unless given
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- ./...

version=$(awk '$1 == "github.com/golangci/golangci-lint/v2" { print $2 }' tools/go.mod)
linter=$PWD/.cache/bin/golangci-lint-$version
if [ ! -x "$linter" ]; then
	echo "lint: building golangci-lint $version, once; this takes minutes" >&2
	mkdir -p "${linter%/*}"
	(cd tools && go build -o "$linter.$$" github.com/golangci/golangci-lint/v2/cmd/golangci-lint)
	mv "$linter.$$" "$linter"
fi

failed=
check() { "$@" || failed=1; } # all of them, so that one run tells everything

formatted() {
	local files
	files=$(git ls-files -co --exclude-standard -- '*.go' | xargs -r ls 2>/dev/null | xargs -r gofmt -l)
	[ -z "$files" ] || { printf 'lint: run gofmt -w on:\n%s\n' "$files" >&2; return 1; }
}
check formatted
check go vet "$@"
check go vet -C tools ./...
check go vet -C bench ./...
# Other systems refuse what they cannot enforce; for that they must build.
elsewhere() { GOOS=$1 GOARCH=$2 CGO_ENABLED=0 go build -o /dev/null ./cmd/dispatcher && GOOS=$1 GOARCH=$2 CGO_ENABLED=0 go build -o /dev/null ./cmd/worker; }
check elsewhere linux arm64
check elsewhere darwin arm64
check go test ./internal/archtest
check "$linter" run "$@"
measures() { (cd bench && "$linter" run ./...); }
check measures
[ -z "$failed" ]
