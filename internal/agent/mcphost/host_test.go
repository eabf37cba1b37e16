package mcphost_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/mcphost"
	"turnpike/internal/work"
)

func start(t *testing.T, r mcphost.Report) *mcphost.Host {
	t.Helper()
	h, err := mcphost.Start(t.Context(), t.TempDir(), r)
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

// connect starts the bridge as a CLI would and opens an MCP session over it.
func connect(t *testing.T, e agent.MCPEntry) (*mcp.ClientSession, error) {
	t.Helper()
	cmd := exec.Command(e.Command, e.Args...)
	for name, value := range e.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
		Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = s.Close() }) // a session its server ended says so here
	return s, nil
}

func mustConnect(t *testing.T, h *mcphost.Host) *mcp.ClientSession {
	t.Helper()
	s, err := connect(t, h.Entry())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// report calls the tool and gives its text and whether it is a tool error.
func report(t *testing.T, s *mcp.ClientSession, args any) (text string, refused bool) {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: mcphost.ReportTool, Arguments: args})
	if err != nil {
		t.Fatalf("call with %v: %v", args, err)
	}
	return r.Content[0].(*mcp.TextContent).Text, r.IsError
}

type object = map[string]any

func TestReport(t *testing.T) {
	t.Parallel()

	t.Run("is kept, once", func(t *testing.T) {
		t.Parallel()
		h := start(t, mcphost.Report{
			Valid:   []string{"done", "blocked"},
			Default: agent.Outcome{Work: work.Ref{Key: "issue-7"}},
		})
		s := mustConnect(t, h)
		if got, ok := h.Outcome(); ok {
			t.Errorf("outcome %+v before any report", got)
		}
		if text, refused := report(t, s, object{"status": "done", "note": "all green"}); refused {
			t.Errorf("refused: %s", text)
		}
		text, refused := report(t, s, object{"status": "blocked"})
		if !refused || !strings.Contains(text, `already reported as "done"`) {
			t.Errorf("second report: refused %t, %q", refused, text)
		}
		want := agent.Outcome{Status: "done", Note: "all green", Work: work.Ref{Key: "issue-7"}}
		if got, ok := h.Outcome(); !ok || cmp.Diff(want, got) != "" {
			t.Errorf("outcome, %t (-want +got):\n%s", ok, cmp.Diff(want, got))
		}
	})

	t.Run("is kept once, whoever calls at the same time", func(t *testing.T) {
		t.Parallel()
		h := start(t, mcphost.Report{})
		sessions := []*mcp.ClientSession{mustConnect(t, h), mustConnect(t, h)}
		var (
			wg    sync.WaitGroup
			mu    sync.Mutex
			taken []string
		)
		for i, s := range sessions {
			for range 8 {
				wg.Go(func() {
					status := []string{"one", "two"}[i]
					r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: mcphost.ReportTool, Arguments: object{"status": status}})
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Error(err)
					} else if !r.IsError {
						taken = append(taken, status)
					}
				})
			}
		}
		wg.Wait()
		got, _ := h.Outcome()
		if len(taken) != 1 || got.Status != taken[0] {
			t.Errorf("%v were told that they are recorded, kept is %q", taken, got.Status)
		}
	})

	t.Run("is refused outside the set, saying what is in it", func(t *testing.T) {
		t.Parallel()
		h := start(t, mcphost.Report{Valid: []string{"done", "blocked"}})
		s := mustConnect(t, h)
		text, refused := report(t, s, object{"status": "Done"})
		if !refused || !strings.Contains(text, "done, blocked") {
			t.Errorf("refused %t, %q", refused, text)
		}
		if got, ok := h.Outcome(); ok {
			t.Errorf("kept %+v", got)
		}
	})

	t.Run("takes any status where none is listed", func(t *testing.T) {
		t.Parallel()
		h := start(t, mcphost.Report{})
		if text, refused := report(t, mustConnect(t, h), object{"status": "sort of done"}); refused {
			t.Errorf("refused: %s", text)
		}
	})

	t.Run("shows the allowed statuses in its schema", func(t *testing.T) {
		t.Parallel()
		s := mustConnect(t, start(t, mcphost.Report{Valid: []string{"done", "blocked"}}))
		tools, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		schema := tools.Tools[0].InputSchema.(object)
		got := schema["properties"].(object)["status"].(object)["enum"]
		if diff := cmp.Diff([]any{"done", "blocked"}, got); diff != "" {
			t.Errorf("enum (-want +got):\n%s", diff)
		}
	})

	t.Run("is not offered where no outcome is accepted", func(t *testing.T) {
		t.Parallel()
		s := mustConnect(t, start(t, mcphost.Report{Valid: []string{}}))
		if s.InitializeResult().Capabilities.Tools == nil {
			return
		}
		tools, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(tools.Tools) > 0 {
			t.Errorf("offers %v", tools.Tools[0].Name)
		}
	})

	t.Run("is kept after Close", func(t *testing.T) {
		t.Parallel()
		h := start(t, mcphost.Report{})
		report(t, mustConnect(t, h), object{"status": "done"})
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if got, ok := h.Outcome(); !ok || got.Status != "done" {
			t.Errorf("outcome %+v, %t", got, ok)
		}
	})
}

