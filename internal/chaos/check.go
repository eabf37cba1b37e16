package chaos

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"turnpike/internal/job"
)

// History is all that is known of a run when it has come to rest.
type History struct {
	Accepted []job.ID // whose acceptance was answered
	Jobs     []Recorded
	Queue    []string // rows that are left, described
	Attempts []Attempt
	Moves    []Move
	Runs     []Run
	Orphans  []string // on record as perhaps running, though somebody could have told
	Spent    map[string]Spent
	// Left is what is where nothing should be: spooled reports, messages, processes.
	Left []string
}

// Recorded is a job as Postgres has it.
type Recorded struct {
	ID             job.ID
	Tenant         string
	Policy         job.RetryPolicy
	MaxTries       int
	ConcurrencyKey string
	Finals         int       // rows that say how it ended
	State          job.State // how, by the view that people read
	Cost           *job.USD  // by the same
}

// Attempt is a row of turnpike.attempts, with its costs.
type Attempt struct {
	Job       job.ID
	Number    int
	Lease     int64
	Claimed   time.Time
	Closed    time.Time
	Started   bool
	Ending    job.Ending
	Reason    string
	Next      job.State
	Resumable bool
	Late      job.Ending // of the report that came after it was closed; empty: none did
	Cost      *job.USD
	Partial   bool
	Models    *job.USD // the sum of its costs by model
}

// Move is a change of a queue row, in the order in which Postgres made them.
type Move struct {
	Seq            int64
	Job            job.ID
	State          job.State // empty: the row is gone
	Attempt        int
	Lease          int64
	Tenant         string
	DedupKey       string
	ConcurrencyKey string
}

// Spent is what a tenant's attempts cost: by a budget that was there from the start, and
// by the attempts.
type Spent struct{ Budget, Attempts job.USD }

// Finding is one invariant: how much was held to it, and what broke it.
type Finding struct {
	Invariant string
	Checked   int
	Broken    []string
}

func (f *Finding) broke(format string, args ...any) {
	f.Broken = append(f.Broken, fmt.Sprintf(format, args...))
}

// invariants are what every history is held to.
var invariants = []struct {
	name  string
	check func(*History, *Finding)
}{
	{"every accepted job exists and has one final state", finals},
	{"attempts are dense, fencing numbers only grow", fencing},
	{"no two leases of a job at once", leases},
	{"each attempt is one run, and nothing runs unrecorded", unrecorded},
	{"no two trees of a job at once", trees},
	{"a success is what the agent said", successes},
	{"no second run against the policy", policies},
	{"nothing is refused that can be run", refusals},
	{"every cost is recorded once", costs},
	{"sums of costs agree", sums},
	{"a concurrency key has one live job", concurrency},
	{"a dedup key has one unfinished job", dedup},
	{"nothing is left over", leftovers},
}

// Check holds a history to every invariant.
func Check(h *History) []Finding {
	out := make([]Finding, len(invariants))
	for i, one := range invariants {
		out[i].Invariant = one.name
		one.check(h, &out[i])
	}
	return out
}

// attempt is an attempt's name.
type attempt struct {
	job    job.ID
	number int
}

func (a Attempt) name() attempt { return attempt{a.Job, a.Number} }
func (r Run) name() attempt     { return attempt{r.Job, r.Attempt} }

// attempts is every job's attempts, in order.
func (h *History) attempts() map[job.ID][]Attempt {
	out := map[job.ID][]Attempt{}
	for _, a := range h.Attempts {
		out[a.Job] = append(out[a.Job], a)
	}
	for _, l := range out {
		slices.SortFunc(l, func(a, b Attempt) int { return cmp.Compare(a.Number, b.Number) })
	}
	return out
}

func (h *History) ran() map[attempt]Run {
	out := map[attempt]Run{}
	for _, r := range h.Runs {
		out[r.name()] = r
	}
	return out
}

func (h *History) jobs() map[job.ID]Recorded {
	out := map[job.ID]Recorded{}
	for _, j := range h.Jobs {
		out[j.ID] = j
	}
	return out
}

// AtOnce counts the jobs that were dispatched in the commit that enqueued them.
func (h *History) AtOnce() (n int) {
	seen := map[job.ID]bool{}
	for _, m := range h.Moves {
		if !seen[m.Job] && m.State == job.Dispatched {
			n++
		}
		seen[m.Job] = true
	}
	return n
}

