package boundary_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/boundary"
)

// yard is a world whose turns run in containers.
type yard struct {
	*world
	container boundary.ContainerBoundary
}

func newYard(t testing.TB) *yard {
	t.Helper()
	w := newWorld(t)
	w.mkdir("engine/data", "engine/denied.d")
	w.write("engine/denied", "#!/bin/sh\n")
	w.request.Profile = agent.Profile{Name: "p", Sandbox: agent.SandboxContainer, SandboxImage: "image:1"}
	y := &yard{world: w}
	y.container = boundary.ContainerBoundary{
		Environ: func() []string {
			return []string{"HOME=" + w.path("home"), "PATH=/host/bin", "KEY=secret", "AGENT_MODE=x", "MCP_TOKEN=m", "OTHER=o", "GH_TOKEN=g"}
		},
		SessionsDir: w.path("sessions"),
		Network:     agent.Network{Open: true},
		Backends: func(name string) (agent.Backend, bool) {
			b, ok := w.boundary.Backends(name)
			b.Credentials, b.ProviderEnv = []string{"KEY"}, []string{"KEY", "AGENT_*"}
			return b, ok
		},
		Masks: []agent.Bind{{Source: w.path("engine/denied"), Destination: "/usr/bin/git", Access: agent.ReadOnly}},
		Premises: agent.Premises{
			Image: "sha256:1", Bin: "/usr/bin/claude", WorkDir: "/workspace",
			Env:      []string{"PATH=/image/bin:/usr/bin", "HOME=/root", "IMAGE=1", "GIT_AUTHOR_NAME=image"},
			MaskFile: w.path("engine/denied"), MaskDir: w.path("engine/denied.d"), Private: []string{w.path("engine/data")},
		},
	}
	return y
}

func (y *yard) verify() *agent.Turn {
	y.t.Helper()
	turn, err := y.container.Verify(y.request)
	if err != nil {
		y.t.Fatal(err)
	}
	return turn
}

func (y *yard) refused(want error, why string) {
	y.t.Helper()
	_, err := y.container.Verify(y.request)
	if !errors.Is(err, want) || !strings.Contains(err.Error(), why) {
		y.t.Errorf("got %v, want %v because %q", err, want, why)
	}
}

// at is the bind that is shown at a path inside.
func at(t *agent.Turn, path string) (agent.Bind, bool) {
	i := slices.IndexFunc(t.Binds, func(b agent.Bind) bool { return b.Destination == path })
	if i < 0 {
		return agent.Bind{}, false
	}
	return t.Binds[i], true
}

func (y *yard) want(t *agent.Turn, path, source string, access agent.Access) {
	y.t.Helper()
	if b, ok := at(t, path); !ok || b.Source != source || b.Access != access {
		y.t.Errorf("at %s is %+v (%t), want %s %s", path, b, ok, source, access)
	}
}

// vcs has the turn have version control.
func (y *yard) vcs() { y.request.Grants.VCS, y.request.Profile.VCSAccess = true, true }

