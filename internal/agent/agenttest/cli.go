package agenttest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// ModuleRoot is the directory that holds the module's go.mod.
func ModuleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("find the module's root: %v", err)
	}
	for {
		switch _, err := os.Stat(filepath.Join(dir, "go.mod")); {
		case err == nil:
			return dir
		case !errors.Is(err, fs.ErrNotExist):
			t.Fatalf("find the module's root: %v", err)
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("find the module's root: no go.mod above the test's directory")
		}
		dir = up
	}
}

// ClaudeBin is the pinned Claude Code CLI: its native executable, with links
// resolved. The test fails when it is not installed.
func ClaudeBin(t testing.TB) string {
	t.Helper()
	return pinned(t, "claude")
}

// CodexBin is the pinned Codex CLI: its static executable, with links resolved. The
// programs it runs itself stand in its own directory and in the one beside it. The
// test fails when it is not installed.
func CodexBin(t testing.TB) string {
	t.Helper()
	return pinned(t, "codex")
}

// OpenCodeBin is the pinned opencode CLI: its native executable, with links
// resolved. The test fails when it is not installed.
func OpenCodeBin(t testing.TB) string {
	t.Helper()
	return pinned(t, "opencode")
}

// PiBin is the pinned pi CLI: a script that runs it on the pinned node. Both are
// beneath the directory above the script's own. The test fails when it is not
// installed.
func PiBin(t testing.TB) string {
	t.Helper()
	return pinned(t, "pi")
}

func pinned(t testing.TB, name string) string {
	t.Helper()
	bin, err := filepath.EvalSymlinks(filepath.Join(ModuleRoot(t), ".cache", "agents", "bin", name))
	if err != nil {
		t.Fatalf("the pinned %s is not installed, run 'make agents' first: %v", name, err)
	}
	return bin
}
