package worker

import (
	"context"
	"errors"
	"strings"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

// causes is the table of what a context that ended makes of a turn.
var causes = []struct {
	is     func(error) bool
	ending job.Ending
}{
	{func(err error) bool { _, ok := errors.AsType[*job.Cancelled](err); return ok }, job.EndCancelled},
	{kind(job.ErrLeaseLost), job.EndFenced},
	{overBudget, job.EndCapped},
	{kind(job.ErrDrained), job.EndDrained},
}

// refusals is the table of what an error makes of a turn that was never started.
var refusals = []struct {
	is     func(error) bool
	ending job.Ending
}{
	{kind(job.ErrInvalid), job.EndRefused},
	{kind(agent.ErrNotGranted), job.EndRefused},
	{kind(agent.ErrUnsupported), job.EndRefused},
	{kind(agent.ErrPolicyChanged), job.EndRefused},
	{kind(agent.ErrMissing), job.EndRefused},
	{kind(agent.ErrUnready), job.EndUnready},
	{kind(agent.ErrReleased), job.EndUnready},
}

// failures is the table of what a driver's classification makes of a turn. A
// failure that is not here is the work's own: the turn is done.
var failures = map[agent.Failure]job.Ending{
	agent.FailureLimited:    job.EndLimited,
	agent.FailureOverloaded: job.EndOverloaded,
	agent.FailureCredential: job.EndCredential,
	agent.FailureResume:     job.EndDone,
}

func overBudget(err error) bool { _, ok := errors.AsType[*job.OverBudget](err); return ok }

func kind(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

// Ended says how an attempt ended: from the runner's result (nil when nothing was
// started), its error, and the cause its context ended with (nil while it had
// not). It is total. The reason is for people to read.
func Ended(res *agent.Result, err, cause error) (job.Ending, string) {
	if res == nil {
		return endedUnstarted(err, cause)
	}
	// A turn that ended by itself before the stop reached it keeps its result: only
	// the runner, which stopped it, says that it was cancelled.
	if res.ErrorSubtype == agent.SubtypeCancelled {
		return endedBy(cause, err)
	}
	if res.CostCapped || res.ErrorSubtype == agent.SubtypeCostCap {
		return job.EndCapped, "the cost cap was reached"
	}
	switch res.ErrorSubtype {
	case agent.SubtypeFirstEvent:
		return job.EndTimeout, "the agent said nothing in its start limit"
	case agent.SubtypeIdle:
		return job.EndTimeout, "the agent fell silent for longer than its idle limit"
	}
	if res.TimedOut || res.ErrorSubtype == agent.SubtypeTimeout {
		return job.EndTimeout, "the profile's timeout passed"
	}
	if ending, ok := failures[res.Failure]; ok && res.IsError {
		return ending, reasonOf(res)
	}
	if res.SessionLimited() {
		return job.EndLimited, reasonOf(res)
	}
	if res.IsError {
		return job.EndDone, reasonOf(res)
	}
	return job.EndDone, ""
}

func endedUnstarted(err, cause error) (job.Ending, string) {
	for _, r := range refusals {
		if r.is(err) && r.ending == job.EndRefused {
			return r.ending, text(err)
		}
	}
	if overBudget(cause) {
		// Nothing was spent on it: it goes back, and waits for the budget there.
		return job.EndDrained, text(cause)
	}
	if cause != nil {
		return endedBy(cause, err)
	}
	for _, r := range refusals {
		if r.is(err) {
			return r.ending, text(err)
		}
	}
	if err == nil {
		return job.EndUnready, "the runner gave neither a result nor a reason"
	}
	return job.EndUnready, text(err)
}

// endedBy is the ending of a turn that was stopped from outside.
func endedBy(cause, err error) (job.Ending, string) {
	for _, c := range causes {
		if c.is(cause) {
			return c.ending, text(cause)
		}
	}
	if cause == nil || errors.Is(cause, context.Canceled) {
		// Stopped, and nobody knows why: the worker is going away.
		return job.EndDrained, "stopped with its worker"
	}
	return job.EndDrained, text(errors.Join(cause, err))
}

// reasonOf says in a few words how an agent failed; what it said is in the result.
func reasonOf(res *agent.Result) string {
	switch {
	case res.Failure != "" && res.ErrorSubtype != "":
		return string(res.Failure) + ": " + res.ErrorSubtype
	case res.Failure != "":
		return string(res.Failure)
	case res.ErrorSubtype != "":
		return res.ErrorSubtype
	}
	return "the agent reported an error"
}

const maxReason = 1000

// text is an error as people read it, bounded.
func text(err error) string {
	s := clean(strings.TrimSpace(err.Error()))
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "..."
	}
	return s
}

// clean makes s storable: Postgres takes neither NUL nor broken UTF-8.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "�"), "\x00", "�")
}
