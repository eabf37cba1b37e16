package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/job"
	"turnpike/internal/vcs"
)

// Launch is one turn, ready to be run. The turn's environment is Environ as far as
// its grants choose from it.
type Launch struct {
	Request  agent.Request
	Observer agent.Observer
	Recorder agent.Recorder
	Watch    agent.Watch
	Network  agent.Network
	Limits   agent.Limits
	// Session is the name of the session directory: what the turn's processes and
	// containers are labelled with.
	Session string
	// Environ is all of the worker's environment the ceiling lets this turn inherit.
	Environ []string
	// Hold judges a boundary's verdict by the ceiling once more; see Ceiling.Hold.
	Hold func(agent.Boundary) agent.Boundary
}

// Runner runs one turn. A nil Result says that nothing was started, and the error
// why; its kinds are agent's.
type Runner func(ctx context.Context, l Launch) (*agent.Result, error)

// Transcript takes one attempt's lines along. Line must not wait.
type Transcript interface {
	Line(line []byte)
	// Close sends what is left, until ctx ends, and says how many lines were not.
	Close(ctx context.Context) (dropped int)
}

// Turns runs turns under a ceiling: what a pool's attempts and a turn run by hand
// have in common.
type Turns struct {
	Ceiling    *Ceiling
	State      *StateDir
	Sessions   Sessions
	Workspaces vcs.Provider[vcs.Spec] // may be a Historian
	Run        Runner
	// Archive keeps conversations and patches; nil keeps what session directories
	// hold, and continues no conversation.
	Archive Archive
	// End ends what a turn left running although it is over.
	End EndFunc
	// Clean removes the workspaces an earlier worker left; see Recovery.
	Clean func() error
	// Environ is the worker's environment, as NAME=value pairs.
	Environ []string
	// Floor is how much of the disk stays free: below it no turn is begun. Default 256 MiB.
	Floor int64
	// Grace is the time between asking an agent to end and ending it; zero is the
	// runner's own.
	Grace time.Duration
	// Worker and Host name this process; Versions are its programs, for the record.
	Worker, Host string
	Versions     map[string]string
	// Prices estimate what an agent does not price; nil is no estimates.
	Prices *Prices
	// Priced says whether an agent tells what its turns cost; nil is that all do.
	Priced func(agent string) bool
	// Backends describes the agents there are; nil runs no read-only turns.
	Backends func(agent string) (agent.Backend, bool)
	Hooks    Hooks
	Log      *slog.Logger
}

// releaseTimeout bounds what is done for a turn after it is over.
const releaseTimeout = time.Minute

// ready says whether the worker has room for another turn; the error wraps
// agent.ErrUnready.
func (t *Turns) ready() error {
	free, err := t.State.Free()
	if err != nil {
		return fmt.Errorf("%w: %w", err, agent.ErrUnready)
	}
	if floor := cmp.Or(t.Floor, 256<<20); free < floor {
		return fmt.Errorf("the disk of the state directory has %d MiB left, below the floor of %d MiB: %w", free>>20, floor>>20, agent.ErrUnready)
	}
	return nil
}

// attempt is one turn on its way through a worker.
type attempt struct {
	*Turns
	request job.Request
	profile job.Profile
	name    string
	tenant  string
	resume  string // the conversation of an earlier attempt that it continues
	from    job.ID // whose conversation the request names; empty for none
	mark    *mark
	kept    *kept     // nil for a turn run by hand
	budget  *job.Left // what its budgets have left; nil without any
	stream  Transcript

	recorder *recorder
	added    []string
	model    string // the one that answered a read-only turn
	begun    time.Time
	// local says that it failed for a reason of this worker alone.
	local bool
	// What became of its workspace, once it was released.
	workspace string
	left      leavings
	released  bool

	mu       sync.Mutex // guards what the observer learns
	started  time.Time
	progress agent.Progress
}

// run takes the attempt from a checked request to the end of its turn. A nil result
// says that nothing was started.
func (a *attempt) run(ctx context.Context) (res *agent.Result, err error) {
	if err := a.Ceiling.Check(a.request); err != nil {
		return nil, err
	}
	if err := a.ready(); err != nil {
		a.local = true
		return nil, err
	}
	if a.mark.Session, err = a.Sessions.New(a.name); err != nil {
		a.local = true
		return nil, fmt.Errorf("%w: %w", err, agent.ErrUnready)
	}
	a.recorder = &recorder{marks: a.State.marks(), kept: a.kept, mark: a.mark}
	if err := a.recorder.open(); err != nil {
		a.local = true
		return nil, err
	}
	a.Hooks.at(AfterMark)
	if err := a.fetchConversation(ctx); err != nil {
		return nil, err
	}
	ws, err := a.Workspaces.Acquire(ctx, workspaceSpec(a.request, a.name))
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	a.workspace = ws.Dir
	defer func() {
		a.Hooks.at(AfterTurn)
		err = errors.Join(err, a.release(ctx, ws, res != nil))
	}()
	if err := a.restoreWork(ctx, ws); err != nil {
		return nil, err
	}
	if a.request.Workspace.Git != nil {
		// What is changed in it must outlive this worker.
		if err := a.recorder.change(func(m *mark) { m.Clone = ws.Dir }); err != nil {
			a.local = true
			return nil, err
		}
	}
	launch, err := a.launch(ws)
	if err != nil {
		return nil, err
	}
	if a.request.Restricted {
		res, err = a.readOnly(ctx, launch)
	} else {
		res, err = a.Run(ctx, launch)
	}
	if res == nil && err != nil {
		// A lease in doubt says nothing about this worker's own parts.
		a.local = errors.Is(err, agent.ErrUnready) && !errors.Is(err, errDoubtful) && (a.kept == nil || !a.kept.doubtful())
		res = a.broken(ctx, err)
	}
	if res != nil && res.HasOutcome && res.Outcome.Work.IsZero() {
		res.Outcome.Work = a.request.Work // the agent named no other work
	}
	return res, err
}

