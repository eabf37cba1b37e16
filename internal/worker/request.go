package worker

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"turnpike/internal/agent"
	"turnpike/internal/agent/restricted"
	"turnpike/internal/job"
	"turnpike/internal/vcs"
)

// workspacePrefix begins a mount path that lies in the workspace.
const workspacePrefix = "workspace:"

// selectProfile is the profile at index along r's fallback chain.
func selectProfile(r job.Request, index int) (job.Profile, error) {
	p := &r.Profile
	for range index {
		if p.Fallback == nil {
			return job.Profile{}, fmt.Errorf("profile: there is no fallback %d: %w", index, agent.ErrUnsupported)
		}
		p = p.Fallback
	}
	return *p, nil
}

// interrupted opens the prompt of an attempt that goes on with the conversation of one
// that was broken off: the conversation has the task already, and the same prompt again
// would read as an order to begin anew.
const interrupted = "The previous attempt of this task was interrupted. Continue from where it stopped: " +
	"look at what is there first, and do not repeat what is done. The task was:\n\n"

// workspaceSpec is the workspace r asks for.
func workspaceSpec(r job.Request, name string) vcs.Spec {
	spec := vcs.Spec{Name: name, Dir: r.Workspace.Dir, Scratch: r.Workspace.Scratch}
	if g := r.Workspace.Git; g != nil {
		spec.Git = &vcs.Checkout{URL: g.URL, Ref: g.Ref, Credentials: slices.Clone(g.Credentials)}
	}
	return spec
}

// mapping is one attempt's request in the making.
type mapping struct {
	request   job.Request
	profile   job.Profile // the one of the chain that is run
	name      string
	resume    string // the interrupted attempt's conversation; empty for the request's own
	workspace vcs.Workspace
	session   string
	ceiling   *Ceiling
	environ   []string // the worker's environment
	budget    *job.Left
	lease     job.Lease // zero for a turn run by hand
}

// Variables that tell a turn which attempt it is. The fence only grows with the attempts
// of a job: whatever keeps the highest it saw, and refuses a lower one, is not changed by
// an attempt that lost its lease and does not know it yet.
const (
	envJob     = "TURNPIKE_JOB"
	envAttempt = "TURNPIKE_ATTEMPT"
	envFence   = "TURNPIKE_FENCE"
)

// identify grants and sets the variables that tell a turn its attempt, over whatever the
// request sets; it returns their names. The fixed grants of a read-only turn have no room
// for them, and it changes nothing.
func (t mapping) identify(req *agent.Request) []string {
	if t.lease.Number == 0 || req.Grants == nil {
		return nil
	}
	if req.Env == nil {
		req.Env = make(map[string]string)
	}
	names := []string{envJob, envAttempt, envFence}
	for i, value := range []string{string(t.lease.Job), strconv.Itoa(t.lease.Attempt), strconv.FormatInt(t.lease.Number, 10)} {
		req.Env[names[i]] = value
		for _, other := range []map[string]string{req.Profile.Env, req.VCSEnv, req.ContainerEnv, req.VCSContainerEnv} {
			delete(other, names[i])
		}
	}
	req.Grants.Env = append(req.Grants.Env, names...)
	return names
}

