package mcphost_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/mcphost"
)

// inside is where the workspace lies for the agent.
const inside = "/workspace"

func startRead(t *testing.T, dir string) *mcphost.Host {
	t.Helper()
	h, err := mcphost.StartRead(t.Context(), t.TempDir(), mcphost.Read{Dir: dir, Shown: inside})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// reads calls a tool and gives its text, what is said about it, and whether it is a
// tool error. No call may take longer than a tool's own time.
func reads(t *testing.T, s *mcp.ClientSession, tool string, args object) (text, note string, refused bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s %v: %v", tool, args, err)
	}
	text = r.Content[0].(*mcp.TextContent).Text
	if len(r.Content) > 1 {
		note = r.Content[1].(*mcp.TextContent).Text
	}
	if len(text) > mcphost.MaxText {
		t.Errorf("%s %v gives %d bytes", tool, args, len(text))
	}
	return text, note, r.IsError
}

// lay writes files beneath dir.
func lay(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var long strings.Builder
	for i := range 5_000 {
		fmt.Fprintf(&long, "line %d\n", i+1)
	}
	lay(t, dir, map[string]string{
		"README":            "hello\nworld",
		"empty":             "",
		"long.txt":          long.String(),
		"src/main.go":       "package main\n\nfunc main() {}\n",
		"src/deep/a.ts":     "const needle = 1\r\n",
		"src/deep/b.tsx":    "export {}\n",
		"bin":               "\x7fELF\x00\x01needle",
		"wide":              strings.Repeat("x", 10_000) + "\nend\n",
		".git/config":       "needle\n",
		"odd\nname [x].txt": "needle \xff here\n",
	})
	if err := os.Symlink("README", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	s := mustConnect(t, startRead(t, dir))

	for _, c := range []struct {
		name       string
		tool       string
		args       object
		text, note string // exactly; part of it
		refused    string // part of it
	}{
		{name: "a file", tool: mcphost.ReadFileTool, args: object{"path": "README"}, text: "hello\nworld\n"},
		{name: "a file by its absolute path", tool: mcphost.ReadFileTool, args: object{"path": inside + "/src/../README"}, text: "hello\nworld\n"},
		{name: "a file by a link", tool: mcphost.ReadFileTool, args: object{"path": "link"}, text: "hello\nworld\n"},
		{name: "an empty file", tool: mcphost.ReadFileTool, args: object{"path": "empty"}, note: "has 0 lines"},
		{name: "some lines", tool: mcphost.ReadFileTool, args: object{"path": "long.txt", "offset": 4, "limit": 2}, text: "line 4\nline 5\n", note: "read from offset 6"},
		{name: "the last lines", tool: mcphost.ReadFileTool, args: object{"path": "long.txt", "offset": 5000}, text: "line 5000\n"},
		{name: "lines behind the last", tool: mcphost.ReadFileTool, args: object{"path": "long.txt", "offset": 6000}, note: "has 5000 lines"},
		{name: "a long line", tool: mcphost.ReadFileTool, args: object{"path": "wide"}, text: strings.Repeat("x", 4096) + " [5904 more bytes]\nend\n"},
		{name: "a binary file", tool: mcphost.ReadFileTool, args: object{"path": "bin"}, note: "binary file of 12 bytes"},
		{name: "a directory as a file", tool: mcphost.ReadFileTool, args: object{"path": "src"}, refused: "is a directory"},
		{name: "a missing file", tool: mcphost.ReadFileTool, args: object{"path": "no"}, refused: "no such file"},
		{name: "an unknown argument", tool: mcphost.ReadFileTool, args: object{"path": "README", "mode": "w"}, refused: "mode"},
		{name: "a directory", tool: mcphost.ListDirectoryTool, args: object{"path": "src"}, text: "deep/\nmain.go\t29 bytes\n"},
		{name: "the workspace", tool: mcphost.ListDirectoryTool, args: object{}, text: ".git/\nREADME\t11 bytes\nbin\t12 bytes\nempty\t0 bytes\nlink\tlink to README\n" +
			"long.txt\t48893 bytes\n\"odd\\nname [x].txt\"\t14 bytes\nsrc/\nwide\t10005 bytes\n"},
		{name: "files by name", tool: mcphost.FindFilesTool, args: object{"pattern": "*.{ts,tsx}"}, text: "src/deep/a.ts\nsrc/deep/b.tsx\n"},
		{name: "hidden files by name", tool: mcphost.FindFilesTool, args: object{"pattern": ".git*"}, note: "no file matches"},
		{name: "files below a directory", tool: mcphost.FindFilesTool, args: object{"pattern": "deep/*", "path": "./src"}, text: "src/deep/a.ts\nsrc/deep/b.tsx\n"},
		{name: "version control's files by its name", tool: mcphost.FindFilesTool, args: object{"pattern": "*", "path": ".git"}, text: ".git/config\n"},
		{name: "a glob that is none", tool: mcphost.FindFilesTool, args: object{"pattern": "[a"}, refused: "not closed"},
		{name: "lines", tool: mcphost.SearchTool, args: object{"pattern": "(?i)NEEDLE"}, text: "\"odd\\nname [x].txt\":1: needle \uFFFD here\nsrc/deep/a.ts:1: const needle = 1\n"},
		{name: "lines of some files", tool: mcphost.SearchTool, args: object{"pattern": "needle", "glob": "src/**/*.ts"}, text: "src/deep/a.ts:1: const needle = 1\n"},
		{name: "lines of one file", tool: mcphost.SearchTool, args: object{"pattern": "^line 4[0-9]{3}$", "path": "long.txt", "limit": 1}, text: "long.txt:4000: line 4000\n", note: "narrow the search"},
		{name: "no lines", tool: mcphost.SearchTool, args: object{"pattern": "nothing of the kind"}, note: "nothing matches"},
		{name: "an expression that is none", tool: mcphost.SearchTool, args: object{"pattern": "("}, refused: "pattern"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, note, refused := reads(t, s, c.tool, c.args)
			if c.refused != "" {
				if !refused || !strings.Contains(text, c.refused) {
					t.Errorf("refused %t: %q, want %q in it", refused, text, c.refused)
				}
				return
			}
			if refused || text != c.text || !strings.Contains(note, c.note) || c.note == "" && note != "" {
				t.Errorf("refused %t: %q, note %q", refused, text, note)
			}
		})
	}

	t.Run("goes on where a bound cut it off", func(t *testing.T) {
		var all strings.Builder
		for at := 1; ; {
			text, note, _ := reads(t, s, mcphost.ReadFileTool, object{"path": "long.txt", "offset": at})
			all.WriteString(text)
			if note == "" {
				break
			}
			if _, err := fmt.Sscanf(note, "[the file goes on: read from offset %d]", &at); err != nil {
				t.Fatalf("%q: %v", note, err)
			}
		}
		if all.String() != long.String() {
			t.Error("the pieces are not the file")
		}
	})

	t.Run("says of every tool that it only reads", func(t *testing.T) {
		tools, err := s.ListTools(t.Context(), nil)
		if err != nil || len(tools.Tools) != 4 {
			t.Fatalf("%v, %v", tools, err)
		}
		for _, tool := range tools.Tools {
			if tool.Annotations == nil || !tool.Annotations.ReadOnlyHint {
				t.Errorf("%s does not", tool.Name)
			}
		}
	})
}

