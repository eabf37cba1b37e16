package runner

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"turnpike/internal/agent"
)

const (
	// maxLooked bounds how many entries of a workspace are looked at.
	maxLooked = 200_000
	// maxFindings bounds how many findings are told one by one.
	maxFindings = 100
)

// executes names what other programs run, or are configured to run things by, when
// they are pointed at a directory that holds it.
var executes = map[string]string{
	".git":          "version control metadata; its hooks and settings are executed",
	".claude":       "Claude Code configuration",
	".mcp.json":     "MCP servers that agents start",
	".codex":        "Codex configuration",
	".opencode":     "opencode configuration",
	".pi":           "pi configuration",
	".vscode":       "editor tasks and settings",
	".devcontainer": "development container configuration",
	".envrc":        "shell code that direnv runs",
	".husky":        "git hooks",
	".githooks":     "git hooks",
	".npmrc":        "npm configuration",
}

// what says what a name of a workspace executes.
func what(name string) (string, bool) {
	if strings.HasSuffix(name, ".pth") {
		return "code that Python runs at start", true
	}
	w, ok := executes[name]
	return w, ok
}

// inventory is the executable configuration of a workspace at one time: what it
// is, by path. Directories of configuration are listed with what is in them.
type inventory struct {
	found map[string]string
	whole bool // the bound was not reached
}

// takeInventory looks through a workspace and follows no link. What cannot be
// read is passed over: it is the agent's tree, and nobody executes it unread.
func takeInventory(root string) inventory {
	inv := inventory{found: map[string]string{}, whole: true}
	left := maxLooked
	within := "" // the configuration directory the walk is in
	_ = fs.WalkDir(os.DirFS(root), ".", func(rel string, e fs.DirEntry, err error) error {
		if e == nil || rel == "." {
			return nil
		}
		if left--; left < 0 {
			inv.whole = false
			return fs.SkipAll
		}
		if within != "" && agent.Inside(rel, within) {
			inv.found[rel] = inv.found[within]
			return nil
		}
		w, ok := what(e.Name())
		if !ok {
			return nil
		}
		inv.found[rel] = w
		switch {
		case e.Name() == ".git":
			// Its objects and references change with every commit; what is
			// executed of it are the hooks.
			hooks(root, rel, inv.found)
			if e.IsDir() {
				return fs.SkipDir
			}
		case e.IsDir():
			within = rel
		}
		return nil
	})
	return inv
}

func hooks(root, git string, found map[string]string) {
	entries, err := os.ReadDir(filepath.Join(root, git, "hooks"))
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".sample") {
			found[filepath.Join(git, "hooks", e.Name())] = "git hook"
		}
	}
}

// newFindings tells what after has and before had not, and whether that is all of it.
func newFindings(before, after inventory) (findings []agent.Finding, whole bool) {
	for path, w := range after.found {
		if _, old := before.found[path]; !old {
			findings = append(findings, agent.Finding{Path: path, What: w})
		}
	}
	slices.SortFunc(findings, func(a, b agent.Finding) int { return strings.Compare(a.Path, b.Path) })
	whole = before.whole && after.whole
	if len(findings) > maxFindings {
		findings, whole = findings[:maxFindings], false
	}
	return findings, whole
}