// begun is every run, in the order of begin.
func (h *History) begun() []Run {
	runs := slices.Clone(h.Runs)
	slices.SortFunc(runs, func(a, b Run) int { return cmp.Compare(a.Begun, b.Begun) })
	return runs
}

func finals(h *History, f *Finding) {
	known := h.jobs()
	for _, j := range h.Jobs {
		f.Checked++
		if j.Finals != 1 {
			f.broke("job %s has %d final states", j.ID, j.Finals)
		}
		if !j.State.Final() {
			f.broke("job %s is %s", j.ID, j.State)
		}
	}
	for _, id := range h.Accepted {
		f.Checked++
		if _, there := known[id]; !there {
			f.broke("job %s was accepted and is not there", id)
		}
	}
	for _, q := range h.Queue {
		f.broke("in the queue: %s", q)
	}
}

func fencing(h *History, f *Finding) {
	for id, l := range h.attempts() {
		for i, a := range l {
			f.Checked++
			if a.Number != i+1 {
				f.broke("job %s: attempt %d is the %d. on record", id, a.Number, i+1)
			}
			if i > 0 && a.Lease <= l[i-1].Lease {
				f.broke("job %s: attempt %d has lease %d after %d", id, a.Number, a.Lease, l[i-1].Lease)
			}
			if a.Next.Final() && i < len(l)-1 {
				f.broke("job %s: attempt %d was its end, and another followed", id, a.Number)
			}
		}
	}
	last := map[job.ID]Move{}
	for _, m := range h.Moves {
		f.Checked++
		if was, moved := last[m.Job]; moved {
			if m.Lease < was.Lease || m.Attempt < was.Attempt {
				f.broke("job %s: move %d takes lease %d, attempt %d back to %d, %d", m.Job, m.Seq, was.Lease, was.Attempt, m.Lease, m.Attempt)
			}
			if was.State == "" {
				f.broke("job %s: move %d after its row was gone", m.Job, m.Seq)
			}
		}
		last[m.Job] = m
	}
}

// leases is by the database's clock, and by the order in which rows moved: running is
// left before it is entered again.
func leases(h *History, f *Finding) {
	for id, l := range h.attempts() {
		for i, a := range l {
			f.Checked++
			if a.Closed.Before(a.Claimed) {
				f.broke("job %s: attempt %d was closed at %s and claimed at %s", id, a.Number, a.Closed, a.Claimed)
			}
			if i > 0 && a.Claimed.Before(l[i-1].Closed) {
				f.broke("job %s: attempt %d was claimed at %s, before %d was closed at %s", id, a.Number, a.Claimed, l[i-1].Number, l[i-1].Closed)
			}
		}
	}
	state := map[job.ID]job.State{}
	for _, m := range h.Moves {
		if m.State == job.Running && state[m.Job] != job.Dispatched {
			f.broke("job %s: move %d from %q to running", m.Job, m.Seq, state[m.Job])
		}
		state[m.Job] = m.State
	}
}

func unrecorded(h *History, f *Finding) {
	on := map[attempt]Attempt{}
	for _, a := range h.Attempts {
		on[a.name()] = a
	}
	seen := map[attempt]bool{}
	for _, r := range h.Runs {
		f.Checked++
		a, record := on[r.name()]
		switch {
		case !record:
			f.broke("job %s: attempt %d ran and is not on record", r.Job, r.Attempt)
		case !a.Started:
			f.broke("job %s: attempt %d ran and is on record as not started (%s)", r.Job, r.Attempt, a.Ending)
		case seen[r.name()]:
			f.broke("job %s: attempt %d ran twice", r.Job, r.Attempt)
		}
		seen[r.name()] = true
	}
}

// trees lets a tree that stands still be. One that is heard after the next began does not.
func trees(h *History, f *Finding) {
	last := map[job.ID]Run{} // the one of the job's trees so far that was heard last
	for _, r := range h.begun() {
		f.Checked++
		was, earlier := last[r.Job]
		if earlier && was.Last >= r.Begun {
			f.broke("job %s: attempt %d ran from %s until %s, and attempt %d from %s on", r.Job, was.Attempt, was.Begun, was.Last, r.Attempt, r.Begun)
		}
		if r.Last > was.Last {
			last[r.Job] = r
		}
		if r.Open {
			f.broke("job %s: something of attempt %d is still there", r.Job, r.Attempt)
		}
	}
}

