// Package boundary decides, before anything is written or started, whether a
// request stays inside its grants, and says exactly what its turn is started
// with. It reads paths and environment names; whatever it cannot verify, or is
// told that the operating system cannot enforce, it refuses. Enforcing the answer
// is the launcher's work, and what a worker's owner allows at all is the worker's.
package boundary

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
)

var (
	_ agent.Boundary = HostBoundary{}
	_ agent.Boundary = ContainerBoundary{}
	_ agent.Boundary = SandboxBoundary{}
)

// HostBoundary verifies turns that run as processes of the host, confined or not.
type HostBoundary struct {
	// Environ is the host's environment; nil is os.Environ.
	Environ func() []string
	// StripPrefix removes host variables with this prefix even when granted.
	StripPrefix string
	// AddDirs are directories the agent is told it may write. Each must be
	// granted read-write.
	AddDirs []string
	// Confiner enforces a confined turn; nil is this platform's.
	Confiner agent.Confiner
	// SystemPaths are what a confined turn reaches beyond its mounts; nil is
	// confine.DefaultSystemPaths.
	SystemPaths []agent.Mount
	// SessionsDir holds the session directories. No mount may reach it: of its
	// own session a turn is shown only the parts the runner adds.
	SessionsDir string
	// SkillDirs hold the prepared skills; a confined turn with skills must be
	// granted them.
	SkillDirs []string

	// Backends describes the agents this worker runs. An agent it does not know
	// is refused.
	Backends func(name string) (agent.Backend, bool)
	// Network and Limits are what the worker's owner chose. A turn that is not
	// confined can be held to neither.
	Network agent.Network
	Limits  agent.Limits
	// Private are the worker's own directories, which no mount may reach.
	Private []string

	inherits func(name string) bool // of the host's environment; nil is every name
}

// Verify gives the turn req may have. See the package comment.
func (h HostBoundary) Verify(req agent.Request) (*agent.Turn, error) {
	if req.Grants == nil {
		return nil, notGranted("a request without grants has no capability")
	}
	backend, err := h.backend(req.Profile)
	if err != nil {
		return nil, err
	}
	if err := h.hostOnly(req); err != nil {
		return nil, err
	}
	turn := &agent.Turn{}
	if turn.VCS, err = versionControl(req); err != nil {
		return nil, err
	}
	if turn.Tools, err = tools(req, backend); err != nil {
		return nil, err
	}
	if turn.Env, err = h.environment(req, turn.VCS); err != nil {
		return nil, err
	}
	if turn.Mounts, err = h.mounts(*req.Grants, turn.VCS); err != nil {
		return nil, err
	}
	dir, err := workingDir(req, *turn)
	if err != nil {
		return nil, err
	}
	if turn.WriteDirs, err = h.writeDirs(*turn, dir); err != nil {
		return nil, err
	}
	var denied []string
	if !turn.VCS {
		turn.DeniedExecutables, denied = executables(turn.Env)
	}
	network, err := h.network(req.Profile)
	if err != nil {
		return nil, err
	}
	if req.Profile.Sandbox == agent.SandboxClaude {
		turn.OwnSandbox, err = h.ownSandbox(req, *turn, dir, denied, network)
		if err != nil {
			return nil, err
		}
		return turn, nil
	}
	if !req.Profile.Confine {
		if !network.Open || h.Limits != (agent.Limits{}) {
			return nil, unsupported("a turn that is not confined can be held to no network and no limits; confine it, or let the pool have the open network and no limits")
		}
		return turn, nil
	}
	if turn.Confinement, err = h.confinement(req, *turn, dir, denied); err != nil {
		return nil, err
	}
	turn.Confinement.Network, turn.Confinement.Limits = network, h.Limits
	if err := h.confiner().Check(*turn.Confinement); err != nil {
		return nil, fmt.Errorf("confine turn: %w", err)
	}
	return turn, nil
}

func (h HostBoundary) backend(p agent.Profile) (agent.Backend, error) {
	place := p.Placement()
	if !place.Host() || !slices.Contains(agent.Placements(), place) {
		return agent.Backend{}, unsupported("placement %q is not one of the host's", place)
	}
	if place.Sandbox == agent.SandboxClaude {
		if p.AgentName() != agent.AgentClaude {
			return agent.Backend{}, unsupported("sandbox %q belongs to the agent claude, not %q", place.Sandbox, p.AgentName())
		}
		if place.Confine {
			return agent.Backend{}, unsupported("the sandbox %q cannot be set up inside a confined turn; %q confines more", place.Sandbox, agent.Placement{Sandbox: agent.SandboxNone, Confine: true})
		}
	}
	if h.Backends != nil {
		if b, ok := h.Backends(p.AgentName()); ok {
			return b, nil
		}
	}
	return agent.Backend{}, unsupported("this worker does not run the agent %q", p.AgentName())
}

