package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/boundary"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/egress"
	"turnpike/internal/agent/mcphost"
	"turnpike/internal/agent/procs"
	"turnpike/internal/agent/session"
)

const (
	// defaultPath is the PATH of a turn whose environment has none.
	defaultPath = "/usr/local/bin:/usr/bin:/bin"
	// maxStderr bounds the log of an agent's stderr.
	maxStderr = 16 << 20
)

// turn is one request on its way to a Result.
type turn struct {
	r      *Runner
	req    agent.Request
	driver agent.Driver
	turn   *agent.Turn
	bin    string // where the agent runs
	boxed  *boxed // nil for a turn of the host

	dir     *session.Dir
	made    bool // the directory was made for this turn, not given
	marker  string
	host    *mcphost.Host   // nil when the agent may report nothing
	read    *mcphost.Host   // nil when it has other means to read
	server  *mcphost.Server // nil when the request names none
	egress  *egress.Proxy   // nil where nothing limits the network to hosts
	launch  agent.Launch
	command *agent.Command

	transcript, stderr *session.Log
	serverLog          *session.Log // nil without a server
	in, out, err       pipe
	tree               agent.Process
	identity           agent.Identity
	startedAt          time.Time
	before             inventory
	left               []string // what the CLI may leave in the workspace
}

// pipe is one standard stream of the agent: the end that is kept, and the end that
// is passed on. Either is nil once it was closed.
type pipe struct{ ours, theirs *os.File }

func (p *pipe) close() {
	for _, f := range []*os.File{p.ours, p.theirs} {
		if f != nil {
			_ = f.Close() // a pipe has nothing to flush
		}
	}
	p.ours, p.theirs = nil, nil
}