func TestArguments(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return strings.Repeat("x", n) }
	def := agent.Outcome{Work: work.Ref{Key: "asked", Tags: []string{"a"}}}
	for _, c := range []struct {
		name, args string
		want       agent.Outcome
		refusal    string
	}{
		{name: "status alone", args: `{"status":"done"}`, want: agent.Outcome{Status: "done", Work: def.Work}},
		{
			name: "another work", args: `{"status":"done","work":{"key":"found"}}`,
			want: agent.Outcome{Status: "done", Work: work.Ref{Key: "found"}},
		},
		{name: "null work", args: `{"status":"done","work":null}`, want: agent.Outcome{Status: "done", Work: def.Work}},
		{name: "no arguments", args: ``, refusal: "cannot be read"},
		{name: "an array", args: `[]`, refusal: "cannot be read"},
		{name: "no status", args: `{}`, refusal: "status: is missing"},
		{name: "another type", args: `{"status":7}`, refusal: "cannot be read"},
		{name: "an unknown argument", args: `{"status":"done","cost":0}`, refusal: `"cost"`},
		{name: "two values", args: `{"status":"done"} {}`, refusal: "something behind"},
		{name: "a long status", args: `{"status":"` + long(65) + `"}`, refusal: "65 bytes; at most 64"},
		{name: "a status of two lines", args: `{"status":"do\nne"}`, refusal: "control characters"},
		{name: "a long note", args: `{"status":"done","note":"` + long(4097) + `"}`, refusal: "note: has 4097 bytes"},
		{name: "NUL in the note", args: `{"status":"done","note":"\u0000"}`, refusal: "note: must not contain NUL"},
		{name: "a long key", args: `{"status":"done","work":{"key":"` + long(513) + `"}}`, refusal: "work.key: has 513"},
		{name: "many tags", args: `{"status":"done","work":{"tags":[` + strings.Repeat(`"t",`, 32) + `"t"]}}`, refusal: "work.tags: has 33"},
		{name: "a long tag", args: `{"status":"done","work":{"tags":["` + long(129) + `"]}}`, refusal: "work.tags[0]: has 129"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := mcphost.Report{Default: def}.Parse([]byte(c.args))
			if c.refusal != "" {
				if err == nil || !strings.Contains(err.Error(), c.refusal) {
					t.Errorf("error %v, want one with %q", err, c.refusal)
				}
				return
			}
			if err != nil || cmp.Diff(c.want, got) != "" {
				t.Errorf("error %v (-want +got):\n%s", err, cmp.Diff(c.want, got))
			}
		})
	}
}

