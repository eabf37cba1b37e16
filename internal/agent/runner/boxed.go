package runner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"turnpike/internal/agent"
	"turnpike/internal/agent/boundary"
	"turnpike/internal/agent/egress"
	"turnpike/internal/agent/mcphost"
	"turnpike/internal/agent/procs"
	"turnpike/internal/agent/session"
)

// DefaultContainerLabel is what containers are found by where nobody says another.
const DefaultContainerLabel = "turnpike.session"

// tmpInside is where a box has the session's directory for temporary files.
const tmpInside = "/run/turnpike/tmp"

// maxServerLog bounds the log of the server that a request names.
const maxServerLog = 4 << 20

// BoxLabel is what the box of a session is labelled with: agent.Engine.Sweep takes that
// of an empty session for all of a worker. An empty key is DefaultContainerLabel.
func BoxLabel(key, sessionsDir, marker string) string {
	// The value is that of the environment's marker, which tells workers apart.
	_, value, _ := strings.Cut(procs.Marker(sessionsDir, marker), "=")
	return cmp.Or(key, DefaultContainerLabel) + "=" + value
}

// boxed is where a turn runs that an engine keeps apart from the host.
type boxed struct {
	engine   agent.Engine
	bin      string
	premises agent.Premises
}

// look asks the engine of the request's sandbox what it brings to the turn; nil for a
// turn of the host, and for one that its boundary refuses whatever the engine says.
func (r *Runner) look(ctx context.Context, req agent.Request) (*boxed, error) {
	p := req.Profile
	engine, ok := r.Engines[p.Sandbox]
	if !ok || p.Placement().Host() || req.Grants == nil {
		return nil, nil
	}
	if _, known := r.backend(p.AgentName()); !known || p.Sandbox == agent.SandboxContainer && p.SandboxImage == "" {
		return nil, nil
	}
	in := &boxed{engine: engine, bin: r.engineBin(p.Sandbox)}
	var err error
	if in.premises, err = engine.Look(ctx, in.bin, p); err != nil {
		return nil, fmt.Errorf("placement %s: %w", p.Placement(), kind(err))
	}
	return in, nil
}

func (r *Runner) engineBin(sandbox string) string {
	if sandbox == agent.SandboxSbx {
		return r.SbxBin
	}
	return r.DockerBin
}

func (r *Runner) containerBoundary(in *boxed, private []string) agent.Boundary {
	b := boundary.ContainerBoundary{
		Environ: r.Environ, StripPrefix: r.EnvironmentPrefix, Home: r.ContainerHome,
		SessionsDir: r.SessionsDir, MountDirs: r.MountDirs, SkillMountDirs: r.SkillMountDirs,
		Backends: r.backend, Network: r.Network, Limits: r.Limits, Private: private,
		UseRepository: r.ContainerUseRepository,
	}
	if in != nil {
		b.Premises, b.Masks = in.premises, in.premises.Masks
	}
	return b
}

func (r *Runner) sandboxBoundary(in *boxed, private []string) agent.Boundary {
	b := boundary.SandboxBoundary{
		SessionsDir: r.SessionsDir, MountDirs: r.MountDirs, SkillMountDirs: r.SkillMountDirs,
		Backends: r.backend, Network: r.Network, Limits: r.Limits, Private: private,
	}
	if in != nil {
		b.Premises = in.premises
	}
	return b
}

// startServer starts the server that the request names, before the box is made.
func (t *turn) startServer(ctx context.Context) error {
	if t.req.HostMCP == nil || t.boxed == nil {
		return nil
	}
	listen, reach, err := t.listen()
	if err != nil {
		return err
	}
	// Of its own and empty: what lies where a server starts may pass for its settings.
	dir := filepath.Join(t.dir.Run(), "host-mcp")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if t.serverLog, err = t.dir.OpenServerLog(maxServerLog); err != nil {
		return err
	}
	t.server, err = mcphost.StartServer(ctx, mcphost.Launch{
		Request: t.req, Turn: t.turn, Listen: listen, Reach: cmp.Or(t.boxed.premises.HostName, reach), Dir: dir,
		Label: t.marker, Marker: procs.Marker(t.r.SessionsDir, t.marker),
		Recorder: t.r.Recorder, Log: t.serverLog,
	})
	return err
}

// loopback is where a box whose network is limited reaches the server: at its own.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// listen is the address of the host that the server listens on, one that nobody beyond
// this machine reaches, and the one the box reaches it by. Both are numbers: a server that
// listens on loopback answers to no other name, if it is careful.
func (t *turn) listen() (at netip.Addr, reach string, err error) {
	open := t.turn.Box.Network.Open
	at = loopback
	if open && t.boxed.premises.Host.IsValid() {
		at = t.boxed.premises.Host
	}
	if own := t.r.ContainerListen; own != "" {
		if at, err = netip.ParseAddr(own); err != nil {
			return at, "", fmt.Errorf("%w: the address for servers of the host: %w", agent.ErrUnready, err)
		}
	}
	if open {
		return at, at.String(), nil
	}
	return at, loopback.String(), nil
}