// verify decides whether the turn may be run. It writes nothing and starts no agent.
func (r *Runner) verify(ctx context.Context, req agent.Request) (*turn, error) {
	in, err := r.look(ctx, req)
	if err != nil {
		return nil, err
	}
	judge := r.boundary(req, in)
	if r.Judge != nil {
		judge = r.Judge(judge)
	}
	verified, err := judge.Verify(req)
	if err != nil {
		return nil, err
	}
	name := req.Profile.AgentName()
	for _, own := range []string{mcphost.ServerName, mcphost.ReadServerName} {
		if _, taken := req.Profile.MCP[own]; taken {
			return nil, fmt.Errorf("%w: the MCP server name %q is the worker's own", agent.ErrNotGranted, own)
		}
	}
	if err := r.able(req.Profile); err != nil {
		return nil, err
	}
	var bin string
	if in != nil {
		bin = in.premises.Bin
	} else if bin, err = executable(r.bin(name)); err != nil {
		return nil, fmt.Errorf("%w: agent %s: %w", agent.ErrUnready, name, err)
	}
	t := &turn{r: r, req: req, driver: r.Drivers[name], turn: verified, bin: bin, boxed: in}
	if req.ResumeID != "" && t.conversations() == nil {
		return nil, fmt.Errorf("%w: %s cannot go on with a conversation in a fresh home", agent.ErrUnsupported, name)
	}
	if in == nil || !in.premises.Injects {
		if err := credential(t.driver.Descriptor(), req.Grants.Env, verified.Env); err != nil {
			return nil, err
		}
	}
	if c := verified.Confinement; c != nil {
		runtime, err := t.driver.Runtime(bin)
		if err != nil {
			return nil, fmt.Errorf("what %s needs to run: %w", name, kind(err))
		}
		if err := r.keepsPrivate(req, runtime); err != nil {
			return nil, err
		}
		c.System = append(c.System, agent.Mount{Path: bin, Access: agent.ReadOnly})
		c.System = append(c.System, runtime...)
		if err := t.openEgress(c); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// openEgress makes the way out of a turn whose network is limited. Nothing uses it
// before the turn starts.
func (t *turn) openEgress(c *agent.Confinement) (err error) {
	n := c.Network
	if n.Open || !n.Proxied {
		return nil
	}
	if t.egress, err = egress.New(egress.Limited(n.Domains, n.Hosts), t.r.log().With("turn", t.req.Name)); err != nil {
		return fmt.Errorf("%w: network: %w", agent.ErrUnsupported, err)
	}
	c.Egress = t.egress
	return nil
}

// able refuses what the profile's agent, or this worker, does not have.
func (r *Runner) able(p agent.Profile) error {
	can := r.Drivers[p.AgentName()].Descriptor().Abilities
	switch {
	case len(p.Skills) > 0 && !can.Skills:
		return fmt.Errorf("%w: the agent %s is given no skills; put their text into the system prompt", agent.ErrUnsupported, p.AgentName())
	case len(p.Skills) > 0 && r.Skills == nil:
		return fmt.Errorf("%w: this worker prepares no skills", agent.ErrUnsupported)
	case p.Shell != "" && !can.Shell:
		return fmt.Errorf("%w: the agent %s chooses its shell itself", agent.ErrUnsupported, p.AgentName())
	}
	return nil
}

// credential refuses a turn that its provider could only refuse: one without any of
// the variables the agent is authenticated by. That such a turn fails says nothing
// about the account.
func credential(b agent.Backend, granted, env []string) error {
	if len(b.Credentials) == 0 {
		return nil
	}
	for _, kv := range env {
		if name, value, ok := strings.Cut(kv, "="); ok && value != "" && slices.Contains(b.Credentials, name) {
			return nil
		}
	}
	names := strings.Join(b.Credentials, ", ")
	if slices.ContainsFunc(b.Credentials, func(name string) bool { return agent.NameGranted(granted, name) }) {
		return fmt.Errorf("%w: the worker has no value for the granted credential of %s (one of %s)", agent.ErrUnready, b.Name, names)
	}
	return fmt.Errorf("%w: no credential of %s is granted: name one of %s in grants.env", agent.ErrNotGranted, b.Name, names)
}

// keepsPrivate refuses an agent whose own files lie around the worker's: what it
// needs to run would show it every other session.
func (r *Runner) keepsPrivate(req agent.Request, runtime []agent.Mount) error {
	for _, dir := range append(slices.Clone(r.Private), r.SessionsDir, req.SessionDir) {
		if dir == "" {
			continue
		}
		abs, err := filepath.Abs(dir)
		if err != nil {
			return fmt.Errorf("%w: %w", agent.ErrUnready, err)
		}
		if actual, err := filepath.EvalSymlinks(abs); err == nil {
			abs = actual // one that is yet to be made has no links
		}
		for _, m := range runtime {
			if agent.Inside(abs, m.Path) {
				return fmt.Errorf("%w: the agent's files in %s lie around the worker's own in %s; install one of them elsewhere", agent.ErrUnsupported, m.Path, dir)
			}
		}
	}
	return nil
}

func (r *Runner) boundary(req agent.Request, in *boxed) agent.Boundary {
	private := slices.Clone(r.Private)
	if req.SessionDir != "" {
		private = append(private, req.SessionDir)
	}
	switch req.Profile.Placement().Sandbox {
	case agent.SandboxContainer:
		return r.containerBoundary(in, private)
	case agent.SandboxSbx:
		return r.sandboxBoundary(in, private)
	}
	return boundary.HostBoundary{
		Environ: r.Environ, StripPrefix: r.EnvironmentPrefix, AddDirs: r.AddDirs,
		Confiner: r.confiner(), SystemPaths: r.SystemPaths, SessionsDir: r.SessionsDir,
		SkillDirs: r.SkillMountDirs, Network: r.Network, Limits: r.Limits, Private: private,
		Backends: r.backend,
	}
}

func (r *Runner) backend(name string) (agent.Backend, bool) {
	d, ok := r.Drivers[name]
	if !ok {
		return agent.Backend{}, false
	}
	return d.Descriptor(), true
}

func (r *Runner) confiner() agent.Confiner {
	if r.Confiner != nil {
		return r.Confiner
	}
	return confine.Platform(confine.Options{})
}

// executable finds a program and what its links lead to.
func executable(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// makeReady writes and opens everything the agent is started with.
func (t *turn) makeReady(ctx context.Context) error {
	if err := t.openSession(); err != nil {
		return err
	}
	if t.req.ValidOutcomes == nil || len(t.req.ValidOutcomes) > 0 {
		// The tools outlive the caller's context: what an agent reports while it
		// is being stopped still counts. abandon and run close them.
		host, err := mcphost.Start(context.WithoutCancel(ctx), t.dir.Run(), mcphost.Report{Valid: t.req.ValidOutcomes})
		if err != nil {
			return kind(err)
		}
		t.host = host
	}
	if t.req.ReadServer {
		if err := t.serveWorkspace(ctx); err != nil {
			return kind(err)
		}
	}
	if err := t.startServer(ctx); err != nil {
		return kind(err)
	}
	if err := t.openWay(); err != nil {
		return err
	}
	if err := t.prepareLaunch(); err != nil {
		return err
	}
	var err error
	if t.launch.Skills, err = t.skills(ctx); err != nil {
		return err
	}
	// Before the driver writes: what it configures stands against any bundle.
	if err := t.continueConversation(); err != nil {
		return err
	}
	command, err := t.driver.Command(t.launch)
	if err != nil {
		return fmt.Errorf("command of %s: %w", t.req.Profile.AgentName(), kind(err))
	}
	t.command = command
	if t.transcript, err = t.dir.OpenTranscript(t.r.maxOutput()); err != nil {
		return err
	}
	if t.stderr, err = t.dir.OpenStderr(maxStderr); err != nil {
		return err
	}
	for _, p := range []struct {
		pipe  *pipe
		input bool
	}{{&t.in, true}, {&t.out, false}, {&t.err, false}} {
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("%w: %w", agent.ErrUnready, err)
		}
		if *p.pipe = (pipe{ours: r, theirs: w}); p.input {
			*p.pipe = pipe{ours: w, theirs: r}
		}
	}
	t.before, t.left = takeInventory(t.workspace()), t.leavings()
	return nil
}

// serveWorkspace gives the agent the worker's tools that read the workspace.
func (t *turn) serveWorkspace(ctx context.Context) error {
	shown := t.workspace()
	dir, err := filepath.EvalSymlinks(t.workspace())
	if err != nil {
		return err
	}
	if at, inside, held := t.places(); held {
		if shown = inside; dir != at {
			return fmt.Errorf("%w: the workspace is now %s", agent.ErrPolicyChanged, dir)
		}
	}
	t.read, err = mcphost.StartRead(context.WithoutCancel(ctx), t.dir.Run(), mcphost.Read{Dir: dir, Shown: shown})
	return err
}

// servers are the worker's own, of which either may be missing.
func (t *turn) servers() []*mcphost.Host {
	return slices.DeleteFunc([]*mcphost.Host{t.host, t.read}, func(h *mcphost.Host) bool { return h == nil })
}

func (t *turn) openSession() (err error) {
	if t.req.SessionDir == "" {
		t.dir, err = t.r.create(t.req.Name)
		t.made = err == nil
	} else {
		t.dir, err = session.Open(t.req.SessionDir)
	}
	if err != nil {
		return err
	}
	if err := t.dir.WritePrompts(t.req.Prompt, t.req.SystemPrompt); err != nil {
		return err
	}
	return t.dir.Update(func(m *session.Meta) {
		m.Name, m.Role, m.Agent, m.ResumeID = t.req.Name, t.req.Profile.Name, t.req.Profile.AgentName(), t.req.ResumeID
		t.marker = m.Marker
	})
}

// prepareLaunch adds to the verified turn exactly what the worker itself brings:
// the CLI's own home, a directory for temporary files and the servers of the worker's own.
func (t *turn) prepareLaunch() error {
	mcp := maps.Clone(t.req.Profile.MCP)
	own := []agent.Mount{
		{Path: t.dir.Home(), Access: agent.ReadWrite},
		{Path: t.dir.Tmp(), Access: agent.ReadWrite},
	}
	for _, h := range t.servers() {
		if mcp == nil {
			mcp = map[string]agent.MCPEntry{}
		}
		mcp[h.Name()] = h.Entry()
		for _, m := range h.Mounts() {
			if !slices.Contains(own, m) { // they share their bridge
				own = append(own, m)
			}
		}
	}
	t.launch = agent.Launch{
		Request: t.req, Turn: t.turn, Bin: t.bin,
		Home: t.dir.Home(), HomeInside: t.dir.Home(), WorkDir: t.workspace(),
		MCP: mcp, Title: t.r.NamePrefix + t.req.Name, Root: os.Geteuid() == 0,
	}
	switch c := t.turn.Confinement; {
	case t.boxed != nil:
		if t.shadowed() {
			own = append(own, agent.Mount{Path: t.dir.Shims(), Access: agent.ReadOnly})
		}
		t.box(own)
		return t.shadow()
	case c != nil:
		t.launch.WorkDir = c.WorkDir
		c.System = append(c.System, own...)
	default:
		return t.shadow()
	}
	return nil
}

// skills are the prepared directories of the profile's skills. Of a confined turn the
// boundary saw to it that their mounts are granted.
func (t *turn) skills(ctx context.Context) ([]string, error) {
	if len(t.req.Profile.Skills) == 0 {
		return nil, nil
	}
	dirs, err := t.r.Skills.Prepare(ctx, t.req.Profile.Skills)
	if err != nil {
		return nil, fmt.Errorf("prepare skills: %w", kind(err))
	}
	for i, dir := range dirs {
		if dirs[i], err = filepath.EvalSymlinks(dir); err != nil {
			return nil, fmt.Errorf("%w: prepare skills: %w", agent.ErrUnready, err)
		}
		if _, _, held := t.places(); held && !slices.ContainsFunc(t.r.SkillMountDirs, func(root string) bool {
			actual, err := filepath.EvalSymlinks(root)
			return err == nil && agent.Inside(dirs[i], actual)
		}) {
			return nil, fmt.Errorf("%w: a skill was prepared in %s, which is in none of the directories of skills", agent.ErrUnready, dir)
		}
	}
	return dirs, nil
}

// workspace is the working directory on the host.
func (t *turn) workspace() string {
	if at, _, held := t.places(); held {
		return at
	}
	return t.req.Workspace.Dir
}

// places are the working directory on the host and inside, of a turn that something
// holds.
func (t *turn) places() (workspace, inside string, held bool) {
	switch {
	case t.turn.Confinement != nil:
		return t.turn.Confinement.Workspace, t.turn.Confinement.WorkDir, true
	case t.turn.OwnSandbox != nil:
		return t.turn.OwnSandbox.Workspace, t.turn.OwnSandbox.WorkDir, true
	case t.turn.Box != nil:
		return t.turn.Box.Workspace, t.turn.Box.WorkDir, true
	}
	return "", "", false
}

// shadow puts stand-ins for the denied executables where an agent that nothing
// confines looks first. It keeps an honest agent from them, no other.
func (t *turn) shadow() error {
	if !t.shadowed() {
		return nil
	}
	for _, name := range t.turn.DeniedExecutables {
		script := "#!/bin/sh\necho '" + strings.ReplaceAll(name, "'", "") + ": not granted to this turn' >&2\nexit 126\n"
		if err := os.WriteFile(filepath.Join(t.dir.Shims(), name), []byte(script), 0o700); err != nil {
			return fmt.Errorf("%w: shadow %s: %w", agent.ErrUnready, name, err)
		}
	}
	return nil
}

// shadowed says that nothing keeps the turn from the denied executables but where it
// looks first.
func (t *turn) shadowed() bool {
	box := t.turn.Box
	return len(t.turn.DeniedExecutables) > 0 && t.turn.Confinement == nil && (box == nil || t.boxed.premises.MaskFile == "")
}

// environment is what the agent finds: the verified one, what every program needs
// where that has none, the driver's, and the marker.
func (t *turn) environment() []string {
	env := map[string]string{
		"HOME":   t.launch.HomeInside,
		"TMPDIR": t.tmpInside(),
		"PATH":   defaultPath,
	}
	add := func(pairs []string) {
		for _, pair := range pairs {
			name, value, _ := strings.Cut(pair, "=")
			env[name] = value
		}
	}
	add(t.turn.Env)
	if t.shadowed() {
		env["PATH"] = t.dir.Shims() + string(filepath.ListSeparator) + env["PATH"]
	}
	add(t.command.Env)
	add([]string{procs.Marker(t.r.SessionsDir, t.marker)})
	pairs := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		pairs = append(pairs, name+"="+env[name])
	}
	return pairs
}

// start records the turn and starts the agent.
func (t *turn) start(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if t.boxed != nil {
		return t.exec(ctx) // the engine records what it makes
	}
	t.identity = agent.Identity{Kind: agent.KindProcess, Label: t.marker}
	if rec := t.r.Recorder; rec != nil {
		if err := rec.Creating(ctx, t.identity); err != nil {
			return fmt.Errorf("record the turn: %w", kind(err))
		}
	}
	err := t.exec(ctx)
	if err != nil && t.r.Recorder != nil {
		err = errors.Join(err, t.tellGone(ctx))
	}
	return err
}

func (t *turn) exec(ctx context.Context) error {
	var until time.Time
	if starting := t.r.Observer.Starting; starting != nil {
		var err error
		if until, err = starting(ctx); err != nil {
			return err
		}
	}
	// Not before whoever was asked knows: whatever is here of a turn that was not started says so.
	t.startedAt = time.Now()
	if err := t.dir.Update(func(m *session.Meta) { m.StartedAt = t.startedAt.UTC() }); err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path: t.bin, Args: append([]string{t.bin}, t.command.Args...),
		Env: t.environment(), Dir: t.launch.WorkDir,
		Stdin: t.in.theirs, Stdout: t.out.theirs, Stderr: t.err.theirs,
	}
	if err := t.launchTree(ctx, cmd, until); err != nil {
		return kind(err)
	}
	for _, p := range []*pipe{&t.in, &t.out, &t.err} {
		_ = p.theirs.Close() // or the end of the agent's output would never be seen
		p.theirs = nil
	}
	return nil
}

