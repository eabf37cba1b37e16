package store_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnpike/internal/job"
	"turnpike/internal/store"
)

// slowly has accounts start slowly, in steps of an hour: a test says when one is over.
func slowly(c *store.Config) { c.SlowStart = time.Hour }

func account(name string) func(*job.Request) { return func(r *job.Request) { r.Account = name } }

// later lets time pass for the pauses that have an end and for what waits for them.
func (d *desk) later(by time.Duration) {
	d.t.Helper()
	d.sql(`UPDATE turnpike.pauses SET until = until - $1::interval WHERE until < 'infinity'`, by)
	d.sql(`UPDATE turnpike.queue SET wake_at = wake_at - $1::interval WHERE wake_at < 'infinity'`, by)
	if _, _, err := d.Promote(d.t.Context(), d.epoch, 1000); err != nil {
		d.t.Fatal(err)
	}
}

// pausedAs is how the pause of a name stands.
func (d *desk) pausedAs(name string) job.Pause {
	d.t.Helper()
	all, err := d.Pauses(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	for _, p := range all {
		if p.Name == name {
			return p
		}
	}
	d.t.Fatalf("%s is not among %+v", name, all)
	return job.Pause{}
}

func TestPauseOfAKey(t *testing.T) {
	t.Parallel()
	t.Run("takes back what is on offer, refuses its claim, parks the rest, and lets go of them", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		a, b := d.enqueue(key("deploy/prod"), tenant("acme")), d.enqueue(key("deploy/prod"), tenant("acme"))
		other, free := d.enqueue(key("deploy/prod"), tenant("umbrella")), d.enqueue(tenant("acme"))
		sel := d.dispatch(9)
		if !slices.Contains(ids(sel), a) || len(sel) != 3 {
			t.Fatalf("selected %v", ids(sel))
		}
		n, err := d.Pause(t.Context(), job.ScopeKey, "acme/deploy/prod", time.Time{}, "anna", "incident")
		if err != nil || n != 1 {
			t.Fatal(n, err)
		}
		var claimed []job.ID
		for _, c := range d.claim(sel...) {
			claimed = append(claimed, c.Job)
		}
		if len(claimed) != 2 || slices.Contains(claimed, a) || !slices.Contains(claimed, other) || !slices.Contains(claimed, free) {
			t.Errorf("claimed %v", claimed)
		}
		if got := d.dispatch(9); len(got) != 0 {
			t.Errorf("selected %v", ids(got))
		}
		for _, id := range []job.ID{a, b} {
			if v := d.get(id); v.State != job.Queued || v.Reason != "parked: pause" {
				t.Errorf("%s/%s", v.State, v.Reason)
			}
		}
		if p := d.pausedAs("acme/deploy/prod"); p.Scope != job.ScopeKey || !p.Active || p.State != job.PauseActive || p.By != "anna" || p.Reason != "incident" || p.Until != nil {
			t.Errorf("%+v", p)
		}
		d.lift(job.ScopeKey, "acme/deploy/prod")
		if got := ids(d.dispatch(9)); !slices.Equal(got, []job.ID{a}) {
			t.Errorf("selected %v, want the first of the key", got)
		}
		if who := ask[string](d, `SELECT string_agg(who || ' ' || what || ' ' || subject, ', ' ORDER BY at) FROM turnpike.audit`); who !=
			"anna pause key acme/deploy/prod, me lift key acme/deploy/prod" {
			t.Error(who)
		}
	})
	t.Run("lets what runs go on, and holds the next one", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		c := d.running(key("k"))
		next := d.enqueue(key("k"))
		if got := d.dispatch(9); len(got) != 0 {
			t.Fatalf("selected %v", ids(got))
		}
		if n, err := d.Pause(t.Context(), job.ScopeKey, "default/k", time.Now().Add(time.Hour), "me", ""); err != nil || n != 0 {
			t.Fatal(n, err)
		}
		d.settle(ended(c, job.EndDone, started))
		if got := d.dispatch(9); len(got) != 0 || d.get(next).Reason != "parked: pause" {
			t.Errorf("selected %v, the next is %s", ids(got), d.get(next).Reason)
		}
		d.later(2 * time.Hour)
		if got := ids(d.dispatch(9)); !slices.Equal(got, []job.ID{next}) {
			t.Errorf("selected %v once the pause was over", got)
		}
	})
	t.Run("is not claimed, nor dispatched again", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.enqueue(key("k"))
		sel := d.dispatch(1)
		// As if it came while the claim was on its way: nothing was taken back.
		d.sql(`INSERT INTO turnpike.pauses (scope, name, until, reason, by) VALUES ('key', 'default/k', 'infinity', '', '')`)
		if got := d.claim(sel...); len(got) != 0 {
			t.Errorf("claimed %+v", got)
		}
		if got, err := d.Redispatch(t.Context(), d.epoch, lane, 0, false, 10); err != nil || len(got) != 0 {
			t.Error(got, err)
		}
	})
	t.Run("needs a tenant and a key", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		for _, name := range []string{"", "k", "/k", "t/"} {
			_, err := d.Pause(t.Context(), job.ScopeKey, name, time.Time{}, "me", "")
			wantIs(t, err, job.ErrInvalid)
			wantIs(t, d.Lift(t.Context(), job.ScopeKey, name, "me", ""), job.ErrInvalid)
		}
	})
}