func TestContainerBinds(t *testing.T) {
	t.Run("the mounts at their own paths and the workspace at its fixed one", func(t *testing.T) {
		y := newYard(t)
		y.grant("other", agent.ReadOnly)
		y.mkdir("ws/inner")
		y.grant("ws/inner", agent.ReadOnly)
		turn := y.verify()
		y.want(turn, y.ws, y.ws, agent.ReadWrite)
		y.want(turn, y.path("other"), y.path("other"), agent.ReadOnly)
		y.want(turn, "/workspace", y.ws, agent.ReadWrite)
		y.want(turn, "/workspace/inner", y.path("ws/inner"), agent.ReadOnly)
		if box := turn.Box; box.Workspace != y.ws || box.WorkDir != "/workspace" || box.Image != "sha256:1" || box.Home != boundary.DefaultContainerHome {
			t.Errorf("the box is %+v", box)
		}
		if !slices.Equal(turn.Binds, turn.Box.Binds) || turn.Confinement != nil {
			t.Error("the turn's binds are not the box's")
		}
		if !slices.IsSortedFunc(turn.Binds, func(a, b agent.Bind) int { return strings.Compare(a.Destination, b.Destination) }) {
			t.Errorf("an inner bind goes before its outer one: %+v", turn.Binds)
		}
		for _, b := range turn.Binds {
			if !slices.ContainsFunc(turn.Box.Pins, func(p agent.Pin) bool { return p.Path == b.Source && p.Inode != 0 }) {
				t.Errorf("%s has no pin", b.Source)
			}
		}
	})
	t.Run("metadata stays read-only, the pointer's target too", func(t *testing.T) {
		y := newYard(t)
		y.mkdir("ws/.git", "ws/nested/real")
		y.write("ws/nested/.git", "gitdir: real\n")
		turn := y.verify()
		for _, at := range []string{"ws/.git", "ws/nested/.git", "ws/nested/real"} {
			y.want(turn, y.path(at), y.path(at), agent.ReadOnly)
			y.want(turn, "/workspace/"+strings.TrimPrefix(at, "ws/"), y.path(at), agent.ReadOnly)
		}
		y.vcs()
		if _, ok := at(y.verify(), y.path("ws/.git")); ok {
			t.Error("with version control its metadata is not writable")
		}
	})
	t.Run("version control of the image is masked, and what mounts show of the host's", func(t *testing.T) {
		y := newYard(t)
		turn := y.verify()
		y.want(turn, "/usr/bin/git", y.path("engine/denied"), agent.ReadOnly)
		if !slices.Contains(turn.DeniedExecutables, "git") {
			t.Error("git is not denied")
		}
		y.vcs()
		if turn := y.verify(); len(turn.DeniedExecutables) > 0 {
			t.Errorf("with version control %v are denied", turn.DeniedExecutables)
		} else if _, ok := at(turn, "/usr/bin/git"); ok {
			t.Error("with version control git is masked")
		}
	})
	t.Run("sockets in mounts are covered, in read-only ones too", func(t *testing.T) {
		y := newYard(t)
		y.mkdir("other/deep")
		y.grant("other", agent.ReadOnly)
		y.socket("other/deep/engine.sock") // OpenHands#14902
		y.mkdir("ws/deep")
		y.socket("ws/deep/s")
		turn := y.verify()
		y.want(turn, y.path("other/deep/engine.sock"), y.path("engine/denied"), agent.ReadOnly)
		y.want(turn, "/workspace/deep/s", y.path("engine/denied"), agent.ReadOnly)
		y.container.Premises.MaskFile = ""
		y.refused(agent.ErrUnsupported, "grant less")
	})
	t.Run("a granted directory again under the link it is named by", func(t *testing.T) {
		y := newYard(t)
		y.link(y.ws, "by-link")
		y.request.Workspace.Dir = y.path("by-link")
		y.request.Grants.Mounts = []agent.Mount{{Path: y.path("by-link"), Access: agent.ReadOnly}}
		turn := y.verify()
		y.want(turn, y.ws, y.ws, agent.ReadOnly)
		y.want(turn, y.path("by-link"), y.ws, agent.ReadOnly)
		y.want(turn, "/workspace", y.ws, agent.ReadOnly)
	})
	t.Run("mounts that would cover what every container has", func(t *testing.T) {
		y := newYard(t)
		y.container.Home = y.path("other")
		y.mkdir("other/deep")
		y.grant("other/deep", agent.ReadOnly)
		y.refused(agent.ErrNotGranted, "would cover")
		y.container.Home, y.container.Premises.WorkDir = "", y.path("other")
		y.refused(agent.ErrNotGranted, "would cover")
	})
	t.Run("the engine's own, by parent or link", func(t *testing.T) {
		y := newYard(t)
		y.grant("engine", agent.ReadOnly)
		y.refused(agent.ErrNotGranted, "which no turn may")
		y = newYard(t)
		y.link(y.path("engine/data"), "elsewhere")
		y.grant("elsewhere", agent.ReadOnly)
		y.refused(agent.ErrNotGranted, "which no turn may")
	})
	t.Run("directories to write must be granted", func(t *testing.T) {
		y := newYard(t)
		y.container.MountDirs = []string{y.path("other")}
		y.refused(agent.ErrNotGranted, "not granted read-write")
		y.grant("other", agent.ReadWrite)
		if turn := y.verify(); !slices.Contains(turn.WriteDirs, y.path("other")) {
			t.Errorf("the agent is told of %v", turn.WriteDirs)
		}
	})
	t.Run("skills must be granted", func(t *testing.T) {
		y := newYard(t)
		y.container.SkillMountDirs, y.request.Profile.Skills = []string{y.path("other")}, []string{"s"}
		y.refused(agent.ErrNotGranted, "skills")
		y.grant("other", agent.ReadOnly)
		y.verify()
	})
}

