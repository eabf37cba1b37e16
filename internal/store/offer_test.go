package store_test

import (
	"slices"
	"testing"
	"time"

	"turnpike/internal/job"
)

// offer enqueues a job that may be dispatched at once.
func (d *desk) offer(edit ...func(*job.Request)) job.Accepted {
	d.t.Helper()
	e := entry(d.t, edit...)
	e.Offer = true
	got, err := d.Enqueue(d.t.Context(), []job.Entry{e})
	if err != nil {
		d.t.Fatal(err)
	}
	return got[0]
}

// TestOffer holds what goes by selection: only what it would have let go, and nothing of
// which something has to be decided.
func TestOffer(t *testing.T) {
	t.Parallel()
	pausing := func(scope job.Scope, name string) func(*desk) {
		return func(d *desk) {
			if _, err := d.Pause(d.t.Context(), scope, name, time.Time{}, "me", "test"); err != nil {
				d.t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name  string
		first func(*desk)
		edit  func(*job.Request)
		want  job.State
	}{
		{name: "a job of which nothing has to be decided", want: job.Dispatched},
		{name: "one that has time", edit: func(r *job.Request) { r.Deadline = time.Now().Add(time.Hour) }, want: job.Dispatched},
		{name: "what is queued on another lane", want: job.Dispatched,
			first: func(d *desk) { d.enqueue(func(r *job.Request) { r.Pool = "other" }) }},
		{name: "its lane has a job that waits", want: job.Queued, first: func(d *desk) { d.enqueue() }},
		{name: "a key", edit: key("k"), want: job.Queued},
		{name: "a dedup key", edit: func(r *job.Request) { r.DedupKey = "d" }, want: job.Dispatched},
		{name: "what it comes after is not over", want: job.Queued, first: func(d *desk) { d.enqueue(func(r *job.Request) { r.Pool = "other" }) },
			edit: func(r *job.Request) { r.After = &job.After{Jobs: []string{"earlier"}, OnFailure: job.AfterFail} }},
		{name: "fallbacks", edit: func(r *job.Request) { r.Profile.Fallback = &job.Profile{Agent: "codex", Sandbox: "none"} }, want: job.Queued},
		{name: "its time is to come", edit: func(r *job.Request) { r.RunAt = time.Now().Add(time.Hour) }, want: job.Scheduled},
		{name: "its account is paused", first: pausing(job.ScopeAccount, "~claude"), want: job.Queued},
		{name: "its tenant is paused", first: pausing(job.ScopeTenant, job.DefaultTenant), want: job.Queued},
		{name: "a budget is set", first: func(d *desk) { d.budget(budget(job.BudgetTenant, "red", usd)) }, want: job.Queued},
		{name: "an account starts slowly", want: job.Queued, first: func(d *desk) {
			d.sql(`UPDATE turnpike.leader SET slow_start = interval '1 hour'`)
			d.sql(`INSERT INTO turnpike.pauses (scope, name, until, reason, by, ending) VALUES ('account', '~claude', now() - interval '1 minute', '', '', 'limited')`)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			if c.first != nil {
				c.first(d)
			}
			got := d.offer(func(r *job.Request) {
				if c.edit != nil {
					c.edit(r)
				}
				if r.After != nil {
					r.After.Jobs = []string{ask[string](d, `SELECT job_id::text FROM turnpike.queue`)}
				}
			})
			if got.State != c.want || d.state(got.ID) != c.want {
				t.Fatalf("%s, and %s on record; want %s", got.State, d.state(got.ID), c.want)
			}
			sel := job.Selected{Delivery: job.Delivery{Version: job.MessageVersion, Job: got.ID, Dispatch: 1, Lane: lane}, Tenant: job.DefaultTenant}
			lost, err := d.Unpublished(t.Context(), d.epoch, 10)
			if err != nil {
				t.Fatal(err)
			}
			if c.want != job.Dispatched {
				if len(lost) != 0 || len(d.claim(sel)) != 0 {
					t.Errorf("it is on offer")
				}
				return
			}
			// Should its dispatcher die now, the next one publishes it under the same number.
			if !slices.Equal(lost, []job.Selected{sel}) {
				t.Errorf("to be published: %+v, want %+v", lost, sel)
			}
			if got := d.claim(sel); len(got) != 1 || got[0].Attempt != 1 {
				t.Errorf("claimed as %+v", got)
			}
		})
	}

	t.Run("a pause takes back what was offered", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		got := d.offer()
		pausing(job.ScopeTenant, job.DefaultTenant)(d)
		if s := d.state(got.ID); s != job.Queued {
			t.Errorf("it is %s", s)
		}
	})

	t.Run("an earlier job is not dispatched again", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		e := entry(t)
		e.Offer, e.IdempotencyKey = true, "once"
		for n := range 2 {
			got, err := d.Enqueue(t.Context(), []job.Entry{e})
			if err != nil {
				t.Fatal(err)
			}
			if a := got[0]; a.State != job.Dispatched || a.Existing != (n > 0) {
				t.Errorf("enqueued as %+v", a)
			}
		}
		if n := ask[int](d, `SELECT sum(dispatch_no) FROM turnpike.queue`); n != 1 {
			t.Errorf("dispatched %d times", n)
		}
	})
}
