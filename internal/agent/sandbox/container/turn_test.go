//go:build linux

package container_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/driver/claude"
	"turnpike/internal/agent/driver/codex"
	"turnpike/internal/agent/driver/opencode"
	"turnpike/internal/agent/driver/pi"
	"turnpike/internal/agent/runner"
	"turnpike/internal/agent/sandbox/container"
	"turnpike/internal/testenv"
	"turnpike/internal/vcs"
)

// patience bounds what a CLI may take on a busy machine.
const patience = 3 * time.Minute

// subject is an agent CLI that asks a scripted provider.
type subject struct {
	model  string
	driver func(base string) agent.Driver
	env    func(base string) []string
}

var subjects = map[string]subject{
	agent.AgentClaude: {
		model: "sonnet", driver: func(string) agent.Driver { return claude.Driver{} },
		env: func(base string) []string {
			return []string{"ANTHROPIC_BASE_URL=" + base, "ANTHROPIC_API_KEY=sk-test-secret"}
		},
	},
	agent.AgentCodex: {
		model: "gpt-5.5", driver: func(string) agent.Driver { return codex.Driver{} },
		env: func(base string) []string {
			return []string{"OPENAI_BASE_URL=" + base + "/v1", "OPENAI_API_KEY=sk-test-secret"}
		},
	},
	agent.AgentOpenCode: {
		model: "scripted/some-model",
		driver: func(base string) agent.Driver {
			return opencode.Driver{Providers: map[string]opencode.Provider{"scripted": {
				Package: "@ai-sdk/openai-compatible", BaseURL: base + "/v1", KeyEnv: "ANTHROPIC_API_KEY",
				Models: []opencode.Model{{ID: "some-model", ContextWindow: 400_000, MaxTokens: 8_000}},
			}}}
		},
		env: func(string) []string { return []string{"ANTHROPIC_API_KEY=sk-test-secret"} },
	},
	agent.AgentPi: {
		model: "scripted/some-model",
		driver: func(base string) agent.Driver {
			return pi.Driver{Providers: map[string]pi.Provider{"scripted": {
				BaseURL: base + "/v1", API: "openai-completions", KeyEnv: "ANTHROPIC_API_KEY",
				Models: []pi.Model{{ID: "some-model", ContextWindow: 400_000, MaxTokens: 8_000}},
			}}}
		},
		env: func(string) []string { return []string{"ANTHROPIC_API_KEY=sk-test-secret"} },
	},
}

const ownerArg = "container-test-owner"

// ownerServer plays a server of the worker's owner, which runs on the host.
func ownerServer(address string) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		panic(err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "owner", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "ledger", Description: "Writes a line into the ledger."}, func(_ context.Context, _ *mcp.CallToolRequest, in struct {
		Line string `json:"line"`
	}) (*mcp.CallToolResult, any, error) {
		err := os.WriteFile(os.Getenv("OWNER_LEDGER"), []byte(in.Line), 0o600)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "written"}}}, nil, err
	})
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true})
	verify := func(_ context.Context, given string, _ *http.Request) (*auth.TokenInfo, error) {
		if token := os.Getenv("OWNER_TOKEN"); token == "" || given != token {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{Expiration: time.Now().Add(time.Hour)}, nil
	}
	if _, err := os.Stdout.WriteString("listening on " + l.Addr().String() + "\n"); err != nil {
		panic(err)
	}
	panic(http.Serve(l, auth.RequireBearerToken(verify, nil)(h)))
}

