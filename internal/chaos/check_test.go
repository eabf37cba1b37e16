package chaos_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/chaos"
	"turnpike/internal/job"
)

func at(s int) time.Time {
	return time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC).Add(time.Duration(s) * time.Second)
}

func usd(u job.USD) *job.USD { return &u }

// sound is a history in which nothing is wrong: a job that was lost once and tried
// again, one that was drained and continued, and two that shared their keys.
func sound() *chaos.History {
	const s = time.Second
	move := func(seq int64, id job.ID, state job.State, attempt int, key string) chaos.Move {
		return chaos.Move{Seq: seq, Job: id, State: state, Attempt: attempt, Lease: int64(attempt), Tenant: "t", DedupKey: key, ConcurrencyKey: key}
	}
	return &chaos.History{
		Accepted: []job.ID{"a", "b", "c", "d"},
		Jobs: []chaos.Recorded{
			{ID: "a", Tenant: "t", Policy: job.RetryAlways, MaxTries: 2, Finals: 1, State: job.Succeeded, Cost: usd(5)},
			{ID: "b", Tenant: "t", Policy: job.RetryResume, MaxTries: 2, Finals: 1, State: job.Failed, Cost: usd(3)},
			{ID: "c", Tenant: "t", Policy: job.RetryNever, MaxTries: 3, ConcurrencyKey: "k", Finals: 1, State: job.Succeeded, Cost: usd(1)},
			{ID: "d", Tenant: "t", Policy: job.RetryIfNotStarted, MaxTries: 3, ConcurrencyKey: "k", Finals: 1, State: job.Succeeded, Cost: usd(1)},
		},
		Attempts: []chaos.Attempt{
			{Job: "a", Number: 1, Lease: 1, Claimed: at(0), Closed: at(4), Started: true, Ending: job.EndLost, Next: job.Scheduled, Cost: usd(2), Partial: true},
			{Job: "a", Number: 2, Lease: 2, Claimed: at(5), Closed: at(6), Started: true, Ending: job.EndDone, Next: job.Succeeded, Cost: usd(3), Models: usd(3)},
			{Job: "b", Number: 1, Lease: 1, Claimed: at(0), Closed: at(1), Started: true, Ending: job.EndDrained, Next: job.Queued, Resumable: true},
			{Job: "b", Number: 2, Lease: 2, Claimed: at(2), Closed: at(3), Started: true, Ending: job.EndDone, Next: job.Failed, Cost: usd(3), Models: usd(3)},
			{Job: "c", Number: 1, Lease: 1, Claimed: at(0), Closed: at(1), Started: true, Ending: job.EndDone, Next: job.Succeeded, Cost: usd(1)},
			{Job: "d", Number: 1, Lease: 1, Claimed: at(2), Closed: at(3), Started: true, Ending: job.EndDone, Next: job.Succeeded, Cost: usd(1)},
		},
		Moves: []chaos.Move{
			move(1, "a", job.Queued, 0, ""), move(2, "a", job.Dispatched, 0, ""), move(3, "a", job.Running, 1, ""), move(4, "a", job.Scheduled, 1, ""),
			move(5, "a", job.Dispatched, 1, ""), move(6, "a", job.Running, 2, ""), move(7, "a", "", 2, ""),
			move(8, "c", job.Dispatched, 0, "k"), move(9, "c", job.Running, 1, "k"), move(10, "c", "", 1, "k"),
			move(11, "d", job.Dispatched, 0, "k"), move(12, "d", job.Running, 1, "k"), move(13, "d", "", 1, "k"),
		},
		Runs: []chaos.Run{
			// Its last result was never read.
			{Job: "a", Attempt: 1, Conversation: "a1", Begun: 0, Last: 2 * s, Tools: 1, Will: 3, Did: 3, Written: 2},
			{Job: "a", Attempt: 2, Conversation: "a2", Begun: 5 * s, Last: 6 * s, Will: 3, Did: 3, Good: true},
			{Job: "b", Attempt: 1, Conversation: "b1", Begun: 0, Last: s, Tools: 1},
			{Job: "b", Attempt: 2, Conversation: "b1", Resumed: true, Begun: 2 * s, Last: 3 * s, Tools: 1, Will: 3, Did: 3},
			{Job: "c", Attempt: 1, Conversation: "c1", Begun: 0, Last: s, Tools: 2, Will: 1, Did: 1, Good: true},
			{Job: "d", Attempt: 1, Conversation: "d1", Begun: 2 * s, Last: 3 * s, Will: 1, Did: 1, Good: true},
		},
		Spent: map[string]chaos.Spent{"t": {Budget: 10, Attempts: 10}},
	}
}

