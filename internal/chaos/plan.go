package chaos

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"turnpike/internal/job"
)

// Size is how much a plan is about.
type Size struct {
	Turns       int
	Workers     int
	Dispatchers int
	Lease       time.Duration
	Rate        float64 // jobs enqueued in a second
}

// Plan is what a run does. It is a function of a seed and a size, and of nothing else.
type Plan struct {
	Seed uint64
	Size Size
	// Budget says that a tenant has one from the start. Where there is any, or a limit was
	// met, no job is dispatched as it is enqueued: every other seed has none, and meets no
	// limit before a third of its jobs came.
	Budget  bool
	Jobs    []Job
	Actions []Action // what is done to the installation, in order
	Demands []Action // what operators ask for, in order
}

// Job is a job to be enqueued.
type Job struct {
	At             time.Duration
	Tenant         string
	Account        string
	Priority       int
	Policy         job.RetryPolicy
	Tries          int
	Backoff        time.Duration
	Timeout        time.Duration
	Later          time.Duration // run_at after enqueueing
	Deadline       time.Duration // after enqueueing; 0 is none
	DedupKey       string
	ConcurrencyKey string
}

// Action is one thing that is done at a time.
type Action struct {
	At time.Duration
	Do string
	On string // whom: "worker 2", "job 17", "t1"
	N  int    // its number, where it has one
}

func (a Action) String() string { return fmt.Sprintf("%7.2fs  %s %s", a.At.Seconds(), a.Do, a.On) }

// What is done to the installation.
const (
	Kill    = "kill -9"          // a program, or every process of Postgres
	Lose    = "kill -9 for ever" // a worker with its state directory; another takes its place
	Drain   = "SIGTERM"
	Start   = "start"
	Stop    = "SIGSTOP"
	GoOn    = "SIGCONT"
	Cut     = "cut from Postgres" // a worker: connections are reset
	Silence = "hold"              // a worker: connections stay and no byte passes
	Join    = "join"
	Down    = "down" // Postgres, NATS: an orderly stop
	Wipe    = "down and wiped"
	Up      = "up"
	Freeze  = "freeze" // Postgres: connections stay and nothing answers
	Thaw    = "thaw"
)

// What operators ask for.
const (
	CancelJob    = "cancel"
	RetryJob     = "retry"
	PauseTenant  = "pause"
	ResumeTenant = "resume"
	PauseLane    = "pause lane"
	ResumeLane   = "resume lane"
)

// Metered is the account some jobs have, which reaches its limit.
const Metered = "metered"

// NewPlan makes the plan of a seed.
func NewPlan(seed uint64, size Size) *Plan {
	p := &Plan{Seed: seed, Size: size, Budget: seed%2 == 0}
	p.jobs(rand.New(rand.NewPCG(seed, 1)))
	p.demands(rand.New(rand.NewPCG(seed, 2)))
	p.actions(rand.New(rand.NewPCG(seed, 3)))
	return p
}

// Length is when the last job is enqueued.
func (p *Plan) Length() time.Duration {
	return time.Duration(float64(p.Size.Turns) / p.Size.Rate * float64(time.Second))
}

func between(r *rand.Rand, lo, hi time.Duration) time.Duration {
	return (lo + time.Duration(r.Int64N(int64(hi-lo)+1))).Round(time.Millisecond)
}

