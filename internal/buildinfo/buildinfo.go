// Package buildinfo says which build of a program is running. `make build` sets
// Version and Commit; a plain `go build` or `go install` leaves them to what the
// toolchain recorded.
package buildinfo

import (
	"cmp"
	"runtime/debug"
	"strings"
)

// Set by the linker: -X turnpike/internal/buildinfo.Version=...
var (
	Version string
	Commit  string
)

// String is the version, and the commit where it is known: "v0.2.0 (1a2b3c4d5e6f)".
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return describe(Version, Commit, info)
}

func describe(version, commit string, info *debug.BuildInfo) string {
	recorded := make(map[string]string, len(info.Settings))
	for _, s := range info.Settings {
		recorded[s.Key] = s.Value
	}
	version = cmp.Or(version, info.Main.Version, "(devel)")
	commit = cmp.Or(commit, recorded["vcs.revision"])
	if len(commit) > 12 {
		commit = commit[:12]
	}
	// A pseudo-version names the commit already, and so does git describe without a tag.
	if commit == "" || strings.Contains(version, commit[:min(7, len(commit))]) {
		return version
	}
	return version + " (" + commit + ")"
}