// TestCheck feeds the check each violation it is there to find.
func TestCheck(t *testing.T) {
	t.Run("finds nothing wrong with what is right", func(t *testing.T) {
		for _, f := range chaos.Check(sound()) {
			if len(f.Broken) > 0 {
				t.Errorf("%s: %v", f.Invariant, f.Broken)
			}
			if f.Checked == 0 {
				t.Errorf("%s: nothing was held to it", f.Invariant)
			}
		}
	})

	const s = time.Second
	const (
		finals    = "every accepted job exists and has one final state"
		fencing   = "attempts are dense, fencing numbers only grow"
		leases    = "no two leases of a job at once"
		runs      = "each attempt is one run, and nothing runs unrecorded"
		trees     = "no two trees of a job at once"
		successes = "a success is what the agent said"
		policies  = "no second run against the policy"
		refusals  = "nothing is refused that can be run"
		costs     = "every cost is recorded once"
		sums      = "sums of costs agree"
		keys      = "a concurrency key has one live job"
		dedup     = "a dedup key has one unfinished job"
		left      = "nothing is left over"
	)
	found := map[string]bool{}
	for name, c := range map[string]struct {
		invariant string
		says      string
		change    func(h *chaos.History)
	}{
		"an accepted job that is lost": {finals, "job x was accepted",
			func(h *chaos.History) { h.Accepted = append(h.Accepted, "x") }},
		"two final states": {finals, "job a has 2",
			func(h *chaos.History) { h.Jobs[0].Finals = 2 }},
		"a state that is not final": {finals, "job a is running",
			func(h *chaos.History) { h.Jobs[0].State = job.Running }},
		"a row left in the queue": {finals, "parked: key",
			func(h *chaos.History) { h.Queue = []string{"a parked: key"} }},
		"an attempt that is missing": {fencing, "attempt 3 is the 2.",
			func(h *chaos.History) { h.Attempts[1].Number, h.Runs[1].Attempt = 3, 3 }},
		"a fencing number twice": {fencing, "lease 1 after 1",
			func(h *chaos.History) { h.Attempts[1].Lease = 1 }},
		"an attempt after the end": {fencing, "was its end",
			func(h *chaos.History) { h.Attempts[0].Next = job.Failed }},
		"a fencing number that goes back": {fencing, "move 6 takes lease 1",
			func(h *chaos.History) { h.Moves[5].Lease = 0 }},
		"a row that comes back": {fencing, "after its row was gone",
			func(h *chaos.History) { h.Moves[4].State = "" }},
		"two leases at once": {leases, "before 1 was closed",
			func(h *chaos.History) { h.Attempts[1].Claimed = at(3) }},
		"a lease that ends before it begins": {leases, "attempt 1 was closed",
			func(h *chaos.History) { h.Attempts[0].Closed = at(-1) }},
		"a lease of what was not on offer": {leases, `from "queued" to running`,
			func(h *chaos.History) { h.Moves[4].State = job.Queued }},
		"a run that nobody recorded": {runs, "not on record",
			func(h *chaos.History) { h.Runs = append(h.Runs, chaos.Run{Job: "a", Attempt: 3, Begun: 9 * s}) }},
		"a run of what did not start": {runs, "not started",
			func(h *chaos.History) { h.Attempts[5].Started = false }},
		"an attempt that ran twice": {runs, "ran twice",
			func(h *chaos.History) { h.Runs = append(h.Runs, h.Runs[5]) }},
		"two trees at once": {trees, "attempt 2 from 5s on",
			func(h *chaos.History) { h.Runs[0].Last = 5*s + 1 }},
		"a tree of long ago that is heard again": {trees, "until 8s, and attempt 3", func(h *chaos.History) {
			h.Runs[0].Last = 8 * s
			h.Runs = append(h.Runs, chaos.Run{Job: "a", Attempt: 3, Begun: 7 * s, Last: 7 * s})
		}},
		"a tree that is still there": {trees, "still there",
			func(h *chaos.History) { h.Runs[0].Open = true }},
		"a success nobody told of": {successes, "did not say so",
			func(h *chaos.History) { h.Runs[1].Good = false }},
		"a success of what did not run": {successes, "did not say so",
			func(h *chaos.History) { h.Runs = slices.Delete(h.Runs, 5, 6) }},
		"never, and once more": {policies, "a, never: attempt 1 ended lost",
			func(h *chaos.History) { h.Jobs[0].Policy = job.RetryNever }},
		"a tool was called, and once more": {policies, "timeout (a tool was called: true)",
			func(h *chaos.History) { h.Jobs[0].Policy, h.Attempts[0].Ending = job.RetryIfNotStarted, job.EndTimeout }},
		"perhaps a tool was called, and once more": {policies, "lost (a tool was called: false)",
			func(h *chaos.History) { h.Jobs[0].Policy, h.Runs[0].Tools = job.RetryIfNotStarted, 0 }},
		"given back although a tool was called": {policies, "ended overloaded",
			func(h *chaos.History) {
				h.Jobs[0].Policy, h.Attempts[0].Ending = job.RetryIfNotStarted, job.EndOverloaded
			}},
		"a finished job once more": {policies, "ended done",
			func(h *chaos.History) { h.Attempts[0].Ending = job.EndDone }},
		"a cancelled job once more": {policies, "ended cancelled",
			func(h *chaos.History) { h.Attempts[0].Ending = job.EndCancelled }},
		"more tries than there are": {policies, "1 of 1 tries",
			func(h *chaos.History) { h.Jobs[0].MaxTries = 1 }},
		"begun anew instead of continued": {policies, "does not continue",
			func(h *chaos.History) { h.Runs[3].Resumed, h.Runs[3].Conversation = false, "b2" }},
		"a turn that was refused for good": {refusals, "job c: attempt 1 was refused for good: fork: gone",
			func(h *chaos.History) { h.Attempts[4].Ending, h.Attempts[4].Reason = job.EndRefused, "fork: gone" }},
		"a turn that was refused after another": {refusals, "job a: attempt 2",
			func(h *chaos.History) { h.Attempts[1].Ending = job.EndRefused }},
		"a cost recorded twice": {costs, "told of 0.000003 to 0.000003, and 0.000006",
			func(h *chaos.History) { h.Attempts[1].Cost = usd(6) }},
		"a cost that was told and forgotten": {costs, "nothing is on record",
			func(h *chaos.History) { h.Attempts[5].Cost = nil }},
		"a cost too small": {costs, "and 0.000002 is on record",
			func(h *chaos.History) { h.Attempts[1].Cost = usd(2) }},
		"a lost attempt's cost doubled": {costs, "attempt 1 (lost",
			func(h *chaos.History) { h.Attempts[0].Cost = usd(4) }},
		"a cost its worker wrote down before it was killed": {costs, "attempt 1 (lost) told of 0.000002, and nothing",
			func(h *chaos.History) { h.Attempts[0].Cost = nil }},
		"part of what its worker wrote down": {costs, "told of 0.000002 to 0.000003, and 0.000001",
			func(h *chaos.History) { h.Attempts[0].Cost = usd(1) }},
		"what the next worker could read": {costs, `late "lost") told of 0.000002`,
			func(h *chaos.History) { h.Attempts[0].Cost, h.Attempts[0].Late = usd(1), job.EndLost }},
		"what a worker read that came too late": {costs, `late "fenced") told of 0.000003`,
			func(h *chaos.History) { h.Attempts[0].Late = job.EndFenced }},
		"part of a cost taken for all of it": {costs, "as all of it",
			func(h *chaos.History) { h.Attempts[0].Partial = false }},
		"a cost of what did not run": {costs, "did not run",
			func(h *chaos.History) { h.Runs = slices.Delete(h.Runs, 5, 6) }},
		"models that cost something else": {costs, "by model",
			func(h *chaos.History) { h.Attempts[1].Models = usd(6) }},
		"a view that sums otherwise": {sums, "by the view",
			func(h *chaos.History) { h.Jobs[0].Cost = usd(7) }},
		"a budget that counted twice": {sums, "by its budget",
			func(h *chaos.History) { h.Spent["t"] = chaos.Spent{Budget: 20, Attempts: 10} }},
		"a key with two live rows": {keys, "job d became live while c was",
			func(h *chaos.History) { h.Moves[9], h.Moves[10] = h.Moves[10], h.Moves[9] }},
		"a key with two trees": {keys, "and job d from 2s on",
			func(h *chaos.History) { h.Runs[4].Last = 2*s + 1 }},
		"a dedup key with two jobs": {dedup, "job d was there while c was unfinished",
			func(h *chaos.History) { h.Moves[9], h.Moves[10] = h.Moves[10], h.Moves[9] }},
		"an orphan": {left, "a live",
			func(h *chaos.History) { h.Orphans = []string{"a live"} }},
		"a spooled report": {left, "spool/a.1.json",
			func(h *chaos.History) { h.Left = []string{"spool/a.1.json"} }},
	} {
		t.Run(name, func(t *testing.T) {
			h := sound()
			c.change(h)
			findings := chaos.Check(h)
			var said bytes.Buffer
			if chaos.Print(&said, findings) {
				t.Error("all is taken to hold")
			}
			if !strings.Contains(said.String(), c.says) {
				t.Errorf("it is not told:\n%s", said.String())
			}
			for _, f := range findings {
				if f.Invariant == c.invariant && strings.Contains(strings.Join(f.Broken, "\n"), c.says) {
					found[f.Invariant] = true
					return
				}
			}
			t.Errorf("it is not found by %q:\n%s", c.invariant, said.String())
		})
	}
	for _, f := range chaos.Check(sound()) {
		if !found[f.Invariant] {
			t.Errorf("nothing here breaks %q", f.Invariant)
		}
	}
}

