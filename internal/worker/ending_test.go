package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnpike/internal/agent"
	"turnpike/internal/job"
	"turnpike/internal/worker"
)

func TestEnded(t *testing.T) {
	cancelled := &job.Cancelled{By: "ann", Why: "wrong branch"}
	wrap := func(err error) error { return fmt.Errorf("doing: %w", err) }
	res := func(change func(*agent.Result)) *agent.Result {
		r := &agent.Result{}
		change(r)
		return r
	}
	stopped := res(func(r *agent.Result) { r.IsError, r.ErrorSubtype = true, agent.SubtypeCancelled })
	for _, tc := range []struct {
		name  string
		res   *agent.Result
		err   error
		cause error
		want  job.Ending
	}{
		{"a bad request", nil, wrap(&job.FieldError{Field: "x"}), nil, job.EndRefused},
		{"outside grants", nil, wrap(agent.ErrNotGranted), nil, job.EndRefused},
		{"cannot be enforced", nil, wrap(agent.ErrUnsupported), nil, job.EndRefused},
		{"policy changed", nil, wrap(agent.ErrPolicyChanged), nil, job.EndRefused},
		{"a ref that is not there", nil, wrap(agent.ErrMissing), nil, job.EndRefused},
		{"a refusal stays one when cancelled too", nil, wrap(agent.ErrNotGranted), cancelled, job.EndRefused},
		{"not ready", nil, wrap(agent.ErrUnready), nil, job.EndUnready},
		{"session released", nil, wrap(agent.ErrReleased), nil, job.EndUnready},
		{"an unknown error", nil, errors.New("boom"), nil, job.EndUnready},
		{"nothing at all", nil, nil, nil, job.EndUnready},
		{"cancelled before it started", nil, wrap(context.Canceled), cancelled, job.EndCancelled},
		{"drained before it started", nil, wrap(agent.ErrUnready), job.ErrDrained, job.EndDrained},
		{"fenced before it started", nil, nil, wrap(job.ErrLeaseLost), job.EndFenced},

		{"success", res(func(*agent.Result) {}), nil, nil, job.EndDone},
		{"the work failed", res(func(r *agent.Result) { r.IsError = true }), nil, nil, job.EndDone},
		{"ended by itself before the stop", res(func(*agent.Result) {}), nil, cancelled, job.EndDone},
		{"ended by itself before the drain", res(func(r *agent.Result) { r.IsError = true }), nil, job.ErrDrained, job.EndDone},
		{"cancelled", stopped, nil, cancelled, job.EndCancelled},
		{"drained", stopped, nil, job.ErrDrained, job.EndDrained},
		{"fenced", stopped, nil, job.ErrLeaseLost, job.EndFenced},
		{"stopped for no known reason", stopped, nil, nil, job.EndDrained},
		{"timed out", res(func(r *agent.Result) { r.IsError, r.TimedOut = true, true }), nil, nil, job.EndTimeout},
		{"silent at the start", res(func(r *agent.Result) { r.IsError, r.ErrorSubtype = true, agent.SubtypeFirstEvent }), nil, nil, job.EndTimeout},
		{"fell silent", res(func(r *agent.Result) { r.IsError, r.ErrorSubtype = true, agent.SubtypeIdle }), nil, nil, job.EndTimeout},
		{"over budget", stopped, nil, &job.OverBudget{}, job.EndCapped},
		{"over budget before it started", nil, nil, &job.OverBudget{}, job.EndDrained},
		{"ended by itself before it was over budget", res(func(*agent.Result) {}), nil, &job.OverBudget{}, job.EndDone},
		{"capped", res(func(r *agent.Result) { r.CostCapped = true }), nil, nil, job.EndCapped},
		{"limited", res(func(r *agent.Result) { r.IsError, r.Failure = true, agent.FailureLimited }), nil, nil, job.EndLimited},
		{"a blocking rate limit", res(func(r *agent.Result) { r.IsError, r.RateLimit = true, &agent.RateLimit{Status: "rejected"} }), nil, nil, job.EndLimited},
		{"a blocking rate limit that did not matter", res(func(r *agent.Result) { r.RateLimit = &agent.RateLimit{Status: "rejected"} }), nil, nil, job.EndDone},
		{"overloaded", res(func(r *agent.Result) { r.IsError, r.Failure = true, agent.FailureOverloaded }), nil, nil, job.EndOverloaded},
		{"credential", res(func(r *agent.Result) { r.IsError, r.Failure = true, agent.FailureCredential }), nil, nil, job.EndCredential},
		{"unknown conversation", res(func(r *agent.Result) { r.IsError, r.Failure = true, agent.FailureResume }), nil, nil, job.EndDone},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, reason := worker.Ended(tc.res, tc.err, tc.cause)
			if got != tc.want {
				t.Errorf("got %s (%s), want %s", got, reason, tc.want)
			}
			if reason == "" && (tc.res == nil || tc.res.IsError) {
				t.Error("no reason is given")
			}
		})
	}
}

