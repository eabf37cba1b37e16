package boundary

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"turnpike/internal/agent"
)

// confined is what a refused placement is answered with.
var confined = agent.Placement{Sandbox: agent.SandboxNone, Confine: true}

// SandboxBoundary verifies turns in a Docker Sandboxes virtual machine. Such a turn
// inherits nothing of the host's environment, and no credential of its provider: the
// sandbox's own proxy has that. It has no denied paths either; version control commands
// are shadowed on its PATH.
type SandboxBoundary struct {
	// SessionsDir holds the session directories; see HostBoundary.SessionsDir.
	SessionsDir string
	// MountDirs must be granted read-write.
	MountDirs []string
	// SkillMountDirs hold the prepared skills and must be granted when the profile
	// has skills.
	SkillMountDirs []string

	// Beyond the listing:

	// Premises are what the engine brings to the turn. Without a program of the agent
	// in it every request is refused.
	Premises agent.Premises
	// Backends, Network, Limits and Private are as in HostBoundary.
	Backends func(name string) (agent.Backend, bool)
	Network  agent.Network
	Limits   agent.Limits
	Private  []string
}

// Verify gives the turn req may have. See the package comment.
func (s SandboxBoundary) Verify(req agent.Request) (*agent.Turn, error) {
	if req.Grants == nil {
		return nil, notGranted("a request without grants has no capability")
	}
	backend, err := s.backend(req.Profile)
	if err != nil {
		return nil, err
	}
	turn := &agent.Turn{}
	if turn.VCS, err = versionControl(req); err != nil {
		return nil, err
	}
	if turn.Tools, err = tools(req, backend); err != nil {
		return nil, err
	}
	if err := hostMCP(req); err != nil {
		return nil, err
	}
	if turn.DaggerEngine, err = daggerEngine(req); err != nil {
		return nil, err
	}
	if turn.HostServers, err = hostServers(req); err != nil {
		return nil, err
	}
	h := HostBoundary{
		AddDirs: s.MountDirs, SessionsDir: s.SessionsDir, Network: s.Network, Limits: s.Limits,
		Private: slices.Concat(s.Private, s.Premises.Private),
	}.inheriting(nil)
	if turn.Mounts, err = h.mounts(*req.Grants, turn.VCS); err != nil {
		return nil, err
	}
	workspace, err := workingDir(req, *turn)
	if err != nil {
		return nil, err
	}
	if turn.WriteDirs, err = h.writeDirs(*turn, workspace); err != nil {
		return nil, err
	}
	if err := skillsGranted(req.Profile, s.SkillMountDirs, *turn); err != nil {
		return nil, err
	}
	if turn.Env, err = s.environment(h, req, *turn, backend); err != nil {
		return nil, err
	}
	if !turn.VCS {
		turn.DeniedExecutables = agent.VCSCommands()
	}
	network, err := h.network(req.Profile)
	if err != nil {
		return nil, err
	}
	box := &agent.Box{
		Image: s.Premises.Image, Agent: req.Profile.AgentName(), Workspace: workspace, WorkDir: workspace,
		Network: network, Limits: s.Limits, VCS: turn.VCS, HostServers: turn.HostServers,
	}
	if err := sandboxBinds(req, turn, box); err != nil {
		return nil, err
	}
	turn.Box, turn.Binds = box, box.Binds
	return turn, nil
}

func (s SandboxBoundary) backend(p agent.Profile) (agent.Backend, error) {
	place := p.Placement()
	switch {
	case place.Sandbox != agent.SandboxSbx || place.Confine:
		return agent.Backend{}, unsupported("placement %q is no sandbox's", place)
	case s.Premises.Bin == "":
		return agent.Backend{}, unsupported("this worker runs no turns in sandboxes; use placement %q", confined)
	case p.ContainerUseEnvironment != "":
		return agent.Backend{}, unsupported("a container-use environment needs placement %q", agent.SandboxContainer)
	case len(p.PiPackages) > 0 && p.AgentName() != agent.AgentPi:
		return agent.Backend{}, unsupported("packages of pi for the agent %q", p.AgentName())
	}
	if s.Backends != nil {
		if b, ok := s.Backends(p.AgentName()); ok {
			return b, nil
		}
	}
	return agent.Backend{}, unsupported("this worker does not run the agent %q", p.AgentName())
}