func TestStart(t *testing.T) {
	t.Parallel()

	t.Run("refuses statuses no agent could report", func(t *testing.T) {
		t.Parallel()
		for _, valid := range [][]string{{""}, {"a", "a"}, {strings.Repeat("x", 65)}, {"a\x00"}, {"\xff"}} {
			if h, err := mcphost.Start(t.Context(), t.TempDir(), mcphost.Report{Valid: valid}); err == nil {
				t.Errorf("%q is taken", valid)
				_ = h.Close()
			} else if !errors.Is(err, agent.ErrUnsupported) {
				t.Errorf("%q: %v, want ErrUnsupported", valid, err)
			}
		}
	})

	t.Run("is not ready without its directory or its bridge", func(t *testing.T) {
		t.Parallel()
		missing := filepath.Join(t.TempDir(), "missing")
		for _, c := range []struct {
			dir string
			r   mcphost.Report
		}{{missing, mcphost.Report{}}, {t.TempDir(), mcphost.Report{Bridge: missing}}} {
			h, err := mcphost.Start(t.Context(), c.dir, c.r)
			if err == nil {
				_ = h.Close()
			}
			if !errors.Is(err, agent.ErrUnready) {
				t.Errorf("%v, want ErrUnready", err)
			}
		}
	})

	t.Run("works in a directory deeper than a socket's address is long", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 40))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		h, err := mcphost.Start(t.Context(), dir, mcphost.Report{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}()
		report(t, mustConnect(t, h), object{"status": "done"})
	})

	t.Run("shows the turn the socket and the bridge, to read", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		h, err := mcphost.Start(t.Context(), dir, mcphost.Report{})
		if err != nil {
			t.Fatal(err)
		}
		e := h.Entry()
		want := []agent.Mount{
			{Path: filepath.Dir(e.Args[1]), Access: agent.ReadOnly},
			{Path: e.Command, Access: agent.ReadOnly},
		}
		if diff := cmp.Diff(want, h.Mounts()); diff != "" {
			t.Errorf("mounts (-want +got):\n%s", diff)
		}
		info, err := os.Stat(e.Args[1])
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("socket: %v, %v", info, err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
}

func TestConnection(t *testing.T) {
	t.Parallel()

	t.Run("is refused with another turn's token", func(t *testing.T) {
		t.Parallel()
		h, other := start(t, mcphost.Report{}), start(t, mcphost.Report{})
		e := h.Entry()
		for _, token := range []string{"", "wrong", other.Entry().Env[mcphost.TokenEnv]} {
			e.Env = map[string]string{mcphost.TokenEnv: token}
			if _, err := connect(t, e); err == nil {
				t.Errorf("token %q is let in", token)
			}
		}
	})

	t.Run("ends when the turn's context ends", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		h, err := mcphost.Start(ctx, t.TempDir(), mcphost.Report{})
		if err != nil {
			t.Fatal(err)
		}
		s := mustConnect(t, h)
		cancel()
		_ = s.Wait() // returns, which is the point; with which error is the SDK's affair
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if _, err := connect(t, h.Entry()); err == nil {
			t.Error("a closed host lets a bridge in")
		}
	})

	t.Run("that sends an endless message is closed, and the host lives on", func(t *testing.T) {
		t.Parallel()
		h := start(t, mcphost.Report{})
		c := dial(t, h)
		chunk := []byte(strings.Repeat("x", 1<<16))
		if _, err := c.Write([]byte(`{"jsonrpc":"2.0","method":"`)); err != nil {
			t.Fatal(err)
		}
		for range 64 {
			if _, err := c.Write(chunk); err != nil {
				break
			}
		}
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection stays open")
		}
		report(t, mustConnect(t, h), object{"status": "done"})
	})

	t.Run("that is one too many is closed", func(t *testing.T) {
		t.Parallel()
		h := start(t, mcphost.Report{})
		for range mcphost.MaxConns {
			dial(t, h)
		}
		if _, err := connect(t, h.Entry()); err == nil {
			t.Error("one more than the bound is let in")
		}
	})
}

// dial connects without a bridge and shows the token.
func dial(t *testing.T, h *mcphost.Host) net.Conn {
	t.Helper()
	e := h.Entry()
	c, err := net.Dial("unix", e.Args[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, mcphost.Greeting+e.Env[mcphost.TokenEnv]+"\n"); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, len(mcphost.Welcome))
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != mcphost.Welcome {
		t.Fatalf("welcome %q, %v", answer, err)
	}
	return c
}

func TestBridge(t *testing.T) {
	t.Parallel()
	h := start(t, mcphost.Report{})
	for name, args := range map[string][]string{
		"no path":       {},
		"two paths":     {"/a", "/b"},
		"relative path": {"tools.sock"},
		"no socket":     {filepath.Join(t.TempDir(), "tools.sock")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(h.Entry().Command, append([]string{"mcp-bridge"}, args...)...)
			cmd.Env = []string{mcphost.TokenEnv + "=x"}
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.HasPrefix(string(out), "mcp-bridge: ") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