// hostOnly refuses what has no meaning, or cannot be held, in a turn of the host.
// ContainerEnv, VCSContainerEnv and VCSContainerPath are not among it: they say
// themselves that they apply inside a container or sandbox only.
func (h HostBoundary) hostOnly(req agent.Request) error {
	p, g := req.Profile, req.Grants
	for what, asked := range map[string]bool{
		"a Dagger engine":             p.Dagger != nil || g.DaggerEngine != "",
		"servers on the host":         len(g.HostServers) > 0,
		"a host MCP server":           req.HostMCP != nil,
		"an image":                    p.SandboxImage != "",
		"a container-use environment": p.ContainerUseEnvironment != "",
	} {
		if asked {
			return unsupported("%s needs a container or a sandbox, not placement %q", what, p.Placement())
		}
	}
	if len(p.PiPackages) > 0 && p.AgentName() != agent.AgentPi {
		return unsupported("packages of pi for the agent %q", p.AgentName())
	}
	return nil
}

// network narrows the owner's choice to the profile's domains.
func (h HostBoundary) network(p agent.Profile) (agent.Network, error) {
	if p.SandboxDomains == nil {
		return h.Network, nil
	}
	if len(p.SandboxDomains) == 0 {
		return agent.Network{}, nil
	}
	switch {
	case h.Network.Open, h.Network.Proxied && h.Network.Domains == nil:
	default:
		for _, d := range p.SandboxDomains {
			if !slices.Contains(h.Network.Domains, d) {
				return agent.Network{}, notGranted("domain %q is not among those of the worker's network", d)
			}
		}
	}
	return agent.Network{Proxied: true, Domains: slices.Clone(p.SandboxDomains), Hosts: h.Network.Hosts}, nil
}

func (h HostBoundary) confiner() agent.Confiner {
	if h.Confiner != nil {
		return h.Confiner
	}
	return confine.Platform(confine.Options{})
}

func (h HostBoundary) environ() []string {
	if h.Environ != nil {
		return h.Environ()
	}
	return os.Environ()
}

// confinement is what the operating system is asked to enforce.
func (h HostBoundary) confinement(req agent.Request, turn agent.Turn, dir string, denied []string) (*agent.Confinement, error) {
	c := &agent.Confinement{
		Sandbox:   req.Profile.Placement().Sandbox,
		Mounts:    turn.Mounts,
		Workspace: dir,
		WorkDir:   dir,
	}
	if m, ok := h.confiner().(interface{ Mode() confine.Mode }); ok {
		c.WorkDir = m.Mode().WorkDir(dir)
	}
	system := h.SystemPaths
	if system == nil {
		system = confine.DefaultSystemPaths()
	}
	c.System = slices.Clone(system)
	reachable := func(path string) bool {
		_, mounted := agent.Deciding(c.Mounts, path)
		_, ofSystem := agent.Deciding(c.System, path)
		return mounted || ofSystem
	}
	if len(req.Profile.Skills) > 0 {
		for _, d := range h.SkillDirs {
			actual, err := filepath.EvalSymlinks(d)
			if err != nil || !reachable(actual) {
				return nil, notGranted("the profile has skills but their directory %s is not granted", d)
			}
		}
	}
	for _, source := range req.Profile.PiPackages {
		if !filepath.IsAbs(source) {
			continue // the turn itself fetches it, with what it has
		}
		if actual, err := filepath.EvalSymlinks(source); err != nil || !reachable(actual) {
			return nil, notGranted("the package of pi in %s is not among the granted mounts", source)
		}
	}
	found, err := survey(turn, req.Workspace.Metadata, false)
	if err != nil {
		return nil, err
	}
	c.ReadOnlyMetadata = found.metadata
	for _, path := range append(denied, found.sockets...) {
		if reachable(path) {
			c.Denied = append(c.Denied, path)
		}
	}
	slices.Sort(c.Denied)
	c.Denied = slices.Compact(c.Denied)
	// What was looked at here is what must be mounted there, whoever changes the
	// paths in between.
	if c.Pins, err = confine.Pins(*c); err != nil {
		return nil, notGranted("a granted path is gone again: %v", err)
	}
	return c, nil
}

func notGranted(format string, args ...any) error {
	return fmt.Errorf("%w: %s", agent.ErrNotGranted, fmt.Sprintf(format, args...))
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", agent.ErrUnsupported, fmt.Sprintf(format, args...))
}

// shellPath gives the directories of a PATH, in order; entries that are not
// absolute depend on where the agent happens to be and are left out.
func shellPath(env []string) []string {
	var dirs []string
	for _, pair := range env {
		if list, ok := strings.CutPrefix(pair, "PATH="); ok {
			for _, d := range filepath.SplitList(list) {
				if filepath.IsAbs(d) {
					dirs = append(dirs, filepath.Clean(d))
				}
			}
		}
	}
	return dirs
}
