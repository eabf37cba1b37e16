package worker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/job"
	"turnpike/internal/worker"
)

// inBubble runs a story in fake time.
func inBubble(t *testing.T, name string, slots int, story func(t *testing.T, r *rig)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { story(t, newRig(t, slots)) })
	})
}

func TestPool(t *testing.T) {
	inBubble(t, "runs, reports and lets go", 2, func(t *testing.T, r *rig) {
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		l := <-r.runs.started
		if l.Request.Workspace.Dir != r.places.dir || l.Request.Grants.Mounts[0].Path != r.places.dir || l.Session != filepath.Base(l.Request.SessionDir) {
			t.Errorf("launched %+v", l.Request)
		}
		r.runs.finish <- &agent.Result{
			ResultText: "ok\x00", NumTurns: 3, ToolCalls: 2, CostKnown: true, CostUSD: 0.25, ClaudeID: "conv", HasOutcome: true,
			Outcome: agent.Outcome{Status: "done", Note: "a\x00b"}, Models: map[string]agent.Usage{"m": {InputTokens: 5}},
		}
		rep := <-r.store.reported
		if rep.Ending != job.EndDone || !rep.Started || rep.CostUSD.String() != "0.25" || rep.Usage[0].CostUSD != nil || rep.Outcome.Status != "done" {
			t.Errorf("reported %+v", rep)
		}
		if strings.ContainsRune(rep.ResultText+rep.Outcome.Note, 0) || strings.Contains(string(rep.Result), `\u0000`) {
			t.Error("the report holds a NUL, which Postgres does not take")
		}
		synctest.Wait()
		r.isEmpty(t)
		must(t, stop())
	})

	inBubble(t, "reports a time beyond what can be written", 1, func(t *testing.T, r *rig) {
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		<-r.runs.started
		r.runs.finish <- &agent.Result{IsError: true, Failure: agent.FailureLimited, RateLimit: &agent.RateLimit{Status: "rejected", ResetsAt: time.Unix(1<<50, 0)}}
		rep := <-r.store.reported
		if rep.Ending != job.EndLimited || rep.RetryAfter.Year() != 9999 || rep.RateLimit == nil || rep.Result == nil || len(rep.Notes) != 0 {
			t.Errorf("reported %+v", rep)
		}
		synctest.Wait()
		r.isEmpty(t)
		must(t, stop())
	})

	inBubble(t, "estimates what an agent does not price, and says that its cap is inert", 1, func(t *testing.T, r *rig) {
		prices, err := worker.ParsePrices([]byte("models:\n  m*: {input: 2, output: 8}\n"))
		must(t, err)
		r.pool.Turns.Prices, r.pool.Turns.Priced = prices, func(string) bool { return false }
		req := plain()
		req.CostCapUSD = 500_000
		r.stream.push(r.store.add(1, req))
		stop := r.serve(t)
		<-r.runs.started
		r.runs.finish <- &agent.Result{Models: map[string]agent.Usage{"m1": {InputTokens: 1_000_000, OutputTokens: 500_000}}}
		rep := <-r.store.reported
		if rep.CostUSD != nil || rep.Usage[0].CostUSD != nil || rep.Usage[0].EstimatedUSD == nil || rep.Usage[0].EstimatedUSD.String() != "6.00" {
			t.Errorf("reported %+v", rep.Usage)
		}
		if len(rep.Notes) != 1 || !strings.Contains(rep.Notes[0], "cost cap of 0.50 USD had no effect") {
			t.Errorf("notes %q", rep.Notes)
		}
		must(t, stop())
	})

	daily := job.BudgetKey{Scope: job.BudgetTenant, Name: "acme", Per: job.Duration(24 * time.Hour)}
	for _, c := range []struct{ request, pool, left, want job.USD }{
		{0, 0, 700_000, 700_000}, {500_000, 0, 700_000, 500_000}, {0, 300_000, 700_000, 300_000}, {800_000, 900_000, 700_000, 700_000},
	} {
		name := fmt.Sprintf("caps a turn at the least of request, pool and budget: %s, %s, %s", c.request, c.pool, c.left)
		inBubble(t, name, 1, func(t *testing.T, r *rig) {
			r.pool.Turns.Ceiling.MaxCostUSD = c.pool
			stop := r.serve(t)
			req := plain()
			req.CostCapUSD = c.request
			d := r.store.add(1, req)
			r.store.set(func() { r.store.left[d.Job] = &job.Left{Budget: daily, USD: c.left} })
			r.stream.push(d)
			l := <-r.runs.started
			if got := job.USDFromFloat(l.Request.CostCapUSD); got != c.want {
				t.Errorf("capped at %s, want %s", got, c.want)
			}
			r.runs.finish <- &agent.Result{IsError: true, CostCapped: true, ErrorSubtype: agent.SubtypeCostCap}
			rep := <-r.store.reported
			byBudget := strings.Contains(rep.Reason, "budget of tenant acme per 24h")
			if rep.Ending != job.EndCapped || byBudget != (c.want == c.left) || byBudget != (len(rep.Notes) == 1) {
				t.Errorf("ended %s: %s %q", rep.Ending, rep.Reason, rep.Notes)
			}
			must(t, stop())
		})
	}

	inBubble(t, "stops a turn whose budget is spent", 1, func(t *testing.T, r *rig) {
		d := r.store.add(1, plain())
		r.store.set(func() { r.store.left[d.Job] = &job.Left{Budget: daily, USD: 700_000} })
		r.stream.push(d)
		stop := r.serve(t)
		<-r.runs.started
		r.store.set(func() {
			r.store.over[d.Job] = &job.OverBudget{Budget: daily, Spent: 5_100_000, LimitUSD: 5_000_000}
		})
		rep := <-r.store.reported
		if rep.Ending != job.EndCapped || rep.Reason != "the budget of tenant acme per 24h is spent: 5.10 of 5.00 USD" || len(rep.Notes) != 1 {
			t.Errorf("ended %s: %s %q", rep.Ending, rep.Reason, rep.Notes)
		}
		must(t, stop())
	})

	inBubble(t, "refuses under a budget what nobody could price", 1, func(t *testing.T, r *rig) {
		prices, err := worker.ParsePrices([]byte("models:\n  m*: {input: 2, output: 8}\n"))
		must(t, err)
		r.pool.Turns.Prices, r.pool.Turns.Priced = prices, func(string) bool { return false }
		stop := r.serve(t)
		for n, model := range []string{"", "x1", "m1"} {
			req := plain()
			req.Profile.Model = model
			d := r.store.add(n+1, req)
			r.store.set(func() { r.store.left[d.Job] = &job.Left{Budget: daily, USD: 700_000} })
			r.stream.push(d)
			if model == "m1" {
				<-r.runs.started
				r.runs.finish <- &agent.Result{}
			}
			rep := <-r.store.reported
			if model != "m1" && (rep.Ending != job.EndRefused || rep.Started || !strings.Contains(rep.Reason, "budgets need one")) {
				t.Errorf("model %q: ended %s: %s", model, rep.Ending, rep.Reason)
			}
			if model == "m1" && rep.Ending != job.EndDone {
				t.Errorf("model %q: ended %s: %s", model, rep.Ending, rep.Reason)
			}
		}
		if w := r.pool.Status(); len(w.Inert) != 1 || w.Inert[0] != "claude" {
			t.Errorf("tells %v to be inert", w.Inert)
		}
		must(t, stop())
	})

	inBubble(t, "ends when its leases are not as long as the dispatcher's", 1, func(t *testing.T, r *rig) {
		r.store.register = fmt.Errorf("register: %w", job.ErrLeaseLength)
		if err := r.pool.Run(t.Context()); !errors.Is(err, job.ErrLeaseLength) {
			t.Errorf("got %v", err)
		}
	})

	inBubble(t, "counts what stands still and what is not settled", 1, func(t *testing.T, r *rig) {
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		<-r.runs.started
		synctest.Wait()
		if unsettled, frozen := r.pool.Keeping(); unsettled != 0 || frozen != 0 {
			t.Errorf("%d unsettled, %d frozen", unsettled, frozen)
		}
		r.store.set(func() { r.store.away = true })
		time.Sleep(50 * time.Second)
		if unsettled, frozen := r.pool.Keeping(); unsettled != 0 || frozen != 1 {
			t.Errorf("without the database: %d unsettled, %d frozen", unsettled, frozen)
		}
		r.runs.finish <- &agent.Result{}
		synctest.Wait()
		if unsettled, frozen := r.pool.Keeping(); unsettled != 1 || frozen != 0 {
			t.Errorf("after its end: %d unsettled, %d frozen", unsettled, frozen)
		}
		r.store.set(func() { r.store.away = false })
		<-r.store.reported
		must(t, stop())
	})

	inBubble(t, "never fetches more than it has room for", 2, func(t *testing.T, r *rig) {
		for n := range 5 {
			r.stream.push(r.store.add(n+1, plain()))
		}
		stop := r.serve(t)
		<-r.runs.started
		<-r.runs.started
		synctest.Wait()
		if len(r.stream.queue) != 3 {
			t.Errorf("%d messages are left, want 3", len(r.stream.queue))
		}
		for range 5 {
			r.runs.finish <- &agent.Result{}
		}
		for range 5 {
			<-r.store.reported
		}
		synctest.Wait()
		must(t, stop())
		if r.runs.most != 2 || slices.Max(r.stream.fetches) > 2 {
			t.Errorf("%d turns at once, fetches of %v", r.runs.most, r.stream.fetches)
		}
	})

	inBubble(t, "acks and drops what the claim refuses", 1, func(t *testing.T, r *rig) {
		d := r.store.add(1, plain())
		d.Dispatch = 9
		r.stream.push(d)
		stop := r.serve(t)
		synctest.Wait()
		must(t, stop())
		if len(r.stream.acked) != 1 || len(r.runs.started) != 0 {
			t.Errorf("acked %v, started %d", r.stream.acked, len(r.runs.started))
		}
	})

	inBubble(t, "runs a job once although the answer to its claim was lost", 2, func(t *testing.T, r *rig) {
		r.store.lose = 4 // more than one fetch's tries
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		<-r.runs.started
		r.runs.finish <- &agent.Result{}
		<-r.store.reported
		synctest.Wait()
		must(t, stop())
		if len(r.stream.naked) != 1 || r.store.number != 1 || len(r.runs.started) != 0 {
			t.Errorf("given back %d times, %d leases, %d more turns", len(r.stream.naked), r.store.number, len(r.runs.started))
		}
	})

	inBubble(t, "gives back what it cannot claim", 1, func(t *testing.T, r *rig) {
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		r.store.set(func() { r.store.away = true })
		time.Sleep(10 * time.Second)
		r.store.set(func() { r.store.away = false })
		<-r.runs.started
		r.runs.finish <- &agent.Result{}
		<-r.store.reported
		synctest.Wait()
		must(t, stop())
	})

	inBubble(t, "refuses to serve with another ceiling", 1, func(t *testing.T, r *rig) {
		r.store.register = fmt.Errorf("pool default: %w", job.ErrCeiling)
		if err := r.pool.Run(t.Context()); !errors.Is(err, job.ErrCeiling) {
			t.Errorf("got %v", err)
		}
	})

	for _, tc := range []struct {
		name   string
		change func(*job.Request)
		ending job.Ending
		reason string
	}{
		{"a malformed request", func(r *job.Request) { r.Prompt = "" }, job.EndRefused, "prompt"},
		{"a request outside the ceiling", func(r *job.Request) { r.Grants.Tools = []string{"WebFetch"} }, job.EndRefused, "grants.tools"},
		{"a request of another lane", func(r *job.Request) { r.Pool = "other" }, job.EndRefused, "lane"},
	} {
		inBubble(t, "starts nothing for "+tc.name, 1, func(t *testing.T, r *rig) {
			req := plain()
			tc.change(&req)
			r.stream.push(r.store.add(1, req))
			stop := r.serve(t)
			rep := <-r.store.reported
			if rep.Ending != tc.ending || !strings.Contains(rep.Reason, tc.reason) || rep.Started {
				t.Errorf("reported %s: %s", rep.Ending, rep.Reason)
			}
			synctest.Wait()
			r.isEmpty(t)
			must(t, stop())
			if len(r.runs.started) != 0 {
				t.Error("something was started")
			}
		})
	}

	inBubble(t, "closes a lane after three attempts it could not make ready", 1, func(t *testing.T, r *rig) {
		r.runs.err = fmt.Errorf("no such binary: %w", agent.ErrUnready)
		for n := range 5 {
			r.stream.push(r.store.add(n+1, plain()))
		}
		stop := r.serve(t)
		for range 3 {
			if rep := <-r.store.reported; rep.Ending != job.EndUnready {
				t.Errorf("reported %s", rep.Ending)
			}
		}
		synctest.Wait()
		if s := r.pool.Status().Lanes[0]; s.Closed == "" || s.Free != 0 {
			t.Errorf("the lane is %+v", s)
		}
		if len(r.stream.queue) != 2 {
			t.Errorf("%d messages are left, want 2", len(r.stream.queue))
		}
		if !slices.ContainsFunc(r.store.infos, func(w job.WorkerInfo) bool { return w.Lanes[0].Closed != "" }) {
			t.Error("nobody was told")
		}
		must(t, stop())
	})

	inBubble(t, "keeps a lane whose attempts could not begin because Postgres was away", 1, func(t *testing.T, r *rig) {
		r.store.deaf = true
		for n := range 4 {
			r.stream.push(r.store.add(n+1, plain()))
		}
		stop := r.serve(t)
		for range 4 {
			if rep := <-r.store.reported; rep.Ending != job.EndUnready || rep.Started {
				t.Errorf("reported %s, started %v", rep.Ending, rep.Started)
			}
		}
		if s := r.pool.Status().Lanes[0]; s.Closed != "" {
			t.Errorf("the lane is closed: %s", s.Closed)
		}
		must(t, stop())
	})

	inBubble(t, "goes on with leases that were renewed, whatever failed after it", 1, func(t *testing.T, r *rig) {
		d := r.store.add(1, plain())
		r.stream.push(d)
		stop := r.serve(t)
		<-r.runs.started
		r.store.set(func() { r.store.hazy = true })
		time.Sleep(10 * time.Minute)
		if h := r.runs.control.history(); len(h) != 0 {
			t.Errorf("the turn saw %q", h)
		}
		r.store.set(func() { r.store.cancelled[d.Job] = &job.Cancelled{By: "ann"} })
		if rep := <-r.store.reported; rep.Ending != job.EndCancelled {
			t.Errorf("reported %s", rep.Ending)
		}
		must(t, stop())
	})

	inBubble(t, "knows nothing of a lease from a beat without an answer, and asks again", 1, func(t *testing.T, r *rig) {
		unanswered := make(chan struct{}, 2)
		r.store.busy, r.runs.control.told = unanswered, make(chan string, 1)
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		for range 2 {
			<-unanswered
		}
		select {
		case <-r.runs.started:
			t.Error("a turn began whose start is not on record")
		default:
		}
		r.store.set(func() { r.store.busy = nil })
		asked := time.Now()
		<-r.runs.started
		if took := time.Since(asked); took > time.Second {
			t.Errorf("it was asked again after %s", took)
		}
		r.store.set(func() { r.store.busy = unanswered })
		if what := <-r.runs.control.told; what != "freeze" {
			t.Errorf("without an answer: %s", what)
		}
		r.store.set(func() { r.store.busy = nil })
		if what := <-r.runs.control.told; what != "thaw" {
			t.Errorf("with one: %s", what)
		}
		r.runs.finish <- &agent.Result{}
		<-r.store.reported
		must(t, stop())
	})

	inBubble(t, "keeps a lane whose attempts lack a workspace", 1, func(t *testing.T, r *rig) {
		r.places.err = fmt.Errorf("clone: %w", agent.ErrUnready)
		for n := range 4 {
			r.stream.push(r.store.add(n+1, plain()))
		}
		stop := r.serve(t)
		for range 4 {
			<-r.store.reported
		}
		synctest.Wait()
		if s := r.pool.Status().Lanes[0]; s.Closed != "" {
			t.Errorf("a producer's bad repository closed the lane: %+v", s)
		}
		must(t, stop())
	})

	inBubble(t, "takes nothing new while the disk is full", 1, func(t *testing.T, r *rig) {
		r.pool.Turns.Floor = 1 << 60
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		time.Sleep(time.Minute)
		if s := r.pool.Status().Lanes[0]; s.Closed == "" || len(r.stream.fetches) != 0 {
			t.Errorf("the lane is %+v after %d fetches", s, len(r.stream.fetches))
		}
		must(t, stop())
	})

	inBubble(t, "keeps the lease of a turn that outlasts it many times", 1, func(t *testing.T, r *rig) {
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		<-r.runs.started
		time.Sleep(6 * time.Hour)
		if h := r.runs.control.history(); len(h) != 0 {
			t.Errorf("the turn was steered: %v", h)
		}
		synctest.Wait()
		last := r.store.beats[len(r.store.beats)-1]
		if last.StartedAt.IsZero() || last.Conversation != "conv" || last.CostUSD.String() != "0.50" || last.ToolCalls != 2 || last.Running != nil {
			t.Errorf("the last beat was %+v", last)
		}
		if !slices.ContainsFunc(r.store.beats, func(b job.Beat) bool { return strings.Contains(string(b.Running), `"boot"`) }) {
			t.Error("no beat told what runs")
		}
		r.runs.finish <- &agent.Result{}
		<-r.store.reported
		must(t, stop())
	})

	inBubble(t, "starts the agent with the end of its lease", 1, func(t *testing.T, r *rig) {
		run := r.pool.Turns.Run
		r.pool.Turns.Run = func(ctx context.Context, l worker.Launch) (*agent.Result, error) {
			starting, began := l.Observer.Starting, time.Now()
			l.Observer.Starting = func(ctx context.Context) (time.Time, error) {
				until, err := starting(ctx)
				if left := until.Sub(began); left != 45*time.Second {
					t.Errorf("it may run for %s", left)
				}
				if again := l.Observer.Until(); !again.Equal(until) {
					t.Errorf("an engine is told %s, not %s", again, until)
				}
				r.store.set(func() { r.store.deaf = true })
				<-time.After(time.Until(until))
				r.store.set(func() { r.store.deaf = false })
				return until, errors.Join(err, agent.ErrUnready) // as procs answers then
			}
			return run(ctx, l)
		}
		stop := r.serve(t)
		for n := range 4 {
			r.stream.push(r.store.add(1+n, plain()))
			if rep := <-r.store.reported; rep.Ending != job.EndUnready || rep.Started {
				t.Errorf("reported %s, started %v", rep.Ending, rep.Started)
			}
		}
		if w := r.pool.Status(); w.Lanes[0].Closed != "" {
			t.Errorf("what comes of a worker that stood still closes its lane: %s", w.Lanes[0].Closed)
		}
		must(t, stop())
	})

	inBubble(t, "loses no turn while Postgres is away for hours", 1, func(t *testing.T, r *rig) {
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		<-r.runs.started
		synctest.Wait()
		// What the keeper would do then, the turn does by itself if the keeper cannot.
		if left := time.Until(r.runs.control.bound()); left != 45*time.Second {
			t.Errorf("it stands still by itself in %s", left)
		}
		r.store.set(func() { r.store.away = true })
		time.Sleep(46 * time.Second)
		synctest.Wait()
		if left := time.Until(r.runs.control.bound()); left != -time.Second {
			t.Errorf("while nobody answers, it stands still by itself in %s", left)
		}
		if h := r.runs.control.history(); !slices.Equal(h, []string{"freeze"}) {
			t.Errorf("after 46 s: %v", h)
		}
		time.Sleep(3 * time.Hour)
		r.store.set(func() { r.store.away = false })
		time.Sleep(20 * time.Second)
		if h := r.runs.control.history(); !slices.Equal(h, []string{"freeze", "thaw"}) {
			t.Errorf("afterwards: %v", h)
		}
		if left := time.Until(r.runs.control.bound()); left <= 0 {
			t.Errorf("afterwards, it stands still by itself in %s", left)
		}
		r.runs.finish <- &agent.Result{}
		if rep := <-r.store.reported; rep.Ending != job.EndDone {
			t.Errorf("reported %s", rep.Ending)
		}
		must(t, stop())
	})

	inBubble(t, "keeps a result through an outage", 1, func(t *testing.T, r *rig) {
		results := make(published, 10)
		r.pool.Results = results
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		<-r.runs.started
		r.store.set(func() { r.store.away = true })
		r.runs.finish <- &agent.Result{ResultText: "kept"}
		if rep := <-results; rep.ResultText != "kept" {
			t.Errorf("the stream got %+v", rep)
		}
		time.Sleep(time.Hour)
		if len(results) != 0 {
			t.Error("the stream got it again and again")
		}
		r.store.set(func() { r.store.away = false })
		if rep := <-r.store.reported; rep.ResultText != "kept" {
			t.Errorf("reported %+v", rep)
		}
		synctest.Wait()
		r.isEmpty(t)
		must(t, stop())
	})

	inBubble(t, "stops a turn whose lease is gone", 1, func(t *testing.T, r *rig) {
		d := r.store.add(1, plain())
		r.stream.push(d)
		stop := r.serve(t)
		<-r.runs.started
		r.store.set(func() { delete(r.store.leases, d.Job) })
		if rep := <-r.store.reported; rep.Ending != job.EndFenced {
			t.Errorf("reported %s", rep.Ending)
		}
		synctest.Wait()
		r.isEmpty(t)
		must(t, stop())
	})

	inBubble(t, "stops a turn that stays frozen although its lease went to another", 1, func(t *testing.T, r *rig) {
		d := r.store.add(1, plain())
		r.stream.push(d)
		stop := r.serve(t)
		<-r.runs.started
		r.store.set(func() { r.store.away = true })
		time.Sleep(10 * time.Minute)
		r.store.set(func() { r.store.away = false; delete(r.store.leases, d.Job) })
		if rep := <-r.store.reported; rep.Ending != job.EndFenced {
			t.Errorf("reported %s", rep.Ending)
		}
		if h := r.runs.control.history(); !slices.Equal(h, []string{"freeze"}) {
			t.Errorf("it was thawed: %v", h)
		}
		must(t, stop())
	})

	inBubble(t, "stops an attempt when its job comes here again, and runs the next after it", 2, func(t *testing.T, r *rig) {
		r.runs.linger = 20 * time.Second
		d := r.store.add(1, plain())
		r.stream.push(d)
		stop := r.serve(t)
		<-r.runs.started
		r.store.set(func() { r.store.away = true })
		time.Sleep(10 * time.Minute)
		// The reaper closed it, and its claim comes through before any beat does.
		d.Dispatch = 2
		r.store.set(func() {
			r.store.away, r.store.deaf, r.store.dispatch[d.Job] = false, true, 2
			delete(r.store.leases, d.Job)
		})
		r.stream.push(d)
		time.Sleep(10 * time.Second)
		r.store.set(func() { r.store.deaf = false })
		if rep := <-r.store.reported; rep.Ending != job.EndFenced || rep.Lease.Attempt != 1 {
			t.Errorf("reported %s of attempt %d", rep.Ending, rep.Lease.Attempt)
		}
		<-r.runs.started
		r.runs.finish <- &agent.Result{}
		if rep := <-r.store.reported; rep.Ending != job.EndDone || rep.Lease.Attempt != 2 {
			t.Errorf("reported %s of attempt %d", rep.Ending, rep.Lease.Attempt)
		}
		if r.runs.most != 1 {
			t.Errorf("%d trees of one job at once", r.runs.most)
		}
		synctest.Wait()
		r.isEmpty(t)
		must(t, stop())
	})

	inBubble(t, "steers other turns, and beats, while one is slow to freeze", 2, func(t *testing.T, r *rig) {
		stuck := make(chan struct{})
		r.runs.control.stuck = stuck
		r.stream.push(r.store.add(1, plain()), r.store.add(2, plain()))
		stop := r.serve(t)
		<-r.runs.started
		<-r.runs.started
		synctest.Wait()
		r.store.set(func() { r.store.away = true })
		time.Sleep(46 * time.Second)
		if h := r.runs.control.history(); !slices.Equal(h, []string{"freeze"}) {
			t.Errorf("after 46 s: %v", h)
		}
		r.store.set(func() { r.store.away = false })
		time.Sleep(20 * time.Second)
		if h := r.runs.control.history(); !slices.Equal(h, []string{"freeze", "thaw"}) {
			t.Errorf("once Postgres answers: %v", h)
		}
		close(stuck)
		synctest.Wait()
		if h := r.runs.control.history(); !slices.Equal(h, []string{"freeze", "thaw", "freeze", "thaw"}) {
			t.Errorf("once the slow one stands still: %v", h)
		}
		r.runs.finish <- &agent.Result{}
		r.runs.finish <- &agent.Result{}
		<-r.store.reported
		<-r.store.reported
		must(t, stop())
	})

	inBubble(t, "stops a turn that cannot be frozen", 1, func(t *testing.T, r *rig) {
		r.runs.control.err = errors.New("stuck")
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		<-r.runs.started
		r.store.set(func() { r.store.away = true })
		time.Sleep(46 * time.Second)
		r.store.set(func() { r.store.away = false })
		if rep := <-r.store.reported; rep.Ending != job.EndFenced {
			t.Errorf("reported %s", rep.Ending)
		}
		must(t, stop())
	})

	inBubble(t, "lets a turn be that ended as it was to be frozen", 1, func(t *testing.T, r *rig) {
		r.runs.control.err = fmt.Errorf("freeze: %w", os.ErrProcessDone)
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		<-r.runs.started
		r.store.set(func() { r.store.away = true })
		time.Sleep(46 * time.Second)
		r.runs.finish <- &agent.Result{}
		r.store.set(func() { r.store.away = false })
		if rep := <-r.store.reported; rep.Ending != job.EndDone {
			t.Errorf("reported %s", rep.Ending)
		}
		must(t, stop())
	})

	inBubble(t, "starts nothing while its lease is in doubt", 1, func(t *testing.T, r *rig) {
		d := r.store.add(1, plain())
		r.stream.push(d)
		slow := r.pool.Turns.Run
		r.pool.Turns.Run = func(ctx context.Context, l worker.Launch) (*agent.Result, error) {
			r.store.set(func() { r.store.away = true })
			return slow(ctx, l)
		}
		stop := r.serve(t)
		time.Sleep(50 * time.Second)
		if len(r.runs.started) != 0 {
			t.Error("it was started without Postgres knowing")
		}
		r.store.set(func() { r.store.away = false })
		if rep := <-r.store.reported; rep.Ending != job.EndUnready || rep.Started {
			t.Errorf("reported %s, started %v", rep.Ending, rep.Started)
		}
		must(t, stop())
	})

	for _, push := range []bool{false, true} {
		inBubble(t, fmt.Sprintf("cancels, pushed %v", push), 1, func(t *testing.T, r *rig) {
			pushes := make(cancels)
			r.pool.Cancels = pushes
			d := r.store.add(1, plain())
			r.stream.push(d)
			stop := r.serve(t)
			<-r.runs.started
			synctest.Wait()
			asked := time.Now()
			r.store.set(func() { r.store.cancelled[d.Job] = &job.Cancelled{By: "ann", Why: "wrong"} })
			if push {
				pushes <- d.Job
			}
			rep := <-r.store.reported
			if rep.Ending != job.EndCancelled || !strings.Contains(rep.Reason, "ann") {
				t.Errorf("reported %s: %s", rep.Ending, rep.Reason)
			}
			if took := time.Since(asked); push && took > time.Second || took > 11*time.Second {
				t.Errorf("it took %s", took)
			}
			must(t, stop())
		})
	}

	inBubble(t, "drains: running turns may end", 2, func(t *testing.T, r *rig) {
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		<-r.runs.started
		stopped := make(chan error, 1)
		go func() { stopped <- stop() }()
		time.Sleep(30 * time.Second)
		r.stream.push(r.store.add(2, plain()))
		r.runs.finish <- &agent.Result{}
		must(t, <-stopped)
		if rep := <-r.store.reported; rep.Ending != job.EndDone {
			t.Errorf("reported %s", rep.Ending)
		}
		if len(r.stream.queue) != 1 || len(r.runs.started) != 0 {
			t.Error("it took something new")
		}
		if w := r.store.infos[len(r.store.infos)-1]; !w.Draining || w.Lanes[0].Free != 0 {
			t.Errorf("it told %+v", w)
		}
	})

	inBubble(t, "drains: turns that take too long are handed back", 2, func(t *testing.T, r *rig) {
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		<-r.runs.started
		begun := time.Now()
		must(t, stop())
		if took := time.Since(begun); took > r.pool.Drain+r.pool.LastCall {
			t.Errorf("it took %s", took)
		}
		if rep := <-r.store.reported; rep.Ending != job.EndDrained {
			t.Errorf("reported %s", rep.Ending)
		}
		r.isEmpty(t)
	})

	inBubble(t, "drains by one clock, although a claim has no answer", 2, func(t *testing.T, r *rig) {
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		<-r.runs.started
		r.store.set(func() { r.store.stalled = true })
		r.stream.push(r.store.add(2, plain()))
		time.Sleep(20 * time.Second) // into one of the tries
		begun, claims := time.Now(), 0
		r.store.set(func() { claims = r.store.claims })
		must(t, stop())
		if took := time.Since(begun); took > r.pool.Drain+time.Second {
			t.Errorf("it took %s", took)
		}
		if claims == 0 || r.store.claims != claims {
			t.Errorf("%d claims before, %d after", claims, r.store.claims)
		}
		if len(r.stream.naked) == 0 {
			t.Error("the message was not given back")
		}
	})

	inBubble(t, "drains while Postgres is away, and the next worker settles", 1, func(t *testing.T, r *rig) {
		r.stream.push(r.store.add(1, plain()))
		stop := r.serve(t)
		<-r.runs.started
		r.store.set(func() { r.store.away = true })
		must(t, stop())
		if files := r.files(t, "spool"); len(files) != 1 {
			t.Errorf("the spool holds %v", files)
		}
		r.store.set(func() { r.store.away = false })
		next := rigIn(t, t.TempDir(), r.state, 1)
		next.pool.Store = r.store
		stop = next.serve(t)
		if rep := <-r.store.reported; rep.Ending != job.EndDrained {
			t.Errorf("reported %s", rep.Ending)
		}
		synctest.Wait()
		next.isEmpty(t)
		must(t, stop())
	})
}

// published is the results stream.
type published chan job.Report

func (p published) PublishReport(_ context.Context, r job.Report) error { p <- r; return nil }

// cancels are the pushes.
type cancels chan job.ID

func (c cancels) ListenCancels(ctx context.Context, hint func(job.ID)) error {
	for {
		select {
		case id := <-c:
			hint(id)
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *rig) files(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.state.Path(), dir))
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// isEmpty holds that nothing of a settled attempt is left but its session.
func (r *rig) isEmpty(t testing.TB) {
	t.Helper()
	for _, dir := range []string{"spool", "marks", "rejected"} {
		if files := r.files(t, dir); len(files) > 0 {
			t.Errorf("%s holds %v", dir, files)
		}
	}
}
