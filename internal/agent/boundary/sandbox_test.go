package boundary_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/boundary"
)

// sandboxed is a world whose request is for a sandbox, and the boundary of those.
func sandboxed(t *testing.T) (*world, *boundary.SandboxBoundary) {
	t.Helper()
	w := newWorld(t)
	w.request.Profile = agent.Profile{Name: "p", Sandbox: agent.SandboxSbx}
	w.request.Grants.Env = []string{"*"}
	return w, &boundary.SandboxBoundary{
		SessionsDir: w.boundary.SessionsDir, Backends: func(name string) (agent.Backend, bool) {
			b, ok := w.boundary.Backends(name)
			b.Credentials = []string{"ANTHROPIC_API_KEY"}
			return b, ok
		},
		Network:  agent.Network{Open: true},
		Premises: agent.Premises{Bin: "claude", Image: "template:1", HostName: "host.docker.internal", Injects: true},
	}
}

func TestSandboxTurn(t *testing.T) {
	t.Setenv("OF_THE_HOST", "not inherited")
	w, b := sandboxed(t)
	w.mkdir("ws/.git/refs", "ws/vendor", "skills")
	w.request.Grants.Mounts = append(w.request.Grants.Mounts,
		agent.Mount{Path: w.path("ws/vendor"), Access: agent.ReadOnly}, agent.Mount{Path: w.path("skills"), Access: agent.ReadOnly})
	w.request.Profile.Skills, b.SkillMountDirs = []string{"s"}, []string{w.path("skills")}
	w.request.Profile.Env = map[string]string{"A": "profile", "B": "profile"}
	w.request.Env = map[string]string{"B": "request", "C": "request"}
	w.request.ContainerEnv = map[string]string{"C": "inside"}
	w.request.VCSContainerEnv = map[string]string{"GIT_X": "not granted"}
	w.request.Profile.SandboxDomains = []string{"api.example.com"}
	turn, err := b.Verify(w.request)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"A=profile", "B=request", "C=inside"}, turn.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	bind := func(name string, a agent.Access) agent.Bind {
		return agent.Bind{Source: w.path(name), Destination: w.path(name), Access: a}
	}
	want := []agent.Bind{bind("skills", agent.ReadOnly), bind("ws", agent.ReadWrite), bind("ws/.git", agent.ReadOnly), bind("ws/vendor", agent.ReadOnly)}
	if diff := cmp.Diff(want, turn.Binds); diff != "" {
		t.Errorf("binds (-want +got):\n%s", diff)
	}
	box := turn.Box
	if box.Agent != agent.AgentClaude || box.Image != "template:1" || box.WorkDir != w.ws || box.Workspace != w.ws || box.VCS || len(box.Pins) != len(want) {
		t.Errorf("box: %+v", box)
	}
	if diff := cmp.Diff(agent.Network{Proxied: true, Domains: []string{"api.example.com"}}, box.Network); diff != "" {
		t.Errorf("network (-want +got):\n%s", diff)
	}
	if !slices.Contains(turn.DeniedExecutables, "git") || turn.Confinement != nil || turn.DaggerEngine != "" || turn.HostServers != nil {
		t.Errorf("turn: %+v", turn)
	}
}

func TestSandboxVersionControl(t *testing.T) {
	w, b := sandboxed(t)
	w.mkdir("ws/.git/refs", "ws/bin")
	w.request.Grants.VCS, w.request.Profile.VCSAccess = true, true
	w.request.VCSEnv = map[string]string{"GIT_A": "1", "GIT_B": "1"}
	w.request.VCSContainerEnv = map[string]string{"GIT_B": "2"}
	w.request.VCSContainerPath = []string{w.path("ws/bin")}
	turn, err := b.Verify(w.request)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"GIT_A=1", "GIT_B=2", "PATH=" + w.path("ws/bin")}, turn.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if len(turn.Binds) != 1 || turn.DeniedExecutables != nil || !turn.Box.VCS {
		t.Errorf("turn: %+v", turn)
	}
}