// environment is what profile, request and caller set, as far as it is granted.
func (s SandboxBoundary) environment(h HostBoundary, req agent.Request, turn agent.Turn, b agent.Backend) ([]string, error) {
	inside := []variables{{"request, for the sandbox", req.ContainerEnv}}
	if turn.VCS {
		inside = append(inside, variables{"version control, for the sandbox", req.VCSContainerEnv})
	}
	env, err := h.environment(req, turn.VCS, inside...)
	if err != nil {
		return nil, err
	}
	for _, pair := range env {
		if name, _, _ := strings.Cut(pair, "="); slices.Contains(b.Credentials, name) {
			return nil, unsupported("variable %s is a credential, and a sandbox is given none: its proxy has them (sbx secret set)", name)
		}
	}
	if !turn.VCS || len(req.VCSContainerPath) == 0 {
		return env, nil
	}
	dirs, err := mountedDirs(req.VCSContainerPath, turn)
	if err != nil {
		return nil, err
	}
	for i, pair := range env {
		if own, ok := strings.CutPrefix(pair, "PATH="); ok {
			env[i] = "PATH=" + strings.Join(append(dirs, own), ":")
			return env, nil
		}
	}
	env = append(env, "PATH="+strings.Join(dirs, ":"))
	slices.Sort(env)
	return env, nil
}

// daggerEngine is the engine the profile asks for, which must be the one granted.
func daggerEngine(req agent.Request) (string, error) {
	d := req.Profile.Dagger
	switch {
	case d == nil && req.Grants.DaggerEngine != "":
		return "", notGranted("a Dagger engine is granted to a turn that asks for none")
	case d == nil:
		return "", nil
	case d.Engine == "" || d.Engine != req.Grants.DaggerEngine:
		return "", notGranted("the Dagger engine %q", d.Engine)
	}
	return d.Engine, nil
}

// loopbackNames are what an entry may call the host whose server it reaches.
var loopbackNames = []string{"localhost", "127.0.0.1", "::1"}

// hostServers are the granted servers of the host's loopback that the profile's entries
// reach, in name order. An entry that names the loopback and is not granted would reach
// the sandbox's own; it is refused, because it means something else.
func hostServers(req agent.Request) ([]agent.HostServer, error) {
	var out []agent.HostServer
	granted := map[string]int{}
	for _, g := range req.Grants.HostServers {
		if port, twice := granted[g.Name]; twice && port != g.Port {
			return nil, notGranted("host server %q is granted on two ports", g.Name)
		}
		if g.Port < 1 || g.Port > 65535 {
			return nil, notGranted("host server %q on port %d", g.Name, g.Port)
		}
		granted[g.Name] = g.Port
	}
	for name, entry := range req.Profile.MCP {
		u, err := url.Parse(entry.URL)
		local := entry.URL != "" && err == nil && slices.Contains(loopbackNames, u.Hostname())
		port, ok := granted[name]
		switch {
		case !ok && !local:
		case !ok:
			return nil, notGranted("MCP server %q is on the host's loopback, and no host server of this name", name)
		case !local || u.Scheme != "http" || u.User != nil:
			return nil, notGranted("host server %q is granted, but its entry %q is no http URL of the loopback", name, entry.URL)
		case cmp.Or(u.Port(), "80") != strconv.Itoa(port):
			return nil, notGranted("host server %q is granted on port %d, its entry says %s", name, port, cmp.Or(u.Port(), "80"))
		default:
			out = append(out, agent.HostServer{Name: name, Port: port})
		}
	}
	slices.SortFunc(out, func(a, b agent.HostServer) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// sandboxBinds says all that the sandbox is shown of the host, outer before inner: the
// mounts at their own paths, and metadata again, read-only. A directory that the request
// names through a link of the host is the same path inside, for the worker hands on
// resolved ones.
func sandboxBinds(req agent.Request, turn *agent.Turn, box *agent.Box) error {
	found, err := survey(*turn, req.Workspace.Metadata, true)
	if err != nil {
		return err
	}
	for _, m := range turn.Mounts {
		box.Binds = append(box.Binds, agent.Bind{Source: m.Path, Destination: m.Path, Access: m.Access})
	}
	for _, path := range found.metadata {
		if !slices.ContainsFunc(box.Binds, func(b agent.Bind) bool { return b.Source == path }) {
			box.Binds = append(box.Binds, agent.Bind{Source: path, Destination: path, Access: agent.ReadOnly})
		}
	}
	// The sandbox's first workspace is where the agent works.
	if !slices.ContainsFunc(box.Binds, func(b agent.Bind) bool { return b.Source == box.Workspace }) {
		over, _ := agent.Deciding(turn.Mounts, box.Workspace)
		box.Binds = append(box.Binds, agent.Bind{Source: box.Workspace, Destination: box.Workspace, Access: over.Access})
	}
	slices.SortFunc(box.Binds, func(a, b agent.Bind) int { return strings.Compare(a.Destination, b.Destination) })
	for _, b := range box.Binds {
		if strings.ContainsAny(b.Source, ":\n") {
			return unsupported("the path %q cannot be shown in a sandbox: it holds a colon or a line break", b.Source)
		}
	}
	box.Pins, err = pins(box.Binds)
	return err
}
