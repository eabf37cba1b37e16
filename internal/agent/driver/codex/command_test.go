package codex_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/codex"
)

// launch is a turn that asks for nothing in particular.
func launch(t *testing.T) agent.Launch {
	t.Helper()
	return agent.Launch{
		Request: agent.Request{Prompt: "Say hello."},
		Turn:    &agent.Turn{Env: []string{"OPENAI_API_KEY=sk-secret"}},
		Bin:     "/opt/codex", Home: t.TempDir(), HomeInside: "/home/turn", WorkDir: "/work",
	}
}

// configOf is the configuration of a turn.
func configOf(t *testing.T, l agent.Launch) string {
	t.Helper()
	if _, err := (codex.Driver{}).Command(l); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(l.Home, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestCommand(t *testing.T) {
	t.Parallel()

	t.Run("starts the app server in a home of the turn's own", func(t *testing.T) {
		t.Parallel()
		l := launch(t)
		cmd, err := codex.Driver{}.Command(l)
		if err != nil {
			t.Fatal(err)
		}
		want := agent.Command{Args: []string{"app-server", "--disable", "plugins"}, Env: []string{"CODEX_HOME=/home/turn"}}
		if diff := cmp.Diff(want, *cmd); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		entries, err := os.ReadDir(l.Home)
		if err != nil || len(entries) != 1 {
			t.Fatalf("%v, %v", entries, err)
		}
		if info, err := entries[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
	})

	t.Run("configures a turn", func(t *testing.T) {
		t.Parallel()
		l := launch(t)
		l.Turn.Env = append(l.Turn.Env, "TOKEN=another-secret")
		l.MCP = map[string]agent.MCPEntry{
			"local":  {Command: "/bin/server", Args: []string{"-v", "a \"quoted\"\tone\x7f"}, Env: map[string]string{"A.B": "b"}, EnvVars: []string{"TOKEN"}},
			"remote": {URL: "https://mcp.example/x", Headers: map[string]string{"X-Y": "z"}, BearerTokenEnv: "TOKEN"},
		}
		// A name with a dot is no variable's.
		if _, err := (codex.Driver{}).Command(l); !errors.Is(err, agent.ErrUnsupported) {
			t.Errorf("%v, want ErrUnsupported", err)
		}
		l.MCP["local"].Env["A_B"] = "b"
		delete(l.MCP["local"].Env, "A.B")
		got := configOf(t, l)
		const path = "testdata/config.golden.toml"
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
		for _, secret := range []string{"sk-secret", "another-secret"} {
			if strings.Contains(got, secret) {
				t.Errorf("holds %q", secret)
			}
		}
	})

	for name, c := range map[string]struct {
		change func(*agent.Launch)
		want   []string
		absent []string
	}{
		"of a turn with a key of the CLI's own": {
			func(l *agent.Launch) { l.Turn.Env = append(l.Turn.Env, "CODEX_API_KEY=sk-other") },
			[]string{`env_key = "CODEX_API_KEY"`, `base_url = "https://api.openai.com/v1"`}, []string{"OPENAI_API_KEY"},
		},
		"of a turn with an empty key": {
			func(l *agent.Launch) { l.Turn.Env = append(l.Turn.Env, "CODEX_API_KEY=") },
			[]string{`env_key = "OPENAI_API_KEY"`}, nil,
		},
		"of a turn without a key": {
			func(l *agent.Launch) { l.Turn.Env = nil }, nil, []string{"env_key"},
		},
		"of a turn with a provider of its own": {
			func(l *agent.Launch) {
				l.Turn.Env = append(l.Turn.Env, "OPENAI_BASE_URL=http://localhost:8080/v1/", "OPENAI_PROJECT=proj-1")
			},
			[]string{`base_url = "http://localhost:8080/v1"`, `"OpenAI-Project" = "OPENAI_PROJECT"`}, []string{"api.openai.com", "proj-1", "OPENAI_ORGANIZATION"},
		},
		"of a turn that is held to domains": {
			func(l *agent.Launch) { l.Request.Profile.SandboxDomains = []string{"example.com"} },
			[]string{`web_search = "disabled"`}, nil,
		},
		"of a turn with all tools": {
			func(*agent.Launch) {}, nil, []string{"web_search", "shell_tool", "project_doc_max_bytes"},
		},
		"of a turn without tools": {
			func(l *agent.Launch) { l.Turn.Tools = []string{} },
			[]string{`web_search = "disabled"`, "shell_tool = false", "unified_exec = false", "view_image = false", "project_doc_max_bytes = 0"}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := launch(t)
			c.change(&l)
			got := configOf(t, l)
			for _, want := range c.want {
				if !strings.Contains(got, want+"\n") && !strings.Contains(got, want+" }\n") {
					t.Errorf("has no %s:\n%s", want, got)
				}
			}
			for _, absent := range c.absent {
				if strings.Contains(got, absent) {
					t.Errorf("has %s:\n%s", absent, got)
				}
			}
		})
	}

	t.Run("bounds retries", func(t *testing.T) {
		t.Parallel()
		for retries, want := range map[int]string{0: "2", -1: "0", 5: "5"} {
			l := launch(t)
			if _, err := (codex.Driver{MaxRetries: retries}).Command(l); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(l.Home, "config.toml"))
			if err != nil || !strings.Contains(string(got), "request_max_retries = "+want+"\nstream_max_retries = "+want+"\n") {
				t.Errorf("%d: %v\n%s", retries, err, got)
			}
		}
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	mcp := func(e agent.MCPEntry) func(*agent.Launch) {
		return func(l *agent.Launch) { l.MCP = map[string]agent.MCPEntry{"a": e} }
	}
	env := func(pair string) func(*agent.Launch) {
		return func(l *agent.Launch) { l.Turn.Env = append(l.Turn.Env, pair) }
	}
	for name, c := range map[string]struct {
		change func(*agent.Launch)
		kind   error
		says   string
	}{
		"a prompt over 1 MiB":      {func(l *agent.Launch) { l.Request.Prompt = strings.Repeat("x", 1<<20+1) }, agent.ErrUnsupported, "1048577"},
		"an empty prompt":          {func(l *agent.Launch) { l.Request.Prompt = " \n" }, agent.ErrUnsupported, "prompt"},
		"a prompt that is no text": {func(l *agent.Launch) { l.Request.Prompt = "\xff" }, agent.ErrUnsupported, "UTF-8"},
		"another agent's sandbox":  {func(l *agent.Launch) { l.Request.Profile.Sandbox = agent.SandboxClaude }, agent.ErrUnsupported, "confine"},
		"a list of tools":          {func(l *agent.Launch) { l.Turn.Tools = []string{"shell"} }, agent.ErrUnsupported, "list of tools"},
		"a list of other tools":    {func(l *agent.Launch) { l.Request.Profile.DisallowedTools = []string{"shell"} }, agent.ErrUnsupported, "list of tools"},
		"skills not prepared":      {func(l *agent.Launch) { l.Request.Profile.Skills = []string{"x"} }, agent.ErrUnsupported, "0 of 1"},
		"skills it cannot read": {func(l *agent.Launch) {
			l.Request.Profile.Skills, l.Skills, l.Turn.Tools = []string{"x"}, []string{"/x"}, []string{}
		}, agent.ErrUnsupported, "shell"},
		"an unknown effort":          {func(l *agent.Launch) { l.Request.Profile.Effort = "huge" }, agent.ErrUnsupported, "xhigh"},
		"turns below zero":           {func(l *agent.Launch) { l.Request.Profile.MaxTurns = -1 }, agent.ErrUnsupported, "-1"},
		"no name of a model":         {func(l *agent.Launch) { l.Request.Profile.Model = "-c x=y" }, agent.ErrUnsupported, "model"},
		"a name of a session":        {func(l *agent.Launch) { l.Request.ResumeID = "--last" }, agent.ErrUnsupported, "UUID"},
		"a relative directory":       {func(l *agent.Launch) { l.WorkDir = "x" }, agent.ErrUnsupported, "absolute"},
		"a provider that is none":    {env("OPENAI_BASE_URL=localhost"), agent.ErrUnsupported, "OPENAI_BASE_URL"},
		"a provider with a password": {env("OPENAI_BASE_URL=https://u:p@host/v1"), agent.ErrUnsupported, "CODEX_API_KEY"},
		"a server's odd name":        {func(l *agent.Launch) { l.MCP = map[string]agent.MCPEntry{"a b": {Command: "x"}} }, agent.ErrUnsupported, "name"},
		"a server without a way":     {mcp(agent.MCPEntry{}), agent.ErrUnsupported, "neither"},
		"a server with two ways":     {mcp(agent.MCPEntry{Command: "x", URL: "http://x"}), agent.ErrUnsupported, "neither"},
		"a server over sse":          {mcp(agent.MCPEntry{Type: "sse", URL: "http://x"}), agent.ErrUnsupported, "neither"},
		"a server's odd variable":    {mcp(agent.MCPEntry{Command: "x", EnvVars: []string{"A B"}}), agent.ErrUnsupported, "no variable"},
		"variables over http":        {mcp(agent.MCPEntry{URL: "http://x", EnvVars: []string{"A"}}), agent.ErrUnsupported, "inherits"},
		"an argument with a NUL":     {mcp(agent.MCPEntry{Command: "x", Args: []string{"a\x00"}}), agent.ErrUnsupported, "configured"},
		"a token it has not":         {mcp(agent.MCPEntry{URL: "http://x", BearerTokenEnv: "TOKEN"}), agent.ErrNotGranted, "TOKEN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := launch(t)
			c.change(&l)
			_, err := codex.Driver{}.Command(l)
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %v with %q", err, c.kind, c.says)
			}
			if left, err := os.ReadDir(l.Home); err != nil || len(left) > 0 {
				t.Errorf("written before it was refused: %v, %v", left, err)
			}
		})
	}

	t.Run("a home that is not there", func(t *testing.T) {
		t.Parallel()
		l := launch(t)
		l.Home = filepath.Join(l.Home, "missing")
		if _, err := (codex.Driver{}).Command(l); !errors.Is(err, agent.ErrUnready) {
			t.Errorf("%v, want ErrUnready", err)
		}
	})
}

func TestDescriptor(t *testing.T) {
	t.Parallel()
	d := codex.Driver{}.Descriptor()
	for _, p := range agent.Placements() {
		if s, declared := d.WritableTools[p]; !declared || s.Supported || !strings.Contains(s.Remedy, `"*"`) {
			t.Errorf("%s: %+v", p, s)
		}
	}
	if r := d.Restricted; r == nil || !r.Supported || !r.FollowUp || !r.ReadServer {
		t.Errorf("restricted %+v", r)
	}
	for _, name := range d.Credentials {
		if !agent.NameGranted(d.ProviderEnv, name) {
			t.Errorf("%s is not among %v", name, d.ProviderEnv)
		}
	}
}

func TestRuntime(t *testing.T) {
	t.Parallel()
	put := func(t *testing.T, path, content string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Run("is the package, whose programs stand beside the executable's directory", func(t *testing.T) {
		t.Parallel()
		root, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		bin := put(t, filepath.Join(root, "bin", "codex"), "\x7fELF")
		link := filepath.Join(t.TempDir(), "codex")
		if err := os.Symlink(bin, link); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{filepath.Join(root, "bin"), root} {
			got, err := codex.Driver{}.Runtime(link)
			if err != nil || !slices.Equal(got, []agent.Mount{{Path: want, Access: agent.ReadOnly}}) {
				t.Errorf("%v, %v; want %s", got, err, want)
			}
			put(t, filepath.Join(root, "codex-package.json"), "{}") // for the next round
		}
	})
	t.Run("is not that of a script around the CLI", func(t *testing.T) {
		t.Parallel()
		bin := put(t, filepath.Join(t.TempDir(), "codex.js"), "#!/usr/bin/env node\n")
		if _, err := (codex.Driver{}).Runtime(bin); !errors.Is(err, agent.ErrUnsupported) || !strings.Contains(err.Error(), "native") {
			t.Errorf("%v, want ErrUnsupported", err)
		}
	})
}