func TestContainerEnvironment(t *testing.T) {
	env := func(t *agent.Turn) string { return strings.Join(t.Env, " ") }
	t.Run("of the host no more than the agent's own and the servers'", func(t *testing.T) {
		y := newYard(t)
		y.request.Grants.Env = []string{"*"}
		y.request.Grants.Tools = append(y.request.Grants.Tools, "mcp__s")
		y.request.Profile.MCP = map[string]agent.MCPEntry{"s": {URL: "https://mcp.test", BearerTokenEnv: "MCP_TOKEN"}}
		if got, want := env(y.verify()), "AGENT_MODE=x IMAGE=1 KEY=secret MCP_TOKEN=m PATH=/image/bin:/usr/bin"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		y.request.Profile.MCP = nil
		y.request.Grants.Env = []string{"KEY"}
		if got, want := env(y.verify()), "IMAGE=1 KEY=secret PATH=/image/bin:/usr/bin"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
	t.Run("what is set inside goes before what is set everywhere", func(t *testing.T) {
		y := newYard(t)
		y.request.Grants.Env = []string{"A", "B", "C", "IMAGE", "GIT_*"}
		y.request.Profile.Env = map[string]string{"A": "profile", "B": "profile", "IMAGE": "profile"}
		y.request.Env = map[string]string{"B": "request", "C": "request"}
		y.request.ContainerEnv = map[string]string{"C": "inside"}
		y.request.VCSEnv = map[string]string{"GIT_DIR": "host"}
		y.request.VCSContainerEnv = map[string]string{"GIT_DIR": "inside"}
		if got, want := env(y.verify()), "A=profile B=request C=inside IMAGE=profile PATH=/image/bin:/usr/bin"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		y.vcs()
		if got, want := env(y.verify()), "A=profile B=request C=inside GIT_AUTHOR_NAME=image GIT_DIR=inside IMAGE=profile PATH=/image/bin:/usr/bin"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		y.request.ContainerEnv = map[string]string{"D": "x"}
		y.refused(agent.ErrNotGranted, "variable D")
	})
	t.Run("directories before the image's PATH", func(t *testing.T) {
		y := newYard(t)
		y.mkdir("ws/bin")
		y.request.VCSContainerPath = []string{y.path("ws/bin")}
		if got := env(y.verify()); strings.Contains(got, "ws/bin") {
			t.Errorf("without version control: %s", got)
		}
		y.vcs()
		if got := env(y.verify()); !strings.Contains(got, "PATH="+y.path("ws/bin")+":/image/bin:/usr/bin") {
			t.Errorf("got %s", got)
		}
		y.request.VCSContainerPath = []string{y.path("other")}
		y.refused(agent.ErrNotGranted, "lies in no granted mount")
	})
	t.Run("a container-use environment", func(t *testing.T) {
		y := newYard(t)
		y.request.Profile.ContainerUseEnvironment = "fancy-otter"
		y.request.Grants.Env = []string{"CONTAINER_USE_*"}
		y.refused(agent.ErrUnsupported, "no repository")
		y.container.UseRepository = y.path("other")
		y.refused(agent.ErrNotGranted, "is not granted")
		y.grant("other", agent.ReadWrite)
		if got := env(y.verify()); !strings.Contains(got, "CONTAINER_USE_ENVIRONMENT=fancy-otter CONTAINER_USE_REPOSITORY="+y.path("other")) {
			t.Errorf("got %s", got)
		}
		y.request.Grants.Env = nil
		y.refused(agent.ErrNotGranted, "CONTAINER_USE_")
	})
}

func TestContainerRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*yard)
		want   error
		why    string
	}{
		"no grants":           {func(y *yard) { y.request.Grants = nil }, agent.ErrNotGranted, "no capability"},
		"another placement":   {func(y *yard) { y.request.Profile.Sandbox = "" }, agent.ErrUnsupported, "no container's"},
		"confined as well":    {func(y *yard) { y.request.Profile.Confine = true }, agent.ErrUnsupported, "no container's"},
		"no engine":           {func(y *yard) { y.container.Premises.Image = "" }, agent.ErrUnsupported, "no turns in containers"},
		"an unknown agent":    {func(y *yard) { y.request.Profile.Agent = "nobody" }, agent.ErrUnsupported, "does not run"},
		"no image":            {func(y *yard) { y.request.Profile.SandboxImage = "" }, agent.ErrUnsupported, "needs an image"},
		"Dagger":              {func(y *yard) { y.request.Profile.Dagger = &agent.Dagger{} }, agent.ErrUnsupported, "Dagger"},
		"a Dagger grant":      {func(y *yard) { y.request.Grants.DaggerEngine = "unix:///d" }, agent.ErrUnsupported, "Dagger"},
		"host servers":        {func(y *yard) { y.request.Grants.HostServers = []agent.HostServer{{Name: "s", Port: 1}} }, agent.ErrUnsupported, "loopback"},
		"version control":     {func(y *yard) { y.request.Profile.VCSAccess = true }, agent.ErrNotGranted, "version control"},
		"a tool":              {func(y *yard) { y.request.Grants.Tools = nil; y.request.Profile.AllowedTools = []string{"Bash"} }, agent.ErrNotGranted, "Bash"},
		"a server's name":     {func(y *yard) { y.request.HostMCP = &agent.HostMCP{Name: "a b"} }, agent.ErrNotGranted, "no name"},
		"a server":            {func(y *yard) { y.request.HostMCP = &agent.HostMCP{Name: "owner"} }, agent.ErrNotGranted, "mcp__owner"},
		"a home that is none": {func(y *yard) { y.container.Home = "home" }, agent.ErrUnsupported, "home of containers"},
		"a domain": {func(y *yard) {
			y.container.Network = agent.Network{Proxied: true, Domains: []string{"a.test"}}
			y.request.Profile.SandboxDomains = []string{"b.test"}
		}, agent.ErrNotGranted, "b.test"},
		"a workspace outside":  {func(y *yard) { y.request.Workspace.Dir = y.path("other") }, agent.ErrNotGranted, "lies in no granted mount"},
		"the sessions":         {func(y *yard) { y.grant("sessions", agent.ReadOnly) }, agent.ErrNotGranted, "which no turn may"},
		"the home of the host": {func(y *yard) { y.grant("home", agent.ReadOnly) }, agent.ErrNotGranted, "home"},
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t)
			c.change(y)
			y.refused(c.want, c.why)
		})
	}
	t.Run("a granted server is none of its business", func(t *testing.T) {
		y := newYard(t)
		y.request.Grants.Tools = append(y.request.Grants.Tools, "mcp__owner")
		y.request.HostMCP = &agent.HostMCP{Name: "owner"}
		y.verify()
	})
	t.Run("limits and network are the pool's", func(t *testing.T) {
		y := newYard(t)
		y.container.Limits = agent.Limits{MemoryBytes: 1 << 30}
		y.request.Profile.SandboxDomains = []string{}
		if box := y.verify().Box; box.Limits != y.container.Limits || box.Network.Open || box.Network.Proxied {
			t.Errorf("got %+v", box)
		}
	})
}

// TestContainerWritesNothing: a boundary only looks.
func TestContainerWritesNothing(t *testing.T) {
	y := newYard(t)
	list := func() (out []string) {
		err := filepath.WalkDir(y.dir, func(path string, _ os.DirEntry, err error) error {
			out = append(out, path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := list()
	y.verify()
	if after := list(); !slices.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}
