package claude_test

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
	"turnpike/internal/agent/driver/claude"
)

// launch is a turn that asks for nothing in particular.
func launch(t *testing.T) agent.Launch {
	t.Helper()
	return agent.Launch{
		Request: agent.Request{Prompt: "Say hello."},
		Turn:    &agent.Turn{},
		Bin:     "/opt/claude", Home: t.TempDir(), HomeInside: "/home/turn", WorkDir: "/work",
	}
}

// own has l run in the CLI's own sandbox.
func own(l *agent.Launch) {
	l.Request.Profile.Sandbox = agent.SandboxClaude
	l.Turn.OwnSandbox = &agent.Confinement{
		Sandbox: agent.SandboxClaude, Workspace: "/work", WorkDir: "/work",
		Mounts: []agent.Mount{
			{Path: "/work", Access: agent.ReadWrite}, {Path: "/work/kept", Access: agent.ReadOnly}, {Path: "/lib/data", Access: agent.ReadOnly},
		},
		System:           []agent.Mount{{Path: "/usr", Access: agent.ReadOnly}},
		Denied:           []string{"/usr/bin/git"},
		ReadOnlyMetadata: []string{"/work/.git"},
		Network:          agent.Network{Proxied: true, Domains: []string{"example.com", "*.example.org"}},
	}
}

// TestOwnSandboxSettings shows the whole of what the CLI is told about its own sandbox.
func TestOwnSandboxSettings(t *testing.T) {
	t.Parallel()
	l := launch(t)
	own(&l)
	l.MCP = map[string]agent.MCPEntry{"tracker": {Type: "http", URL: "http://127.0.0.1:1/"}}
	l.Root = true
	cmd, err := claude.Driver{}.Command(l)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"permission-mode": "dontAsk", "setting-sources": "", "settings": "/home/turn/turnpike-settings.json"} {
		if got, _ := option(cmd.Args, name); got != want {
			t.Errorf("--%s is %q, want %q", name, got, want)
		}
	}
	if tools, _ := option(cmd.Args, "tools"); !strings.Contains(tools, "Bash") || strings.Contains(tools, "Monitor") {
		t.Errorf("the tools are %q", tools)
	}
	if slices.Contains(cmd.Env, "IS_SANDBOX=1") {
		t.Error("the CLI is told that something else holds it")
	}
	got, err := os.ReadFile(filepath.Join(l.Home, "turnpike-settings.json"))
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/own-sandbox.golden.json"
	if *update {
		if err := os.WriteFile(golden, append(got, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
		t.Errorf("the settings (-want +got):\n%s", diff)
	}
}

// option is the value of --name in args.
func option(args []string, name string) (string, bool) {
	for _, a := range args {
		if value, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			return value, true
		}
	}
	return "", false
}