// one in n.
func one(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

func (p *Plan) jobs(r *rand.Rand) {
	policies := job.RetryPolicies()
	for i := range p.Size.Turns {
		j := Job{
			At:     time.Duration(float64(i) / p.Size.Rate * float64(time.Second)).Round(time.Millisecond),
			Tenant: "t" + strconv.Itoa(r.IntN(3)), Policy: policies[r.IntN(len(policies))], Tries: 1 + r.IntN(4),
			Backoff: between(r, time.Millisecond, time.Second), Timeout: between(r, 12*time.Second, 20*time.Second),
		}
		if one(r, 3) {
			j.Priority = r.IntN(201) - 100
		}
		if one(r, 20) {
			j.Timeout = between(r, time.Second, 2*time.Second) // shorter than some turns
		}
		if one(r, 15) {
			j.Later = between(r, time.Second, 4*time.Second)
		}
		if one(r, 30) {
			j.Deadline = j.Later + between(r, 2*time.Second, 10*time.Second)
		}
		if one(r, 10) {
			j.ConcurrencyKey = "key-" + strconv.Itoa(r.IntN(4))
		}
		if one(r, 10) {
			j.DedupKey = "dedup-" + strconv.Itoa(r.IntN(8))
		}
		if one(r, 25) && (p.Budget || i >= p.Size.Turns/3) {
			j.Account = Metered
		}
		p.Jobs = append(p.Jobs, j)
	}
}

// Script is what the agent does in an attempt of a job.
func (p *Plan) Script(n, attempt int) Script {
	r := rand.New(rand.NewPCG(p.Seed^uint64(n)<<20, uint64(attempt)+100))
	j := p.Jobs[n]
	s := Script{Deaf: one(r, 8), Keeps: j.Policy == job.RetryResume}
	do := func(d Deed, lo, hi int) { // milliseconds before
		st := Step{Do: d, After: time.Duration(lo+r.IntN(hi-lo+1)) * time.Millisecond}
		switch d {
		case Result, Wrong, Overloaded, Limited:
			st.Cost = job.USD(1 + r.IntN(5_000_000))
		}
		s.Steps = append(s.Steps, st)
	}
	long := one(r, 14) // longer than a lease
	for range 1 + r.IntN(3) {
		if long {
			do(Say, 500, 2500)
		} else {
			do(Say, 5, 80)
		}
		if one(r, 3) {
			do(Tool, 5, 80)
		}
		if one(r, 16) {
			do(Fork, 0, 10)
		}
		if one(r, 12) {
			do(Result, 0, 20) // one that is not the last
		}
	}
	if long {
		do(Tool, 100, 1000)
		do(Say, 1000, 2500)
	}
	// What is tried again goes better: a run has an end.
	end := r.IntN(100)
	if attempt > 2 {
		end += 40
	}
	switch {
	case end < 4:
		do(Overloaded, 5, 100)
	case end < 8:
		do(Wrong, 5, 100)
	case end < 12:
		do(Crash, 5, 100)
	case end < 14:
		do(Hang, 5, 100)
	case j.Account == Metered && end < 24:
		do(Limited, 5, 100)
	default:
		do(Result, 5, 150)
	}
	return s
}

func (p *Plan) demands(r *rand.Rand) {
	add := func(at time.Duration, do, on string, n int) {
		p.Demands = append(p.Demands, Action{At: at, Do: do, On: on, N: n})
	}
	for i, j := range p.Jobs {
		if one(r, 25) {
			add(j.At+between(r, 0, 4*time.Second), CancelJob, "job "+strconv.Itoa(i), i)
		}
		if one(r, 40) {
			add(j.At+between(r, 4*time.Second, 15*time.Second), RetryJob, "job "+strconv.Itoa(i), i)
		}
	}
	for at := between(r, time.Second, 8*time.Second); at < p.Length(); at += between(r, 4*time.Second, 15*time.Second) {
		until := at + between(r, 300*time.Millisecond, 3*time.Second)
		if one(r, 3) {
			add(at, PauseLane, "", 0)
			add(until, ResumeLane, "", 0)
			continue
		}
		tenant := r.IntN(3)
		add(at, PauseTenant, "t"+strconv.Itoa(tenant), tenant)
		add(until, ResumeTenant, "t"+strconv.Itoa(tenant), tenant)
	}
	inOrder(p.Demands)
}

func inOrder(l []Action) {
	slices.SortStableFunc(l, func(a, b Action) int { return cmp.Compare(a.At, b.At) })
}

// actions breaks one thing after the other, several at once where they are different
// things, and mends each.
func (p *Plan) actions(r *rand.Rand) {
	const s = time.Second
	lease := p.Size.Lease
	kinds := []struct {
		weight int
		what   string // the thing that breaks
		many   int    // how many of it there are
		do     string
		undo   string
		lo, hi time.Duration // how long
	}{
		{3, "dispatcher", p.Size.Dispatchers, Kill, Start, 0, 3 * s},
		{1, "dispatcher", p.Size.Dispatchers, Stop, GoOn, s / 2, 8 * s}, // longer than it leads
		{4, "worker", p.Size.Workers, Kill, Start, 0, lease + 3*s},
		{1, "worker", p.Size.Workers, Lose, Start, 0, 2 * s},
		{4, "worker", p.Size.Workers, Stop, GoOn, lease + s, 2*lease + 2*s},
		{1, "worker", p.Size.Workers, Stop, GoOn, s / 2, lease / 2},
		{2, "worker", p.Size.Workers, Drain, Start, 0, 2 * s},
		{3, "wire", p.Size.Workers, Cut, Join, s / 2, lease + 3*s},
		{3, "wire", p.Size.Workers, Silence, Join, s / 2, lease + 3*s},
		{2, "postgres", 1, Down, Up, s / 2, lease + 2*s},
		{2, "postgres", 1, Kill, Up, 0, lease},
		{2, "postgres", 1, Freeze, Thaw, s / 2, lease + 2*s},
		{2, "nats", 1, Down, Up, s / 2, 4 * s},
		{2, "nats", 1, Wipe, Up, 0, 3 * s},
	}
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	busy := map[string]time.Duration{} // until when a thing is broken already
	for at := 2 * s; at < p.Length(); at += between(r, s/2, 4*s) {
		pick, i := r.IntN(total), 0
		for pick >= kinds[i].weight {
			pick -= kinds[i].weight
			i++
		}
		k := kinds[i]
		n := r.IntN(k.many)
		last := between(r, k.lo, k.hi)
		on := k.what + " " + strconv.Itoa(n)
		if busy[on] > at {
			continue
		}
		busy[on] = at + last + 2*s // it works for a while in between
		p.Actions = append(p.Actions, Action{at, k.do, on, n}, Action{at + last, k.undo, on, n})
	}
	inOrder(p.Actions)
}

// Print writes the plan for a person: what is done when, and how to do it again.
func (p *Plan) Print(w io.Writer) {
	fmt.Fprintf(w, "chaos: SEED=%d TURNS=%d: %d jobs in %s, a budget: %v, and meanwhile:\n", p.Seed, p.Size.Turns, len(p.Jobs), p.Length().Round(time.Second), p.Budget)
	all := slices.Concat(p.Actions, p.Demands)
	inOrder(all)
	for _, a := range all {
		fmt.Fprintln(w, a)
	}
}
