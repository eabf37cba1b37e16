package agent

import "errors"

// Kinds of refusal. Each is returned before anything was started.
var (
	// ErrNotGranted says that a request asks for more than its grants, or its
	// worker's ceiling, allow. It never succeeds when repeated.
	ErrNotGranted = errors.New("not granted")
	// ErrUnsupported says that this machine, agent or placement cannot enforce
	// or do what was asked. The text says what would.
	ErrUnsupported = errors.New("unsupported")
	// ErrPolicyChanged says that something a policy was read from, a mount's
	// target above all, is no longer what was verified.
	ErrPolicyChanged = errors.New("policy changed")
	// ErrReleased says that the session was released.
	ErrReleased = errors.New("session released")
	// ErrMissing says that something a request names, a repository or a ref of it, is
	// not there, by the word of who would have it. Asking again does not bring it.
	ErrMissing = errors.New("not there")
	// ErrUnready says that the worker could not make the turn ready: a disk is
	// full, a binary is missing, an engine is down. Another worker may.
	ErrUnready = errors.New("not ready")
	// ErrNoCapacity says that no profile of a chain of fallbacks has capacity now.
	ErrNoCapacity = errors.New("no capacity")
)

// ErrFenced is a cause to end a turn's context for: another may run in its stead by now,
// and so it is not given the moment it would take to end by itself.
var ErrFenced = errors.New("another may run in its stead")