// launchTree starts cmd where the turn runs, and until when. An engine asks once more when
// it comes to that.
func (t *turn) launchTree(ctx context.Context, cmd *exec.Cmd, until time.Time) error {
	if t.boxed != nil {
		if !until.IsZero() && !time.Now().Before(until) {
			return fmt.Errorf("%w: the time it may run for is over", agent.ErrUnready)
		}
		box := *t.turn.Box
		box.Until = t.r.Observer.Until
		tree, err := t.boxed.engine.Start(ctx, cmd, box, t.r.Recorder)
		if err != nil {
			return err
		}
		t.tree, t.identity = tree, tree.Identity()
		return nil
	}
	if err := t.unchanged(); err != nil {
		return err
	}
	start := procs.Supervised
	if c := t.turn.Confinement; c != nil {
		start = func(cmd *exec.Cmd) error { return t.r.confiner().Start(cmd, *c) }
	}
	tree, err := procs.StartUntil(cmd, start, until)
	if err != nil {
		return err
	}
	t.tree, t.identity = tree, tree.Identity()
	t.identity.Label = t.marker
	return nil
}

// abandon undoes what was made for a turn that was not started.
func (t *turn) abandon() error {
	var errs []error
	for _, h := range t.servers() {
		errs = append(errs, h.Close())
	}
	if t.server != nil {
		errs = append(errs, t.server.Close())
	}
	if t.egress != nil {
		errs = append(errs, t.egress.Close())
	}
	for _, p := range []*pipe{&t.in, &t.out, &t.err} {
		p.close()
	}
	for _, log := range t.logs() {
		errs = append(errs, log.Close())
	}
	switch {
	case t.made:
		errs = append(errs, session.Remove(t.dir.Path()))
	case t.dir != nil:
		errs = append(errs, t.dir.Abandon())
	}
	return errors.Join(errs...)
}

func (t *turn) logs() []*session.Log {
	return slices.DeleteFunc([]*session.Log{t.transcript, t.stderr, t.serverLog}, func(l *session.Log) bool { return l == nil })
}

// tellGone tells the recorder that nothing of the turn is left. The record must be
// made even when the caller's context has ended, because that is how turns end.
func (t *turn) tellGone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if err := t.r.Recorder.Gone(ctx, t.identity); err != nil {
		return fmt.Errorf("record the end of the turn: %w", err)
	}
	return nil
}

// kind makes sure that an error from making ready has a kind: what is not a refusal
// is a worker that is not ready.
func kind(err error) error {
	for _, known := range []error{
		agent.ErrNotGranted, agent.ErrUnsupported, agent.ErrPolicyChanged, agent.ErrUnready,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", agent.ErrUnready, err)
}

func (r *Runner) maxOutput() int64 {
	if r.MaxOutput > 0 {
		return r.MaxOutput
	}
	return defaultMaxOutput
}

func (r *Runner) maxEvents() int {
	if r.MaxEvents > 0 {
		return r.MaxEvents
	}
	return defaultMaxEvents
}
