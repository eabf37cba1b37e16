package boundary

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"turnpike/internal/agent"
)

// DefaultContainerHome is the agent's home in a container where nobody says another.
const DefaultContainerHome = "/home/turnpike"

// ContainerBoundary verifies turns in a container of the host's engine.
type ContainerBoundary struct {
	// Environ is the host environment agent credentials are read from: a container
	// inherits what its agent is authenticated and configured by, and what the
	// profile's MCP servers name, as far as it is granted, and nothing else. Nil is
	// os.Environ.
	Environ func() []string
	// Home is the container's private HOME; empty is DefaultContainerHome.
	Home string
	// SessionsDir holds the session directories; see HostBoundary.SessionsDir.
	SessionsDir string
	// MountDirs must be granted read-write.
	MountDirs []string
	// SkillMountDirs hold the prepared skills and must be granted when the profile
	// has skills.
	SkillMountDirs []string
	// Masks are read-only binds of the runner's, laid over the version control
	// executables of the image for a turn without version control. They show nothing
	// of the host but the stand-ins.
	Masks []agent.Bind

	// Beyond the listing:

	// Premises are what the engine brings to the turn. Without an image in it every
	// request is refused.
	Premises agent.Premises
	// StripPrefix, Backends, Network, Limits and Private are as in HostBoundary.
	StripPrefix string
	Backends    func(name string) (agent.Backend, bool)
	Network     agent.Network
	Limits      agent.Limits
	Private     []string
	// UseRepository is the repository whose container-use environments a profile may
	// name; empty has none.
	UseRepository string
}

