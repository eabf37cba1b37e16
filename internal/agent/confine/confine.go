package confine

import (
	"context"

	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
)

// WorkDir is where a turn's workspace is mounted inside a Full confinement.
const WorkDir = "/workspace"

// Options are the choices of the worker's owner. The zero Options confine with
// all this machine has.
type Options struct {
	// Launcher is the program whose main begins with Entry; empty is the running one.
	Launcher string
	// AllowNoLandlock accepts namespaces, seccomp and no capabilities as enough on
	// a kernel without Landlock.
	AllowNoLandlock bool
	// LandlockOnly does without namespaces although they work.
	LandlockOnly bool
	// UnixSockets lets a LandlockOnly turn open unix sockets on a kernel whose
	// Landlock cannot hold them to granted paths (ABI below 9). Such a turn reaches
	// every socket its user may; set it only where no engine's is among them.
	UnixSockets bool
	// AbstractSockets lets a Full turn with the open network dial the host's abstract
	// unix sockets, on a kernel whose Landlock cannot keep them apart (ABI below 6).
	// Such a turn reaches what listens there: a desktop, a session bus.
	AbstractSockets bool
	// Private are paths of the worker's own, such as its state directory: no mount
	// may be or contain one, though it may lie inside.
	Private []string
	// TmpBytes is the size of the private /tmp of a Full turn; zero is 1 GiB. It
	// counts as memory.
	TmpBytes int64
}

// Mode is by what means a machine confines.
type Mode string

// The modes there are.
const (
	Full         Mode = "full"          // namespaces, Landlock and seccomp
	LandlockOnly Mode = "landlock-only" // Landlock and seccomp; refuses what they cannot hold
	Seatbelt     Mode = "seatbelt"      // macOS: a profile and a root that keeps account of processes
	None         Mode = "none"          // refuses everything
)

// WorkDir is the path the workspace has inside a confinement of mode m.
func (m Mode) WorkDir(workspace string) string {
	if m == Full {
		return WorkDir
	}
	return workspace
}

// Confiner is this platform's agent.Confiner.
type Confiner interface {
	agent.Confiner
	// Mode says by what means it confines. The first call tries them out.
	Mode() Mode
	// Probe tries out what this machine can enforce.
	Probe(ctx context.Context) Report
}

// Report is what a machine can enforce.
type Report struct {
	Mode Mode `json:"mode"`
	// Reason says why Mode is not Full; empty when it is.
	Reason string    `json:"reason,omitempty"`
	Facts  []Feature `json:"facts"`
}

// Feature is one means of confinement.
type Feature struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Detail is what was found, or why not and what would help.
	Detail string `json:"detail"`
}

// Probe tries out what this machine can enforce under the zero Options.
func Probe(ctx context.Context) Report { return Platform(Options{}).Probe(ctx) }

// Entry is the first line of main in every program that confines or starts trees,
// and of TestMain in every test that does. In a root, or a stage of one, it does
// that one's work and never returns; everywhere else it returns at once.
func Entry() {
	entry()
	procs.Entry()
}
