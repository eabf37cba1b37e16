package boundary_test

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/boundary"
)

// inBox is the world's request for a turn in a box of the kind, with an engine that
// brings what every engine must.
func (w *world) inBox(sandbox string) agent.Boundary {
	w.request.Profile.Confine, w.request.Profile.Sandbox = false, sandbox
	backends := w.boundary.Backends
	if sandbox == agent.SandboxSbx {
		return boundary.SandboxBoundary{
			SessionsDir: w.path("sessions"), Backends: backends, Network: agent.Network{Open: true},
			Premises: agent.Premises{Bin: "/usr/bin/claude", Image: w.request.Profile.SandboxImage},
		}
	}
	w.request.Profile.SandboxImage = "img"
	w.write("stand-in", "#!/bin/sh\n")
	mask := agent.Bind{Source: w.path("stand-in"), Destination: "/usr/bin/git", Access: agent.ReadOnly}
	return boundary.ContainerBoundary{
		SessionsDir: w.path("sessions"), Backends: backends, Network: agent.Network{Open: true}, Masks: []agent.Bind{mask},
		Environ:  w.boundary.Environ,
		Premises: agent.Premises{Image: "sha256:1", Bin: "/usr/bin/claude", MaskFile: w.path("stand-in"), MaskDir: w.path("other")},
	}
}

// verdict is what became of a request.
type verdict struct {
	turn *agent.Turn
	err  error
}

func (v verdict) refused() bool {
	return errors.Is(v.err, agent.ErrNotGranted) || errors.Is(v.err, agent.ErrUnsupported)
}

func (v verdict) env(pair string) bool { return v.err == nil && slices.Contains(v.turn.Env, pair) }

func (v verdict) has(name string) bool {
	return v.err != nil || slices.ContainsFunc(v.turn.Env, func(p string) bool { return strings.HasPrefix(p, name+"=") })
}

func (v verdict) mount(path string, a agent.Access) bool {
	return v.err == nil && slices.Contains(v.turn.Mounts, agent.Mount{Path: path, Access: a})
}

