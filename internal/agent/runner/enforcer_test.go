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
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/runner"
)

// errWouldStart is how a test keeps a turn that would start from starting.
var errWouldStart = errors.New("it would start")

// granted is a machine and grants on it, and a request without any.
type granted struct {
	t       *testing.T
	dir     string
	runner  *runner.Runner
	grants  agent.Grants
	request agent.Request
}

func newGranted(t *testing.T) *granted {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g := &granted{t: t, dir: dir, runner: newRunner(t, driver{args: []string{"shell", "echo made > made; cat lib/x"}}), request: request(t)}
	for _, name := range []string{"ws/lib", "more", "bin", "elsewhere"} {
		if err := os.MkdirAll(g.path(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	g.write("ws/lib/x", "text\n")
	g.write("bin/git", "#!/bin/sh\n")
	g.runner.Confiner = confine.Platform(confine.Options{UnixSockets: true})
	g.runner.Environ = func() []string { return []string{"PATH=" + g.path("bin") + ":/usr/bin:/bin", "LANG=C"} }
	g.grants = agent.Grants{
		Env: []string{"LANG", "PATH"}, Tools: []string{"Read", "mcp__tracker"}, Within: g.dir,
		Mounts: []agent.Mount{
			{Path: g.path("ws"), Access: agent.ReadWrite}, {Path: g.path("ws/lib"), Access: agent.ReadOnly},
			{Path: g.path("more"), Access: agent.ReadOnly}, {Path: g.path("bin"), Access: agent.ReadOnly},
		},
	}
	g.runner.Drivers[agent.AgentClaude] = driver{
		args:     []string{"shell", "echo made > made; cat lib/x"},
		supports: map[agent.Placement]agent.ToolSupport{{Sandbox: agent.SandboxNone, Confine: true}: {Supported: true}},
	}
	g.request.Grants, g.request.Profile.Confine, g.request.Workspace.Dir = nil, true, g.path("ws")
	return g
}

func (g *granted) path(name string) string { return filepath.Join(g.dir, name) }

func (g *granted) write(name, content string) {
	g.t.Helper()
	if err := os.WriteFile(g.path(name), []byte(content), 0o700); err != nil {
		g.t.Fatal(err)
	}
}

func (g *granted) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *granted) prepare() agent.Session {
	g.t.Helper()
	s, err := runner.NewHostNone(g.runner).Prepare(g.t.Context(), g.grants)
	g.must(err)
	return s
}

func TestSession(t *testing.T) {
	t.Parallel()
	g := newGranted(t)
	s := g.prepare()
	p := s.Policy()
	exe, err := filepath.EvalSymlinks(g.runner.ClaudeBin)
	g.must(err)
	if p.Sandbox != agent.SandboxNone || !p.Confine || p.VCS || p.Image != "" || p.Agent != "" || p.Binds != nil {
		t.Errorf("got %+v", p)
	}
	if diff := cmp.Diff([][]string{{"LANG", "PATH"}, {"Read"}, {"tracker"}}, [][]string{p.Env, p.Tools, p.MCPServers}); diff != "" {
		t.Errorf("variables, tools and servers (-want +got):\n%s", diff)
	}
	if !slices.Contains(p.DeniedExecutables, "git") || !slices.Contains(p.Denied, g.path("bin/git")) {
		t.Errorf("denied are %v, %v", p.DeniedExecutables, p.Denied)
	}
	for what, wrong := range map[string]bool{
		"a granted file cannot be written":       !p.Writes(g.path("ws/new")),
		"the inner mount does not decide":        p.Writes(g.path("ws/lib/x")) || !p.Reads(g.path("ws/lib/x")),
		"a denied executable runs":               p.Runs(g.path("bin/git")) || p.Reads(g.path("bin/git")),
		"the agent does not run":                 !p.Runs(exe) || p.Writes(exe),
		"what was not granted is read":           p.Reads(g.path("elsewhere")),
		"the system cannot be read":              !p.Reads("/usr/bin/env"),
		"the worker's secrets can be read":       p.Reads("/etc/shadow"),
		"a tool that was not granted is allowed": p.Allows("Bash") || !p.Allows("Read") || !p.Allows("mcp__tracker"),
	} {
		if wrong {
			t.Error(what)
		}
	}
	res, err := s.Run(t.Context(), g.request)
	g.must(err)
	if res.IsError || !strings.Contains(res.ResultText, "text") {
		t.Errorf("got %+v", res)
	}
	// What a turn makes is no change of the policy, and a second one runs.
	if res, err = s.Run(t.Context(), g.request); err != nil || res.IsError {
		t.Errorf("got %+v, %v", res, err)
	}
	g.request.Grants = &agent.Grants{}
	if _, err := s.Run(t.Context(), g.request); !errors.Is(err, agent.ErrNotGranted) {
		t.Errorf("other grants: %v", err)
	}
	// The caller's slices are not the session's.
	g.grants.Mounts[0].Access = agent.ReadOnly
	if !s.Policy().Writes(g.path("ws/new")) {
		t.Error("the session's grants were changed under it")
	}
}

// TestSessionRefusesWhatChanged changes one thing that the policy was read from.
func TestSessionRefusesWhatChanged(t *testing.T) {
	t.Parallel()
	replace := func(g *granted, name string) {
		g.must(os.Rename(g.path(name), g.path("elsewhere/old")))
		g.must(os.MkdirAll(g.path(name), 0o700))
	}
	for name, c := range map[string]struct {
		change func(*granted)
		stands bool
	}{
		"nothing":                  {func(*granted) {}, true},
		"what is in a mount":       {func(g *granted) { g.write("ws/lib/x", "other\n"); g.write("more/new", "") }, true},
		"a mount by another":       {func(g *granted) { replace(g, "more") }, false},
		"the workspace by another": {func(g *granted) { replace(g, "ws"); g.must(os.Mkdir(g.path("ws/lib"), 0o700)) }, false},
		"a mount by a link": {func(g *granted) {
			g.must(os.Remove(g.path("more")))
			g.must(os.Symlink(g.path("elsewhere"), g.path("more")))
		}, false},
		"a mount by nothing": {func(g *granted) { g.must(os.Remove(g.path("more"))) }, false},
		"a denied executable": {func(g *granted) {
			g.must(os.Rename(g.path("bin/git"), g.path("bin/tig")))
			g.write("bin/git", "#!/bin/sh\n")
		}, false},
		"one more denied executable": {func(g *granted) { g.write("bin/hg", "#!/bin/sh\n") }, false},
		"one less":                   {func(g *granted) { g.must(os.Remove(g.path("bin/git"))) }, false},
		"another name of one":        {func(g *granted) { g.must(os.Link(g.path("bin/git"), g.path("bin/tig"))) }, false},
		"another name elsewhere":     {func(g *granted) { g.must(os.Link(g.path("bin/git"), g.path("elsewhere/tig"))) }, true},
		"what the owner set":         {func(g *granted) { g.runner.Network = agent.Network{} }, false},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			g := newGranted(t)
			started := false
			g.runner.Observer.Starting = func(context.Context) (time.Time, error) { started = true; return time.Time{}, errWouldStart }
			s := g.prepare()
			c.change(g)
			_, err := s.Run(t.Context(), g.request)
			switch {
			case c.stands && !errors.Is(err, errWouldStart):
				t.Errorf("got %v", err)
			case !c.stands && (!errors.Is(err, agent.ErrPolicyChanged) || started):
				t.Errorf("got %v, started: %t", err, started)
			}
		})
	}
	t.Run("between_its_look_and_the_turn's", func(t *testing.T) {
		t.Parallel()
		g := newGranted(t)
		s := g.prepare()
		g.runner.Judge = func(b agent.Boundary) agent.Boundary {
			replace(g, "more")
			return b
		}
		if _, err := s.Run(t.Context(), g.request); !errors.Is(err, agent.ErrPolicyChanged) {
			t.Errorf("got %v", err)
		}
	})
}

func TestPrepareRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		enforcer func(*granted) agent.Enforcer
		change   func(*granted)
		kind     error
	}{
		"no mount":                    {nil, func(g *granted) { g.grants.Mounts = nil }, agent.ErrNotGranted},
		"a mount that is not there":   {nil, func(g *granted) { g.grants.Mounts[2].Path = g.path("nowhere") }, agent.ErrNotGranted},
		"a mount outside":             {nil, func(g *granted) { g.grants.Within = g.path("ws") }, agent.ErrNotGranted},
		"a pattern for a tool":        {nil, func(g *granted) { g.grants.Tools = []string{"Bash(git *)"} }, agent.ErrUnsupported},
		"a Dagger engine on the host": {nil, func(g *granted) { g.grants.DaggerEngine = "tcp://127.0.0.1:1" }, agent.ErrUnsupported},
		"servers of the host":         {nil, func(g *granted) { g.grants.HostServers = []agent.HostServer{{Name: "a", Port: 1}} }, agent.ErrUnsupported},
		"a platform that cannot":      {nil, func(g *granted) { g.runner.Confiner = incapable{} }, agent.ErrUnsupported},
		"a worker without agents":     {nil, func(g *granted) { g.runner.Drivers = nil }, agent.ErrUnsupported},
		"Claude's sandbox without bwrap": {
			func(g *granted) agent.Enforcer { return runner.NewHostClaude(g.runner) },
			func(g *granted) { g.runner.Environ = func() []string { return []string{"PATH=" + g.path("bin")} } }, agent.ErrUnsupported,
		},
		"containers without an engine": {func(g *granted) agent.Enforcer { return runner.NewContainer(g.runner, "img") }, nil, agent.ErrUnsupported},
		"sandboxes without an engine":  {func(g *granted) agent.Enforcer { return runner.NewSandbox(g.runner, agent.AgentClaude, "") }, nil, agent.ErrUnsupported},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			g := newGranted(t)
			e := runner.NewHostNone(g.runner)
			if c.enforcer != nil {
				g.grants.Tools = []string{agent.ToolsAll}
				e = c.enforcer(g)
			}
			if c.change != nil {
				c.change(g)
			}
			s, err := e.Prepare(t.Context(), g.grants)
			if !errors.Is(err, c.kind) || s != nil {
				t.Fatalf("got %v, %v", s, err)
			}
		})
	}
}