// turn runs a turn of an agent in a container: the network leads to the provider and
// nowhere else.
func turn(t *testing.T, name string, rec agent.Recorder, change func(*runner.Runner, *agent.Request), steps ...agenttest.Step) (*agent.Result, *agent.Request, error) {
	t.Helper()
	script := agenttest.NewProvider(t).Script("turn", steps...)
	at, err := url.Parse(script.URL())
	if err != nil {
		t.Fatal(err)
	}
	s, dir, work := subjects[name], t.TempDir(), t.TempDir()
	engine := &container.Engine{Dir: t.TempDir(), Label: label}
	r := &runner.Runner{
		SessionsDir: filepath.Join(dir, "sessions"), NamePrefix: "turnpike-test-", Recorder: rec,
		Drivers: map[string]agent.Driver{name: s.driver(script.URL())},
		Engines: map[string]agent.Engine{agent.SandboxContainer: engine},
		Watch:   agent.Watch{FirstEvent: patience, Idle: patience, Grace: 5 * time.Second},
		Network: agent.Network{Proxied: true, Domains: []string{at.Hostname()}, Hosts: map[string]string{at.Host: at.Host}},
		Environ: func() []string { return append(s.env(script.URL()), "GH_TOKEN=ghs", "NOT_THE_AGENTS=x") },
	}
	req := &agent.Request{
		Name: "contained", Prompt: "Say hello.", SystemPrompt: "Be brief.", ValidOutcomes: []string{"shipped"},
		Profile: agent.Profile{
			Name: "builder", Agent: name, Model: s.model, Sandbox: agent.SandboxContainer, SandboxImage: testenv.AgentImage(t),
		},
		Workspace: vcs.Workspace{Dir: work},
		Grants: &agent.Grants{
			Env: []string{"*"}, Tools: []string{agent.ToolsAll},
			Mounts: []agent.Mount{{Path: work, Access: agent.ReadWrite}},
		},
	}
	if change != nil {
		change(r, req)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, err := r.Run(ctx, *req)
	t.Cleanup(func() {
		// Outside the test's own time, which is over.
		if n, err := engine.Sweep(context.Background(), runner.BoxLabel(r.ContainerLabel, r.SessionsDir, "")); n > 0 || err != nil {
			t.Errorf("%d containers were left: %v", n, err)
		}
	})
	return res, req, err
}

// TestTurns has each of the four real CLIs work in a container: it uses its tools, is
// kept from version control, calls a server of the owner's that runs on the host, and
// reports.
func TestTurns(t *testing.T) {
	for _, name := range agent.Agents() {
		t.Run(name, func(t *testing.T) {
			ledger := filepath.Join(t.TempDir(), "ledger")
			own, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			rec := &recorder{}
			res, req, err := turn(t, name, rec, func(r *runner.Runner, req *agent.Request) {
				r.ContainerHome, r.ContainerLabel, r.ContainerListen = "/home/agent", "turnpike.test-turn", "127.0.0.2"
				if err := os.MkdirAll(filepath.Join(req.Workspace.Dir, ".git", "hooks"), 0o700); err != nil {
					t.Fatal(err)
				}
				req.HostMCP = &agent.HostMCP{
					Name: "owner", Entry: agent.MCPEntry{Type: "stdio", Command: own, Args: []string{ownerArg}},
					Env: map[string]string{"OWNER_LEDGER": ledger}, TokenEnv: "OWNER_TOKEN", ListeningPrefix: "listening on", Path: "/",
				}
				req.Grants.Tools = append(req.Grants.Tools, "mcp__owner")
				req.Env = map[string]string{"WHO": "everywhere", "OF": "the request"}
				req.ContainerEnv = map[string]string{"WHO": "inside"}
			},
				agenttest.Shell("pwd > found.txt; git --version >> found.txt 2>&1; echo $? >> found.txt; echo x > .git/hooks/pre-commit || echo kept >> found.txt; echo $HOME >> found.txt; echo $WHO $OF$NOT_THE_AGENTS$GH_TOKEN >> found.txt"),
				agenttest.Write("out.txt", "written\n"),
				agenttest.MCP("ledger", map[string]any{"line": "paid"}),
				agenttest.Report("all green"), agenttest.Text("Done."))
			if err != nil {
				t.Fatal(err)
			}
			if res.IsError || res.ResultText != "Done." || res.Outcome.Status != "shipped" || res.ToolCalls < 4 || res.ClaudeID == "" || res.WorkDir != "/workspace" {
				stderr, _ := os.ReadFile(filepath.Join(res.SessionDir, "stderr.log"))
				t.Fatalf("%+v\nstderr: %s", res, stderr)
			}
			found, err := os.ReadFile(filepath.Join(req.Workspace.Dir, "found.txt"))
			if want := "/workspace\ngit: not granted to this turn\n126\nkept\n/home/agent\ninside the request\n"; err != nil || string(found) != want {
				t.Errorf("the shell found %q, %v, want %q", found, err, want)
			}
			if out, err := os.ReadFile(filepath.Join(req.Workspace.Dir, "out.txt")); string(out) != "written\n" {
				t.Errorf("out.txt: %q, %v", out, err)
			}
			if line, err := os.ReadFile(ledger); string(line) != "paid" {
				t.Errorf("the owner's server was told %q, %v", line, err)
			}
			// The server before the container, and both gone.
			if want := []string{"creating", "live", "creating", "live", "gone", "gone"}; !slices.Equal(rec.told, want) {
				t.Errorf("the recorder was told %v, want %v", rec.told, want)
			}
			if !strings.HasPrefix(rec.box.Label, "turnpike.test-turn=") || rec.box.ID == "" {
				t.Errorf("the container was recorded as %+v", rec.box)
			}
		})
	}
}

// TestTurnRefusals are requests that their boundary refuses before anything is made.
func TestTurnRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*runner.Runner, *agent.Request)
		want   error
	}{
		"no image":              {func(_ *runner.Runner, q *agent.Request) { q.Profile.SandboxImage = "" }, agent.ErrUnsupported},
		"no engine":             {func(r *runner.Runner, _ *agent.Request) { r.Engines = nil }, agent.ErrUnsupported},
		"an engine of no use":   {func(r *runner.Runner, _ *agent.Request) { r.DockerBin = "/no/such" }, agent.ErrUnready},
		"an image that is none": {func(_ *runner.Runner, q *agent.Request) { q.Profile.SandboxImage = "turnpike-none:1" }, agent.ErrUnready},
		"a server not granted": {func(_ *runner.Runner, q *agent.Request) {
			q.HostMCP = &agent.HostMCP{Name: "owner", TokenEnv: "T", ListeningPrefix: "x", Entry: agent.MCPEntry{Command: "/bin/true"}}
		}, agent.ErrNotGranted},
		"the engine's data": {func(_ *runner.Runner, q *agent.Request) {
			q.Grants.Mounts = append(q.Grants.Mounts, agent.Mount{Path: docker(t, "info", "-f", "{{.DockerRootDir}}"), Access: agent.ReadOnly})
		}, agent.ErrNotGranted},
		"a server of the owner's that does not start": {func(_ *runner.Runner, q *agent.Request) {
			q.Grants.Tools = append(q.Grants.Tools, "mcp__owner")
			q.HostMCP = &agent.HostMCP{Name: "owner", TokenEnv: "T", ListeningPrefix: "x", Entry: agent.MCPEntry{Command: "/bin/true"}}
		}, agent.ErrUnready},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := turn(t, agent.AgentPi, nil, c.change, agenttest.Text("No."))
			if !errors.Is(err, c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestTurnIsStopped: a turn that is cancelled while its CLI waits ends with its container.
func TestTurnIsStopped(t *testing.T) {
	rec := &recorder{}
	res, _, err := turn(t, agent.AgentClaude, rec, func(r *runner.Runner, q *agent.Request) {
		q.Profile.Timeout = 10 * time.Second
		r.Watch.Grace = time.Second
	}, agenttest.Hang())
	if err != nil {
		t.Fatal(err)
	}
	if !res.TimedOut || !strings.HasPrefix(strings.Join(rec.told, " "), "creating live gone") {
		t.Errorf("got %+v; told %v", res, rec.told)
	}
}

// TestTurnStandsStill: what bounds a turn reaches its container.
func TestTurnStandsStill(t *testing.T) {
	type ending struct {
		res *agent.Result
		err error
	}
	started, over := make(chan agent.Control, 1), make(chan ending, 1)
	rec := &recorder{}
	go func() {
		res, _, err := turn(t, agent.AgentPi, rec, func(r *runner.Runner, _ *agent.Request) {
			r.Observer.Started = func(c agent.Control) { started <- c }
		}, agenttest.Text("Done."))
		over <- ending{res, err}
	}()
	var c agent.Control
	select {
	case c = <-started:
	case e := <-over:
		t.Fatalf("it did not start: %+v, %v", e.res, e.err)
	}
	until := func(at time.Time) {
		t.Helper()
		if err := c.(agent.Bounded).RunUntil(at); err != nil {
			t.Error(err)
		}
	}
	until(time.Now())
	rec.mu.Lock()
	id := rec.box.ID
	rec.mu.Unlock()
	for moving(t, id) > 0 { // a container that is gone fails the test
		runtime.Gosched()
	}
	until(time.Now().Add(time.Hour))
	if e := <-over; e.err != nil || e.res.IsError || e.res.ResultText != "Done." {
		t.Errorf("got %+v, %v", e.res, e.err)
	}
}
