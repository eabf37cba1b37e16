package job

import (
	"errors"
	"fmt"
)

// Kinds of error a caller may ask for. Each edge maps them in one table.
var (
	ErrInvalid     = errors.New("invalid request")        // see FieldError
	ErrNotFound    = errors.New("no such job")            //
	ErrNoSchedule  = errors.New("no such schedule")       //
	ErrNoBudget    = errors.New("no such budget")         //
	ErrNoOrphan    = errors.New("nothing is left")        // of that kind, of that attempt
	ErrNotKept     = errors.New("not kept")               // a patch or a conversation that never was there, or is not any more
	ErrFinished    = errors.New("job is finished")        // final states are final
	ErrUnfinished  = errors.New("job is not finished")    // what is repeated must be
	ErrConflict    = errors.New("conflicts with earlier") // an idempotency key came again with another request
	ErrQueueFull   = errors.New("queue limit reached")    // the tenant has too many unfinished jobs
	ErrDenied      = errors.New("not permitted")          // the caller's role may not do this
	ErrUnavailable = errors.New("unavailable")            // Postgres or NATS is away; try again
	ErrLaneMissing = errors.New("lane is not set up")     // its stream or consumer is missing; the dispatcher makes it
	ErrNotLeader   = errors.New("not the leader")         // another dispatcher selects and reaps
	ErrCeiling     = errors.New("ceiling differs")        // the pool is registered with another ceiling
	ErrLeaseLength = errors.New("lease length differs")   // from that of the dispatcher that leads
	ErrUnstorable  = errors.New("cannot be stored")       // Postgres refuses what it says, and would again
)

// Causes a turn's context ends with.
var (
	ErrLeaseLost = errors.New("lease lost")
	ErrDrained   = errors.New("worker is draining")
)

// Cancelled is the cause of a turn that a person cancelled.
type Cancelled struct{ By, Why string }

func (c *Cancelled) Error() string {
	s := "cancelled"
	if c.By != "" {
		s += " by " + c.By
	}
	if c.Why != "" {
		s += ": " + c.Why
	}
	return s
}

// FieldError is a problem with one field of what a producer sent, by its path:
// "grants.mounts[0].path". It wraps ErrInvalid. Problem says what to do.
type FieldError struct {
	Field   string
	Problem string
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Problem
	}
	return e.Field + ": " + e.Problem
}

// Unwrap makes every FieldError an ErrInvalid.
func (e *FieldError) Unwrap() error { return ErrInvalid }

// Invalid gathers every problem found in one request. It wraps ErrInvalid and
// each FieldError.
type Invalid []*FieldError

func (v Invalid) Error() string {
	switch len(v) {
	case 0:
		return ErrInvalid.Error()
	case 1:
		return v[0].Error()
	}
	return fmt.Sprintf("%s (and %d more problems)", v[0].Error(), len(v)-1)
}

// Unwrap lists the problems.
func (v Invalid) Unwrap() []error {
	errs := make([]error, 0, len(v)+1)
	for _, e := range v {
		errs = append(errs, e)
	}
	return append(errs, ErrInvalid)
}