func (d *desk) weigh(tenant string, weight int) {
	d.t.Helper()
	if err := d.SetWeight(d.t.Context(), tenant, weight, "me"); err != nil {
		d.t.Fatal(err)
	}
}

// backlog enqueues n jobs at once.
func (d *desk) backlog(n int, edit ...func(*job.Request)) {
	d.t.Helper()
	entries := make([]job.Entry, n)
	for i := range entries {
		entries[i] = entry(d.t, edit...)
	}
	if _, err := d.Enqueue(d.t.Context(), entries); err != nil {
		d.t.Fatal(err)
	}
}

func TestWeights(t *testing.T) {
	t.Parallel()
	t.Run("share a lane's live jobs as long as all have work", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		weights := map[string]int{"one": 1, "two": 2, "four": 4}
		for name, w := range weights {
			d.weigh(name, w)
			d.backlog(100, tenant(name))
		}
		const live = 14
		var running []job.Claimed
		ran := map[string]int{}
		for round := range 12 {
			for _, c := range d.claim(d.dispatch(live - len(running))...) {
				running = append(running, c)
				ran[c.Tenant]++
			}
			if len(running) != live {
				t.Fatalf("%d are live", len(running))
			}
			at := map[string]int{}
			for _, c := range running {
				at[c.Tenant]++
			}
			for name, w := range weights {
				if at[name] != w*live/7 {
					t.Errorf("round %d: %d of %s are live, of %v", round, at[name], name, at)
				}
			}
			// Whichever ends, its tenant's share is filled again.
			var reports []job.Report
			for i := range 5 {
				at := (round*3 + i*2) % len(running)
				reports = append(reports, ended(running[at], job.EndDone, started))
				running = slices.Delete(running, at, at+1)
			}
			if _, err := d.Settle(t.Context(), reports); err != nil {
				t.Fatal(err)
			}
		}
		if ran["four"] <= ran["two"] || ran["two"] <= ran["one"] {
			t.Errorf("ran %v", ran)
		}
	})
	t.Run("do not come before who has nothing live", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.weigh("heavy", 100)
		d.backlog(20, tenant("heavy"))
		light := d.enqueue(tenant("light"))
		got := d.dispatch(4)
		if len(got) != 4 || !slices.Contains(ids(got[:2]), light) {
			t.Errorf("selected %v, want %s beside the first of the heavy", ids(got), light)
		}
	})
	t.Run("are listed, changed and taken away, and on record", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.weigh("b", 3)
		d.weigh("a", 2)
		d.weigh("b", 5)
		d.weigh("a", 1)
		got, err := d.Weights(t.Context())
		if err != nil || len(got) != 1 || got[0].Tenant != "b" || got[0].Weight != 5 || got[0].By != "me" {
			t.Errorf("%+v, %v", got, err)
		}
		if n := ask[int](d, `SELECT count(*) FROM turnpike.audit WHERE what = 'weight' AND who = 'me'`); n != 4 {
			t.Errorf("%d on record", n)
		}
		for name, w := range map[string]int{"b": 0, "": 2, "c": 101, "two words": 2} {
			wantIs(t, d.SetWeight(t.Context(), name, w, "me"), job.ErrInvalid)
		}
	})
}