// broken is the result of a turn that was started and of which the runner gave
// none: what was started must never pass for unstarted.
func (a *attempt) broken(ctx context.Context, err error) *agent.Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.started.IsZero() {
		return nil
	}
	res := &agent.Result{
		Name: a.name, Role: a.profile.Name, Agent: agentName(a.profile.Agent), SessionDir: a.mark.Session,
		StartedAt: a.started, Duration: time.Since(a.started), ExitCode: -1,
		IsError: true, ErrorSubtype: agent.SubtypeNoResult, Diagnostics: []string{text(err)},
		ClaudeID: a.progress.Conversation, AgentVersion: a.progress.AgentVersion, RateLimit: a.progress.RateLimit,
		NumTurns: a.progress.Turns, ToolCalls: a.progress.ToolCalls, CostUSD: a.progress.CostUSD, CostKnown: a.progress.CostKnown, CostPartial: a.progress.CostKnown,
	}
	if ctx.Err() != nil {
		res.ErrorSubtype = agent.SubtypeCancelled
	}
	return res
}

func (a *attempt) launch(ws vcs.Workspace) (Launch, error) {
	req, added, err := mapping{
		request: a.request, profile: a.profile, name: a.name, resume: a.resume,
		workspace: ws, session: a.mark.Session, ceiling: a.Ceiling, environ: a.Environ, budget: a.budget, lease: a.mark.Lease,
	}.agentRequest()
	if err != nil {
		return Launch{}, err
	}
	a.added = added
	account, err := a.Ceiling.account(a.request.AccountOf(&a.profile), a.profile.Agent)
	if err != nil {
		return Launch{}, err
	}
	w := watch(a.request.Limits)
	w.Grace = a.Grace
	own := ws.Dir
	if a.request.Workspace.Dir != "" {
		own = ""
	}
	return Launch{
		Request:  req,
		Observer: a.observer(),
		Recorder: a.recorder,
		Watch:    w,
		Network:  a.Ceiling.network(a.profile),
		Limits:   a.Ceiling.AgentLimits(),
		Session:  filepath.Base(a.mark.Session),
		Environ:  a.Ceiling.environ(a.Environ, account),
		Hold:     func(b agent.Boundary) agent.Boundary { return a.Ceiling.Hold(b, own) },
	}, nil
}

func (a *attempt) observer() agent.Observer {
	o := agent.Observer{
		Started: func(c agent.Control) {
			a.mu.Lock()
			a.started = time.Now().UTC()
			a.mu.Unlock()
			if a.kept != nil {
				a.kept.started(c)
			}
			a.Hooks.at(AfterStart)
		},
		Progress: func(p agent.Progress) {
			a.mu.Lock()
			a.progress = p
			a.mu.Unlock()
			if a.kept != nil {
				a.kept.progress(p)
			}
		},
	}
	if a.kept != nil {
		o.Starting, o.Until = a.kept.starting, a.kept.runsUntil
	}
	if a.stream != nil {
		o.Line = a.stream.Line
	}
	return o
}

// release gives everything back after the turn. It outlives the turn's context,
// which may have ended with it.
func (a *attempt) release(ctx context.Context, ws vcs.Workspace, ran bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	log := a.Log.With("name", a.name)
	for _, t := range a.recorder.left() {
		// The launcher could not show it to be gone.
		if _, err := a.End(ctx, t.Identity); err != nil {
			log.Error("something the turn started may still run", "kind", t.Kind, "pid", t.PID, "id", t.ID, "error", err)
			continue
		}
		if err := a.recorder.Gone(ctx, t.Identity); err != nil {
			log.Error("mark", "error", err)
		}
	}
	if len(a.recorder.left()) > 0 {
		return nil // the workspace may still be written to: it is left as it is
	}
	if ran {
		a.keepWork(ctx, ws)
	}
	if err := a.Workspaces.Release(ctx, ws); err != nil {
		log.Warn("the workspace could not be released", "dir", ws.Dir, "error", err)
	}
	a.released = true
	return nil
}