// agentRequest is the agent's form of the request, and what the worker added to
// what the producer wrote. Everything is mapped: what this release cannot carry
// out is refused by the boundary or the runner, which know. The ceiling has been
// checked.
func (t mapping) agentRequest() (agent.Request, []string, error) {
	r, added := t.request, []string{"session directory"}
	profile, err := t.agentProfile(t.profile)
	if err != nil {
		return agent.Request{}, nil, err
	}
	grants, err := t.grants()
	if err != nil {
		return agent.Request{}, nil, err
	}
	host, err := t.hostMCP()
	if err != nil {
		return agent.Request{}, nil, err
	}
	if host != nil {
		added = append(added, "host MCP server "+host.Name)
	}
	if r.Restricted {
		added = append(added, "grants of a read-only turn")
		profile.Fallback = nil // it changes to no other model by itself
		profile.Timeout = cmp.Or(profile.Timeout, min(restricted.DefaultTimeout, t.ceiling.maxTimeout()))
	}
	capUSD := t.ceiling.costCap(r)
	if r.CostCapUSD == 0 && capUSD > 0 {
		added = append(added, "cost cap "+capUSD.String()+" of the pool")
	}
	if left, ok := lower(t.budget, capUSD); ok {
		capUSD = left
		added = append(added, "cost cap "+capUSD.String()+", what is left of the budget of "+t.budget.Budget.String())
	}
	prompt, resume := r.Prompt, r.ResumeID
	if t.resume != "" {
		prompt, resume = interrupted+r.Prompt, t.resume
		added = append(added, "note in the prompt that the previous attempt was interrupted")
	}
	req := agent.Request{
		Name:             t.name,
		Profile:          profile,
		ValidOutcomes:    r.ValidOutcomes, // nil and empty differ
		HostMCP:          host,
		ContainerEnv:     maps.Clone(r.ContainerEnv),
		Workspace:        t.workspace,
		VCSEnv:           maps.Clone(r.VCSEnv),
		VCSContainerEnv:  maps.Clone(r.VCSContainerEnv),
		VCSContainerPath: slices.Clone(r.VCSContainerPath),
		SystemPrompt:     r.SystemPrompt,
		Prompt:           prompt,
		Env:              maps.Clone(r.Env),
		SessionDir:       t.session,
		Grants:           grants,
		ResumeID:         resume,
		CostCapUSD:       capUSD.Float(),
	}
	for _, name := range t.identify(&req) {
		added = append(added, "variable "+name)
	}
	return req, added, nil
}

// agentProfile maps a profile. Its fallbacks are the queue's to run, each as another
// attempt; an agent that changes to the model of one by itself is told of those of its own.
func (t mapping) agentProfile(p job.Profile) (agent.Profile, error) {
	configured := make(map[string]agent.MCPEntry, len(p.MCP))
	for name, e := range p.MCP {
		configured[name] = mcpEntry(e)
	}
	// Only what the producer wrote down itself may be referred to, and only there.
	mcp, err := agent.MCPEntries(configured, func(name string) (string, bool) {
		if v, ok := t.request.Env[name]; ok {
			return v, true
		}
		v, ok := p.Env[name]
		return v, ok
	})
	if err != nil {
		return agent.Profile{}, fmt.Errorf("profile.mcp: %w", err)
	}
	for name, e := range mcp {
		mcp[name] = t.ownersCommand(e, p)
	}
	out := agent.Profile{
		Name: p.Name, Agent: agentName(p.Agent), Model: p.Model, Effort: p.Effort,
		MaxTurns: p.MaxTurns, Timeout: p.Timeout.Std(),
		AllowedTools: slices.Clone(p.AllowedTools), DisallowedTools: slices.Clone(p.DisallowedTools),
		MCP:     mcp,
		Sandbox: p.Sandbox, Confine: p.Confine, SandboxImage: p.SandboxImage,
		SandboxDomains:          p.SandboxDomains, // nil and empty differ
		ContainerUseEnvironment: p.ContainerUseEnvironment,
		VCSAccess:               p.VCSAccess,
		Shell:                   t.ceiling.Shells[p.Shell],
		Env:                     maps.Clone(p.Env),
		Skills:                  slices.Clone(p.Skills),
	}
	for f, at := p.Fallback, &out.Fallback; f != nil && agentName(f.Agent) == out.Agent; f = f.Fallback {
		*at = &agent.Profile{Name: f.Name, Agent: out.Agent, Model: f.Model}
		at = &(*at).Fallback
	}
	for _, name := range p.PiPackages {
		out.PiPackages = append(out.PiPackages, t.ceiling.PiPackages[name])
	}
	if p.Dagger != nil {
		out.Dagger = &agent.Dagger{Engine: p.Dagger.Engine, Version: p.Dagger.Version}
	}
	return out, nil
}

func mcpEntry(e job.MCPEntry) agent.MCPEntry {
	return agent.MCPEntry{
		Type: e.Type, Command: e.Command, Args: slices.Clone(e.Args), Env: maps.Clone(e.Env),
		URL: e.URL, Headers: maps.Clone(e.Headers), EnvVars: slices.Clone(e.EnvVars), BearerTokenEnv: e.BearerTokenEnv,
	}
}

