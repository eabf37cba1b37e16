package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"

	"turnpike/internal/agent"
)

// enforcer prepares sessions of one kind.
type enforcer struct {
	r *Runner
	// of is the profile every request of the kind has, as far as the kind decides it.
	of agent.Profile
}

var (
	_ agent.Enforcer = enforcer{}
	_ agent.Session  = (*prepared)(nil)
)

// NewHostNone enforces grants on turns of the host by the operating system: placement
// none-confined. Nothing enforces them without it, so there are no sessions of those.
func NewHostNone(r *Runner) agent.Enforcer {
	return enforcer{r, agent.Profile{Sandbox: agent.SandboxNone, Confine: true}}
}

// NewHostClaude enforces grants by Claude Code's own sandbox.
func NewHostClaude(r *Runner) agent.Enforcer {
	return enforcer{r, agent.Profile{Sandbox: agent.SandboxClaude, Agent: agent.AgentClaude}}
}

// NewContainer enforces grants by containers of the image. What the engine has under
// that name is looked at when a session is prepared, and must still be that when a turn
// starts; the stand-ins over its version control executables come from the engine.
func NewContainer(r *Runner, image string) agent.Enforcer {
	return enforcer{r, agent.Profile{Sandbox: agent.SandboxContainer, SandboxImage: image}}
}

// NewSandbox enforces grants by Docker Sandboxes made for one agent from a template;
// empty is the agent's own (agent.SbxTemplates).
func NewSandbox(r *Runner, name, template string) agent.Enforcer {
	return enforcer{r, agent.Profile{Sandbox: agent.SandboxSbx, Agent: name, SandboxImage: template}}
}

// Prepare implements agent.Enforcer.
func (e enforcer) Prepare(ctx context.Context, grants agent.Grants) (agent.Session, error) {
	grants = clone(grants)
	v, err := e.look(ctx, grants)
	if err != nil {
		return nil, fmt.Errorf("prepare a session of placement %s: %w", e.of.Placement(), err)
	}
	return &prepared{e: e, grants: grants, view: v}, nil
}

// clone keeps the caller from changing what a session was prepared with.
func clone(g agent.Grants) agent.Grants {
	g.Env, g.Tools, g.Mounts, g.HostServers = slices.Clone(g.Env), slices.Clone(g.Tools), slices.Clone(g.Mounts), slices.Clone(g.HostServers)
	return g
}

// view is what grants come to now.
type view struct {
	policy agent.Policy
	// files are what the policy's mounts and denied paths name.
	files []agent.Pin
	image string // of a box, by its digest
}

// look reads the policy from the grants and the machine. It asks what a turn would ask,
// by the boundary of the kind, about a request for nothing in particular.
func (e enforcer) look(ctx context.Context, g agent.Grants) (view, error) {
	if len(g.Mounts) == 0 {
		return view{}, fmt.Errorf("%w: grants without a mount leave a turn nowhere to work", agent.ErrNotGranted)
	}
	if len(e.r.Drivers) == 0 {
		return view{}, fmt.Errorf("%w: this worker runs no agent", agent.ErrUnsupported)
	}
	var refusals []error
	for _, name := range e.agents() {
		req := agent.Request{Name: "policy", Profile: e.of, Grants: &g}
		req.Profile.Agent, req.Profile.VCSAccess = name, g.VCS
		if e.of.Sandbox == agent.SandboxClaude {
			req.Profile.SandboxDomains = []string{} // which ones is for a turn to say
		}
		if e.of.Sandbox == agent.SandboxSbx && g.DaggerEngine != "" {
			req.Profile.Dagger = &agent.Dagger{Engine: g.DaggerEngine}
		}
		in, err := e.r.look(ctx, req)
		if err != nil {
			return view{}, err
		}
		judge := e.r.boundary(req, in)
		turn, err := e.somewhere(judge, req)
		if err == nil {
			return e.view(g, turn)
		}
		// What one agent cannot be held to, a list of tools, another may.
		refusals = append(refusals, err)
	}
	return view{}, refusals[0]
}

