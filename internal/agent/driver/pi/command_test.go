package pi_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/pi"
)

// launch is a turn that asks for nothing in particular.
func launch(t *testing.T) agent.Launch {
	t.Helper()
	return agent.Launch{
		Request: agent.Request{Prompt: "Say hello."},
		Turn:    &agent.Turn{},
		Bin:     "/opt/pi", Home: t.TempDir(), HomeInside: "/home/turn", WorkDir: "/work",
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	always := []string{
		"--mode", "rpc", "--no-approve", "--no-extensions", "-e", "/home/turn/turnpike.js",
		"--no-skills", "--no-prompt-templates", "--no-themes", "--session-dir", "/home/turn/sessions",
	}
	for name, c := range map[string]struct {
		change func(*agent.Launch)
		want   []string
	}{
		"of a plain turn": {func(*agent.Launch) {}, nil},
		"of a whole profile": {
			func(l *agent.Launch) {
				l.Request.Profile = agent.Profile{
					Model: "anthropic/claude-opus-4-5", Effort: "max", MaxTurns: 7,
					DisallowedTools: []string{"bash", "mcp__a-b__c-d", "mcp__a-b"},
				}
				l.Request.SystemPrompt = "--Be brief."
			},
			[]string{
				"--model", "anthropic/claude-opus-4-5", "--thinking", "max",
				"--exclude-tools", "bash,mcp__a_b__c_d,mcp__a_b__*", "--append-system-prompt", "/home/turn/turnpike-system.md",
			},
		},
		"with tools and servers": {
			func(l *agent.Launch) {
				l.Turn.Tools = []string{"read", "mcp__turnpike", "write"}
				l.MCP = map[string]agent.MCPEntry{"turnpike": {Command: "x"}, "my-own": {Command: "x"}}
			},
			[]string{"-e", "builtin:mcp", "--tools", "read,write,mcp__my_own__*,mcp__turnpike__*"},
		},
		"without tools": {
			func(l *agent.Launch) {
				l.Turn.Tools = []string{}
				l.MCP = map[string]agent.MCPEntry{"turnpike": {Command: "x"}}
			},
			[]string{"-e", "builtin:mcp", "--no-context-files", "--tools", "mcp__turnpike__*"},
		},
		"of a conversation that goes on": {
			func(l *agent.Launch) { l.Request.ResumeID = "my.session-1" },
			[]string{"--session-id", "my.session-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := launch(t)
			c.change(&l)
			cmd, err := pi.Driver{}.Command(l)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(slices.Concat(always, c.want), cmd.Args); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
			if cmd.Stdin != nil || !slices.Contains(cmd.Env, "PI_CODING_AGENT_DIR=/home/turn") || !slices.Contains(cmd.Env, "PI_OFFLINE=1") {
				t.Errorf("%+v", cmd)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	mcp := func(e agent.MCPEntry) func(*agent.Launch) {
		return func(l *agent.Launch) { l.MCP = map[string]agent.MCPEntry{"a": e} }
	}
	profile := func(p agent.Profile) func(*agent.Launch) { return func(l *agent.Launch) { l.Request.Profile = p } }
	for name, c := range map[string]struct {
		change func(*agent.Launch)
		kind   error
		says   string
	}{
		"an empty prompt":       {func(l *agent.Launch) { l.Request.Prompt = " \n" }, agent.ErrUnsupported, "prompt"},
		"another CLI's sandbox": {profile(agent.Profile{Sandbox: agent.SandboxClaude}), agent.ErrUnsupported, "confine"},
		"skills not prepared":   {profile(agent.Profile{Skills: []string{"x"}}), agent.ErrUnsupported, "0 of 1"},
		"skills it cannot read": {func(l *agent.Launch) {
			l.Request.Profile.Skills, l.Skills, l.Turn.Tools = []string{"x"}, []string{"/x"}, []string{"bash"}
		}, agent.ErrUnsupported, "read"},
		"an unknown effort":        {profile(agent.Profile{Effort: "huge"}), agent.ErrUnsupported, "xhigh"},
		"turns below zero":         {profile(agent.Profile{MaxTurns: -1}), agent.ErrUnsupported, "-1"},
		"an option for a model":    {profile(agent.Profile{Model: "--mode=text"}), agent.ErrUnsupported, "model"},
		"part of a tool":           {func(l *agent.Launch) { l.Turn.Tools = []string{"mcp__*"} }, agent.ErrUnsupported, "mcp__*"},
		"not part of a tool":       {profile(agent.Profile{DisallowedTools: []string{"bash,write"}}), agent.ErrUnsupported, "bash,write"},
		"a tool that is added":     {func(l *agent.Launch) { l.Turn.Tools = []string{"+bash"} }, agent.ErrUnsupported, "+bash"},
		"a path of a conversation": {func(l *agent.Launch) { l.Request.ResumeID = "../../etc/passwd" }, agent.ErrUnsupported, "conversation"},
		"an option for one":        {func(l *agent.Launch) { l.Request.ResumeID = "-x" }, agent.ErrUnsupported, "conversation"},
		"servers it cannot tell apart": {func(l *agent.Launch) {
			l.MCP = map[string]agent.MCPEntry{"a-b": {Command: "x"}, "a_b": {Command: "x"}}
		}, agent.ErrUnsupported, "apart"},
		"a server without a way": {mcp(agent.MCPEntry{}), agent.ErrUnsupported, "neither"},
		"a server at home":       {mcp(agent.MCPEntry{Command: "x", Args: []string{"~/y"}}), agent.ErrUnsupported, "home"},
		"a token it has not":     {mcp(agent.MCPEntry{URL: "http://x", BearerTokenEnv: "TOKEN"}), agent.ErrNotGranted, "TOKEN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := launch(t)
			c.change(&l)
			_, err := pi.Driver{}.Command(l)
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
		if _, err := (pi.Driver{}).Command(l); !errors.Is(err, agent.ErrUnready) {
			t.Errorf("%v, want ErrUnready", err)
		}
	})
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	l := launch(t)
	l.Turn.Env = []string{"TOKEN=a-secret"}
	l.Request.SystemPrompt = "Be brief."
	l.Request.Profile.MaxTurns = 7
	l.MCP = map[string]agent.MCPEntry{
		"local":  {Command: "/bin/server", Args: []string{"-v"}, Env: map[string]string{"A": "${TOKEN}$", "B": "!rm"}},
		"remote": {URL: "https://mcp.example/x", Headers: map[string]string{"X-Y": "$z"}, BearerTokenEnv: "TOKEN"},
	}
	d := pi.Driver{MaxRetries: -1, Providers: map[string]pi.Provider{
		"anthropic": {BaseURL: "https://gateway.example"},
		"own": {BaseURL: "https://own.example/v1", API: "openai-completions", KeyEnv: "OWN_KEY", Models: []pi.Model{
			{ID: "a", Reasoning: true, ContextWindow: 1000, MaxTokens: 100, Price: &pi.Price{Input: 1, Output: 2}}, {ID: "b"},
		}},
	}}
	if _, err := d.Command(l); err != nil {
		t.Fatal(err)
	}
	type list = []any
	for name, want := range map[string]object{
		"mcp.json": {"autoEnableCodemode": false, "mcpServers": object{
			"local": object{
				"exposure": "direct", "command": "/bin/server", "args": list{"-v"},
				"env": object{"A": "$${TOKEN}$$", "B": "$!rm"},
			},
			"remote": object{
				"exposure": "direct", "url": "https://mcp.example/x",
				"headers": object{"X-Y": "$$z", "Authorization": "Bearer ${TOKEN}"},
			},
		}},
		"models.json": {"providers": object{
			"anthropic": object{"baseUrl": "https://gateway.example"},
			"own": object{"baseUrl": "https://own.example/v1", "api": "openai-completions", "apiKey": "$OWN_KEY", "models": list{
				object{
					"id": "a", "reasoning": true, "contextWindow": 1000., "maxTokens": 100.,
					"cost": object{"input": 1., "output": 2., "cacheRead": 0., "cacheWrite": 0.},
				},
				object{"id": "b", "reasoning": false},
			}},
		}},
		"settings.json": {
			"retry": object{
				"enabled": false, "maxRetries": 0., "baseDelayMs": 2000., "maxAgentDelayMs": 30_000., "provider": object{"maxRetries": 0.},
			},
			"cacheWarming": "off", "defaultProjectTrust": "never", "enableInstallTelemetry": false, "enableAnalytics": false,
		},
	} {
		path := filepath.Join(l.Home, name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got object
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(l.Home, "turnpike.js")); !strings.Contains(string(got), "const most = 7;") {
		t.Errorf("extension %s, %v", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(l.Home, "turnpike-system.md")); string(got) != "Be brief." {
		t.Errorf("system prompt %q, %v", got, err)
	}
	if got := d.Descriptor().Credentials; !slices.Contains(got, "OWN_KEY") || !slices.Contains(got, "OPENAI_API_KEY") {
		t.Errorf("credentials %v", got)
	}
}

type object = map[string]any

func TestRuntime(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) string {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const cli = "node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js"
	link := filepath.Join(root, "global/bin/pi")
	if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file("global/lib/"+cli), link); err != nil {
		t.Fatal(err)
	}
	file("global/lib/node_modules/@earendil-works/pi-coding-agent/dist/bundle/node")
	file("beside/" + cli)
	wrapper := file("beside/bin/pi")
	file("beside/bin/node")
	lone := file("lone/pi")
	for bin, want := range map[string][]string{
		link:    {"global/lib/node_modules"},
		wrapper: {"beside/bin", "beside/node_modules"},
	} {
		mounts, err := pi.Driver{}.Runtime(bin)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range mounts {
			rel, err := filepath.Rel(root, m.Path)
			if err != nil || m.Access != agent.ReadOnly {
				t.Errorf("%+v, %v", m, err)
			}
			got = append(got, rel)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", bin, diff)
		}
	}
	if _, err := (pi.Driver{}).Runtime(lone); !errors.Is(err, agent.ErrUnready) {
		t.Errorf("%v, want ErrUnready of a pi without its modules", err)
	}
}