// TestEndedIsTotal: whatever comes, there is an ending of the worker's own, one that
// says that nothing started only if nothing did.
func TestEndedIsTotal(t *testing.T) {
	kinds := []error{nil, agent.ErrNotGranted, agent.ErrUnsupported, agent.ErrPolicyChanged, agent.ErrMissing, agent.ErrReleased, agent.ErrUnready, job.ErrInvalid, context.Canceled, context.DeadlineExceeded, errors.New("x\x00\xff")}
	reasons := []error{nil, &job.Cancelled{}, &job.OverBudget{}, job.ErrLeaseLost, job.ErrDrained, context.Canceled, errors.New("other")}
	rapid.Check(t, func(t *rapid.T) {
		var res *agent.Result
		if rapid.Bool().Draw(t, "ran") {
			res = &agent.Result{
				IsError: rapid.Bool().Draw(t, "error"), TimedOut: rapid.Bool().Draw(t, "timed out"), CostCapped: rapid.Bool().Draw(t, "capped"),
				ErrorSubtype: rapid.SampledFrom([]string{"", agent.SubtypeCancelled, agent.SubtypeCostCap, agent.SubtypeIdle, agent.SubtypeNoResult, "signal_killed"}).Draw(t, "subtype"),
				Failure:      rapid.SampledFrom([]agent.Failure{"", agent.FailureLimited, agent.FailureOverloaded, agent.FailureCredential, agent.FailureResume, "new"}).Draw(t, "failure"),
			}
		}
		ending, reason := worker.Ended(res, rapid.SampledFrom(kinds).Draw(t, "err"), rapid.SampledFrom(reasons).Draw(t, "cause"))
		switch {
		case !slices.Contains(job.Endings(), ending) || ending == job.EndLost:
			t.Fatalf("%q is no ending of a worker's", ending)
		case res != nil && (ending == job.EndRefused || ending == job.EndUnready):
			t.Fatalf("%s says that nothing started, and something did", ending)
		case len(reason) > 1100:
			t.Fatalf("the reason has %d bytes", len(reason))
		}
		for _, r := range reason {
			if r == 0 {
				t.Fatal("the reason holds a NUL")
			}
		}
	})
}

func TestDecide(t *testing.T) {
	good := time.Now()
	at := good.Add
	minute := worker.Standing{Good: good, Length: time.Minute}
	cancelled, over := &job.Cancelled{By: "ann"}, &job.OverBudget{}
	for _, tc := range []struct {
		name   string
		change func(*worker.Standing)
		now    time.Time
		want   worker.Action
		cause  error
	}{
		{"a fresh lease", func(*worker.Standing) {}, at(0), worker.LetRun, nil},
		{"just before the doubt", func(*worker.Standing) {}, at(45*time.Second - 1), worker.LetRun, nil},
		{"in doubt", func(*worker.Standing) {}, at(45 * time.Second), worker.Freeze, nil},
		{"in doubt and frozen", func(s *worker.Standing) { s.Frozen = true }, at(time.Hour), worker.LetRun, nil},
		{"renewed and frozen", func(s *worker.Standing) { s.Frozen = true }, at(time.Second), worker.Thaw, nil},
		{"lost", func(s *worker.Standing) { s.Lost = true }, at(0), worker.Stop, job.ErrLeaseLost},
		{"lost and frozen", func(s *worker.Standing) { s.Lost, s.Frozen = true, true }, at(time.Hour), worker.Stop, job.ErrLeaseLost},
		{"cancelled", func(s *worker.Standing) { s.Cancelled = cancelled }, at(0), worker.Stop, cancelled},
		{"cancelled and lost", func(s *worker.Standing) { s.Cancelled, s.Lost = cancelled, true }, at(0), worker.Stop, job.ErrLeaseLost},
		{"over budget", func(s *worker.Standing) { s.Over = over }, at(0), worker.Stop, over},
		{"cancelled and over budget", func(s *worker.Standing) { s.Cancelled, s.Over = cancelled, over }, at(0), worker.Stop, cancelled},
		{"a short lease runs", func(s *worker.Standing) { s.Length = 4 * time.Second }, at(3*time.Second - 1), worker.LetRun, nil},
		{"a short lease in doubt", func(s *worker.Standing) { s.Length = 4 * time.Second }, at(3 * time.Second), worker.Freeze, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := minute
			tc.change(&s)
			got, cause := worker.Decide(s, tc.now)
			if got != tc.want || !errors.Is(cause, tc.cause) || errors.Is(cause, agent.ErrFenced) != errors.Is(tc.cause, job.ErrLeaseLost) {
				t.Errorf("got %v, %v", got, cause)
			}
		})
	}
}

// TestDecideNeverOverruns plays random beats, outages and clocks: a turn never runs
// at a moment when its lease may have lapsed, and never stands still while it is
// known to be ours.
func TestDecideNeverOverruns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := time.Duration(rapid.Int64Range(int64(100*time.Millisecond), int64(5*time.Minute)).Draw(t, "length"))
		now := time.Now()
		s := worker.Standing{Good: now, Length: length}
		lapses := now.Add(length) // by the database: no sooner
		stopped := false
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			step := time.Duration(rapid.Int64Range(0, int64(length)).Draw(t, "step"))
			next := now.Add(step)
			// The keeper looks no later than FreezeAt.
			if !s.Frozen && !stopped && s.FreezeAt().After(now) && next.After(s.FreezeAt()) {
				next = s.FreezeAt()
			}
			sent := now
			now = next
			switch rapid.SampledFrom([]string{"nothing", "ours", "lost", "cancelled"}).Draw(t, "answer") {
			case "ours":
				s.Good, lapses = sent, sent.Add(length)
			case "lost":
				s.Lost = true
			case "cancelled":
				s.Cancelled = &job.Cancelled{}
			}
			action, cause := worker.Decide(s, now)
			switch action {
			case worker.Freeze:
				s.Frozen = true
			case worker.Thaw:
				s.Frozen = false
			case worker.Stop:
				stopped = true
				if cause == nil {
					t.Fatal("stopped without a cause")
				}
			}
			if stopped && action != worker.Stop {
				t.Fatal("a stop was taken back")
			}
			if !stopped && !s.Frozen && !now.Before(lapses) {
				t.Fatalf("it runs %v after its lease may have lapsed", now.Sub(lapses))
			}
			if !stopped && s.Frozen && now.Before(s.FreezeAt()) {
				t.Fatal("it stands still although the lease is fresh")
			}
		}
	})
}
