package agent

import (
	"context"
	"net"
	"os/exec"
	"time"
)

// Confiner has the operating system hold a process to a Confinement.
type Confiner interface {
	// Check reports whether this platform can enforce c, without starting
	// anything. Its error wraps ErrUnsupported.
	Check(c Confinement) error
	// Start starts cmd under c, never with less than c. Its error wraps
	// ErrUnsupported or ErrPolicyChanged where one of them is the reason.
	Start(cmd *exec.Cmd, c Confinement) error
}

// Egress is the way out of a turn whose network is limited, served from outside it.
type Egress interface {
	// Attach takes over the turn's way out from the process at the other end of c,
	// which is inside and waits for the answer before the agent is executed.
	Attach(c *net.UnixConn) error
}

// Process is a started agent together with everything it starts.
type Process interface {
	Identity() Identity
	// Terminate asks the agent to end (SIGTERM).
	Terminate() error
	// Kill ends the whole tree and returns once its absence is verified.
	Kill(ctx context.Context) error
	// Freeze stops the whole tree where it is; Thaw lets it go on.
	Freeze() error
	Thaw() error
	// Wait returns how the agent ended, after the whole tree is gone.
	Wait() (Exit, error)
}

// Bounded is a Process, or a Control, that can be let run until a time and no longer,
// however little its caller still does: a worker that is stopped, or starved, freezes
// nothing, and its lease lapses all the same.
type Bounded interface {
	// RunUntil has it stand still at a time, unless it was given a later one by then. A
	// later one lets it go on; what Freeze stopped goes on by Thaw alone.
	RunUntil(at time.Time) error
}

// Exit is how a process ended.
type Exit struct {
	Code   int // -1 when Signal ended it
	Signal int
}

// The kinds of thing that can outlive its worker.
const (
	KindProcess   = "process"
	KindContainer = "container"
	KindSandbox   = "sandbox"
	KindServer    = "server"
)

// Identity names one started thing so that nothing else can be taken for it.
type Identity struct {
	Kind string `json:"kind"`
	// PID, StartTime (clock ticks since boot, proc(5) stat field 22) and BootID
	// together identify a process; a pid alone is reused.
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"`
	BootID    string `json:"boot_id,omitempty"`
	// ID is a container's or sandbox's own, and Label what it is swept by.
	ID    string `json:"id,omitempty"`
	Label string `json:"label,omitempty"`
}

// Recorder is told of what is started. If it cannot record, nothing is started.
type Recorder interface {
	// Creating is called before a thing is started, when nothing but its kind
	// and label may be known.
	Creating(ctx context.Context, what Identity) error
	// Live is called as soon as its identity is known.
	Live(ctx context.Context, what Identity) error
	// Gone is called after its absence was verified.
	Gone(ctx context.Context, what Identity) error
}

// SkillPreparer makes skills ready by their names, each a directory an agent loads as
// a plugin. What it does not have, or what is no skill, it refuses with one of this
// package's kinds.
type SkillPreparer interface {
	Prepare(ctx context.Context, names []string) (dirs []string, err error)
}

// Control is a running turn as its caller may steer it, beyond ending its context.
type Control interface {
	// Freeze stops the turn's processes and its clocks; Thaw lets both go on. A turn that
	// has ended answers [os.ErrProcessDone].
	Freeze() error
	Thaw() error
}

// Observer follows one turn. Its methods are called in order, never two at once,
// and must return at once. A nil field is not called.
type Observer struct {
	// Starting is called just before the agent is executed. An error stops it. It
	// may take as long as it takes to have the start on record. The agent stands still
	// at until, as by Bounded.RunUntil, and is not executed after it; zero is no end.
	Starting func(ctx context.Context) (until time.Time, err error)
	// Until tells that time as it is known by now. An engine, whose start takes its time,
	// asks last of all.
	Until func() time.Time
	// Started is called once the agent runs.
	Started func(c Control)
	// Progress is called whenever something was learned.
	Progress func(p Progress)
	// Line is called with each line the agent printed, after it was written to
	// the transcript. The slice is not kept.
	Line func(line []byte)
}

// Interrupted is a turn whose worker died before it ended, found from its
// session directory.
type Interrupted struct {
	Role string
	Name string
	Dir  string
	// Transcript is the unfinished transcript's path; empty when there is none.
	Transcript string
	// Turns counts the assistant messages of the transcript: an approximation.
	Turns int
	// Killed says that the turn was stopped on purpose, and Note why.
	Killed bool
	Note   string
}

// Watch are the limits the runner itself keeps, whatever the agent does.
type Watch struct {
	FirstEvent time.Duration // until the agent first says something; zero is 2 minutes
	Idle       time.Duration // between two events; zero is 30 minutes
	Grace      time.Duration // between asking the agent to end and ending it; zero is 10 seconds
}
