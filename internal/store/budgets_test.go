package store_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
	"turnpike/internal/store"
)

const usd = job.USD(1_000_000)

var daily = job.Duration(24 * time.Hour)

func budget(scope job.BudgetScope, name string, limit job.USD) job.Budget {
	return job.Budget{BudgetKey: job.BudgetKey{Scope: scope, Name: name, Per: daily}, LimitUSD: limit}
}

func (d *desk) budget(b job.Budget) {
	d.t.Helper()
	if err := d.SetBudget(d.t.Context(), b, "anna", "test"); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) stands(k job.BudgetKey) job.Budget {
	d.t.Helper()
	all, err := d.Budgets(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	for _, b := range all {
		if b.BudgetKey == k {
			return b
		}
	}
	d.t.Fatalf("no budget of %s among %v", k, all)
	return job.Budget{}
}

func costs(u job.USD) func(*job.Report) {
	return func(r *job.Report) {
		started(r)
		r.CostUSD = &u
	}
}

func (d *desk) beatCost(c job.Claimed, u job.USD) job.Beaten {
	d.t.Helper()
	got, err := d.Beat(d.t.Context(), worker, []job.Beat{{Lease: c.Lease, StartedAt: time.Now(), CostUSD: &u}})
	if err != nil {
		d.t.Fatal(err)
	}
	return got[0]
}

// roll lets time pass for what was spent.
func (d *desk) roll(by time.Duration) {
	d.t.Helper()
	d.sql(`DELETE FROM turnpike.spend WHERE bucket < now() - interval '24 hours 2 minutes'`) // or one may come to where another is
	d.sql(`UPDATE turnpike.spend SET bucket = bucket - $1::interval`, by)
}

func (d *desk) crossings() []string {
	d.t.Helper()
	got, err := d.Crossings(d.t.Context(), d.epoch)
	if err != nil {
		d.t.Fatal(err)
	}
	var out []string
	for _, c := range got {
		out = append(out, fmt.Sprintf("%s: %s to %s, %d back", c.BudgetKey, c.From, c.State, c.Returned))
	}
	return out
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("%s: got %s, want %s", what, g, w)
	}
}

func profile(name string) func(*job.Request) {
	return func(r *job.Request) { r.Profile.Name = name }
}

func tags(l ...string) func(*job.Request) { return func(r *job.Request) { r.Work.Tags = l } }