func TestPlan(t *testing.T) {
	size := chaos.Size{Turns: 400, Workers: 4, Dispatchers: 2, Lease: 4 * time.Second, Rate: 12}
	t.Run("is the same for the same seed", func(t *testing.T) {
		printed := func(seed uint64) string {
			var b bytes.Buffer
			chaos.NewPlan(seed, size).Print(&b)
			return b.String()
		}
		a, b := chaos.NewPlan(7, size), chaos.NewPlan(7, size)
		if diff := cmp.Diff(a, b); diff != "" {
			t.Error(diff)
		}
		for n := range a.Jobs {
			if diff := cmp.Diff(a.Script(n, 1), b.Script(n, 1)); diff != "" {
				t.Error(diff)
			}
		}
		if printed(7) == printed(8) {
			t.Error("what is printed does not tell one seed from another")
		}
	})
	t.Run("lets jobs go as they are enqueued with every other seed", func(t *testing.T) {
		for seed := range uint64(10) {
			p := chaos.NewPlan(seed, size)
			limited := slices.ContainsFunc(p.Jobs[:size.Turns/3], func(j chaos.Job) bool { return j.Account == chaos.Metered })
			if free := seed%2 == 1; free == p.Budget || free && limited {
				t.Errorf("seed %d: a budget %v, limits early on %v", seed, p.Budget, limited)
			}
		}
	})
	t.Run("mends all that it breaks", func(t *testing.T) {
		mends := map[string]string{
			chaos.Kill: chaos.Start, chaos.Lose: chaos.Start, chaos.Drain: chaos.Start, chaos.Stop: chaos.GoOn,
			chaos.Cut: chaos.Join, chaos.Silence: chaos.Join, chaos.Down: chaos.Up, chaos.Wipe: chaos.Up, chaos.Freeze: chaos.Thaw,
		}
		met := map[string]bool{}
		for seed := range uint64(20) {
			broken := map[string]string{} // how to mend what is broken
			for _, a := range chaos.NewPlan(seed, size).Actions {
				mend := mends[a.Do]
				if a.On == "postgres 0" && a.Do == chaos.Kill {
					mend = chaos.Up
				}
				switch {
				case mend != "" && broken[a.On] != "":
					t.Fatalf("seed %d: %s is broken twice at once", seed, a.On)
				case mend != "":
					broken[a.On], met[a.Do] = mend, true
				case broken[a.On] == a.Do:
					delete(broken, a.On)
				}
			}
			if len(broken) > 0 {
				t.Errorf("seed %d leaves broken: %v", seed, broken)
			}
		}
		if len(met) != len(mends) {
			t.Errorf("only met %v", met)
		}
	})
}
