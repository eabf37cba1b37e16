package store_test

import (
	"strings"
	"testing"
	"time"

	"turnpike/internal/job"
	"turnpike/internal/store"
)

// aside is the lane of the second profile of a chain.
var aside = job.Lane{Placement: "none", Pool: "default"}

// chain gives a request two fallbacks: another agent on another lane, then the first
// agent with another account.
func chain(r *job.Request) {
	r.Profile.Name = "first"
	r.Profile.Fallback = &job.Profile{
		Name: "second", Agent: "codex", Sandbox: "none",
		Fallback: &job.Profile{Name: "third", Agent: "claude", Sandbox: "none", Confine: true, Account: "spare"},
	}
}

// on selects one job of a lane and claims it there.
func (d *desk) on(at job.Lane, id job.ID) job.Claimed {
	d.t.Helper()
	sel, err := d.Select(d.t.Context(), d.epoch, at, 1)
	if err != nil {
		d.t.Fatal(err)
	}
	if len(sel) != 1 || sel[0].Job != id {
		d.t.Fatalf("lane %s offers %+v, want job %s: %+v", at, sel, id, d.get(id).Events)
	}
	got, err := d.Claim(d.t.Context(), worker, at, []job.Claim{{Job: id, Dispatch: sel[0].Dispatch, Token: job.NewToken()}})
	if err != nil || len(got) != 1 {
		d.t.Fatalf("claimed %+v, %v", got, err)
	}
	return got[0]
}

// none looks on a lane for a job and finds none.
func (d *desk) none(at job.Lane) {
	d.t.Helper()
	if sel, err := d.Select(d.t.Context(), d.epoch, at, 10); err != nil || len(sel) > 0 {
		d.t.Fatalf("lane %s offers %+v, %v", at, sel, err)
	}
}

// says holds that the job's last event is that it was moved, and how.
func (d *desk) says(id job.ID, note string) {
	d.t.Helper()
	all := d.get(id).Events
	if len(all) == 0 || all[len(all)-1].What != "moved" || !strings.HasPrefix(all[len(all)-1].Note, note) {
		d.t.Errorf("events %+v, want a move %s", all, note)
	}
}

func (d *desk) limit(scope job.Scope, name string) {
	d.t.Helper()
	if _, err := d.Pause(d.t.Context(), scope, name, time.Time{}, "me", "test"); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) lift(scope job.Scope, name string) {
	d.t.Helper()
	if err := d.Lift(d.t.Context(), scope, name, "me", "test"); err != nil {
		d.t.Fatal(err)
	}
}