func TestReadHostile(t *testing.T) {
	t.Parallel()
	outside, dir := t.TempDir(), t.TempDir()
	lay(t, outside, map[string]string{"secret": "needle: outside\n"})
	lay(t, dir, map[string]string{"file": "needle: inside\n", "sub/x": "x\n", "locked/x": "needle\n"})
	for link, target := range map[string]string{
		"absolute": filepath.Join(outside, "secret"), "root": "/", "parent": "..",
		"sub/climb": "../../" + filepath.Base(outside) + "/secret", "outside": outside,
		"loop": "loop", "self": ".", "sub/up": "..", "proc": "/proc/self/root/" + outside + "/secret",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	// Sparse: it takes no room on the disk.
	huge, err := os.Create(filepath.Join(dir, "huge"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := huge.WriteString(strings.Repeat("no end ", 2_000)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(huge.Truncate(1<<40), huge.Close()); err != nil {
		t.Fatal(err)
	}
	deep := dir
	for range mcphost.MaxDepth + 30 {
		deep = filepath.Join(deep, "d")
	}
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	lay(t, deep, map[string]string{"bottom": "needle: bottom\n"})
	for i := range 1_500 {
		lay(t, dir, map[string]string{fmt.Sprintf("many/%04d", i): "needle\n"})
	}
	s := mustConnect(t, startRead(t, dir))

	t.Run("is never left", func(t *testing.T) {
		for _, path := range []string{
			"absolute", "root/etc/passwd", "parent", "sub/climb", "outside/secret", "loop", "proc",
			"../" + filepath.Base(outside) + "/secret", "sub/../../x", filepath.Join(outside, "secret"),
			"/etc/passwd", inside + "/../etc/passwd", inside + "x/y", "self/self/root/etc/passwd", "a\x00b",
		} {
			for _, tool := range []string{mcphost.ReadFileTool, mcphost.ListDirectoryTool} {
				if text, _, refused := reads(t, s, tool, object{"path": path}); !refused {
					t.Errorf("%s %q gives %q", tool, path, text)
				}
			}
			for _, tool := range []string{mcphost.FindFilesTool, mcphost.SearchTool} {
				if text, _, refused := reads(t, s, tool, object{"path": path, "pattern": "."}); !refused {
					t.Errorf("%s in %q gives %q", tool, path, text)
				}
			}
		}
		text, _, _ := reads(t, s, mcphost.SearchTool, object{"pattern": "needle:", "path": "."})
		if text != "file:1: needle: inside\n" {
			t.Errorf("the search gives %q", text)
		}
	})

	t.Run("what is no file is not opened", func(t *testing.T) {
		for _, name := range []string{"fifo", "sock"} {
			if text, _, refused := reads(t, s, mcphost.ReadFileTool, object{"path": name}); !refused || !strings.Contains(text, "is not read") {
				t.Errorf("%s: refused %t, %q", name, refused, text)
			}
		}
	})

	t.Run("what has no end is cut", func(t *testing.T) {
		text, note, refused := reads(t, s, mcphost.ReadFileTool, object{"path": "huge"})
		if refused || !strings.Contains(text, "more bytes]") || !strings.Contains(note, "read past") {
			t.Errorf("refused %t, %.200q, note %q", refused, text, note)
		}
		if text, _, refused = reads(t, s, mcphost.ReadFileTool, object{"path": "huge", "offset": 2}); !refused {
			t.Errorf("what lies behind it: %.200q", text)
		}
		text, note, _ = reads(t, s, mcphost.ListDirectoryTool, object{"path": "many"})
		if strings.Count(text, "\n") != 1_000 || !strings.Contains(note, "there are more") {
			t.Errorf("%d entries, %q", strings.Count(text, "\n"), note)
		}
		text, note, _ = reads(t, s, mcphost.SearchTool, object{"pattern": "needle", "path": "many"})
		if strings.Count(text, "\n") != mcphost.MaxMatches || !strings.Contains(note, "there are more") {
			t.Errorf("%d lines, %q", strings.Count(text, "\n"), note)
		}
		_, note, _ = reads(t, s, mcphost.FindFilesTool, object{"pattern": "bottom"})
		if !strings.Contains(note, "lies too deep") {
			t.Errorf("note %q", note)
		}
	})

	t.Run("a directory that became a link is not served", func(t *testing.T) {
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		h, err := mcphost.StartRead(t.Context(), t.TempDir(), mcphost.Read{Dir: link})
		if err == nil {
			_ = h.Close()
		}
		if !errors.Is(err, agent.ErrPolicyChanged) {
			t.Errorf("%v, want ErrPolicyChanged", err)
		}
	})

	t.Run("ends while it is read", func(t *testing.T) {
		h := startRead(t, dir)
		s := mustConnect(t, h)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = s.CallTool(context.WithoutCancel(t.Context()), &mcp.CallToolParams{Name: mcphost.SearchTool, Arguments: object{"pattern": "x"}})
		}()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})

	t.Run("shows the turn its own socket, not the report tool's", func(t *testing.T) {
		run := t.TempDir()
		report, err := mcphost.Start(t.Context(), run, mcphost.Report{})
		if err != nil {
			t.Fatal(err)
		}
		read, err := mcphost.StartRead(t.Context(), run, mcphost.Read{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(read.Close(), report.Close()); err != nil {
				t.Error(err)
			}
		}()
		e := read.Entry()
		e.Env = report.Entry().Env
		if _, err := connect(t, e); err == nil {
			t.Error("the report tool's token is let in")
		}
	})
}
