package runner_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
)

// carrier is an engine without a box: it runs the agent here, carries sockets by links,
// and remembers what it was asked for.
type carrier struct {
	premises agent.Premises
	box      agent.Box
	env      []string
}

func (c *carrier) Look(context.Context, string, agent.Profile) (agent.Premises, error) {
	return c.premises, nil
}

func (c *carrier) Start(ctx context.Context, cmd *exec.Cmd, box agent.Box, rec agent.Recorder) (agent.Process, error) {
	c.box, c.env = box, slices.Clone(cmd.Env)
	for _, s := range box.Sockets {
		if err := os.Symlink(s.Source, s.Destination); err != nil {
			return nil, err
		}
	}
	return procs.Start(cmd, procs.Supervised)
}

func (*carrier) Find(context.Context, agent.Identity) (bool, error) { return false, nil }
func (*carrier) End(context.Context, agent.Identity) (bool, error)  { return false, nil }
func (*carrier) Sweep(context.Context, string) (int, error)         { return 0, nil }

// TestRunInASandbox runs a turn by an engine that carries sockets, gives the credential
// itself and has a name for the host.
func TestRunInASandbox(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "s") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	var launched agent.Launch
	r := newRunner(t, driver{args: []string{"reports"}, launched: func(l agent.Launch) { launched = l }})
	c := &carrier{premises: agent.Premises{Bin: r.ClaudeBin, HostName: "host.docker.internal", SocketDir: dir, Injects: true}}
	r.Engines = map[string]agent.Engine{agent.SandboxSbx: c}
	req := request(t)
	req.Profile.Sandbox = agent.SandboxSbx
	req.ValidOutcomes = []string{"ok"}
	req.Profile.MCP = map[string]agent.MCPEntry{"db": {URL: "http://127.0.0.1:9000/mcp"}}
	req.Grants.Tools = append(req.Grants.Tools, "mcp__db")
	req.Grants.HostServers = []agent.HostServer{{Name: "db", Port: 9000}}
	req.Profile.Dagger = &agent.Dagger{Engine: "tcp://127.0.0.1:1", Version: "0.20.5"}
	req.Grants.DaggerEngine = req.Profile.Dagger.Engine
	res := run(t, r, req)
	if res.Outcome.Status != "ok" {
		t.Errorf("got %+v", res)
	}
	if got := launched.MCP["db"].URL; got != "http://host.docker.internal:9000/mcp" {
		t.Errorf("the agent is led to %q", got)
	}
	if req.Profile.MCP["db"].URL != "http://127.0.0.1:9000/mcp" {
		t.Error("the request was changed")
	}
	b := c.box
	if b.Agent != agent.AgentClaude || b.Dagger == nil || len(b.HostServers) != 1 || len(b.Sockets) != 1 || b.Egress != nil || !strings.Contains(b.Label, "/") {
		t.Errorf("box: %+v", b)
	}
	shims := ""
	for _, bind := range b.Binds {
		if bind.Source != bind.Destination {
			t.Errorf("%s is shown at %s", bind.Source, bind.Destination)
		}
		if filepath.Base(bind.Source) == "shims" {
			shims = bind.Source
		}
	}
	if shims == "" || !slices.ContainsFunc(c.env, func(v string) bool { return strings.HasPrefix(v, "PATH="+shims+":") }) {
		t.Errorf("version control is not shadowed: %q in %q", shims, c.env)
	}
	for _, pair := range c.env {
		if strings.HasPrefix(pair, "LANG=") || strings.HasPrefix(pair, "GH_") || strings.HasPrefix(pair, "SECRET=") {
			t.Errorf("of the host: %s", pair)
		}
	}

	r.Engines = nil
	if _, err := r.Run(t.Context(), req); !errors.Is(err, agent.ErrUnsupported) {
		t.Errorf("without the engine: %v", err)
	}
}