// agents are those a session could run, of which one will do: what they differ in is
// not the policy's.
func (e enforcer) agents() []string {
	if e.of.Agent != "" {
		return []string{e.of.Agent}
	}
	names := slices.Sorted(maps.Keys(e.r.Drivers))
	slices.SortStableFunc(names, func(a, b string) int { // the one that keeps every list goes first
		return strings.Compare(fmt.Sprint(a != agent.AgentClaude), fmt.Sprint(b != agent.AgentClaude))
	})
	return names
}

// somewhere verifies req in the first granted mount that a turn could work in.
func (e enforcer) somewhere(judge agent.Boundary, req agent.Request) (*agent.Turn, error) {
	var first error
	for _, m := range req.Grants.Mounts {
		req.Workspace.Dir = m.Path
		turn, err := judge.Verify(req)
		if err == nil {
			return turn, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// view puts a verified turn into the words of a policy.
func (e enforcer) view(g agent.Grants, t *agent.Turn) (view, error) {
	p := agent.Policy{
		Sandbox: e.of.Sandbox, Confine: e.of.Confine, Image: e.of.SandboxImage,
		Env: g.Env, Mounts: t.Mounts, VCS: t.VCS, DeniedExecutables: t.DeniedExecutables,
		DaggerEngine: g.DaggerEngine, HostServers: g.HostServers,
		Network: e.r.Network, Limits: e.r.Limits,
	}
	if e.of.Sandbox == agent.SandboxSbx {
		p.Agent = e.of.Agent
	}
	if !slices.Contains(g.Tools, agent.ToolsAll) {
		p.Tools = []string{}
	}
	for _, tool := range g.Tools {
		if server, ok := strings.CutPrefix(tool, agent.MCPToolPrefix); ok {
			p.MCPServers = append(p.MCPServers, server)
		} else if p.Tools != nil {
			p.Tools = append(p.Tools, tool)
		}
	}
	v := view{}
	switch {
	case t.OwnSandbox != nil: // its agent runs outside
		p.Denied, p.Metadata, p.System = t.OwnSandbox.Denied, t.OwnSandbox.ReadOnlyMetadata, t.OwnSandbox.System
	case t.Confinement != nil:
		p.Denied, p.Metadata, p.System = t.Confinement.Denied, t.Confinement.ReadOnlyMetadata, t.Confinement.System
		runtime, err := e.runtimes()
		if err != nil {
			return view{}, err
		}
		p.System = append(slices.Clone(p.System), runtime...)
	case t.Box != nil:
		v.image = t.Box.Image
		for _, b := range t.Box.Binds {
			if t.Box.WorkDir != t.Box.Workspace && agent.Inside(b.Destination, t.Box.WorkDir) {
				continue // a turn's own working directory, shown once more
			}
			p.Binds = append(p.Binds, b)
			if e.of.Sandbox == agent.SandboxContainer && masked(b, t.Mounts) {
				p.Denied = append(p.Denied, b.Destination)
			}
		}
	default:
		return view{}, fmt.Errorf("%w: nothing holds a turn of placement %s to its grants", agent.ErrUnsupported, e.of.Placement())
	}
	v.policy = p
	for _, path := range append(paths(p.Mounts), p.Denied...) {
		var st syscall.Stat_t
		err := syscall.Lstat(path, &st)
		if errors.Is(err, syscall.ENOENT) && t.Box != nil {
			continue // a path of the image
		}
		if err != nil {
			return view{}, fmt.Errorf("%w: %s: %w", agent.ErrPolicyChanged, path, err)
		}
		v.files = append(v.files, agent.Pin{Path: path, Device: uint64(st.Dev), Inode: st.Ino}) //nolint:unconvert // not uint64 on every system
	}
	return v, nil
}

// masked says whether a bind hides its destination: its source is nothing that was
// granted.
func masked(b agent.Bind, mounts []agent.Mount) bool {
	_, granted := agent.Deciding(mounts, b.Source)
	return !granted
}

func paths(mounts []agent.Mount) []string {
	var out []string
	for _, m := range mounts {
		out = append(out, m.Path)
	}
	return out
}

// runtimes are what the agents of this worker need to run, each beside the others: a
// turn is given one's.
func (e enforcer) runtimes() ([]agent.Mount, error) {
	var out []agent.Mount
	for _, name := range e.agents() {
		d, ok := e.r.Drivers[name]
		if !ok {
			continue
		}
		bin, err := executable(e.r.bin(name))
		if err != nil {
			continue // an agent that is not here is not run
		}
		more, err := d.Runtime(bin)
		if err != nil {
			return nil, fmt.Errorf("what %s needs to run: %w", name, kind(err))
		}
		for _, m := range append([]agent.Mount{{Path: bin, Access: agent.ReadOnly}}, more...) {
			if !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	return out, nil
}

// prepared is a session.
type prepared struct {
	e      enforcer
	grants agent.Grants
	view   view

	mu       sync.Mutex // guards released
	released bool
}

// Policy implements agent.Session.
func (s *prepared) Policy() agent.Policy { return s.view.policy }

// Run implements agent.Session.
func (s *prepared) Run(ctx context.Context, req agent.Request) (*agent.Result, error) {
	s.mu.Lock()
	released := s.released
	s.mu.Unlock()
	if released {
		return nil, fmt.Errorf("run turn %q: %w", req.Name, agent.ErrReleased)
	}
	req, err := agent.Admit(s.view.policy, clone(s.grants), req)
	if err != nil {
		return nil, fmt.Errorf("admit turn %q: %w", req.Name, err)
	}
	if err := s.stands(ctx); err != nil {
		return nil, fmt.Errorf("run turn %q: %w", req.Name, err)
	}
	// A mount may be replaced between here and the turn's own verdict, too.
	r := *s.e.r
	judge := r.Judge
	r.Judge = func(b agent.Boundary) agent.Boundary {
		if judge != nil {
			b = judge(b)
		}
		return same{b, s.view}
	}
	return r.Run(ctx, req)
}

// stands refuses a session whose policy would not be the same now.
func (s *prepared) stands(ctx context.Context) error {
	now, err := s.e.look(ctx, s.grants)
	switch {
	case errors.Is(err, agent.ErrUnready), ctx.Err() != nil:
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", agent.ErrPolicyChanged, err)
	}
	was := s.view
	// Metadata comes and goes with what turns do; each keeps what it finds.
	now.policy.Metadata = was.policy.Metadata
	if what := changed(was, now); what != "" {
		return fmt.Errorf("%w: %s", agent.ErrPolicyChanged, what)
	}
	return nil
}

// changed says what two views differ in.
func changed(was, now view) string {
	switch {
	case was.image != now.image:
		return "the image is another"
	case !slices.Equal(was.policy.Denied, now.policy.Denied):
		return "the denied executables are others"
	case !slices.Equal(was.files, now.files):
		return "a mount or a denied executable is another file"
	case !reflect.DeepEqual(was.policy, now.policy):
		return "what the grants come to is something else"
	}
	return ""
}

// Release implements agent.Session. There is nothing on the machine to be freed: what a
// turn needs is made for it alone.
func (s *prepared) Release(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = true
	return nil
}

// same refuses a turn whose mounts are not the files its session was prepared with.
type same struct {
	agent.Boundary
	as view
}

// Verify implements agent.Boundary.
func (s same) Verify(req agent.Request) (*agent.Turn, error) {
	t, err := s.Boundary.Verify(req)
	if err != nil {
		return nil, err
	}
	var pins []agent.Pin
	switch {
	case t.Confinement != nil:
		pins = t.Confinement.Pins
	case t.OwnSandbox != nil:
		pins = t.OwnSandbox.Pins
	case t.Box != nil:
		pins = t.Box.Pins
	}
	if !slices.Equal(t.Mounts, s.as.policy.Mounts) {
		return nil, fmt.Errorf("%w: the mounts lead elsewhere", agent.ErrPolicyChanged)
	}
	for _, now := range pins {
		for _, was := range s.as.files {
			if now.Path == was.Path && now != was {
				return nil, fmt.Errorf("%w: %s is another file", agent.ErrPolicyChanged, now.Path)
			}
		}
	}
	return t, nil
}