// incapable is a platform that enforces nothing.
type incapable struct{}

func (incapable) Check(agent.Confinement) error            { return agent.ErrUnsupported }
func (incapable) Start(*exec.Cmd, agent.Confinement) error { panic("it was asked before") }

// TestSessionOfTheOwnSandbox prepares a session of Claude Code's own sandbox.
func TestSessionOfTheOwnSandbox(t *testing.T) {
	t.Parallel()
	g := newGranted(t)
	g.grants.Tools = []string{agent.ToolsAll}
	g.runner.Observer.Starting = func(context.Context) (time.Time, error) { return time.Time{}, errWouldStart }
	s, err := runner.NewHostClaude(g.runner).Prepare(t.Context(), g.grants)
	g.must(err)
	p := s.Policy()
	if p.Sandbox != agent.SandboxClaude || p.Confine || p.Tools != nil || p.Reads(g.path("bin/git")) || !p.Writes(g.path("ws/new")) {
		t.Errorf("got %+v", p)
	}
	g.request.Profile = agent.Profile{Sandbox: agent.SandboxClaude, SandboxDomains: []string{}}
	if _, err := s.Run(t.Context(), g.request); !errors.Is(err, errWouldStart) {
		t.Errorf("got %v", err)
	}
	// As late as the start: after the turn's own verdict.
	g.runner.Observer.Starting = func(context.Context) (time.Time, error) {
		g.must(os.Rename(g.path("more"), g.path("elsewhere/old")))
		return time.Time{}, os.Mkdir(g.path("more"), 0o700)
	}
	if res, err := s.Run(t.Context(), g.request); !errors.Is(err, agent.ErrPolicyChanged) || res != nil {
		t.Errorf("got %v, %v", res, err)
	}
	if _, err := s.Run(t.Context(), g.request); !errors.Is(err, agent.ErrPolicyChanged) {
		t.Errorf("got %v", err)
	}
}

// TestSessionsLife runs and releases sessions in any order.
func TestSessionsLife(t *testing.T) {
	t.Parallel()
	g := newGranted(t)
	g.runner.Observer.Starting = func(context.Context) (time.Time, error) { return time.Time{}, errWouldStart }
	rapid.Check(t, func(rt *rapid.T) {
		s, err := runner.NewHostNone(g.runner).Prepare(t.Context(), g.grants)
		if err != nil {
			rt.Fatal(err)
		}
		released := false
		for _, what := range rapid.SliceOfN(rapid.SampledFrom([]string{"run", "its own", "others", "elsewhere", "release"}), 1, 6).Draw(rt, "steps") {
			req, want := g.request, errWouldStart
			switch what {
			case "its own":
				req.Grants = new(agent.Grants)
				*req.Grants = g.grants
			case "others":
				req.Grants, want = &agent.Grants{}, agent.ErrNotGranted
			case "elsewhere":
				req.Profile.Confine, want = false, agent.ErrNotGranted
			case "release":
				if err := s.Release(t.Context()); err != nil {
					rt.Fatal(err)
				}
				released = true
				continue
			}
			if released {
				want = agent.ErrReleased
			}
			if res, err := s.Run(t.Context(), req); res != nil || !errors.Is(err, want) {
				rt.Fatalf("%s: got %v, %v; want %v", what, res, err, want)
			}
		}
	})
}
