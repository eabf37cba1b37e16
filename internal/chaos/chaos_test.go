package chaos_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"turnpike/internal/chaos"
)

var (
	seed  = flag.Uint64("seed", 1, "what the plan is made from")
	turns = flag.Int("turns", 150, "how many jobs are enqueued")
	rate  = flag.Float64("rate", 12, "how many of them in a second")
)

// TestChaos breaks an installation as the plan of a seed says, and holds what is left to
// the invariants.
func TestChaos(t *testing.T) {
	plan := chaos.NewPlan(*seed, chaos.Size{Turns: *turns, Workers: 4, Dispatchers: 2, Lease: 4 * time.Second, Rate: *rate})
	plan.Print(os.Stdout)
	s := newSite(t, plan, plan.Script)
	t.Cleanup(s.end)
	s.everything(chaos.Start)
	s.ready(t)
	p := newProducers(s)
	if plan.Budget {
		if status, said := p.ask(t.Context(), http.MethodPut, "/v1/budgets", "", map[string]any{
			"scope": "tenant", "name": "t0", "per": "24h", "limit_usd": "1000000",
		}); status >= 300 {
			t.Fatalf("set a budget: %d %s", status, said)
		}
	}

	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{})
	go func() { defer close(asked); p.run(ctx, began) }()
	t.Cleanup(func() { cancel(); <-asked })
	for _, a := range plan.Actions {
		<-time.After(time.Until(began.Add(a.At)))
		s.act(t, a)
	}

	// The plan mends all that it breaks. Now everything must come to rest.
	s.everything(chaos.Start)
	select {
	case <-asked:
	case <-time.After(plan.Length() + soon):
		s.problem("producers get no answer")
		cancel()
		<-asked
	}
	t.Logf("all is asked for and mended after %s", time.Since(began).Round(time.Second))
	messages := s.rest(ctx, p)
	t.Logf("at rest after %s", time.Since(began).Round(time.Second))
	s.end()
	s.judge(t, p, messages)
}

// judge holds what is on record, and what is left where nothing should be, to the
// invariants.
func (s *site) judge(t *testing.T, p *producers, messages []string) *chaos.History {
	t.Helper()
	h := s.history(t)
	h.Accepted = p.ids
	h.Left = slices.Concat(messages, s.spooled(), s.alive(), s.problems)
	var said bytes.Buffer
	fmt.Fprintf(&said, "SEED=%d TURNS=%d: %d jobs, %d attempts, %d turns ran; %d enqueues were answered with an earlier job, %d jobs were dispatched as they were enqueued\nattempts: %v\n",
		s.plan.Seed, s.plan.Size.Turns, len(h.Jobs), len(h.Attempts), len(h.Runs), p.existing, h.AtOnce(), endings(h))
	if !chaos.Print(&said, chaos.Check(h)) {
		t.Errorf("invariants are broken; once more: make chaos SEED=%d TURNS=%d", s.plan.Seed, s.plan.Size.Turns)
	}
	fmt.Print(said.String())
	return h
}

// endings says how attempts ended: a run that met little proves little.
func endings(h *chaos.History) map[string]int {
	count := map[string]int{}
	outlived := map[string]bool{}
	for _, a := range h.Attempts {
		count[string(a.Ending)]++
		if a.Late != "" {
			count["(late)"]++
		}
		outlived[fmt.Sprintf("%s.%d", a.Job, a.Number)] = a.Outlived()
	}
	for _, r := range h.Runs {
		if r.Resumed {
			count["(continued)"]++
		}
		if outlived[fmt.Sprintf("%s.%d", r.Job, r.Attempt)] && r.Did > r.Written {
			count["(a result unread)"]++
		}
	}
	return count
}