func TestCommand(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*agent.Launch)
		want   map[string]string // options
		absent []string
	}{
		"of a plain turn": {
			func(*agent.Launch) {},
			map[string]string{"setting-sources": "", "mcp-config": "/home/turn/turnpike-mcp.json", "add-dir": "/work"},
			[]string{"model", "fallback-model", "effort", "max-turns", "tools", "resume", "append-system-prompt-file", "system-prompt-snapshot"},
		},
		"of a whole profile": {
			func(l *agent.Launch) {
				l.Request.Profile = agent.Profile{
					Model: "opus", Effort: "max", MaxTurns: 7, DisallowedTools: []string{"WebFetch", "mcp__a__b"},
					Fallback: &agent.Profile{Model: "sonnet", Fallback: &agent.Profile{Model: "haiku"}},
				}
				l.Request.SystemPrompt = "Be brief."
			},
			map[string]string{
				"model": "opus", "fallback-model": "sonnet,haiku", "effort": "max", "max-turns": "7",
				"disallowedTools":           "ScheduleWakeup,ListAgents,SendMessage,WebFetch,mcp__a__b",
				"append-system-prompt-file": "/home/turn/turnpike-system.md",
			}, nil,
		},
		"with a fallback to another agent": {
			func(l *agent.Launch) {
				l.Request.Profile.Fallback = &agent.Profile{Agent: agent.AgentCodex, Model: "gpt", Fallback: &agent.Profile{Model: "haiku"}}
			},
			nil, []string{"fallback-model"},
		},
		"with a fallback to itself": {
			func(l *agent.Launch) {
				p := &agent.Profile{Model: "sonnet"}
				p.Fallback = p
				l.Request.Profile.Fallback = p
			},
			map[string]string{"fallback-model": "sonnet"}, nil,
		},
		"with tools": {
			func(l *agent.Launch) {
				l.Turn.Tools = []string{"Bash", "mcp__turnpike", "Write"}
				l.Turn.WriteDirs = []string{"/cache"}
			},
			map[string]string{"tools": "Bash,Write", "add-dir": "/cache"}, nil,
		},
		"without tools": {
			func(l *agent.Launch) { l.Turn.Tools = []string{} },
			map[string]string{"tools": ""}, []string{"add-dir"},
		},
		"of a conversation that goes on": {
			func(l *agent.Launch) { l.Request.ResumeID = "b06bd418-9edc-4913-a751-efe817909adc" },
			map[string]string{"resume": "b06bd418-9edc-4913-a751-efe817909adc", "system-prompt-snapshot": "off"}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := launch(t)
			c.change(&l)
			cmd, err := claude.Driver{}.Command(l)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range c.want {
				if got, ok := option(cmd.Args, name); !ok || got != want {
					t.Errorf("--%s is %q, %t; want %q", name, got, ok, want)
				}
			}
			for _, name := range c.absent {
				if got, ok := option(cmd.Args, name); ok {
					t.Errorf("--%s is %q", name, got)
				}
			}
			for _, a := range cmd.Args {
				if !strings.HasPrefix(a, "-") {
					t.Errorf("%q stands alone, where an option before it could take it", a)
				}
			}
		})
	}

	t.Run("keeps prompts out of the arguments", func(t *testing.T) {
		t.Parallel()
		l := launch(t)
		l.Request.Prompt, l.Request.SystemPrompt = "the-prompt", "the-system-prompt"
		cmd, err := claude.Driver{}.Command(l)
		if err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(slices.Concat(cmd.Args, cmd.Env), " "); strings.Contains(all, "the-prompt") || strings.Contains(all, "the-system") {
			t.Errorf("%s", all)
		}
		if got, err := io.ReadAll(cmd.Stdin); string(got) != "the-prompt" {
			t.Errorf("stdin %q, %v", got, err)
		}
		if got, err := os.ReadFile(filepath.Join(l.Home, "turnpike-system.md")); string(got) != "the-system-prompt" {
			t.Errorf("system prompt %q, %v", got, err)
		}
	})

	t.Run("bounds retries and lets root bypass its prompts", func(t *testing.T) {
		t.Parallel()
		for retries, want := range map[int]string{0: "2", -1: "0", 5: "5"} {
			for _, root := range []bool{false, true} {
				l := launch(t)
				l.Root = root
				cmd, err := claude.Driver{MaxRetries: retries}.Command(l)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Contains(cmd.Env, "CLAUDE_CODE_MAX_RETRIES="+want) || slices.Contains(cmd.Env, "IS_SANDBOX=1") != root {
					t.Errorf("retries %d, root %t: %v", retries, root, cmd.Env)
				}
			}
		}
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	mcp := func(e agent.MCPEntry) func(*agent.Launch) {
		return func(l *agent.Launch) { l.MCP = map[string]agent.MCPEntry{"a": e} }
	}
	for name, c := range map[string]struct {
		change func(*agent.Launch)
		kind   error
		says   string
	}{
		"a prompt over 10 MB": {func(l *agent.Launch) { l.Request.Prompt = strings.Repeat("x", 10_000_001) }, agent.ErrUnsupported, "10000001"},
		"an empty prompt":     {func(l *agent.Launch) { l.Request.Prompt = " \n" }, agent.ErrUnsupported, "prompt"},
		"its own sandbox":     {func(l *agent.Launch) { l.Request.Profile.Sandbox = agent.SandboxClaude }, agent.ErrUnsupported, "nobody says"},
		"a tool its own sandbox cannot hold": {func(l *agent.Launch) {
			own(l)
			l.Turn.Tools = []string{"Read", "Monitor"}
		}, agent.ErrUnsupported, "Monitor runs outside"},
		"a shell in a read-only directory of its own sandbox": {func(l *agent.Launch) {
			own(l)
			l.Turn.OwnSandbox.Mounts[0].Access = agent.ReadOnly
		}, agent.ErrUnsupported, "may be written"},
		"a path its own sandbox would take for a pattern": {func(l *agent.Launch) {
			own(l)
			l.Turn.OwnSandbox.Mounts = append(l.Turn.OwnSandbox.Mounts, agent.Mount{Path: "/x[a]", Access: agent.ReadOnly})
		}, agent.ErrUnsupported, "characters"},
		"every domain in its own sandbox": {func(l *agent.Launch) {
			own(l)
			l.Turn.OwnSandbox.Network.Domains = []string{"*"}
		}, agent.ErrUnsupported, "no host's name"},
		"a home too deep for the sockets of its own sandbox": {func(l *agent.Launch) {
			own(l)
			l.HomeInside = "/" + strings.Repeat("x", 90)
		}, agent.ErrUnsupported, "shorter directory"},
		"skills nobody prepared": {func(l *agent.Launch) { l.Request.Profile.Skills = []string{"x"} }, agent.ErrUnsupported, "skills"},
		"skills without the tool": {func(l *agent.Launch) {
			l.Request.Profile.Skills, l.Skills, l.Turn.Tools = []string{"x"}, []string{"/x"}, []string{"Read"}
		}, agent.ErrUnsupported, "Skill"},
		"skills with the tool disallowed": {func(l *agent.Launch) {
			l.Request.Profile.Skills, l.Skills, l.Request.Profile.DisallowedTools = []string{"x"}, []string{"/x"}, []string{"Skill"}
		}, agent.ErrUnsupported, "Skill"},
		"a shell it does not know": {func(l *agent.Launch) { l.Request.Profile.Shell = "/usr/bin/fish" }, agent.ErrUnsupported, "bash, zsh"},
		"an unknown effort":        {func(l *agent.Launch) { l.Request.Profile.Effort = "huge" }, agent.ErrUnsupported, "xhigh"},
		"turns below zero":         {func(l *agent.Launch) { l.Request.Profile.MaxTurns = -1 }, agent.ErrUnsupported, "-1"},
		"part of a tool":           {func(l *agent.Launch) { l.Turn.Tools = []string{"Bash(git *)"} }, agent.ErrUnsupported, "Bash(git *)"},
		"not part of a tool":       {func(l *agent.Launch) { l.Request.Profile.DisallowedTools = []string{"Bash(rm *)"} }, agent.ErrUnsupported, "Bash(rm *)"},
		"an option for a model":    {func(l *agent.Launch) { l.Request.Profile.Model = "--settings=x" }, agent.ErrUnsupported, "model"},
		"models for a fallback":    {func(l *agent.Launch) { l.Request.Profile.Fallback = &agent.Profile{Model: "a,b"} }, agent.ErrUnsupported, "a,b"},
		"a name of a session":      {func(l *agent.Launch) { l.Request.ResumeID = "my session" }, agent.ErrUnsupported, "UUID"},
		"a relative directory":     {func(l *agent.Launch) { l.Turn.WriteDirs = []string{"x"} }, agent.ErrUnsupported, "absolute"},
		"a server's odd name":      {func(l *agent.Launch) { l.MCP = map[string]agent.MCPEntry{"a b": {Command: "x"}} }, agent.ErrUnsupported, "name"},
		"a server without a way":   {mcp(agent.MCPEntry{}), agent.ErrUnsupported, "neither"},
		"a server with two ways":   {mcp(agent.MCPEntry{Command: "x", URL: "http://x"}), agent.ErrUnsupported, "neither"},
		"a server over sse":        {mcp(agent.MCPEntry{Type: "sse", URL: "http://x"}), agent.ErrUnsupported, "neither"},
		"a key in a header":        {mcp(agent.MCPEntry{URL: "http://x", Headers: map[string]string{"X": "${ANTHROPIC_API_KEY}"}}), agent.ErrNotGranted, "a header"},
		"a key in a URL":           {mcp(agent.MCPEntry{URL: "http://x/${ANTHROPIC_API_KEY}"}), agent.ErrNotGranted, "its URL"},
		"a key in an argument":     {mcp(agent.MCPEntry{Command: "x", Args: []string{"${K}"}}), agent.ErrNotGranted, "an argument"},
		"a key in an environment":  {mcp(agent.MCPEntry{Command: "x", Env: map[string]string{"A": "${K}"}}), agent.ErrNotGranted, "its environment"},
		"a token it has not":       {mcp(agent.MCPEntry{URL: "http://x", BearerTokenEnv: "TOKEN"}), agent.ErrNotGranted, "TOKEN"},
		"a token that is no name":  {mcp(agent.MCPEntry{URL: "http://x", BearerTokenEnv: "A}${B"}), agent.ErrUnsupported, "no variable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := launch(t)
			c.change(&l)
			_, err := claude.Driver{}.Command(l)
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
		if _, err := (claude.Driver{}).Command(l); !errors.Is(err, agent.ErrUnready) {
			t.Errorf("%v, want ErrUnready", err)
		}
	})
}

func TestMCPConfig(t *testing.T) {
	t.Parallel()
	l := launch(t)
	l.Turn.Env = []string{"TOKEN=a-secret"}
	l.MCP = map[string]agent.MCPEntry{
		"local":  {Command: "/bin/server", Args: []string{"-v"}, Env: map[string]string{"A": "b"}},
		"remote": {URL: "https://mcp.example/x", Headers: map[string]string{"X-Y": "z"}, BearerTokenEnv: "TOKEN"},
	}
	if _, err := (claude.Driver{}).Command(l); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(l.Home, "turnpike-mcp.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	want := object{"mcpServers": object{
		"local": object{"type": "stdio", "command": "/bin/server", "args": []any{"-v"}, "env": object{"A": "b"}},
		"remote": object{
			"type": "http", "url": "https://mcp.example/x",
			"headers": object{"X-Y": "z", "Authorization": "Bearer ${TOKEN}"},
		},
	}}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}