func TestBudgets(t *testing.T) {
	t.Parallel()
	t.Run("a spent one parks the next job, which the window lets out again", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		b := budget(job.BudgetTenant, "red", 5*usd)
		d.budget(b)
		c := d.running(tenant("red"))
		if c.Left == nil || c.Left.USD != 5*usd || c.Left.Budget != b.BudgetKey {
			t.Fatalf("the claim gives %+v to spend", c.Left)
		}
		d.settle(ended(c, job.EndDone, costs(5*usd)))
		id, other := d.enqueue(tenant("red"), key("k")), d.enqueue(tenant("blue"), key("k"))
		if got := ids(d.dispatch(10)); !slices.Equal(got, []job.ID{other}) {
			t.Fatalf("selected %v, want only the other tenant's", got)
		}
		v := d.get(id)
		if v.State != job.Queued || v.Reason != "parked: budget" || len(v.Events) != 1 || !strings.Contains(v.Events[0].Note, "tenant red") {
			t.Fatalf("parked as %+v", v)
		}
		same(t, "spent", d.stands(b.BudgetKey).SpentUSD, 5*usd)
		until := ask[time.Time](d, `SELECT wake_at FROM turnpike.queue WHERE job_id = $1`, string(id))
		if in := time.Until(until); in < 24*time.Hour-time.Minute || in > 24*time.Hour+2*time.Minute {
			t.Errorf("parked for %s, want the window", in)
		}
		// Not a moment too early: the window lacks a minute.
		d.roll(24*time.Hour - time.Minute)
		d.due()
		if got := d.dispatch(10); len(got) != 0 {
			t.Fatalf("selected %v while the budget is spent", got)
		}
		d.roll(2 * time.Minute)
		d.due()
		if got := ids(d.dispatch(10)); !slices.Equal(got, []job.ID{id}) {
			t.Fatalf("selected %v, want %s", got, id)
		}
	})
	t.Run("raising or removing one lets out at once", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		b := budget(job.BudgetTag, "nightly", 0)
		d.budget(b)
		id := d.enqueue(tags("x", "nightly"))
		d.dispatch(1)
		if at := ask[bool](d, `SELECT wake_at = 'infinity' FROM turnpike.queue WHERE job_id = $1`, string(id)); !at {
			t.Error("nothing lets out what has no money at all")
		}
		b.LimitUSD = usd
		d.budget(b)
		if got := ids(d.dispatch(1)); !slices.Equal(got, []job.ID{id}) {
			t.Fatalf("selected %v", got)
		}
		b.LimitUSD = 0
		d.budget(b)
		same(t, "crossings", d.crossings(), []string{"tag nightly per 24h: ok to spent, 1 back"})
		if got := d.dispatch(1); len(got) != 0 {
			t.Fatalf("selected %v", got)
		}
		if err := d.RemoveBudget(t.Context(), b.BudgetKey, "anna", ""); err != nil {
			t.Fatal(err)
		}
		if got := ids(d.dispatch(1)); !slices.Equal(got, []job.ID{id}) {
			t.Fatalf("selected %v", got)
		}
		wantIs(t, d.RemoveBudget(t.Context(), b.BudgetKey, "anna", ""), job.ErrNoBudget)
		same(t, "audit", ask[int](d, `SELECT count(*) FROM turnpike.audit WHERE what = 'budget' AND who = 'anna'`), 4)
	})
	t.Run("what runs counts by its beats, and is told once it is over", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		b := budget(job.BudgetProfile, "small", 3*usd)
		d.budget(b)
		one, two := d.running(profile("small")), d.running(profile("small"))
		waiting := d.enqueue(profile("small"))
		sent := d.dispatch(10)
		if over := d.beatCost(one, 2*usd).Over; over != nil {
			t.Fatalf("over too early: %v", over)
		}
		same(t, "left", d.stands(b.BudgetKey).LeftUSD, usd)
		over := d.beatCost(two, usd).Over
		if over == nil || over.Budget != b.BudgetKey || over.Spent != 3*usd || over.LimitUSD != 3*usd {
			t.Fatalf("told %+v", over)
		}
		if d.beatCost(one, 2*usd).Over == nil {
			t.Error("the other one goes on")
		}
		if got := d.claim(sent...); len(got) != 0 {
			t.Fatalf("claimed %v under a spent budget", got)
		}
		same(t, "crossings", d.crossings(), []string{"profile small per 24h: ok to spent, 1 back"})
		same(t, "state", d.state(waiting), job.Queued)
		d.settle(ended(one, job.EndCapped, costs(2*usd+1)))
		d.settle(ended(two, job.EndCapped, costs(usd)))
		same(t, "spent", d.stands(b.BudgetKey).SpentUSD, 3*usd+1)
		same(t, "running", d.stands(b.BudgetKey).RunningUSD, job.USD(0))
	})
	t.Run("each crossing is told once", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		b := budget(job.BudgetTenant, "red", 4*usd)
		warn := 2 * usd
		b.WarnUSD = &warn
		d.budget(b)
		for _, step := range []struct {
			cost job.USD
			want []string
		}{
			{usd, nil},
			{usd, []string{"tenant red per 24h: ok to warning, 0 back"}},
			{usd, nil},
			{usd, []string{"tenant red per 24h: warning to spent, 0 back"}},
		} {
			d.settle(ended(d.running(tenant("red")), job.EndDone, costs(step.cost)))
			same(t, "crossings", d.crossings(), step.want)
		}
		d.roll(25 * time.Hour)
		same(t, "crossings", d.crossings(), []string{"tenant red per 24h: spent to ok, 0 back"})
		same(t, "crossings", d.crossings(), []string(nil))
		same(t, "audit", ask[[]string](d, `SELECT array_agg(what ORDER BY what) FROM turnpike.audit WHERE who = 'dispatcher'`),
			[]string{"budget ok", "budget spent", "budget warning"})
		same(t, "buckets that are left", ask[int](d, `SELECT count(*) FROM turnpike.spend`), 0)
	})
	t.Run("estimates stand in for what is unknown, and late costs count", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		b := budget(job.BudgetTenant, "red", 100*usd)
		d.budget(b)
		d.settle(ended(d.running(tenant("red")), job.EndDone, started, func(r *job.Report) {
			half := usd / 2
			r.Usage = []job.ModelUsage{{Model: "a", EstimatedUSD: &half}, {Model: "b", EstimatedUSD: &half}}
		}))
		same(t, "estimated", d.stands(b.BudgetKey).SpentUSD, usd)
		lost := d.running(tenant("red"))
		d.beatCost(lost, 2*usd)
		d.lapse(lost.Job)
		d.reap()
		same(t, "by beats", d.stands(b.BudgetKey).SpentUSD, 3*usd)
		if s := d.settle(ended(lost, job.EndDone, costs(6*usd))); s.How != job.SettledLate {
			t.Fatalf("settled %+v", s)
		}
		same(t, "late", d.stands(b.BudgetKey).SpentUSD, 7*usd)
		d.settle(ended(lost, job.EndDone, costs(6*usd)))
		same(t, "late, again", d.stands(b.BudgetKey).SpentUSD, 7*usd)
	})
	t.Run("a new one counts what was spent before, and what runs", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.settle(ended(d.running(tenant("red"), tags("x"), profile("p")), job.EndDone, costs(usd)))
		d.settle(ended(d.running(tenant("blue")), job.EndDone, costs(usd)))
		running := d.running(tenant("red"), tags("x"), profile("p"))
		for _, b := range []job.Budget{budget(job.BudgetTenant, "red", 9*usd), budget(job.BudgetTag, "x", 9*usd), budget(job.BudgetProfile, "p", 9*usd)} {
			d.budget(b)
			d.budget(b) // setting it again counts nothing twice
			same(t, b.String(), d.stands(b.BudgetKey).SpentUSD, usd)
		}
		d.settle(ended(running, job.EndDone, costs(2*usd)))
		for _, b := range []job.Budget{budget(job.BudgetTenant, "red", 9*usd), budget(job.BudgetTag, "x", 9*usd), budget(job.BudgetProfile, "p", 9*usd)} {
			same(t, b.String(), d.stands(b.BudgetKey).SpentUSD, 3*usd)
		}
	})
	t.Run("refuses what is none", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		warn := 6 * usd
		for _, b := range []job.Budget{
			budget("worker", "x", usd), budget(job.BudgetTenant, "", usd), budget(job.BudgetTenant, "x", -usd),
			{BudgetKey: job.BudgetKey{Scope: job.BudgetTenant, Name: "x", Per: job.Duration(time.Second)}, LimitUSD: usd},
			{BudgetKey: budget(job.BudgetTenant, "x", 0).BudgetKey, LimitUSD: 5 * usd, WarnUSD: &warn},
		} {
			wantIs(t, d.SetBudget(t.Context(), b, "anna", ""), job.ErrInvalid)
		}
	})
}

