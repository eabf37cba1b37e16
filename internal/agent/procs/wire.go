//go:build linux || darwin

package procs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"turnpike/internal/agent"
)

// The descriptors of a root.
const (
	fdLine  = 3
	fdSetup = 4
	fdPlan  = 5
	// FirstPassed is the descriptor of the first of Launch.Files in a root, and in a
	// process that takes its place at first (Launch.Before).
	FirstPassed = 6
)

// rootName is argv[0] of a root.
const rootName = "turnpike-root"

// plan is what a root executes, and how.
type plan struct {
	Path string
	Args []string
	Env  []string
	Dir  string
	// Stage says that Path is a stage that sets itself up before it becomes the
	// program: it gets the set-up pipe as descriptor 3 and the passed files after it.
	Stage bool
	// Prepared says that the root's Prepare leads to the program instead.
	Prepared bool
	Passed   int
	// Groups are the names of Launch.Groups, whose Parent and Dir follow what is passed.
	Groups []string
}

// readyWord is what the set-up pipe carries before the program is executed. Without
// it, a pipe that closes says only that a process died.
const readyWord = "ready\n"

// Requests of the line.
const (
	doFreeze = "freeze"
	doThaw   = "thaw"
	doUntil  = "until"
)

// request is what a worker says to a root.
type request struct {
	Do string        `json:"do"`
	At time.Duration `json:"at,omitempty"` // of until: by CLOCK_MONOTONIC
}

// answer is what a root says to its worker.
type answer struct {
	Did   string      `json:"did,omitempty"`
	Error string      `json:"error,omitempty"`
	Exit  *agent.Exit `json:"exit,omitempty"`
}

// Failure says which step of starting a tree failed. It unwraps to its kind, one
// of the agent package's sentinels, and to the system's own error.
type Failure struct {
	Step  string
	Text  string
	Kind  string        // "unsupported", "changed", "unready"
	Errno syscall.Errno // zero when no system call failed
}

// The kinds of Failure by the sentinel each stands for.
var kinds = map[string]error{
	"unsupported": agent.ErrUnsupported,
	"changed":     agent.ErrPolicyChanged,
	"unready":     agent.ErrUnready,
}

// NewFailure describes err, which happened in step. Its kind is that of the
// sentinel err wraps, else that of otherwise: but a machine that is short of something
// for now is unready, whatever the step would mean by itself.
func NewFailure(step string, err, otherwise error) *Failure {
	f := &Failure{Step: step, Text: err.Error(), Kind: kindOf(err)}
	errors.As(err, &f.Errno)
	switch {
	case f.Kind != "":
	case slices.Contains(short, f.Errno):
		f.Kind = kindOf(agent.ErrUnready)
	default:
		f.Kind = kindOf(otherwise)
	}
	return f
}

// short are the errors of a kernel that lacks something which others give back: memory,
// processes, open files.
var short = []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EINTR}

func kindOf(err error) string {
	for kind, sentinel := range kinds {
		if errors.Is(err, sentinel) {
			return kind
		}
	}
	return ""
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %s", f.Step, f.Text) }

// Unwrap gives the kind and the system's error.
func (f *Failure) Unwrap() []error {
	var out []error
	if s := kinds[f.Kind]; s != nil {
		out = append(out, s)
	}
	if f.Errno != 0 {
		out = append(out, f.Errno)
	}
	return out
}

// notFound says that a process is gone, whichever way /proc or a signal told.
func notFound(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, os.ErrProcessDone)
}