// Whatever the weights and backlogs, each job runs: no round passes by the oldest job of
// those tenants that have nothing live.
func TestNobodyStarves(t *testing.T) {
	t.Parallel()
	d := open(t)
	rapid.Check(t, func(rt *rapid.T) {
		d := &desk{DB: d.DB, t: t, env: d.env, pool: d.pool, epoch: d.epoch}
		d.sql(`TRUNCATE turnpike.queue`) // nothing is deleted there without an end
		for _, table := range []string{"jobs", "attempts", "weights"} {
			d.sql(`DELETE FROM turnpike.` + table)
		}
		tenants := rapid.IntRange(2, 5).Draw(rt, "tenants")
		waiting := map[job.ID]string{}
		oldest := func(idle map[string]bool) (first job.ID) {
			for id, name := range waiting {
				if idle[name] && (first == "" || id < first) {
					first = id
				}
			}
			return first
		}
		add := func(name string) { waiting[d.enqueue(tenant(name))] = name }
		for i := range tenants {
			name := fmt.Sprint("t", i)
			if w := rapid.IntRange(1, 100).Draw(rt, "weight"); w > 1 {
				d.weigh(name, w)
			}
			for range rapid.IntRange(1, 4).Draw(rt, "backlog") {
				add(name)
			}
		}
		slots := rapid.IntRange(1, 3).Draw(rt, "slots")
		var running []job.Claimed
		for rounds := 0; len(waiting) > 0; rounds++ {
			idle := map[string]bool{}
			for i := range tenants {
				idle[fmt.Sprint("t", i)] = true
			}
			for _, c := range running {
				delete(idle, c.Tenant)
			}
			due := oldest(idle)
			got := d.dispatch(slots - len(running))
			if len(got) == 0 {
				rt.Fatalf("nothing runs, %d wait", len(waiting))
			}
			if due != "" && !slices.Contains(ids(got), due) {
				rt.Fatalf("selected %v, and %s waited longest of those with nothing live", ids(got), due)
			}
			for _, c := range d.claim(got...) {
				delete(waiting, c.Job)
				running = append(running, c)
			}
			// A heavy tenant goes on enqueueing.
			if rounds < 8 && rapid.Bool().Draw(rt, "more") {
				add("t0")
			}
			at := rapid.IntRange(0, len(running)-1).Draw(rt, "ends")
			d.settle(ended(running[at], job.EndDone, started))
			running = slices.Delete(running, at, at+1)
		}
	})
}