// ownersCommand is what a name of the ceiling's stands for on the host.
func (t mapping) ownersCommand(e agent.MCPEntry, p job.Profile) agent.MCPEntry {
	placement := agent.Placement{Sandbox: p.Sandbox, Confine: p.Confine}
	if cmd, ok := t.ceiling.MCP.Commands[e.Command]; ok && (p.Sandbox == "" || placement.Host()) {
		e.Command, e.Args = cmd.Path, slices.Concat(cmd.Args, e.Args)
	}
	return e
}

// grants maps the grants, with workspace: paths expanded. A read-only turn has none of
// its own.
func (t mapping) grants() (*agent.Grants, error) {
	g := t.request.Grants
	if g == nil {
		return nil, nil
	}
	out := &agent.Grants{
		Env: slices.Clone(g.Env), Tools: slices.Clone(g.Tools), Within: g.Within, VCS: g.VCS, DaggerEngine: g.DaggerEngine,
	}
	for i, m := range g.Mounts {
		path, err := t.expand(m.Path)
		if err != nil {
			return nil, fmt.Errorf("grants.mounts[%d].path: %w", i, err)
		}
		out.Mounts = append(out.Mounts, agent.Mount{Path: path, Access: agent.Access(m.Access)})
	}
	for _, s := range g.HostServers {
		out.HostServers = append(out.HostServers, agent.HostServer{Name: s.Name, Port: s.Port})
	}
	return out, nil
}

// expand gives the host's path of a mount. One in the workspace must still be
// there once every link is followed.
func (t mapping) expand(path string) (string, error) {
	sub, ok := strings.CutPrefix(path, workspacePrefix)
	if !ok {
		return path, nil
	}
	if sub != "" && !filepath.IsLocal(sub) {
		return "", fmt.Errorf("%s leaves the workspace: %w", path, agent.ErrNotGranted)
	}
	root, err := filepath.EvalSymlinks(t.workspace.Dir)
	if err != nil {
		return "", fmt.Errorf("workspace: %w: %w", err, agent.ErrUnready)
	}
	real, err := filepath.EvalSymlinks(filepath.Join(root, sub))
	if err != nil {
		return "", fmt.Errorf("%s does not exist in the workspace: %w", path, agent.ErrNotGranted)
	}
	if !contains(root, real) {
		return "", fmt.Errorf("%s is a link that leads out of the workspace: %w", path, agent.ErrNotGranted)
	}
	return real, nil
}

// hostMCP is the owner's server of the name the request gives.
func (t mapping) hostMCP() (*agent.HostMCP, error) {
	name := t.request.HostMCP
	if name == "" {
		return nil, nil
	}
	s, ok := t.ceiling.HostMCP[name]
	if !ok {
		return nil, notGranted("host_mcp", fmt.Sprintf("%q is not offered here", name), list("host_mcp servers", slices.Collect(maps.Keys(t.ceiling.HostMCP))))
	}
	env := make(map[string]string, len(s.Env))
	for server, source := range s.Env {
		i := slices.IndexFunc(t.environ, func(kv string) bool { return strings.HasPrefix(kv, source+"=") })
		if i < 0 {
			return nil, fmt.Errorf("host_mcp: the worker has no variable %s: %w", source, agent.ErrUnready)
		}
		env[server] = t.environ[i][len(source)+1:]
	}
	return &agent.HostMCP{
		Name: name, Entry: agent.MCPEntry{Type: "stdio", Command: s.Command, Args: slices.Clone(s.Args)}, Env: env,
		ListenArgs: slices.Clone(s.ListenArgs), TokenEnv: s.TokenEnv, ListeningPrefix: s.ListeningPrefix, Path: s.Path,
	}, nil
}

// costCap is the cap of a request, or the pool's where it has none; zero is neither.
func (c *Ceiling) costCap(r job.Request) job.USD { return cmp.Or(r.CostCapUSD, c.MaxCostUSD) }

// watch are the runner's own limits.
func watch(l job.Limits) agent.Watch {
	return agent.Watch{FirstEvent: l.Start.Std(), Idle: l.Idle.Std()}
}

// decode reads what a claim brought.
func decode(raw json.RawMessage) (job.Request, error) {
	r, err := job.Decode(raw)
	if err != nil {
		return job.Request{}, fmt.Errorf("request: %w", err)
	}
	return r, nil
}