// Verify gives the turn req may have. See the package comment.
func (c ContainerBoundary) Verify(req agent.Request) (*agent.Turn, error) {
	if req.Grants == nil {
		return nil, notGranted("a request without grants has no capability")
	}
	backend, err := c.backend(req.Profile)
	if err != nil {
		return nil, err
	}
	if err := c.containerOnly(req); err != nil {
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
	h := c.host(req, backend)
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
	if err := skillsGranted(req.Profile, c.SkillMountDirs, *turn); err != nil {
		return nil, err
	}
	if turn.Env, err = c.environment(h, req, *turn); err != nil {
		return nil, err
	}
	network, err := h.network(req.Profile)
	if err != nil {
		return nil, err
	}
	box := &agent.Box{
		Image: c.Premises.Image, Workspace: workspace, WorkDir: workspace, Home: c.home(),
		Network: network, Limits: c.Limits,
	}
	if c.Premises.WorkDir != "" {
		box.WorkDir = c.Premises.WorkDir
	}
	if err := c.binds(req, turn, box); err != nil {
		return nil, err
	}
	turn.Box, turn.Binds = box, box.Binds
	return turn, nil
}

func (c ContainerBoundary) home() string {
	if c.Home == "" {
		return DefaultContainerHome
	}
	return c.Home
}

func (c ContainerBoundary) backend(p agent.Profile) (agent.Backend, error) {
	if place := p.Placement(); place.Sandbox != agent.SandboxContainer || place.Confine {
		return agent.Backend{}, unsupported("placement %q is no container's", place)
	}
	if c.Premises.Image == "" {
		return agent.Backend{}, unsupported("this worker runs no turns in containers; use placement %q", confined)
	}
	if c.Backends != nil {
		if b, ok := c.Backends(p.AgentName()); ok {
			return b, nil
		}
	}
	return agent.Backend{}, unsupported("this worker does not run the agent %q", p.AgentName())
}

// containerOnly refuses what a container cannot have, and what it cannot do without.
func (c ContainerBoundary) containerOnly(req agent.Request) error {
	p, g := req.Profile, req.Grants
	switch {
	case p.SandboxImage == "":
		return unsupported("a turn in a container needs an image")
	case p.Dagger != nil || g.DaggerEngine != "":
		return unsupported("a Dagger engine needs placement %q", agent.SandboxSbx)
	case len(g.HostServers) > 0:
		return unsupported("servers on the host's loopback need placement %q", agent.SandboxSbx)
	case len(p.PiPackages) > 0 && p.AgentName() != agent.AgentPi:
		return unsupported("packages of pi for the agent %q", p.AgentName())
	case !path.IsAbs(c.home()) || path.Clean(c.home()) != c.home() || c.home() == "/":
		return unsupported("the home of containers, %q, is no clean absolute path", c.home())
	}
	return nil
}

// hostMCP holds the server that is run on the host to the grants, as any other.
func hostMCP(req agent.Request) error {
	h := req.HostMCP
	if h == nil {
		return nil
	}
	if !serverName.MatchString(h.Name) || strings.Contains(h.Name, "__") {
		return notGranted("%q is no name for an MCP server", h.Name)
	}
	if !slices.Contains(req.Grants.Tools, agent.MCPToolPrefix+h.Name) {
		return notGranted("MCP server %q is not granted (%s%s)", h.Name, agent.MCPToolPrefix, h.Name)
	}
	return nil
}

// host is the boundary of the host as far as a box shares it: what may be mounted,
// written and inherited.
func (c ContainerBoundary) host(req agent.Request, b agent.Backend) HostBoundary {
	return HostBoundary{
		Environ: c.Environ, StripPrefix: c.StripPrefix, AddDirs: c.MountDirs, SessionsDir: c.SessionsDir,
		Network: c.Network, Limits: c.Limits, Private: slices.Concat(c.Private, c.Premises.Private),
	}.inheriting(append(slices.Concat(b.Credentials, b.ProviderEnv), serverVariables(req.Profile)...))
}

// inheriting is h with no more of the host's environment than these names, which may
// end in "*". What h reads to know the host, such as its home, it still reads.
func (h HostBoundary) inheriting(names []string) HostBoundary {
	h.inherits = func(name string) bool { return agent.NameGranted(names, name) }
	return h
}

// serverVariables are the variables that a profile's servers take from the turn's
// environment.
func serverVariables(p agent.Profile) []string {
	var names []string
	for _, e := range p.MCP {
		names = append(names, e.EnvVars...)
		if e.BearerTokenEnv != "" {
			names = append(names, e.BearerTokenEnv)
		}
	}
	return names
}

func skillsGranted(p agent.Profile, dirs []string, turn agent.Turn) error {
	if len(p.Skills) == 0 {
		return nil
	}
	for _, d := range dirs {
		actual, err := resolve(d)
		if err != nil {
			return notGranted("the profile has skills but their directory %s cannot be resolved", d)
		}
		if _, ok := agent.Deciding(turn.Mounts, actual); !ok {
			return notGranted("the profile has skills but their directory %s is not granted", d)
		}
	}
	return nil
}

// The variables by which a turn is told of its container-use environment.
const (
	useEnvironment = "CONTAINER_USE_ENVIRONMENT"
	useRepository  = "CONTAINER_USE_REPOSITORY"
)

// environment is the turn's: the image's own, what is granted of the host's, then what
// profile, request and caller set, and last what they set inside a box only.
func (c ContainerBoundary) environment(h HostBoundary, req agent.Request, turn agent.Turn) ([]string, error) {
	inside := []variables{{"request, for the container", req.ContainerEnv}}
	if turn.VCS {
		inside = append(inside, variables{"version control, for the container", req.VCSContainerEnv})
	}
	if name := req.Profile.ContainerUseEnvironment; name != "" {
		repository, err := resolve(c.UseRepository)
		if c.UseRepository == "" || err != nil {
			return nil, unsupported("this worker has no repository of container-use environments")
		}
		if _, ok := agent.Deciding(turn.Mounts, repository); !ok {
			return nil, notGranted("the profile names a container-use environment but their repository %s is not granted", c.UseRepository)
		}
		inside = append(inside, variables{"container-use environment", map[string]string{useEnvironment: name, useRepository: repository}})
	}
	own, err := h.environment(req, turn.VCS, inside...)
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for _, pair := range c.Premises.Env {
		name, value, _ := strings.Cut(pair, "=")
		if name != "" && name != "HOME" && (turn.VCS || !vcsVariable(name)) {
			env[name] = value
		}
	}
	for _, pair := range own {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	if turn.VCS && len(req.VCSContainerPath) > 0 {
		dirs, err := mountedDirs(req.VCSContainerPath, turn)
		if err != nil {
			return nil, err
		}
		if env["PATH"] != "" {
			dirs = append(dirs, env["PATH"])
		}
		env["PATH"] = strings.Join(dirs, ":")
	}
	return pairs(env), nil
}

// mountedDirs are directories for the PATH inside, each of which must lie in a mount.
func mountedDirs(dirs []string, turn agent.Turn) ([]string, error) {
	var out []string
	for _, d := range dirs {
		actual, err := resolve(d)
		if err != nil {
			return nil, notGranted("directory %q of the container's PATH cannot be resolved: %v", d, err)
		}
		if _, ok := agent.Deciding(turn.Mounts, actual); !ok || strings.Contains(actual, ":") {
			return nil, notGranted("directory %q of the container's PATH lies in no granted mount", d)
		}
		out = append(out, actual)
	}
	return out, nil
}

// binds says all that the container is shown of the host, outer before inner: the
// mounts at their own paths, what stays read-only or unreachable in them, the
// workspace with all of that once more at its fixed path, and the masks of the image.
func (c ContainerBoundary) binds(req agent.Request, turn *agent.Turn, box *agent.Box) error {
	fixed := []string{box.Home, "/tmp"}
	if box.WorkDir != box.Workspace {
		fixed = append(fixed, box.WorkDir)
	}
	var all []agent.Bind
	for _, m := range turn.Mounts {
		for _, taken := range fixed {
			if agent.Inside(taken, m.Path) || taken != "/tmp" && agent.Inside(m.Path, taken) {
				return notGranted("mount %q would cover %s, which every container has", m.Path, taken)
			}
		}
		all = append(all, agent.Bind{Source: m.Path, Destination: m.Path, Access: m.Access})
	}
	found, err := survey(*turn, req.Workspace.Metadata, true)
	if err != nil {
		return err
	}
	for _, path := range found.metadata {
		all = append(all, agent.Bind{Source: path, Destination: path, Access: agent.ReadOnly})
	}
	denied := found.sockets
	if !turn.VCS {
		var reachable []string
		turn.DeniedExecutables, reachable = executables(turn.Env)
		denied = append(denied, reachable...)
	}
	if all, err = c.mask(all, denied); err != nil {
		return err
	}
	if box.WorkDir != box.Workspace {
		all = append(all, again(all, turn.Mounts, box.Workspace, box.WorkDir)...)
	}
	if !turn.VCS {
		for _, m := range c.Masks {
			// What a mount covers is not the image's any more.
			if _, covered := agent.Deciding(turn.Mounts, m.Destination); !covered {
				all = append(all, m)
			}
		}
	}
	all = append(all, aliases(req, all, turn.Mounts)...)
	slices.SortStableFunc(all, func(a, b agent.Bind) int { return strings.Compare(a.Destination, b.Destination) })
	box.Binds = slices.CompactFunc(all, func(a, b agent.Bind) bool { return a.Destination == b.Destination })
	// What was looked at here is what must be mounted there.
	box.Pins, err = pins(box.Binds)
	return err
}

// mask lays a stand-in over each path that a mount would show and the turn may not
// reach.
func (c ContainerBoundary) mask(binds []agent.Bind, denied []string) ([]agent.Bind, error) {
	slices.Sort(denied)
	var within string // the directory that was masked last
	for _, p := range slices.Compact(denied) {
		if !slices.ContainsFunc(binds, func(b agent.Bind) bool { return agent.Inside(p, b.Destination) }) || within != "" && agent.Inside(p, within) {
			continue
		}
		source, dir, err := c.standIn(p)
		if err != nil {
			return nil, err
		}
		if dir {
			within = p
		}
		binds = append(binds, agent.Bind{Source: source, Destination: p, Access: agent.ReadOnly})
	}
	return binds, nil
}

// again is a directory of a mount, with all that is laid over parts of it, at another
// path inside.
func again(binds []agent.Bind, mounts []agent.Mount, dir, at string) []agent.Bind {
	over, _ := agent.Deciding(mounts, dir)
	out := []agent.Bind{{Source: dir, Destination: at, Access: over.Access}}
	for _, b := range binds {
		if agent.Inside(b.Destination, dir) && b.Destination != dir {
			b.Destination = at + strings.TrimPrefix(b.Destination, dir)
			out = append(out, b)
		}
	}
	return out
}

// aliases are granted directories again, under the paths by which the request names
// them through symbolic links of the host: the container does not have those.
func aliases(req agent.Request, binds []agent.Bind, mounts []agent.Mount) []agent.Bind {
	named := []string{req.Workspace.Dir}
	for _, m := range req.Grants.Mounts {
		named = append(named, m.Path)
	}
	var out []agent.Bind
	for _, name := range named {
		name = filepath.Clean(name)
		actual, err := resolve(name)
		if err != nil || actual == name {
			continue
		}
		taken := func(b agent.Bind) bool {
			return agent.Inside(name, b.Destination) || agent.Inside(b.Destination, name)
		}
		if slices.ContainsFunc(binds, taken) || slices.ContainsFunc(out, taken) || slices.ContainsFunc(kernelDirs, func(dir string) bool { return agent.Inside(name, dir) }) {
			continue // what is there already is what the name means inside
		}
		out = append(out, again(binds, mounts, actual, name)...)
	}
	return out
}

// standIn is what covers a path of the host, which is a directory or anything else.
func (c ContainerBoundary) standIn(p string) (source string, dir bool, err error) {
	info, err := os.Lstat(p)
	if err != nil {
		return "", false, notGranted("a granted path is gone again: %v", err)
	}
	source = c.Premises.MaskFile
	if info.IsDir() {
		source = c.Premises.MaskDir
	}
	if source == "" {
		return "", false, unsupported("a mount shows %q, which the turn may not reach, and nothing can be laid over it; grant less", p)
	}
	return source, info.IsDir(), nil
}

// pins says what the sources of binds are now.
func pins(binds []agent.Bind) ([]agent.Pin, error) {
	var out []agent.Pin
	for _, b := range binds {
		if slices.ContainsFunc(out, func(p agent.Pin) bool { return p.Path == b.Source }) {
			continue
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(b.Source, &st); err != nil {
			return nil, notGranted("a granted path is gone again: %v", err)
		}
		out = append(out, agent.Pin{Path: b.Source, Device: uint64(st.Dev), Inode: st.Ino}) //nolint:unconvert // not uint64 on every system
	}
	return out, nil
}
