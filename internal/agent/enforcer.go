package agent

import "context"

// Enforcer makes sessions of one kind.
type Enforcer interface {
	// Prepare checks the grants on their own and asks the platform whether it can
	// enforce them. It starts no agent. A kind this platform cannot enforce is refused
	// with an error that wraps ErrUnsupported, never prepared with less.
	Prepare(ctx context.Context, grants Grants) (Session, error)
}

// Session runs turns under one set of grants. It is used from many goroutines.
type Session interface {
	// Policy is what every turn of the session is held to.
	Policy() Policy
	// Run runs one turn, admitted as Admit says. It is refused with ErrPolicyChanged,
	// before anything starts, where what the policy was read from is not what it was,
	// and with ErrReleased after Release.
	Run(ctx context.Context, req Request) (*Result, error)
	// Release frees what Prepare made, once no turn runs. Doing it again does nothing.
	Release(ctx context.Context) error
}