// claimed runs one claimed attempt and reports it. It never fails: every way it can
// end is an ending.
func (t *Turns) claimed(ctx context.Context, c job.Claimed, h *kept, stream Transcript) (rep job.Report, local bool) {
	rep = base(c, t.Worker, t.Host, t.Versions)
	a := &attempt{
		Turns: t, name: keyOf(c.Lease).String(), tenant: c.Tenant, resume: c.Resume, kept: h, stream: stream, begun: time.Now(), budget: c.Left,
		mark: &mark{Version: markVersion, Lease: c.Lease, Worker: t.Worker, MarkedAt: time.Now().UTC()},
	}
	var res *agent.Result
	err := a.read(c)
	if err == nil {
		rep.Agent, rep.Model = agentName(a.profile.Agent), a.profile.Model
		a.mark.Agent, a.mark.Model = rep.Agent, rep.Model
		err = a.bounded()
	}
	if err == nil {
		err = h.alone(ctx)
	}
	if err == nil {
		res, err = a.run(ctx)
	}
	rep.EndedAt = time.Now().UTC()
	rep.Ending, rep.Reason = Ended(res, err, context.Cause(ctx))
	if what := a.overBudget(res, context.Cause(ctx)); what != "" {
		rep.Reason = what
		rep.Notes = append(rep.Notes, what)
	}
	rep.Added, rep.SessionDir = a.added, a.mark.Session
	if inert := a.inertCap(); res != nil && inert != "" {
		rep.Notes = append(rep.Notes, inert)
	}
	if res != nil {
		fillResult(&rep, res, t.Prices)
		rep.Model = cmp.Or(clean(a.model), rep.Model)
		a.archive(ctx, res, &rep)
		if err != nil {
			t.Log.Warn("the turn ended, and not everything about it went well", "job", c.Job, "attempt", c.Attempt, "error", err)
		}
	}
	if a.recorder != nil {
		for _, left := range a.recorder.left() {
			rep.Left = append(rep.Left, orphanOf(a.mark, left))
		}
	}
	return rep, a.local
}

// inertCap says that the turn's cost cap has no effect; empty where it has, or where
// there is none.
func (a *attempt) inertCap() string {
	capUSD, name := a.Ceiling.costCap(a.request), agentName(a.profile.Agent)
	if capUSD <= 0 || a.Priced == nil || a.Priced(name) {
		return ""
	}
	return fmt.Sprintf("the cost cap of %s USD had no effect: %s never tells what a turn costs", capUSD, name)
}

// read decodes what the claim brought and picks the profile to run.
func (a *attempt) read(c job.Claimed) (err error) {
	if a.request, err = decode(c.Request); err != nil {
		return err
	}
	if a.profile, err = selectProfile(a.request, c.Profile); err != nil {
		return err
	}
	if a.request.ResumeFrom != "" {
		if c.Origin == nil || c.Origin.Conversation == "" {
			return fmt.Errorf("resume_from: the job and its conversation are not on record any more: %w", agent.ErrUnsupported)
		}
		a.request.ResumeID, a.from = c.Origin.Conversation, c.Origin.Job
	}
	if got := (job.Lane{Placement: a.profile.Placement(), Pool: a.request.Pool}); got != c.Lane {
		return fmt.Errorf("profile: it runs on lane %s and was claimed on %s: %w", got, c.Lane, agent.ErrNotGranted)
	}
	return nil
}

// settled lets go of an attempt's mark once its report is durable: all is reported
// and nothing runs. While something may still run, the mark stays and says so.
func (t *Turns) settled(rep job.Report) error {
	m := t.State.marks()
	k := keyOf(rep.Lease)
	if len(rep.Left) == 0 {
		return m.remove(k)
	}
	all, err := m.list()
	for _, one := range all {
		if one.key() == k {
			one.Reported = true
			return m.write(one)
		}
	}
	return err
}

// RunLocal runs one request by hand, without queue and database: ceiling, workspace,
// runner, Result. A nil Result says that nothing was started.
func (t *Turns) RunLocal(ctx context.Context, r job.Request, stream Transcript) (*agent.Result, error) {
	id := job.ID(job.NewToken()) // a random UUID; no database knows it
	a := &attempt{
		Turns: t, request: r, profile: r.Profile, name: cmp.Or(r.Name, "local"), stream: stream, begun: time.Now(),
		mark: &mark{
			Version: markVersion, Lease: job.Lease{Job: id, Attempt: 1}, Local: true, Worker: t.Worker,
			Agent: agentName(r.Profile.Agent), Model: r.Profile.Model, MarkedAt: time.Now().UTC(),
		},
	}
	res, err := a.run(ctx)
	if res != nil {
		if inert := a.inertCap(); inert != "" {
			t.Log.Warn(inert)
		}
		for _, u := range usage(res.Models, t.Prices) {
			if u.EstimatedUSD != nil {
				t.Log.Info("cost estimated by the price list", "model", u.Model, "usd", u.EstimatedUSD.String())
			}
		}
	}
	if a.recorder != nil && len(a.recorder.left()) == 0 {
		err = errors.Join(err, a.recorder.marks.remove(a.mark.key()))
	}
	return res, err
}
