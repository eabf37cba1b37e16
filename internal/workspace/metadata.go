package workspace

import (
	"os"
	"path/filepath"
	"strings"
)

// metadata finds the version control metadata of dir that lies outside it: the
// repository a git worktree's .git file points at. What cannot be read is none.
func metadata(dir string) []string {
	b, err := os.ReadFile(filepath.Join(dir, ".git")) // a directory fails
	if err != nil || len(b) > 8<<10 {
		return nil
	}
	gitDir, ok := strings.CutPrefix(strings.TrimSpace(string(b)), "gitdir: ")
	if !ok {
		return nil
	}
	var found []string
	add := func(base, p string) string {
		if !filepath.IsAbs(p) {
			p = filepath.Join(base, p)
		}
		real, err := filepath.EvalSymlinks(p)
		if err != nil {
			return ""
		}
		if rel, err := filepath.Rel(dir, real); err != nil || !filepath.IsLocal(rel) {
			found = append(found, real)
		}
		return real
	}
	own := add(dir, gitDir)
	if own == "" {
		return nil
	}
	// A worktree's own directory names the repository it shares.
	if b, err := os.ReadFile(filepath.Join(own, "commondir")); err == nil && len(b) <= 8<<10 {
		add(own, strings.TrimSpace(string(b)))
	}
	return found
}