// TestSandboxGrants has a row for each sentence of the listing on Dagger engines and
// host servers.
func TestSandboxGrants(t *testing.T) {
	const engine = "unix:///run/dagger.sock"
	server := func(url string) map[string]agent.MCPEntry { return map[string]agent.MCPEntry{"db": {URL: url}} }
	tools := []string{agent.ToolsAll, "mcp__db"}
	for name, c := range map[string]struct {
		change  func(q *agent.Request)
		refused bool
		engine  string
		servers []agent.HostServer
	}{
		"an engine that is granted": {
			change: func(q *agent.Request) {
				q.Grants.DaggerEngine, q.Profile.Dagger = engine, &agent.Dagger{Engine: engine, Version: "0.20.5"}
			},
			engine: engine,
		},
		"an engine that is not": {
			change:  func(q *agent.Request) { q.Profile.Dagger = &agent.Dagger{Engine: engine} },
			refused: true,
		},
		"another engine": {
			change: func(q *agent.Request) {
				q.Grants.DaggerEngine, q.Profile.Dagger = engine, &agent.Dagger{Engine: "tcp://127.0.0.1:1"}
			},
			refused: true,
		},
		"a grant for a profile that asks for none": {
			change: func(q *agent.Request) { q.Grants.DaggerEngine = engine }, refused: true,
		},
		"an engine without an address": {
			change: func(q *agent.Request) { q.Profile.Dagger = &agent.Dagger{} }, refused: true,
		},
		"neither": {change: func(*agent.Request) {}},
		"a server with its entry": {
			change: func(q *agent.Request) {
				q.Grants.Tools, q.Profile.MCP = tools, server("http://127.0.0.1:9000/mcp")
				q.Grants.HostServers = []agent.HostServer{{Name: "db", Port: 9000}, {Name: "unused", Port: 1}}
			},
			servers: []agent.HostServer{{Name: "db", Port: 9000}},
		},
		"a server by another name of loopback": {
			change: func(q *agent.Request) {
				q.Grants.Tools, q.Profile.MCP = tools, server("http://localhost:9000")
				q.Grants.HostServers = []agent.HostServer{{Name: "db", Port: 9000}}
			},
			servers: []agent.HostServer{{Name: "db", Port: 9000}},
		},
		"a server without an entry": {
			change: func(q *agent.Request) { q.Grants.HostServers = []agent.HostServer{{Name: "db", Port: 9000}} },
		},
		"an entry on another port": {
			change: func(q *agent.Request) {
				q.Grants.Tools, q.Profile.MCP = tools, server("http://127.0.0.1:5432")
				q.Grants.HostServers = []agent.HostServer{{Name: "db", Port: 9000}}
			},
			refused: true,
		},
		"an entry elsewhere": {
			change: func(q *agent.Request) {
				q.Grants.Tools, q.Profile.MCP = tools, server("http://db.example.com:9000")
				q.Grants.HostServers = []agent.HostServer{{Name: "db", Port: 9000}}
			},
			refused: true,
		},
		"an entry on loopback that is not granted": {
			change: func(q *agent.Request) {
				q.Grants.Tools, q.Profile.MCP = tools, server("http://127.0.0.1:9000")
			},
			refused: true,
		},
		"a server whose tools are not granted": {
			change: func(q *agent.Request) {
				q.Profile.MCP = server("http://127.0.0.1:9000")
				q.Grants.HostServers = []agent.HostServer{{Name: "db", Port: 9000}}
			},
			refused: true,
		},
		"a port that is none": {
			change:  func(q *agent.Request) { q.Grants.HostServers = []agent.HostServer{{Name: "db", Port: 70000}} },
			refused: true,
		},
		"one server on two ports": {
			change: func(q *agent.Request) {
				q.Grants.HostServers = []agent.HostServer{{Name: "db", Port: 1}, {Name: "db", Port: 2}}
			},
			refused: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, b := sandboxed(t)
			c.change(&w.request)
			turn, err := b.Verify(w.request)
			if c.refused {
				if !errors.Is(err, agent.ErrNotGranted) {
					t.Errorf("%v, want %v", err, agent.ErrNotGranted)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if turn.DaggerEngine != c.engine {
				t.Errorf("engine %q, want %q", turn.DaggerEngine, c.engine)
			}
			if diff := cmp.Diff(c.servers, turn.HostServers); diff != "" {
				t.Errorf("servers (-want +got):\n%s", diff)
			}
			// Every other kind refuses them.
			if c.engine != "" || c.servers != nil {
				w.request.Profile.Sandbox, w.request.Profile.Confine = agent.SandboxNone, true
				if _, err := w.boundary.Verify(w.request); !errors.Is(err, agent.ErrUnsupported) {
					t.Errorf("on the host: %v", err)
				}
			}
		})
	}
}

func TestSandboxRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world, b *boundary.SandboxBoundary)
		want   error
	}{
		"no grants":          {func(w *world, _ *boundary.SandboxBoundary) { w.request.Grants = nil }, agent.ErrNotGranted},
		"no sbx":             {func(_ *world, b *boundary.SandboxBoundary) { b.Premises = agent.Premises{} }, agent.ErrUnsupported},
		"another placement":  {func(w *world, _ *boundary.SandboxBoundary) { w.request.Profile.Sandbox = agent.SandboxContainer }, agent.ErrUnsupported},
		"a confined sandbox": {func(w *world, _ *boundary.SandboxBoundary) { w.request.Profile.Confine = true }, agent.ErrUnsupported},
		"an unknown agent":   {func(w *world, _ *boundary.SandboxBoundary) { w.request.Profile.Agent = agent.AgentCodex }, agent.ErrUnsupported},
		"a container-use environment": {func(w *world, _ *boundary.SandboxBoundary) {
			w.request.Profile.ContainerUseEnvironment = "e"
		}, agent.ErrUnsupported},
		"a credential, which the proxy has": {func(w *world, _ *boundary.SandboxBoundary) {
			w.request.Env = map[string]string{"ANTHROPIC_API_KEY": "k"}
		}, agent.ErrUnsupported},
		"a variable that is not granted": {func(w *world, _ *boundary.SandboxBoundary) {
			w.request.Grants.Env, w.request.ContainerEnv = nil, map[string]string{"A": "1"}
		}, agent.ErrNotGranted},
		"a directory to write that is not granted": {func(w *world, b *boundary.SandboxBoundary) {
			b.MountDirs = []string{w.path("other")}
		}, agent.ErrNotGranted},
		"skills whose directory is not granted": {func(w *world, b *boundary.SandboxBoundary) {
			w.request.Profile.Skills, b.SkillMountDirs = []string{"s"}, []string{w.path("other")}
		}, agent.ErrNotGranted},
		"the sessions": {func(w *world, _ *boundary.SandboxBoundary) {
			w.request.Grants.Mounts = append(w.request.Grants.Mounts, agent.Mount{Path: w.path("sessions"), Access: agent.ReadOnly})
		}, agent.ErrNotGranted},
		"sbx's own directories": {func(w *world, b *boundary.SandboxBoundary) {
			b.Premises.Private = []string{w.path("other")}
			w.request.Grants.Mounts = append(w.request.Grants.Mounts, agent.Mount{Path: w.path("other"), Access: agent.ReadOnly})
		}, agent.ErrNotGranted},
		"a workspace outside the mounts": {func(w *world, _ *boundary.SandboxBoundary) { w.request.Workspace.Dir = w.path("other") }, agent.ErrNotGranted},
		"a path that sbx would read otherwise": {func(w *world, _ *boundary.SandboxBoundary) {
			w.mkdir("a:ro")
			w.request.Grants.Mounts = append(w.request.Grants.Mounts, agent.Mount{Path: w.path("a:ro"), Access: agent.ReadWrite})
		}, agent.ErrUnsupported},
		"a PATH outside the mounts": {func(w *world, _ *boundary.SandboxBoundary) {
			w.request.Grants.VCS, w.request.Profile.VCSAccess = true, true
			w.request.VCSContainerPath = []string{w.path("other")}
		}, agent.ErrNotGranted},
		"version control that is not granted": {func(w *world, _ *boundary.SandboxBoundary) { w.request.Profile.VCSAccess = true }, agent.ErrNotGranted},
		"a domain beyond the pool's": {func(w *world, b *boundary.SandboxBoundary) {
			b.Network = agent.Network{Proxied: true, Domains: []string{"a.example.com"}}
			w.request.Profile.SandboxDomains = []string{"b.example.com"}
		}, agent.ErrNotGranted},
	} {
		t.Run(name, func(t *testing.T) {
			w, b := sandboxed(t)
			c.change(w, b)
			if turn, err := b.Verify(w.request); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v: %+v", err, c.want, turn)
			} else if strings.Contains(err.Error(), "=k") {
				t.Errorf("a value is told: %v", err)
			}
		})
	}
}