func successes(h *History, f *Finding) {
	ran := h.ran()
	for _, a := range h.Attempts {
		if a.Next != job.Succeeded {
			continue
		}
		f.Checked++
		if !ran[a.name()].Good {
			f.broke("job %s: attempt %d succeeded, and the agent did not say so", a.Job, a.Number)
		}
	}
}

// policies says once more, by what the agents did and not by what was recorded of it,
// after which attempts there may be another.
func policies(h *History, f *Finding) {
	ran, jobs := h.ran(), h.jobs()
	for id, l := range h.attempts() {
		j := jobs[id]
		acted := map[string]bool{} // conversations in which a tool was called
		spent := 0
		for i, a := range l {
			f.Checked++
			r, began := ran[a.name()]
			goesOn := began && r.Resumed && acted[r.Conversation]
			if began && j.Policy == job.RetryResume && len(acted) > 0 && !goesOn {
				f.broke("job %s, resume: a tool was called before attempt %d, which does not continue that", id, a.Number)
			}
			touched := goesOn || r.Tools > 0
			if touched {
				acted[r.Conversation] = true
			}
			if i == len(l)-1 {
				break
			}
			again, tries := mayFollow(a, j.Policy, touched)
			if spent += tries; !again {
				f.broke("job %s, %s: attempt %d ended %s (a tool was called: %v), and attempt %d followed", id, j.Policy, a.Number, a.Ending, touched, l[i+1].Number)
			} else if spent >= j.MaxTries {
				f.broke("job %s: attempt %d followed %d of %d tries", id, l[i+1].Number, spent, j.MaxTries)
			}
		}
	}
}

// refusals are for what cannot be done, and the plan asks for nothing that cannot. But it
// wipes what conversations are kept in: who would go on with one may find none.
func refusals(h *History, f *Finding) {
	all := h.attempts()
	for _, a := range h.Attempts {
		f.Checked++
		goesOn := slices.ContainsFunc(all[a.Job], func(e Attempt) bool { return e.Number < a.Number && e.Resumable })
		if a.Ending == job.EndRefused && !goesOn {
			f.broke("job %s: attempt %d was refused for good: %s", a.Job, a.Number, a.Reason)
		}
	}
}

// mayFollow is the two tables of docs/life-of-a-job.md: whether another attempt may
// follow, and how many tries this one spent then.
func mayFollow(a Attempt, p job.RetryPolicy, touched bool) (again bool, tries int) {
	switch a.Ending {
	case job.EndDone, job.EndRefused, job.EndCapped, job.EndCancelled:
		return false, 0
	case job.EndUnready:
		return !touched, 0
	case job.EndLimited, job.EndCredential, job.EndOverloaded:
		if !touched || a.Ending != job.EndOverloaded && p == job.RetryResume && a.Resumable {
			return true, 0
		}
	case job.EndDrained:
		if !a.Started || a.Resumable {
			return true, 0
		}
	case job.EndLost:
		touched = touched || a.Started
	}
	switch p {
	case job.RetryAlways:
		return true, 1
	case job.RetryIfNotStarted:
		return !touched, 1
	case job.RetryResume:
		return !touched || a.Resumable, 1
	}
	return false, 1
}

// Outlived says that nobody read the attempt's output to its end: its worker ended
// before it. Whoever says that it is lost goes by what that worker left.
func (a Attempt) Outlived() bool {
	return a.Ending == job.EndLost && (a.Late == "" || a.Late == job.EndLost)
}

// costs holds a record to what is known of it from both its ends. Of a turn whose worker
// lived, all it told was read. Of one that outlived its worker, what that worker had
// written down: what it told last may be in a pipe that nobody read, which is not on
// record and cannot be. Where nobody serves the state directory any more, nothing was
// written down for anybody, and what the beats told is on record, or is not.
func costs(h *History, f *Finding) {
	ran := h.ran()
	for _, a := range h.Attempts {
		f.Checked++
		r, began := ran[a.name()]
		least := r.Did
		if a.Outlived() {
			least = r.Written
		}
		switch {
		case a.Cost == nil:
			if least > 0 {
				f.broke("job %s: attempt %d (%s) told of %s, and nothing is on record", a.Job, a.Number, a.Ending, least)
			}
		case !began:
			f.broke("job %s: attempt %d (%s) did not run, and cost %s", a.Job, a.Number, a.Ending, *a.Cost)
		case *a.Cost > r.Will, *a.Cost < least:
			f.broke("job %s: attempt %d (%s, late %q) told of %s to %s, and %s is on record", a.Job, a.Number, a.Ending, a.Late, least, r.Will, *a.Cost)
		case !a.Partial && *a.Cost != r.Will && *a.Cost != r.Did:
			f.broke("job %s: attempt %d told of %s or %s, and %s is on record as all of it", a.Job, a.Number, r.Did, r.Will, *a.Cost)
		}
		if a.Models != nil && (a.Cost == nil || *a.Models != *a.Cost) {
			f.broke("job %s: attempt %d cost %s by model, and in all %v", a.Job, a.Number, *a.Models, a.Cost)
		}
	}
}

