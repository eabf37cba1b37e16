package archtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"turnpike/internal/archtest"
)

func TestTree(t *testing.T) {
	root := filepath.Join("..", "..")
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err) // or the walk would find nothing, and nothing wrong
	}
	broken, err := archtest.Check(os.DirFS(root), archtest.Module, archtest.Map)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range broken {
		t.Error(b)
	}
}

func TestCheck(t *testing.T) {
	const driver = "internal/agent/driver/claude/claude.go"
	for name, c := range map[string]struct {
		file, source string
		want         string // part of the complaint; empty: none
	}{
		"an arrow of the map":             {"internal/store/a.go", `package store; import "turnpike/internal/job"`, ""},
		"other modules":                   {"internal/store/a.go", `package store; import "example.org/turnpike/internal/queue"`, ""},
		"an arrow the map lacks":          {"internal/store/a.go", "package store\nimport \"turnpike/internal/queue\"", "internal/store/a.go:2: internal/store must not import internal/queue; it may import internal/job"},
		"an arrow under a build tag":      {"internal/store/a_windows.go", "//go:build ignore\npackage store\nimport \"turnpike/internal/queue\"", "must not import internal/queue"},
		"a leaf that imports":             {"internal/work/a.go", `package work; import "turnpike/internal/job"`, "it may import nothing of ours"},
		"a contract that points down":     {"internal/agent/a.go", `package agent; import "turnpike/internal/agent/runner"`, "must not import internal/agent/runner"},
		"a part of the same whole":        {"internal/agent/confine/a.go", `package confine; import "turnpike/internal/agent/confine/seccomp"`, ""},
		"one driver of another":           {driver, `package claude; import "turnpike/internal/agent/driver/codex"`, "must not import internal/agent/driver/codex"},
		"a driver of the runner":          {driver, `package claude; import "turnpike/internal/agent/runner"`, "must not import internal/agent/runner"},
		"a driver's own part":             {driver, `package claude; import "turnpike/internal/agent/driver/claude/stream"`, ""},
		"a program of anything":           {"cmd/worker/main.go", `package main; import "turnpike/internal/agent/runner"`, ""},
		"a program of a test's package":   {"cmd/worker/main.go", `package main; import "turnpike/internal/agent/agenttest"`, "must not import internal/agent/agenttest"},
		"a program of another program":    {"cmd/worker/main.go", `package main; import "turnpike/cmd/worker/wiring"`, ""},
		"code of a test's package":        {"internal/store/a.go", `package store; import "turnpike/internal/testenv"`, "must not import internal/testenv"},
		"a test of a test's package":      {"internal/store/a_test.go", `package store_test; import "turnpike/internal/testenv"`, ""},
		"a package the map does not know": {"internal/cache/a.go", `package cache`, "internal/cache is not on the import map"},
		"a vague directory":               {"internal/job/util/a.go", `package words`, "name it for what it does"},
		"a vague package":                 {"internal/job/words/a.go", `package helpers`, "name it for what it does"},
		"another module in the tree":      {"tools/a.go", `package anything; import "turnpike/internal/testenv"`, ""},
		"hidden and vendored directories": {".cache/node_modules/a.go", `not even Go`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tree := fstest.MapFS{
				"go.mod":       {Data: []byte("module turnpike")},
				"tools/go.mod": {Data: []byte("module turnpike/tools")},
				c.file:         {Data: []byte(c.source)},
			}
			broken, err := archtest.Check(tree, archtest.Module, archtest.Map)
			if err != nil {
				t.Fatal(err)
			}
			switch got := strings.Join(broken, "\n"); {
			case c.want == "" && got != "":
				t.Errorf("complains: %s", got)
			case !strings.Contains(got, c.want):
				t.Errorf("got %q, want %q in it", got, c.want)
			}
		})
	}
	t.Run("a file that is not Go is an error", func(t *testing.T) {
		tree := fstest.MapFS{"internal/job/a.go": {Data: []byte("?")}}
		if _, err := archtest.Check(tree, archtest.Module, archtest.Map); err == nil {
			t.Error("no error")
		}
	})
}