// openWay makes the way out of a box whose network is limited, and the one to the server
// of the request where there is no other.
func (t *turn) openWay() error {
	b := t.turn.Box
	if b == nil || t.boxed.premises.HostName != "" || b.Network.Open || !b.Network.Proxied && t.server == nil {
		return nil
	}
	domains, hosts := []string{}, map[string]string{}
	if b.Network.Proxied {
		domains, hosts = slices.Clone(b.Network.Domains), maps.Clone(b.Network.Hosts)
	}
	if t.server != nil {
		if domains != nil {
			domains = append(domains, loopback.String())
		}
		if hosts == nil {
			hosts = map[string]string{}
		}
		hosts[netip.AddrPortFrom(loopback, t.server.Addr().Port()).String()] = t.server.Addr().String()
	}
	way, err := egress.New(egress.Limited(domains, hosts), t.r.log().With("turn", t.req.Name))
	if err != nil {
		return fmt.Errorf("%w: network: %w", agent.ErrUnsupported, err)
	}
	t.egress, b.Egress = way, way
	return nil
}

// box completes what the engine is asked for by what the worker itself brings, and
// places the agent in it.
func (t *turn) box(own []agent.Mount) {
	b := t.turn.Box
	b.Bin, b.Dir, b.Agent = t.boxed.bin, t.dir.Run(), t.req.Profile.AgentName()
	b.Name = session.Sanitize(cmp.Or(t.r.NamePrefix, "turnpike")) + "-" + t.marker
	b.Label = BoxLabel(t.r.ContainerLabel, t.r.SessionsDir, t.marker)
	if t.turn.DaggerEngine != "" {
		b.Dagger = t.req.Profile.Dagger
	}
	b.HostServers, b.VCS = t.turn.HostServers, t.turn.VCS
	t.carrySockets()
	t.reachServers()
	if b.Home != "" {
		t.launch.HomeInside = b.Home
	}
	for _, m := range own {
		at := m.Path
		switch m.Path {
		case t.dir.Home():
			at = t.launch.HomeInside
		case t.dir.Tmp():
			at = t.tmpInside()
		}
		b.Binds = append(b.Binds, agent.Bind{Source: m.Path, Destination: at, Access: m.Access})
	}
	if t.server != nil {
		b.Servers = append(b.Servers, t.server.Addr())
		t.turn.Env = append(t.turn.Env, t.server.Env()...) // the token, which the entry refers to
		if t.launch.MCP == nil {
			t.launch.MCP = map[string]agent.MCPEntry{}
		}
		t.launch.MCP[t.server.Name()] = t.server.Entry()
	}
	t.launch.WorkDir, t.launch.Root = b.WorkDir, t.boxed.premises.Root
}

// carrySockets has the engine carry the sockets of the worker's servers, where it must,
// and the agent dial them where they arrive.
func (t *turn) carrySockets() {
	dir := t.boxed.premises.SocketDir
	if dir == "" {
		return
	}
	for _, h := range t.servers() {
		at := path.Join(dir, h.Name()+".sock")
		e := t.launch.MCP[h.Name()]
		e.Args = slices.Clone(e.Args)
		for i, a := range e.Args {
			if a == h.Socket() {
				e.Args[i] = at
			}
		}
		t.launch.MCP[h.Name()] = e
		t.turn.Box.Sockets = append(t.turn.Box.Sockets, agent.Bind{Source: h.Socket(), Destination: at, Access: agent.ReadOnly})
	}
}

// reachServers has the agent reach the granted servers of the host's loopback by the name
// that leads there.
func (t *turn) reachServers() {
	for _, s := range t.turn.HostServers {
		e := t.launch.MCP[s.Name]
		u, err := url.Parse(e.URL)
		if err != nil || t.boxed.premises.HostName == "" {
			continue // the boundary saw to it that it is one
		}
		u.Host = fmt.Sprintf("%s:%d", t.boxed.premises.HostName, s.Port)
		e.URL = u.String()
		t.launch.MCP[s.Name] = e
	}
}

// tmpInside is the directory for temporary files as the agent sees it.
func (t *turn) tmpInside() string {
	if t.boxed != nil && t.turn.Box.Home != "" {
		return tmpInside
	}
	return t.dir.Tmp()
}

// serverTo freezes or thaws the server of the request, where there is one.
func (u *running) serverTo(freeze bool) error {
	switch {
	case u.server == nil:
		return nil
	case freeze:
		return u.server.Freeze()
	}
	return u.server.Thaw()
}
