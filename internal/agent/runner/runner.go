package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/session"
)

// What holds where a Runner says nothing.
const (
	defaultMaxOutput  = 512 << 20
	defaultMaxEvents  = 1_000_000
	defaultFirstEvent = 2 * time.Minute
	defaultIdle       = 30 * time.Minute
	defaultGrace      = 10 * time.Second
)

// Runner runs turns. It holds no state of its own: one Runner serves many turns at
// once, and a copy with another Recorder or Observer serves one of them.
type Runner struct {
	// ClaudeBin, CodexBin, OpenCodeBin and PiBin are the agents' executables; a
	// name is looked up on the worker's PATH. Empty is the agent's own name.
	ClaudeBin   string
	CodexBin    string
	OpenCodeBin string
	PiBin       string
	// DockerBin and SbxBin are the programs that containers and sandboxes are run
	// with; empty is the engine's own choice, mostly agent.ContainerEngine and
	// agent.SandboxCLI.
	DockerBin string
	SbxBin    string
	// ContainerListen is the address the server that a request names (HostMCP) listens
	// on. Empty is the host's loopback for a turn whose network is limited, and the
	// address the box reaches the host by for one whose network is open.
	ContainerListen string
	// SessionsDir is where a session directory is made for a request without one.
	// What a turn starts is marked with it, so procs.Sweep takes the same path.
	SessionsDir string
	// EnvironmentPrefix is removed from the host environment turns inherit.
	EnvironmentPrefix string
	// NamePrefix goes before a turn's name where it names something outside the
	// worker: the title of a conversation, a container.
	NamePrefix string
	// ContainerLabel is what containers are found by; empty is DefaultContainerLabel.
	ContainerLabel string
	// ContainerHome is the agent's home in a container; empty is
	// boundary.DefaultContainerHome.
	ContainerHome string
	// ContainerUseRepository is the repository whose container-use environments
	// profiles may name; empty has none.
	ContainerUseRepository string
	// MountDirs are directories that container and sandbox turns write. Each must be
	// granted read-write.
	MountDirs []string
	// Skills makes the skills of a profile ready; nil has none.
	Skills agent.SkillPreparer
	// AddDirs are directories agents are told they may write. Each must be
	// granted read-write.
	AddDirs []string
	// SkillMountDirs hold the prepared skills; see boundary.HostBoundary.SkillDirs.
	SkillMountDirs []string
	// Confiner enforces confined turns; nil is this platform's. SystemPaths are
	// what such a turn reaches beyond its mounts; nil is confine.DefaultSystemPaths.
	Confiner    agent.Confiner
	SystemPaths []agent.Mount
	// Stream, when set, receives every line the agents print. It is written by one
	// turn at a time only where it belongs to one turn.
	Stream io.Writer
	Logger *slog.Logger

	// Beyond the listing:

	// Drivers are the agents this worker runs, by name.
	Drivers map[string]agent.Driver
	// Engines run the turns of containers and sandboxes, by the profile's sandbox.
	Engines map[string]agent.Engine
	// Bins names executables by agent; the fields above go before it.
	Bins map[string]string
	// Recorder is told of everything that is started; nil records nothing, which
	// only a person who watches the turn should choose.
	Recorder agent.Recorder
	Observer agent.Observer
	Watch    agent.Watch
	// Network and Limits are the pool's.
	Network agent.Network
	Limits  agent.Limits
	// Judge, when set, wraps the boundary of each turn, so that the worker's owner
	// may refuse what its verdict would grant.
	Judge func(agent.Boundary) agent.Boundary
	// Private are the worker's own directories, which no mount may reach.
	Private []string
	// Environ is the host environment; nil is os.Environ.
	Environ func() []string
	// MaxOutput and MaxEvents bound what one turn may print, in bytes and lines;
	// zero is 512 MiB and a million.
	MaxOutput int64
	MaxEvents int
}

// NewSessionDir makes the session directory of a turn that is yet to be requested.
func (r *Runner) NewSessionDir(name string) (string, error) {
	d, err := r.create(name)
	if err != nil {
		return "", err
	}
	return d.Path(), nil
}

func (r *Runner) create(name string) (*session.Dir, error) {
	if r.SessionsDir == "" {
		return nil, fmt.Errorf("%w: no directory for sessions is set", agent.ErrUnready)
	}
	return session.Create(r.SessionsDir, name)
}

// Run runs one turn. Its error says that nothing was started and wraps one of the
// agent package's kinds, the cause ctx ended with, or the error of
// Observer.Starting. Once something was started there is a Result and no error.
func (r *Runner) Run(ctx context.Context, req agent.Request) (*agent.Result, error) {
	t, err := r.verify(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("verify turn %q: %w", req.Name, err)
	}
	if err := t.makeReady(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("make turn %q ready: %w", req.Name, err), t.abandon())
	}
	if err := t.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start turn %q: %w", req.Name, err), t.abandon())
	}
	return t.run(ctx), nil
}

func (r *Runner) log() *slog.Logger {
	if r.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return r.Logger
}

func (r *Runner) watch() agent.Watch {
	return agent.Watch{
		FirstEvent: cmp.Or(r.Watch.FirstEvent, defaultFirstEvent),
		Idle:       cmp.Or(r.Watch.Idle, defaultIdle),
		Grace:      cmp.Or(r.Watch.Grace, defaultGrace),
	}
}

// bin is the executable an agent is run as.
func (r *Runner) bin(name string) string {
	byField := map[string]string{
		agent.AgentClaude:   r.ClaudeBin,
		agent.AgentCodex:    r.CodexBin,
		agent.AgentOpenCode: r.OpenCodeBin,
		agent.AgentPi:       r.PiBin,
	}
	return cmp.Or(byField[name], r.Bins[name], name)
}