func TestFallback(t *testing.T) {
	t.Parallel()
	d := open(t)
	claude, codex := store.DefaultAccount("claude"), store.DefaultAccount("codex")
	over := func(c job.Claimed) {
		t.Helper()
		if got := d.settle(ended(c, job.EndDone, started)); got.State != job.Succeeded {
			t.Errorf("settled %+v", got)
		}
	}
	run := func(t *testing.T, name string, test func(t *testing.T)) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			d.t = t
			test(t)
			for _, account := range []string{claude, codex, "spare", "main"} {
				d.lift(job.ScopeAccount, account)
			}
		})
	}

	run(t, "takes over from a limited account, until that has capacity again", func(t *testing.T) {
		id := d.enqueue(chain)
		cost := job.USD(1_000_000)
		c := d.on(lane, id)
		got := d.settle(ended(c, job.EndLimited, started, func(r *job.Report) {
			r.RetryAfter, r.CostUSD = time.Now().Add(time.Hour), &cost
			r.Usage = []job.ModelUsage{{Model: "m", CostUSD: &cost}}
		}))
		if got.State != job.Queued {
			t.Fatalf("settled %+v", got)
		}
		d.none(lane)
		d.says(id, "to fallback second because account ~claude is paused until 20")
		c = d.on(aside, id)
		if v := d.get(id); c.Profile != 1 || c.Attempt != 2 || c.Lane != aside || v.Agent != "codex" || v.Lane != aside.String() {
			t.Errorf("claimed %+v, as %+v", c, v.Summary)
		}
		d.settle(ended(c, job.EndDrained))
		d.lift(job.ScopeAccount, claude)
		d.none(aside)
		d.says(id, "back to first, which has capacity again")
		c = d.on(lane, id)
		if c.Profile != 0 || c.Attempt != 3 {
			t.Errorf("claimed %+v", c)
		}
		d.settle(ended(c, job.EndDone, started, func(r *job.Report) { r.CostUSD = &cost }))
		v := d.get(id)
		var ran []int
		for _, a := range v.Attempts {
			ran = append(ran, a.Profile)
		}
		if len(ran) != 3 || ran[0] != 0 || ran[1] != 1 || ran[2] != 0 || v.CostUSD == nil || *v.CostUSD != 2*cost || v.Agent != "claude" {
			t.Errorf("profiles %v ran, at %v in all: %+v", ran, v.CostUSD, v.Summary)
		}
	})
	run(t, "leaves what was dispatched when the account was paused", func(t *testing.T) {
		id, other := d.enqueue(chain), d.enqueue()
		if sel := d.dispatch(10); len(sel) != 2 {
			t.Fatalf("dispatched %+v", sel)
		}
		d.limit(job.ScopeAccount, claude)
		d.none(lane)
		over(d.on(aside, id))
		d.lift(job.ScopeAccount, claude)
		over(d.on(lane, other))
	})
	run(t, "leaves a paused lane", func(t *testing.T) {
		id, other := d.enqueue(chain), d.enqueue()
		d.limit(job.ScopeLane, lane.String())
		d.due()
		d.says(id, "to fallback second because lane none-confined/default is paused until it is resumed")
		d.limit(job.ScopeAccount, codex)
		d.none(aside) // the third profile is on the paused lane, too
		if v := d.get(id); v.State != job.Queued || v.Reason != "parked: pause" {
			t.Errorf("%+v", v.Summary)
		}
		d.lift(job.ScopeLane, lane.String())
		d.none(aside)
		if sel := d.dispatch(10); len(sel) != 2 {
			t.Errorf("dispatched %+v", sel)
		}
		over(d.claim(job.Selected{Delivery: job.Delivery{Job: id, Dispatch: 1}})[0])
		over(d.claim(job.Selected{Delivery: job.Delivery{Job: other, Dispatch: 1}})[0])
	})
	run(t, "goes on to the third, and waits for the first that has capacity again", func(t *testing.T) {
		id := d.enqueue(chain)
		d.limit(job.ScopeAccount, claude)
		d.limit(job.ScopeAccount, codex)
		c := d.on(lane, id)
		if c.Profile != 2 || c.Account != "spare" {
			t.Errorf("claimed %+v", c)
		}
		d.says(id, "to fallback third because account ~claude is paused")
		d.settle(ended(c, job.EndLimited, started, func(r *job.Report) { r.RetryAfter = time.Now().Add(time.Hour) }))
		d.none(lane)
		d.none(aside)
		if v := d.get(id); v.Reason != "parked: pause" {
			t.Errorf("%+v", v.Summary)
		}
		if wait := ask[float64](d, `SELECT date_part('epoch', wake_at - now())::double precision FROM turnpike.queue WHERE job_id = $1`, string(id)); wait < 3500 || wait > 3600 {
			t.Errorf("waits %v s, want as long as the account that is paused for an hour", wait)
		}
		d.lift(job.ScopeAccount, codex)
		d.none(lane)
		c = d.on(aside, id)
		if c.Profile != 1 {
			t.Errorf("claimed %+v", c)
		}
		over(c)
	})
	run(t, "takes over from a provider that is overloaded, for this job alone", func(t *testing.T) {
		id, other := d.enqueue(chain), d.enqueue()
		c := d.on(lane, id)
		if got := d.settle(ended(c, job.EndOverloaded, started)); got.State != job.Queued {
			t.Fatalf("settled %+v", got)
		}
		over(d.on(lane, other))
		d.says(id, "to fallback second because its provider is overloaded")
		d.settle(ended(d.on(aside, id), job.EndOverloaded, started))
		d.none(aside)
		c = d.on(lane, id)
		if c.Profile != 2 {
			t.Errorf("claimed %+v", c)
		}
		d.settle(ended(c, job.EndOverloaded, started))
		d.none(lane)
		if v := d.get(id); v.Reason != "parked: pause" {
			t.Errorf("%+v", v.Summary)
		}
		d.sql(`UPDATE turnpike.queue SET busy = ARRAY[now()] || busy[2:]`)
		d.due()
		d.none(aside)
		c = d.on(lane, id)
		if c.Profile != 0 {
			t.Errorf("claimed %+v", c)
		}
		over(c)
	})
	run(t, "continues a conversation only where it was", func(t *testing.T) {
		id := d.enqueue(chain, func(r *job.Request) {
			r.Retry.Policy = job.RetryResume
			r.Profile.Fallback.Fallback = nil
		})
		d.settle(ended(d.on(lane, id), job.EndLimited, touched, func(r *job.Report) { r.Conversation, r.Resumable = "c1", true }))
		d.none(lane)
		d.none(aside)
		if v := d.get(id); v.Reason != "parked: pause" || v.Agent != "claude" {
			t.Errorf("%+v", v.Summary)
		}
		d.lift(job.ScopeAccount, claude)
		c := d.on(lane, id)
		if c.Resume != "c1" || c.Profile != 0 {
			t.Errorf("claimed %+v", c)
		}
		over(c)

		// A producer's follow-up has the fallback that its agent and place are the same of.
		id = d.enqueue(chain, func(r *job.Request) { r.ResumeID = "c1" })
		d.limit(job.ScopeAccount, claude)
		c = d.on(lane, id)
		if c.Profile != 2 {
			t.Errorf("claimed %+v", c)
		}
		over(c)
	})
	run(t, "keeps to one live job of a key", func(t *testing.T) {
		keyed := func(r *job.Request) { r.ConcurrencyKey = "k" }
		first, second := d.enqueue(chain, keyed), d.enqueue(keyed)
		d.limit(job.ScopeAccount, claude)
		d.none(lane) // the first goes aside, the second is paused
		c := d.on(aside, first)
		d.lift(job.ScopeAccount, claude)
		d.none(lane)
		over(c)
		over(d.on(lane, second))
	})
	run(t, "runs nothing of a tenant that is paused", func(t *testing.T) {
		id := d.enqueue(chain, func(r *job.Request) { r.Tenant = "slow" })
		d.limit(job.ScopeTenant, "slow")
		d.limit(job.ScopeAccount, claude)
		d.none(lane)
		d.none(aside)
		d.lift(job.ScopeTenant, "slow")
		d.none(lane)
		over(d.on(aside, id))
	})
	run(t, "comes with the request of a SQL producer, too", func(t *testing.T) {
		body := string(entry(t, chain).Body)
		id := job.ID(ask[string](d, `SELECT turnpike.enqueue($1)::text`, body))
		if err := d.Checked(t.Context(), d.epoch, []job.ID{id}, nil); err != nil {
			t.Fatal(err)
		}
		d.limit(job.ScopeAccount, claude)
		d.none(lane)
		over(d.on(aside, id))
	})
}