// Many jobs at once: nobody is given more than is left, and what is spent beyond the
// limit is bounded by what runs when it is reached. The sums are those of the attempts.
func TestBudgetRace(t *testing.T) {
	t.Parallel()
	d := open(t)
	b := budget(job.BudgetTenant, "red", 10*usd)
	d.budget(b)
	for range 60 {
		d.enqueue(tenant("red"))
	}
	const slots = 4
	var all sync.WaitGroup
	var mu sync.Mutex // guards what is selected, and most
	var most job.USD
	for range slots {
		all.Go(func() {
			for {
				mu.Lock()
				sel, err := d.Select(t.Context(), d.epoch, lane, 1)
				mu.Unlock()
				if err != nil {
					t.Error(err)
					return
				}
				if len(sel) == 0 {
					return // the budget is spent
				}
				got, err := d.Claim(t.Context(), worker, lane, []job.Claim{{Job: sel[0].Job, Dispatch: sel[0].Dispatch, Token: job.NewToken()}})
				if err != nil {
					t.Error(err)
					return
				}
				for _, c := range got {
					mu.Lock()
					most = max(most, c.Left.USD)
					mu.Unlock()
					if _, err := d.Settle(t.Context(), []job.Report{ended(c, job.EndDone, costs(usd))}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	spent := d.stands(b.BudgetKey).SpentUSD
	if spent < 10*usd || spent > (10+slots-1)*usd {
		t.Errorf("%s USD were spent of 10, by %d turns of 1 USD at a time", spent, slots)
	}
	if most > 10*usd {
		t.Errorf("a claim was given %s", most)
	}
	same(t, "the attempts' sum", job.USD(ask[int64](d, `SELECT (sum(cost_usd) * 1000000)::bigint FROM turnpike.attempts`)), spent)
}

// A hundred thousand attempts under one budget are a sum over its buckets; jobs under
// none ask for nothing.
func TestBudgetPlans(t *testing.T) {
	t.Parallel()
	d := open(t)
	explain := func(sql string, a ...any) string {
		t.Helper()
		rows, err := d.pool.Query(t.Context(), "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY ON) "+sql, a...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(lines, "\n")
	}
	id := d.enqueue(tenant("red"))
	none := explain(store.ChooseSQL, pgx.NamedArgs{"lane": lane.String(), "window": 128, "most": 0})
	t.Logf("selection under none:\n%s", none[strings.LastIndex(none, "Planning Time"):])
	d.sql(`INSERT INTO turnpike.attempts (job_id, attempt, lease_no, token, dispatch_no, profile, lane, tenant, agent, account, worker, run_at,
			dispatched_at, claimed_at, started_at, ended_at, closed_at, ending, next, verdict, cost_usd)
		SELECT turnpike.uuid7(i), 1, 1, gen_random_uuid(), 1, 0, 'none-confined/default', 'red', 'claude', '', 'w', now(), now(), now(), now(), now(),
			now() - i * interval '0.8 s', 'done', 'succeeded', '', 0.001
		FROM generate_series(1, 100000) i`)
	b := budget(job.BudgetTenant, "red", 1000*usd)
	d.budget(b)
	same(t, "spent", d.stands(b.BudgetKey).SpentUSD, 100*usd)
	if n := ask[int](d, `SELECT count(*) FROM turnpike.spend`); n > 1442 {
		t.Errorf("%d buckets", n)
	}
	d.sql(`ANALYZE turnpike.spend`)
	some := explain(store.ChooseSQL, pgx.NamedArgs{"lane": lane.String(), "window": 128, "most": 1})
	if strings.Contains(some, "on attempts") || strings.Contains(some, "on costs") {
		t.Errorf("selection reads history:\n%s", some)
	}
	t.Logf("selection of %s under a budget:\n%s", id, some[strings.LastIndex(some, "Planning Time"):])
}

// Where there is no budget, the whole life of a job never asks how one stands.
func TestNoBudget(t *testing.T) {
	t.Parallel()
	d := open(t)
	for _, f := range []string{"standing(of_these integer[]) RETURNS SETOF turnpike.v_budgets", "budgets_of(job uuid, profile integer) RETURNS integer[]",
		"counts_for(cost numeric, partly boolean, by_models numeric) RETURNS numeric"} {
		strict := ""
		if strings.HasPrefix(f, "standing") {
			strict = "STRICT"
		}
		d.sql(`CREATE OR REPLACE FUNCTION turnpike.` + f + ` LANGUAGE plpgsql ` + strict + ` AS $$ BEGIN RAISE EXCEPTION 'asked for'; END $$`)
	}
	c := d.running(key("k"))
	d.beatCost(c, usd)
	d.settle(ended(c, job.EndLimited, costs(usd)))
	c = d.running(func(r *job.Request) { r.Account = "other" }) // the first one's is paused
	d.lapse(c.Job)
	d.reap()
	d.settle(ended(c, job.EndDone, costs(usd)))
	same(t, "attempts", ask[int](d, `SELECT count(*) FROM turnpike.attempts`), 2)
}

func TestGivesUpOnTheUnready(t *testing.T) {
	t.Parallel()
	d := open(t, func(c *store.Config) { c.Unready = time.Hour })
	c := d.running()
	d.settle(ended(c, job.EndUnready))
	d.due()
	d.sql(`UPDATE turnpike.queue SET unready_since = now() - interval '59 minutes'`)
	d.settle(ended(d.run(c.Job), job.EndUnready))
	same(t, "state", d.state(c.Job), job.Scheduled)
	d.sql(`UPDATE turnpike.queue SET unready_since = now() - interval '61 minutes'`)
	if _, _, err := d.Promote(t.Context(), d.epoch, 10); err != nil {
		t.Fatal(err)
	}
	v := d.get(c.Job)
	if v.State != job.Failed || v.Reason != "unready" {
		t.Fatalf("ended %s/%s", v.State, v.Reason)
	}
	// An attempt that got further begins the wait anew.
	other := d.running()
	d.settle(ended(other, job.EndUnready))
	d.due()
	d.settle(ended(d.run(other.Job), job.EndOverloaded))
	same(t, "unready since", ask[*time.Time](d, `SELECT unready_since FROM turnpike.queue WHERE job_id = $1`, string(other.Job)), (*time.Time)(nil))
}

func TestLeaseLength(t *testing.T) {
	t.Parallel()
	d := open(t) // which leads, with leases of an hour
	other, err := store.Open(t.Context(), store.Config{DSN: d.env.DSN(), LeaseLength: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	w := job.WorkerInfo{ID: "w", Ceiling: "c", Lanes: []job.LaneSlots{{Lane: lane, Slots: 1}}, Inert: []string{"codex"}}
	wantIs(t, other.Register(t.Context(), w), job.ErrLeaseLength)
	if err := d.Register(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	same(t, "the row", ask[string](d, `SELECT concat(lease, ' ', inert) FROM turnpike.v_workers`), "01:00:00 {codex}")
}