// TestGrants has a row for each thing the API listing says about what grants are: the
// change to a request that is inside its grants, and whether the saying holds.
func TestGrants(t *testing.T) {
	t.Parallel()
	host := func(w *world) agent.Boundary { return w.boundary }
	grantEnv := func(w *world, names ...string) { w.request.Grants.Env = names }
	for _, c := range []struct {
		says   string
		change func(*world) agent.Boundary
		holds  func(*world, verdict) bool
	}{
		{"a request without grants is refused", func(w *world) agent.Boundary { w.request.Grants = nil; return w.boundary },
			func(_ *world, v verdict) bool { return v.refused() }},

		{"variables: the list is complete", host, func(_ *world, v verdict) bool { return v.err == nil && len(v.turn.Env) == 0 }},
		{"variables: a name on it is inherited", func(w *world) agent.Boundary { grantEnv(w, "LANG"); return w.boundary },
			func(_ *world, v verdict) bool { return v.env("LANG=C") && !v.has("LC_ALL") }},
		{"variables: a star is a prefix", func(w *world) agent.Boundary { grantEnv(w, "LC_*"); return w.boundary },
			func(_ *world, v verdict) bool { return v.env("LC_ALL=C") && !v.has("LANG") }},
		{"variables: without the star it is not", func(w *world) agent.Boundary { grantEnv(w, "LC_"); return w.boundary },
			func(_ *world, v verdict) bool { return v.err == nil && !v.has("LC_ALL") }},
		{"variables: one the profile sets must be on it", func(w *world) agent.Boundary { w.request.Profile.Env = map[string]string{"A": "1"}; return w.boundary },
			func(_ *world, v verdict) bool { return v.refused() }},
		{"variables: one the request sets must be on it", func(w *world) agent.Boundary { w.request.Env = map[string]string{"A": "1"}; return w.boundary },
			func(_ *world, v verdict) bool { return v.refused() }},
		{"variables: what is set goes before what is inherited", func(w *world) agent.Boundary {
			grantEnv(w, "LANG")
			w.request.Env = map[string]string{"LANG": "de"}
			return w.boundary
		}, func(_ *world, v verdict) bool { return v.env("LANG=de") }},
		{"variables: inside a box only, for a host turn", func(w *world) agent.Boundary { w.request.ContainerEnv = map[string]string{"A": "1"}; return w.boundary },
			func(_ *world, v verdict) bool { return v.err == nil && !v.has("A") }},
		{"variables: inside a box they override", func(w *world) agent.Boundary {
			grantEnv(w, "A")
			w.request.Env, w.request.ContainerEnv = map[string]string{"A": "1"}, map[string]string{"A": "2"}
			return w.inBox(agent.SandboxContainer)
		}, func(_ *world, v verdict) bool { return v.env("A=2") }},

		{"tools: a star is all of them", host, func(_ *world, v verdict) bool { return v.err == nil && v.turn.Tools == nil }},
		{"tools: names are those alone", func(w *world) agent.Boundary { w.request.Grants.Tools = []string{"Read"}; return w.boundary },
			func(_ *world, v verdict) bool { return v.err == nil && slices.Equal(v.turn.Tools, []string{"Read"}) }},
		{"tools: none are none", func(w *world) agent.Boundary { w.request.Grants.Tools = nil; return w.boundary },
			func(_ *world, v verdict) bool { return v.err == nil && v.turn.Tools != nil && len(v.turn.Tools) == 0 }},
		{"tools: the profile may narrow them", func(w *world) agent.Boundary {
			w.request.Grants.Tools, w.request.Profile.AllowedTools = []string{"Read", "Write"}, []string{"Read"}
			return w.boundary
		}, func(_ *world, v verdict) bool { return v.err == nil && slices.Equal(v.turn.Tools, []string{"Read"}) }},
		{"tools: the profile may not widen them", func(w *world) agent.Boundary {
			w.request.Grants.Tools, w.request.Profile.AllowedTools = []string{"Read"}, []string{"Read", "Write"}
			return w.boundary
		}, func(_ *world, v verdict) bool { return v.refused() }},
		{"tools: a server is granted by its name", func(w *world) agent.Boundary {
			w.request.Profile.MCP = map[string]agent.MCPEntry{"a": {Command: "/x"}}
			w.request.Grants.Tools = append(w.request.Grants.Tools, "mcp__a")
			return w.boundary
		}, func(_ *world, v verdict) bool { return v.err == nil }},
		{"tools: a star grants no server", func(w *world) agent.Boundary {
			w.request.Profile.MCP = map[string]agent.MCPEntry{"a": {Command: "/x"}}
			return w.boundary
		}, func(_ *world, v verdict) bool { return v.refused() }},

		{"mounts: the innermost decides", func(w *world) agent.Boundary { w.mkdir("ws/ro"); w.grant("ws/ro", agent.ReadOnly); return w.boundary },
			func(w *world, v verdict) bool {
				m, _ := agent.Deciding(v.turn.Mounts, w.path("ws/ro/x"))
				return m.Access == agent.ReadOnly
			}},
		{"mounts: whatever the order they come in", func(w *world) agent.Boundary {
			w.mkdir("ws/ro")
			w.request.Grants.Mounts = []agent.Mount{{Path: w.path("ws/ro"), Access: agent.ReadOnly}, {Path: w.ws, Access: agent.ReadWrite}}
			return w.boundary
		}, func(w *world, v verdict) bool {
			m, _ := agent.Deciding(v.turn.Mounts, w.path("ws/ro/x"))
			return m.Access == agent.ReadOnly
		}},
		{"mounts: their links are resolved", func(w *world) agent.Boundary {
			w.link(w.path("other"), "link")
			w.grant("link", agent.ReadOnly)
			return w.boundary
		},
			func(w *world, v verdict) bool { return v.mount(w.path("other"), agent.ReadOnly) }},
		{"mounts: the working directory lies in one", func(w *world) agent.Boundary { w.request.Workspace.Dir = w.path("other"); return w.boundary },
			func(_ *world, v verdict) bool { return v.refused() }},
		{"mounts: not by the beginning of a name", func(w *world) agent.Boundary {
			w.mkdir("ws2")
			w.request.Workspace.Dir = w.path("ws2")
			return w.boundary
		},
			func(_ *world, v verdict) bool { return v.refused() }},
		{"mounts: a link in one leads the working directory out", func(w *world) agent.Boundary {
			w.link(w.path("other"), "ws/out")
			w.request.Workspace.Dir = w.path("ws/out")
			return w.boundary
		}, func(_ *world, v verdict) bool { return v.refused() }},
		{"mounts: deeper than one is inside", func(w *world) agent.Boundary {
			w.mkdir("ws/deep")
			w.request.Workspace.Dir = w.path("ws/deep")
			return w.boundary
		},
			func(_ *world, v verdict) bool { return v.err == nil }},

		{"within: what lies in it", func(w *world) agent.Boundary { w.request.Grants.Within = w.dir; return w.boundary },
			func(_ *world, v verdict) bool { return v.err == nil }},
		{"within: a mount beside it", func(w *world) agent.Boundary { w.request.Grants.Within = w.path("other"); return w.boundary },
			func(_ *world, v verdict) bool { return v.refused() }},
		{"within: out through dots", func(w *world) agent.Boundary {
			w.request.Grants.Within = w.ws
			w.request.Grants.Mounts = append(w.request.Grants.Mounts, agent.Mount{Path: w.ws + "/../other", Access: agent.ReadOnly})
			return w.boundary
		}, func(_ *world, v verdict) bool { return v.refused() }},
		{"within: out through a link", func(w *world) agent.Boundary {
			w.request.Grants.Within = w.ws
			w.link(w.path("other"), "ws/out")
			w.grant("ws/out", agent.ReadOnly)
			return w.boundary
		}, func(_ *world, v verdict) bool { return v.refused() }},
		{"within: a link of its own", func(w *world) agent.Boundary {
			w.link(w.dir, "here")
			w.request.Grants.Within = w.path("here")
			return w.boundary
		},
			func(_ *world, v verdict) bool { return v.err == nil }},

		{"version control: its variables stay out", func(w *world) agent.Boundary {
			grantEnv(w, "GH_TOKEN", "GIT_*")
			w.boundary.Environ = func() []string { return []string{"GH_TOKEN=t", "GIT_DIR=/x"} }
			w.request.VCSEnv = map[string]string{"GIT_AUTHOR_NAME": "n"}
			return w.boundary
		}, func(_ *world, v verdict) bool {
			return v.err == nil && !v.has("GH_TOKEN") && !v.has("GIT_DIR") && !v.has("GIT_AUTHOR_NAME")
		}},
		{"version control: its executables are denied", func(w *world) agent.Boundary {
			grantEnv(w, "PATH")
			w.write("ws/bin/git", "")
			w.boundary.Environ = func() []string { return []string{"PATH=" + w.path("ws/bin")} }
			return w.boundary
		}, func(w *world, v verdict) bool {
			return slices.Contains(v.turn.DeniedExecutables, "git") && slices.Contains(v.turn.Confinement.Denied, w.path("ws/bin/git"))
		}},
		{"version control: its metadata is read-only", func(w *world) agent.Boundary { w.mkdir("ws/.git"); return w.boundary },
			func(w *world, v verdict) bool {
				return slices.Equal(v.turn.Confinement.ReadOnlyMetadata, []string{w.path("ws/.git")})
			}},
		{"version control: granted and asked for, all three are there", func(w *world) agent.Boundary {
			grantEnv(w, "GH_TOKEN", "GIT_*")
			w.mkdir("ws/.git")
			w.boundary.Environ = func() []string { return []string{"GH_TOKEN=t"} }
			w.request.VCSEnv = map[string]string{"GIT_AUTHOR_NAME": "n"}
			w.request.Grants.VCS, w.request.Profile.VCSAccess = true, true
			return w.boundary
		}, func(_ *world, v verdict) bool {
			return v.env("GH_TOKEN=t") && v.env("GIT_AUTHOR_NAME=n") && v.turn.VCS && v.turn.DeniedExecutables == nil &&
				v.turn.Confinement.Denied == nil && v.turn.Confinement.ReadOnlyMetadata == nil
		}},
		{"version control: granted and not asked for, none is", func(w *world) agent.Boundary { w.mkdir("ws/.git"); w.request.Grants.VCS = true; return w.boundary },
			func(_ *world, v verdict) bool {
				return v.err == nil && !v.turn.VCS && len(v.turn.Confinement.ReadOnlyMetadata) == 1
			}},
		{"version control: asked for and not granted", func(w *world) agent.Boundary { w.request.Profile.VCSAccess = true; return w.boundary },
			func(_ *world, v verdict) bool { return v.refused() }},
		{"denied: a hard link beside it, not elsewhere", func(w *world) agent.Boundary {
			grantEnv(w, "PATH")
			w.write("ws/bin/git", "")
			w.boundary.Environ = func() []string { return []string{"PATH=" + w.path("ws/bin")} }
			for _, name := range []string{"ws/bin/twin", "ws/far"} {
				if err := os.Link(w.path("ws/bin/git"), w.path(name)); err != nil {
					w.t.Fatal(err)
				}
			}
			return w.boundary
		}, func(w *world, v verdict) bool {
			d := v.turn.Confinement.Denied
			return slices.Contains(d, w.path("ws/bin/twin")) && !slices.Contains(d, w.path("ws/far"))
		}},
		{"denied: what a link of its name leads to", func(w *world) agent.Boundary {
			grantEnv(w, "PATH")
			w.write("ws/lib/real", "")
			w.mkdir("ws/bin")
			w.link(w.path("ws/lib/real"), "ws/bin/git")
			w.boundary.Environ = func() []string { return []string{"PATH=" + w.path("ws/bin")} }
			return w.boundary
		}, func(w *world, v verdict) bool {
			return slices.Contains(v.turn.Confinement.Denied, w.path("ws/lib/real"))
		}},

		{"Dagger: the granted engine, asked for", func(w *world) agent.Boundary { return w.dagger("tcp://127.0.0.1:1", "tcp://127.0.0.1:1") },
			func(_ *world, v verdict) bool { return v.err == nil && v.turn.DaggerEngine == "tcp://127.0.0.1:1" }},
		{"Dagger: its socket", func(w *world) agent.Boundary { return w.dagger("unix:///run/d.sock", "unix:///run/d.sock") },
			func(_ *world, v verdict) bool { return v.err == nil }},
		{"Dagger: its container", func(w *world) agent.Boundary { return w.dagger("docker-container://d", "docker-container://d") },
			func(_ *world, v verdict) bool { return v.err == nil }},
		{"Dagger: another engine", func(w *world) agent.Boundary { return w.dagger("tcp://127.0.0.1:1", "tcp://127.0.0.1:2") },
			func(_ *world, v verdict) bool { return v.refused() }},
		{"Dagger: asked for and not granted", func(w *world) agent.Boundary { return w.dagger("", "tcp://127.0.0.1:1") },
			func(_ *world, v verdict) bool { return v.refused() }},
		{"Dagger: granted and not asked for", func(w *world) agent.Boundary { return w.dagger("tcp://127.0.0.1:1", "") },
			func(_ *world, v verdict) bool { return v.refused() }},
		{"Dagger: in a sandbox only, not on the host", func(w *world) agent.Boundary {
			w.dagger("tcp://127.0.0.1:1", "tcp://127.0.0.1:1")
			w.request.Profile.Sandbox, w.request.Profile.Confine = agent.SandboxNone, true
			return w.boundary
		}, func(_ *world, v verdict) bool { return v.refused() }},
		{"Dagger: nor in a container", func(w *world) agent.Boundary {
			w.dagger("tcp://127.0.0.1:1", "tcp://127.0.0.1:1")
			return w.inBox(agent.SandboxContainer)
		}, func(_ *world, v verdict) bool { return v.refused() }},

		{"host servers: those the profile reaches, in name order", func(w *world) agent.Boundary {
			w.request.Grants.HostServers = []agent.HostServer{{Name: "b", Port: 2}, {Name: "a", Port: 1}, {Name: "c", Port: 3}}
			w.request.Grants.Tools = append(w.request.Grants.Tools, "mcp__a", "mcp__b")
			w.request.Profile.MCP = map[string]agent.MCPEntry{"b": {URL: "http://localhost:2/"}, "a": {URL: "http://127.0.0.1:1/"}}
			return w.inBox(agent.SandboxSbx)
		}, func(_ *world, v verdict) bool {
			return v.err == nil && slices.Equal(v.turn.HostServers, []agent.HostServer{{Name: "a", Port: 1}, {Name: "b", Port: 2}})
		}},
		{"host servers: on the granted port alone", func(w *world) agent.Boundary {
			w.request.Grants.HostServers = []agent.HostServer{{Name: "a", Port: 1}}
			w.request.Grants.Tools = append(w.request.Grants.Tools, "mcp__a")
			w.request.Profile.MCP = map[string]agent.MCPEntry{"a": {URL: "http://localhost:2/"}}
			return w.inBox(agent.SandboxSbx)
		}, func(_ *world, v verdict) bool { return v.refused() }},
		{"host servers: refused on the host", func(w *world) agent.Boundary {
			w.request.Grants.HostServers = []agent.HostServer{{Name: "a", Port: 1}}
			return w.boundary
		},
			func(_ *world, v verdict) bool { return v.refused() }},
		{"host servers: refused in Claude's sandbox", func(w *world) agent.Boundary {
			own := newOwn(w.t)
			*w = *own
			w.request.Grants.HostServers = []agent.HostServer{{Name: "a", Port: 1}}
			return w.boundary
		}, func(_ *world, v verdict) bool { return v.refused() }},
		{"host servers: refused in a container", func(w *world) agent.Boundary {
			w.request.Grants.HostServers = []agent.HostServer{{Name: "a", Port: 1}}
			return w.inBox(agent.SandboxContainer)
		}, func(_ *world, v verdict) bool { return v.refused() }},

		{"an image: none on the host", func(w *world) agent.Boundary { w.request.Profile.SandboxImage = "img"; return w.boundary },
			func(_ *world, v verdict) bool { return v.refused() }},
		{"an image: a container needs one", func(w *world) agent.Boundary {
			b := w.inBox(agent.SandboxContainer)
			w.request.Profile.SandboxImage = ""
			return b
		}, func(_ *world, v verdict) bool { return v.refused() }},
		{"an image: a container runs that", func(w *world) agent.Boundary { return w.inBox(agent.SandboxContainer) },
			func(_ *world, v verdict) bool { return v.err == nil && v.turn.Box.Image == "sha256:1" }},
		{"an image: a sandbox may do without", func(w *world) agent.Boundary { return w.inBox(agent.SandboxSbx) },
			func(_ *world, v verdict) bool { return v.err == nil && v.turn.Box.Image == "" }},
		{"masks: laid over the image, and need no grant", func(w *world) agent.Boundary { return w.inBox(agent.SandboxContainer) },
			func(w *world, v verdict) bool {
				return v.err == nil && slices.Contains(v.turn.Binds, agent.Bind{Source: w.path("stand-in"), Destination: "/usr/bin/git", Access: agent.ReadOnly})
			}},
		{"masks: none with version control", func(w *world) agent.Boundary {
			w.request.Grants.VCS, w.request.Profile.VCSAccess = true, true
			return w.inBox(agent.SandboxContainer)
		}, func(w *world, v verdict) bool {
			return v.err == nil && !slices.ContainsFunc(v.turn.Binds, func(b agent.Bind) bool { return b.Destination == "/usr/bin/git" })
		}},
		{"binds: nil for a host turn", host, func(_ *world, v verdict) bool { return v.err == nil && v.turn.Binds == nil }},
		{"confinement: nil for a box", func(w *world) agent.Boundary { return w.inBox(agent.SandboxContainer) },
			func(_ *world, v verdict) bool { return v.err == nil && v.turn.Confinement == nil }},
	} {
		t.Run(strings.ReplaceAll(c.says, " ", "_"), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			b := c.change(w)
			turn, err := b.Verify(w.request)
			if v := (verdict{turn, err}); !c.holds(w, v) {
				t.Errorf("got %+v, %v", turn, err)
			}
		})
	}
}

// dagger is the boundary of a sandbox, one engine granted and one asked for.
func (w *world) dagger(granted, asked string) agent.Boundary {
	b := w.inBox(agent.SandboxSbx)
	w.request.Grants.DaggerEngine = granted
	if asked != "" {
		w.request.Profile.Dagger = &agent.Dagger{Engine: asked, Version: "v0.20.5"}
	}
	return b
}

// TestValidOutcomesThroughJSON: nothing said and nothing allowed are two things, also
// after a request was written down.
func TestValidOutcomesThroughJSON(t *testing.T) {
	t.Parallel()
	for _, want := range [][]string{nil, {}, {"done"}} {
		text, err := json.Marshal(agent.Request{ValidOutcomes: want})
		if err != nil {
			t.Fatal(err)
		}
		var got agent.Request
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if (got.ValidOutcomes == nil) != (want == nil) || !slices.Equal(got.ValidOutcomes, want) {
			t.Errorf("%#v became %#v", want, got.ValidOutcomes)
		}
	}
}