func TestSlowStart(t *testing.T) {
	t.Parallel()
	limited := func(r *job.Report) { r.RetryAfter = time.Now().Add(30 * time.Minute) }
	// hit has the account meet its limit, with n jobs waiting behind it.
	hit := func(t *testing.T, n int, edit ...func(*job.Request)) *desk {
		t.Helper()
		d := open(t, slowly)
		d.settle(ended(d.running(edit...), job.EndLimited, limited))
		if n > 1 {
			d.backlog(n-1, edit...)
		}
		if got := d.dispatch(n); len(got) != 0 {
			t.Fatalf("selected %v of a paused account", ids(got))
		}
		return d
	}
	live := func(d *desk) int {
		return ask[int](d, `SELECT count(*) FROM turnpike.queue WHERE dispatched_at IS NOT NULL`)
	}
	t.Run("doubles what may be live each step, and then is over", func(t *testing.T) {
		t.Parallel()
		d := hit(t, 700)
		d.later(31 * time.Minute)
		for step := range 10 {
			d.dispatch(1000)
			want := 1 << step
			if n := live(d); n != want {
				t.Errorf("step %d: %d are live, want %d", step, n, want)
			}
			if p := d.pausedAs("~claude"); p.State != job.PauseSlowStart || p.Active || p.LiveMax == nil || *p.LiveMax != want || *p.Live != want || p.SlowUntil == nil {
				t.Errorf("step %d: %+v", step, p)
			}
			if got := d.dispatch(1000); len(got) != 0 {
				t.Errorf("step %d: selected %d more", step, len(got))
			}
			// Nothing that waits is left to be looked at in every round.
			if n := ask[int](d, `SELECT count(*) FROM turnpike.queue WHERE ready IS NOT NULL`); n != 0 {
				t.Errorf("step %d: %d are ready", step, n)
			}
			d.later(time.Hour)
		}
		d.dispatch(1000)
		if n := live(d); n != 700 {
			t.Errorf("%d are live after it", n)
		}
		if p := d.pausedAs("~claude"); p.State != job.PauseOver || p.LiveMax != nil {
			t.Errorf("%+v", p)
		}
	})
	t.Run("parks each job until as many may be live", func(t *testing.T) {
		t.Parallel()
		d := hit(t, 100)
		d.later(31 * time.Minute)
		d.dispatch(1000)
		got := names(d, `SELECT count(*) || ' in ' || ceil(date_part('epoch', q.wake_at - p.until) / 3600)
			FROM turnpike.queue q, turnpike.pauses p WHERE q.parked = 'pause' GROUP BY q.wake_at, p.until ORDER BY q.wake_at`)
		if want := []string{"1 in 1", "2 in 2", "4 in 3", "8 in 4", "16 in 5", "32 in 6", "36 in 7"}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		for _, n := range []int{1, 2, 4, 8, 512, 1024} { // the database's logarithm
			if got := ask[int](d, `SELECT ceil(log(2, $1::bigint))::integer`, n); got != int(math.Log2(float64(n))) {
				t.Errorf("log2(%d) is %d", n, got)
			}
		}
	})
	t.Run("has the next go when a live one ends, and nobody who waits for something else", func(t *testing.T) {
		t.Parallel()
		d := hit(t, 6)
		d.later(31*time.Minute + time.Hour) // two may be live
		running := d.claim(d.dispatch(9)...)
		due := func() bool {
			t.Helper()
			o, err := d.Look(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return o.Due
		}
		promote := func(want int) {
			t.Helper()
			if n, _, err := d.Promote(t.Context(), d.epoch, 9); err != nil || n != want {
				t.Errorf("moved %d, want %d, %v", n, want, err)
			}
		}
		if due() {
			t.Error("something is due while as many are live as may be")
		}
		promote(0)
		first := ask[string](d, `SELECT job_id::text FROM turnpike.queue WHERE parked = 'pause' ORDER BY wake_at, rank LIMIT 1`)
		d.settle(ended(running[0], job.EndDone, started))
		if !due() {
			t.Error("nothing is due although one more may be live")
		}
		promote(1)
		if got := ids(d.dispatch(9)); len(got) != 1 || string(got[0]) != first {
			t.Errorf("selected %v, want %s", got, first)
		}
		if due() {
			t.Error("something is due while as many are live as may be again")
		}
		d.settle(ended(running[1], job.EndDone, started))
		if _, err := d.Pause(t.Context(), job.ScopeTenant, job.DefaultTenant, time.Now().Add(time.Minute), "me", "test"); err != nil {
			t.Fatal(err)
		}
		if due() {
			t.Error("something is due although its tenant is paused")
		}
		promote(0)
	})
	t.Run("counts what is live on every lane, and leaves other accounts alone", func(t *testing.T) {
		t.Parallel()
		d := hit(t, 3, account("max"))
		gpu := func(r *job.Request) { r.Pool = "gpu" }
		d.enqueue(account("max"), gpu)
		for range 3 {
			d.enqueue(account("other"))
		}
		if got := d.dispatch(9); len(got) != 3 {
			t.Errorf("selected %v of the other account", ids(got))
		}
		d.later(31 * time.Minute)
		if got := d.dispatch(9); len(got) != 1 {
			t.Errorf("selected %v", ids(got))
		}
		if got, err := d.Select(t.Context(), d.epoch, job.Lane{Placement: lane.Placement, Pool: "gpu"}, 9); err != nil || len(got) != 0 {
			t.Errorf("selected %v, %v", ids(got), err)
		}
	})
	t.Run("begins anew with the next limit", func(t *testing.T) {
		t.Parallel()
		d := hit(t, 8)
		d.later(31*time.Minute + 2*time.Hour) // four may be live
		running := d.claim(d.dispatch(9)...)
		if len(running) != 4 {
			t.Fatalf("%d are live", len(running))
		}
		d.settle(ended(running[0], job.EndLimited, limited))
		if p := d.pausedAs("~claude"); p.State != job.PauseActive {
			t.Errorf("%+v", p)
		}
		d.settle(ended(running[1], job.EndDone, started))
		d.later(31 * time.Minute)
		if got := d.dispatch(9); len(got) != 0 { // two run
			t.Errorf("selected %v", ids(got))
		}
		if p := d.pausedAs("~claude"); p.State != job.PauseSlowStart || *p.LiveMax != 1 || *p.Live != 2 {
			t.Errorf("%+v", p)
		}
	})
	t.Run("is not for what a person paused, lifted, or switched off", func(t *testing.T) {
		t.Parallel()
		d := hit(t, 8)
		if _, err := d.Pause(t.Context(), job.ScopeAccount, "~claude", time.Now().Add(time.Minute), "me", "mine now"); err != nil {
			t.Fatal(err)
		}
		d.later(40 * time.Minute)
		if got := d.dispatch(9); len(got) != 8 {
			t.Errorf("selected %d after a person's pause", len(got))
		}
		d = hit(t, 8)
		d.later(31 * time.Minute)
		d.dispatch(9)
		d.lift(job.ScopeAccount, "~claude")
		d.dispatch(9)
		if n := live(d); n != 8 {
			t.Errorf("%d are live after it was lifted", n)
		}
		d = hit(t, 8)
		d.sql(`UPDATE turnpike.leader SET slow_start = '0'`)
		d.later(31 * time.Minute)
		if got := d.dispatch(9); len(got) != 8 {
			t.Errorf("selected %d without slow starts", len(got))
		}
	})
	t.Run("sends what has a fallback there, and not back before it is over", func(t *testing.T) {
		t.Parallel()
		d := open(t, slowly)
		first := d.enqueue(chain)
		d.settle(ended(d.on(lane, first), job.EndLimited, limited))
		d.none(lane)
		d.says(first, "to fallback second because account ~claude is paused")
		d.later(31 * time.Minute)
		// It has a place already, and so keeps it; of two that come, one may start.
		a, b := d.enqueue(chain), d.enqueue(chain)
		if got := ids(d.dispatch(9)); !slices.Equal(got, []job.ID{a}) {
			t.Fatalf("selected %v, want %s", got, a)
		}
		d.none(lane)
		d.says(b, "to fallback second because account ~claude is in slow start")
		// Where nothing else has capacity it is taken, as far as it may.
		d.limit(job.ScopeAccount, store.DefaultAccount("codex"))
		d.limit(job.ScopeAccount, "spare")
		d.none(aside)
		for _, id := range []job.ID{first, b} {
			if v := d.get(id); v.Reason != "parked: pause" {
				t.Errorf("%s/%s", v.State, v.Reason)
			}
		}
		d.later(time.Hour)
		d.none(aside)
		if got := ids(d.dispatch(9)); !slices.Equal(got, []job.ID{first}) {
			t.Errorf("selected %v, want one more", got)
		}
	})
	t.Run("leaves where they are those that found a place", func(t *testing.T) {
		t.Parallel()
		d := open(t, slowly)
		first := d.enqueue(chain)
		d.settle(ended(d.on(lane, first), job.EndLimited, limited))
		d.none(lane)
		d.later(31 * time.Minute)
		d.on(aside, first)
	})
}