func sums(h *History, f *Finding) {
	total := map[job.ID]job.USD{}
	for _, a := range h.Attempts {
		if a.Cost != nil {
			total[a.Job] += *a.Cost
		}
	}
	for _, j := range h.Jobs {
		f.Checked++
		if j.Cost != nil && *j.Cost != total[j.ID] || j.Cost == nil && total[j.ID] != 0 {
			f.broke("job %s cost %v by the view and %s by its attempts", j.ID, j.Cost, total[j.ID])
		}
	}
	for tenant, s := range h.Spent {
		f.Checked++
		if s.Budget != s.Attempts {
			f.broke("tenant %s spent %s by its budget and %s by its attempts", tenant, s.Budget, s.Attempts)
		}
	}
}

type key struct{ tenant, name string }

// concurrency is by Postgres, where dispatched and running jobs count, and by what ran.
func concurrency(h *History, f *Finding) {
	live := map[key]job.ID{}
	for _, m := range h.Moves {
		if m.ConcurrencyKey == "" {
			continue
		}
		f.Checked++
		k := key{m.Tenant, m.ConcurrencyKey}
		switch alive := m.State == job.Dispatched || m.State == job.Running; {
		case !alive && live[k] == m.Job:
			delete(live, k)
		case alive && live[k] != "" && live[k] != m.Job:
			f.broke("key %s of %s: job %s became live while %s was", k.name, k.tenant, m.Job, live[k])
		case alive:
			live[k] = m.Job
		}
	}
	jobs := h.jobs()
	last := map[key]Run{}
	for _, r := range h.begun() {
		j := jobs[r.Job]
		if j.ConcurrencyKey == "" {
			continue
		}
		f.Checked++
		k := key{j.Tenant, j.ConcurrencyKey}
		was, earlier := last[k]
		if earlier && was.Last >= r.Begun && was.Job != r.Job {
			f.broke("key %s of %s: job %s ran from %s until %s, and job %s from %s on", k.name, k.tenant, was.Job, was.Begun, was.Last, r.Job, r.Begun)
		}
		if r.Last > was.Last {
			last[k] = r
		}
	}
}

func dedup(h *History, f *Finding) {
	held := map[key]job.ID{}
	for _, m := range h.Moves {
		if m.DedupKey == "" {
			continue
		}
		f.Checked++
		k := key{m.Tenant, m.DedupKey}
		switch {
		case held[k] != "" && held[k] != m.Job:
			f.broke("dedup key %s of %s: job %s was there while %s was unfinished", k.name, k.tenant, m.Job, held[k])
		case m.State == "":
			delete(held, k)
		default:
			held[k] = m.Job
		}
	}
}

func leftovers(h *History, f *Finding) {
	f.Checked = len(h.Runs)
	for _, o := range h.Orphans {
		f.broke("orphan %s", o)
	}
	for _, l := range h.Left {
		f.broke("%s", l)
	}
}

// most is how much of what broke one invariant is shown.
const most = 20

// Print writes findings as a table, and what broke beneath it. It says whether all held.
func Print(w io.Writer, findings []Finding) (held bool) {
	held = true
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "invariant\tchecked\tbroken")
	for _, f := range findings {
		fmt.Fprintf(table, "%s\t%d\t%d\n", f.Invariant, f.Checked, len(f.Broken))
		held = held && len(f.Broken) == 0
	}
	_ = table.Flush() // to a terminal or a buffer
	for _, f := range findings {
		for _, b := range f.Broken[:min(most, len(f.Broken))] {
			fmt.Fprintf(w, "%s: %s\n", f.Invariant, b)
		}
		if n := len(f.Broken) - most; n > 0 {
			fmt.Fprintf(w, "%s: and %d more\n", f.Invariant, n)
		}
	}
	return held
}
