package opencode_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/opencode"
)

// launch is a turn that asks for nothing in particular.
func launch(t *testing.T) agent.Launch {
	t.Helper()
	return agent.Launch{
		Request: agent.Request{Prompt: "Say hello."},
		Turn:    &agent.Turn{},
		Bin:     "/opt/opencode", Home: t.TempDir(), HomeInside: "/home/turn", WorkDir: "/work",
	}
}

type (
	object = map[string]any
	list   = []any
)

// configuration is what a command configures the CLI with.
func configuration(t *testing.T, cmd *agent.Command) object {
	t.Helper()
	for _, v := range cmd.Env {
		if text, ok := strings.CutPrefix(v, "OPENCODE_CONFIG_CONTENT="); ok {
			var out object
			if err := json.Unmarshal([]byte(text), &out); err != nil {
				t.Fatal(err)
			}
			return out
		}
	}
	t.Fatalf("no configuration in %v", cmd.Env)
	return nil
}

// rules are what the plugin is told to keep.
func rules(t *testing.T, l agent.Launch) object {
	t.Helper()
	code, err := os.ReadFile(filepath.Join(l.Home, "turnpike.js"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(code), "\n")
	var out object
	if err := json.Unmarshal([]byte(strings.TrimSuffix(strings.TrimPrefix(first, "const settings = "), ";")), &out); err != nil {
		t.Fatalf("%s: %v", first, err)
	}
	for name, want := range map[string]string{
		"resume": l.Request.ResumeID, "conversation": "/home/turn/turnpike-conversation.json", "database": "/home/turn/data/opencode/opencode.db",
	} {
		if out[name] != want {
			t.Errorf("%s is %v, want %q", name, out[name], want)
		}
		delete(out, name)
	}
	return out
}

func TestCommand(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change      func(*agent.Launch)
		args        []string
		permissions object
		rules       object
		texts       list
	}{
		"of a plain turn": {
			func(*agent.Launch) {},
			[]string{"run", "--format=json", "--title=turn"},
			object{"*": "allow"},
			object{"turns": 0., "retries": 2., "patience": 60000., "granted": nil, "denied": list{}},
			list{"/work/AGENTS.md"},
		},
		"of a whole profile": {
			func(l *agent.Launch) {
				l.Title = "--builder"
				l.Request.SystemPrompt, l.Request.ResumeID = "Be brief.", "ses_dd6a581fcffecygwzWwZaOu2XZ"
				l.Request.Profile = agent.Profile{
					Model: "anthropic/claude-opus-4-5", Effort: "high", MaxTurns: 7,
					DisallowedTools: []string{"bash", "write", "mcp__a__b-c", "mcp__a"},
				}
			},
			[]string{
				"run", "--format=json", "--title=--builder", "--model=anthropic/claude-opus-4-5", "--variant=high",
				"--session=ses_dd6a581fcffecygwzWwZaOu2XZ",
			},
			object{"*": "allow", "bash": "deny", "a_b-c": "deny", "a_*": "deny"},
			object{"turns": 7., "retries": 2., "patience": 60000., "granted": nil, "denied": list{"bash", "write", "a_b-c", "a_*"}},
			list{"/work/AGENTS.md", "/home/turn/turnpike-system.md"},
		},
		"with tools and servers": {
			func(l *agent.Launch) {
				l.Turn.Tools = []string{"read", "mcp__turnpike", "write"}
				l.MCP = map[string]agent.MCPEntry{"turnpike": {Command: "x"}}
			},
			[]string{"run", "--format=json", "--title=turn"},
			object{"*": "deny", "doom_loop": "allow", "external_directory": "allow", "read": "allow", "edit": "allow", "turnpike_*": "allow"},
			object{"turns": 0., "retries": 2., "patience": 60000., "granted": list{"read", "write", "turnpike_*"}, "denied": list{}},
			list{"/work/AGENTS.md"},
		},
		"without tools": {
			func(l *agent.Launch) { l.Turn.Tools = []string{} },
			[]string{"run", "--format=json", "--title=turn"},
			object{"*": "deny", "doom_loop": "allow", "external_directory": "allow"},
			object{"turns": 0., "retries": 2., "patience": 60000., "granted": list{}, "denied": list{}},
			list{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := launch(t)
			c.change(&l)
			cmd, err := opencode.Driver{}.Command(l)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.args, cmd.Args); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
			config := configuration(t, cmd)
			if diff := cmp.Diff(c.permissions, config["permission"]); diff != "" {
				t.Errorf("permissions (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.texts, config["instructions"]); diff != "" {
				t.Errorf("instructions (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.rules, rules(t, l)); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			if got, err := io.ReadAll(cmd.Stdin); string(got) != "Say hello." || err != nil {
				t.Errorf("stdin %q, %v", got, err)
			}
			for _, want := range []string{
				"XDG_CONFIG_HOME=/home/turn/config", "XDG_DATA_HOME=/home/turn/data", "XDG_STATE_HOME=/home/turn/state",
				"XDG_CACHE_HOME=/home/turn/cache", "OPENCODE_DISABLE_PROJECT_CONFIG=1", "OPENCODE_DISABLE_MODELS_FETCH=1",
			} {
				if !slices.Contains(cmd.Env, want) {
					t.Errorf("environment %v without %s", cmd.Env, want)
				}
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
		"skills without the tool": {func(l *agent.Launch) {
			l.Request.Profile.Skills, l.Skills, l.Turn.Tools = []string{"x"}, []string{"/x"}, []string{"read"}
		}, agent.ErrUnsupported, "skill"},
		"skills without ripgrep": {func(l *agent.Launch) {
			l.Request.Profile.Skills, l.Skills, l.Turn.Env = []string{"x"}, []string{"/x"}, []string{"PATH=/nowhere"}
		}, agent.ErrUnsupported, "ripgrep"},
		"an unknown effort":       {profile(agent.Profile{Effort: "huge"}), agent.ErrUnsupported, "xhigh"},
		"turns below zero":        {profile(agent.Profile{MaxTurns: -1}), agent.ErrUnsupported, "-1"},
		"a model of no provider":  {profile(agent.Profile{Model: "sonnet"}), agent.ErrUnsupported, "provider/model"},
		"an option for a model":   {profile(agent.Profile{Model: "--x/y"}), agent.ErrUnsupported, "model"},
		"part of a tool":          {func(l *agent.Launch) { l.Turn.Tools = []string{"bash(git *)"} }, agent.ErrUnsupported, "bash(git *)"},
		"a beginning of tools":    {profile(agent.Profile{DisallowedTools: []string{"*"}}), agent.ErrUnsupported, "*"},
		"a name of a session":     {func(l *agent.Launch) { l.Request.ResumeID = "my session" }, agent.ErrUnsupported, "ses_"},
		"a relative directory":    {func(l *agent.Launch) { l.WorkDir = "x" }, agent.ErrUnsupported, "absolute"},
		"a server without a way":  {mcp(agent.MCPEntry{}), agent.ErrUnsupported, "neither"},
		"a key in a header":       {mcp(agent.MCPEntry{URL: "http://x", Headers: map[string]string{"X": "{env:K}"}}), agent.ErrNotGranted, "a header"},
		"a file in an argument":   {mcp(agent.MCPEntry{Command: "x", Args: []string{"{file:/etc/passwd}"}}), agent.ErrNotGranted, "an argument"},
		"a key in a URL":          {mcp(agent.MCPEntry{URL: "http://x/{env:K}"}), agent.ErrNotGranted, "its URL"},
		"a key in an environment": {mcp(agent.MCPEntry{Command: "x", Env: map[string]string{"A": "{env:K}"}}), agent.ErrNotGranted, "its environment"},
		"a token it has not":      {mcp(agent.MCPEntry{URL: "http://x", BearerTokenEnv: "TOKEN"}), agent.ErrNotGranted, "TOKEN"},
		"a token that is no text": {mcp(agent.MCPEntry{URL: "http://x", BearerTokenEnv: "QUOTED"}), agent.ErrUnsupported, "QUOTED"},
		"a server like a tool":    {func(l *agent.Launch) { l.MCP = map[string]agent.MCPEntry{"apply": {Command: "x"}} }, agent.ErrUnsupported, "own"},
		"servers it cannot tell apart": {func(l *agent.Launch) {
			l.MCP = map[string]agent.MCPEntry{"a": {Command: "x"}, "a_b": {Command: "x"}}
		}, agent.ErrUnsupported, "a_b"},
		"too many servers": {mcp(agent.MCPEntry{Command: "x", Args: []string{strings.Repeat("y", 130_000)}}), agent.ErrUnsupported, "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := launch(t)
			l.Turn.Env = []string{`QUOTED=a"b`}
			c.change(&l)
			_, err := opencode.Driver{}.Command(l)
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %v with %q", err, c.kind, c.says)
			}
			if left, err := os.ReadDir(l.Home); err != nil || len(left) > 0 {
				t.Errorf("written before it was refused: %v, %v", left, err)
			}
		})
	}

	t.Run("a home that cannot be written", func(t *testing.T) {
		t.Parallel()
		l := launch(t)
		l.Home = filepath.Join(l.Home, "file")
		if err := os.WriteFile(l.Home, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := (opencode.Driver{}).Command(l); !errors.Is(err, agent.ErrUnready) {
			t.Errorf("%v, want ErrUnready", err)
		}
	})
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	l := launch(t)
	l.Turn.Env = []string{"TOKEN=a-secret"}
	l.Request.SystemPrompt = "Be brief."
	l.MCP = map[string]agent.MCPEntry{
		"local":  {Command: "/bin/server", Args: []string{"-v"}, Env: map[string]string{"A": "b"}},
		"remote": {URL: "https://mcp.example/x", Headers: map[string]string{"X-Y": "z"}, BearerTokenEnv: "TOKEN"},
	}
	d := opencode.Driver{MaxRetries: -1, Providers: map[string]opencode.Provider{
		"anthropic": {BaseURL: "https://gateway.example/v1"},
		"own": {Package: "@ai-sdk/openai-compatible", BaseURL: "https://own.example/v1", KeyEnv: "OWN_KEY", Models: []opencode.Model{
			{ID: "a", Reasoning: true, ContextWindow: 1000, MaxTokens: 100, Price: &opencode.Price{Input: 1, Output: 2}}, {ID: "b"},
		}},
	}}
	cmd, err := d.Command(l)
	if err != nil {
		t.Fatal(err)
	}
	got := configuration(t, cmd)
	for member, want := range map[string]any{
		"mcp": object{
			"local": object{"type": "local", "command": list{"/bin/server", "-v"}, "environment": object{"A": "b"}},
			"remote": object{
				"type": "remote", "url": "https://mcp.example/x", "oauth": false,
				"headers": object{"X-Y": "z", "Authorization": "Bearer {env:TOKEN}"},
			},
		},
		"provider": object{
			"anthropic": object{"options": object{"baseURL": "https://gateway.example/v1"}},
			"own": object{
				"npm": "@ai-sdk/openai-compatible", "env": list{"OWN_KEY"}, "options": object{"baseURL": "https://own.example/v1"},
				"models": object{
					"a": object{
						"reasoning": true, "limit": object{"context": 1000., "output": 100.},
						"cost": object{"input": 1., "output": 2., "cache_read": 0., "cache_write": 0.},
					},
					"b": object{"reasoning": false},
				},
			},
		},
		"plugin": list{"file:///home/turn/turnpike.js"}, "snapshot": false, "lsp": false, "formatter": false,
		"share": "disabled", "autoupdate": false,
	} {
		if diff := cmp.Diff(want, got[member]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", member, diff)
		}
	}
	if got, err := os.ReadFile(filepath.Join(l.Home, "turnpike-system.md")); string(got) != "Be brief." {
		t.Errorf("system prompt %q, %v", got, err)
	}
	if all := strings.Join(cmd.Env, " "); strings.Contains(all, "a-secret") {
		t.Errorf("the token's value is in %s", all)
	}
	if got := rules(t, l)["retries"]; got != 0. {
		t.Errorf("%v retries", got)
	}
	if got := d.Descriptor().Credentials; !slices.Contains(got, "OWN_KEY") || !slices.Contains(got, "OPENAI_API_KEY") {
		t.Errorf("credentials %v", got)
	}
}
