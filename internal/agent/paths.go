package agent

import (
	"path/filepath"
	"strings"
)

// Inside says whether path is dir or lies beneath it. Both are taken as they are
// written: absolute, clean and with their links resolved.
func Inside(path, dir string) bool {
	if path == dir || dir == string(filepath.Separator) {
		return true
	}
	return strings.HasPrefix(path, dir+string(filepath.Separator))
}

// Deciding gives the mount that decides about path: the innermost one it lies in.
func Deciding(mounts []Mount, path string) (Mount, bool) {
	var inner Mount
	found := false
	for _, m := range mounts {
		if Inside(path, m.Path) && (!found || len(m.Path) > len(inner.Path)) {
			inner, found = m, true
		}
	}
	return inner, found
}

// NameGranted says whether an allowlist of variable names grants this one: by the
// name itself or by a prefix that ends in "*".
func NameGranted(list []string, name string) bool {
	for _, entry := range list {
		prefix, wild := strings.CutSuffix(entry, "*")
		if entry == name || wild && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
