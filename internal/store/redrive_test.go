package store_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"turnpike/internal/job"
	"turnpike/internal/work"
)

// failing runs jobs to failed/agent, and returns them in the order of their making.
func (d *desk) failing(n int, edit ...func(*job.Request)) []job.ID {
	d.t.Helper()
	d.backlog(n, edit...)
	var reports []job.Report
	var failed []job.ID
	for _, c := range d.claim(d.dispatch(n)...) {
		reports = append(reports, ended(c, job.EndDone, touched, func(r *job.Report) { r.IsError = true }))
		failed = append(failed, c.Job)
	}
	if len(failed) != n {
		d.t.Fatalf("%d of %d ran", len(failed), n)
	}
	if _, err := d.Settle(d.t.Context(), reports); err != nil {
		d.t.Fatal(err)
	}
	slices.Sort(failed)
	return failed
}

func (d *desk) redrive(r job.Redrive) job.RedriveAnswer {
	d.t.Helper()
	got, err := d.Redrive(d.t.Context(), r, "anna")
	if err != nil {
		d.t.Fatal(err)
	}
	return got
}

// repeats are the jobs an answer is about.
func repeats(a job.RedriveAnswer) (l []job.ID) {
	for _, j := range a.Jobs {
		l = append(l, j.RetryOf)
	}
	return l
}

var failed = job.Redrive{States: []job.State{job.Failed}}

func TestRedrive(t *testing.T) {
	t.Parallel()
	t.Run("enqueues what matches, as a retry would, and once", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		old := d.failing(3, tenant("acme"), func(r *job.Request) { r.Priority, r.Deadline = 7, time.Now().Add(time.Hour) })
		if _, err := d.Retry(t.Context(), old[1], "me"); err != nil {
			t.Fatal(err)
		}
		dry := failed
		dry.DryRun = true
		if got := d.redrive(dry); got.Redriven != 2 || got.PassedOver != 1 || got.Jobs[0].ID != "" || ask[int](d, `SELECT count(*) FROM turnpike.queue`) != 1 {
			t.Errorf("would redrive %+v", got)
		}
		got := d.redrive(failed)
		if got.Redriven != 2 || got.PassedOver != 1 || got.Next != "" || !slices.Equal(repeats(got), []job.ID{old[0], old[2]}) {
			t.Fatalf("%+v", got)
		}
		if j := got.Jobs[0]; j.Tenant != "acme" || j.Ended != job.Failed || j.Reason != "agent" || j.Existing || j.Refused {
			t.Errorf("%+v", j)
		}
		v := d.get(got.Jobs[0].ID)
		if v.RetryOf != old[0] || v.Producer != "anna" || v.State != job.Queued || v.Reason != "unchecked" {
			t.Errorf("%+v", v)
		}
		// Neither its time nor its deadline, but its priority.
		if n := ask[int](d, `SELECT count(*) FROM turnpike.queue WHERE deadline IS NULL AND rank < date_part('epoch', now() - interval '5 minutes') * 1000000 AND tenant = 'acme'`); n != 3 {
			t.Errorf("%d of 3 are as they were", n)
		}
		if got := d.redrive(failed); got.Redriven != 0 || got.PassedOver != 3 {
			t.Errorf("again: %+v", got)
		}
		if n := ask[string](d, `SELECT string_agg(who || ': ' || subject || ', ' || note, '; ') FROM turnpike.audit WHERE what = 'redrive'`); n != "anna: failed, 2 jobs" {
			t.Error(n)
		}
	})
	t.Run("by whom it is asked at once, nothing twice", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		old := d.failing(60)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				r := failed
				r.Limit = 7
				for {
					got, err := d.Redrive(t.Context(), r, "me")
					if err != nil {
						t.Error(err)
						return
					}
					if got.Next == "" {
						return
					}
					r.After = got.Next
				}
			})
		}
		wg.Go(func() { // whoever retries one of them is seen, too
			if _, err := d.Retry(t.Context(), old[30], "someone"); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		if n := ask[int](d, `SELECT count(DISTINCT retry_of) FROM turnpike.jobs`); n != 60 {
			t.Errorf("%d of 60 were redriven", n)
		}
		// The retry may have come last: then it is one more, which was asked for.
		if n := ask[int](d, `SELECT count(*) FROM (SELECT FROM turnpike.jobs WHERE producer = 'me' GROUP BY retry_of HAVING count(*) > 1) twice`); n != 0 {
			t.Errorf("%d were redriven twice", n)
		}
	})
	t.Run("narrows by everything it is told", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		gpu := job.Lane{Placement: lane.Placement, Pool: "gpu"}
		agent := d.failing(1, tenant("a"), func(r *job.Request) { r.Name, r.Work = "nightly", work.Ref{Tags: []string{"x", "y"}} })[0]
		cancelled := d.enqueue(tenant("a"))
		if _, err := d.Cancel(t.Context(), cancelled, "me", ""); err != nil {
			t.Fatal(err)
		}
		deadline := d.enqueue(func(r *job.Request) { r.Deadline, r.Pool = time.Now().Add(-time.Second), "gpu" })
		if _, _, err := d.Promote(t.Context(), d.epoch, 9); err != nil {
			t.Fatal(err)
		}
		d.settle(ended(d.running(tenant("a")), job.EndDone, started)) // succeeded
		both := []job.State{job.Failed, job.Cancel}
		for what, c := range map[string]struct {
			r    job.Redrive
			want []job.ID
		}{
			"state":       {failed, []job.ID{agent, deadline}},
			"both states": {job.Redrive{States: both}, []job.ID{agent, cancelled, deadline}},
			"cancelled":   {job.Redrive{States: []job.State{job.Cancel}}, []job.ID{cancelled}},
			"reasons":     {job.Redrive{Reasons: []string{"crashed", "deadline"}}, []job.ID{deadline}},
			"tenant":      {job.Redrive{Tenants: []string{"a", "z"}}, []job.ID{agent}},
			"name":        {job.Redrive{Name: "nightly"}, []job.ID{agent}},
			"tag":         {job.Redrive{States: both, Tag: "y"}, []job.ID{agent}},
			"lane":        {job.Redrive{States: both, Lane: gpu.String()}, []job.ID{deadline}},
			"producer":    {job.Redrive{States: both, Producer: "nobody"}, nil},
			"since":       {job.Redrive{States: both, Since: time.Now().Add(time.Hour)}, nil},
			"until":       {job.Redrive{States: both, Until: time.Now().Add(-time.Hour)}, nil},
			"time":        {job.Redrive{States: both, Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}, []job.ID{agent, cancelled, deadline}},
			"after":       {job.Redrive{States: both, After: agent}, []job.ID{cancelled, deadline}},
		} {
			c.r.DryRun = true
			if got := d.redrive(c.r); !slices.Equal(repeats(got), c.want) || got.Redriven != len(c.want) {
				t.Errorf("%s: %+v, want %v", what, got, c.want)
			}
		}
	})
	t.Run("goes in parts, the oldest first", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		old := d.failing(5)
		r := failed
		r.Limit = 2
		var got []job.ID
		for parts := 1; ; parts++ {
			a := d.redrive(r)
			got = append(got, repeats(a)...)
			if r.After = a.Next; a.Next == "" {
				if parts != 3 {
					t.Errorf("%d parts", parts)
				}
				break
			}
		}
		if !slices.Equal(got, old) {
			t.Errorf("redrove %v, want %v", got, old)
		}
	})
	t.Run("meets dedup keys, limits and requests that are not taken any more", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		dedup := func(r *job.Request) { r.DedupKey = "nightly" }
		twin := []job.ID{d.failing(1, dedup)[0], d.failing(1, dedup)[0]}
		bad := d.failing(1)[0]
		d.sql(`UPDATE turnpike.jobs SET request = jsonb_set(request::jsonb, '{priority}', '1000')::json WHERE job_id = $1`, string(bad))
		if err := d.SetLimit(t.Context(), job.DefaultTenant, 0, "me"); err != nil {
			t.Fatal(err)
		}
		_, err := d.Redrive(t.Context(), failed, "me")
		wantIs(t, err, job.ErrQueueFull)
		if n := ask[int](d, `SELECT count(*) FROM turnpike.queue`); n != 0 {
			t.Errorf("%d were enqueued beyond the limit", n)
		}
		if err := d.SetLimit(t.Context(), job.DefaultTenant, -1, "me"); err != nil {
			t.Fatal(err)
		}
		got := d.redrive(failed)
		if got.Redriven != 1 || len(got.Jobs) != 3 || got.Jobs[0].RetryOf != twin[0] || got.Jobs[0].Existing ||
			got.Jobs[1].RetryOf != twin[1] || !got.Jobs[1].Existing || got.Jobs[1].ID != got.Jobs[0].ID ||
			got.Jobs[2].RetryOf != bad || !got.Jobs[2].Refused || got.Jobs[2].ID != "" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("refuses what is no choice", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		for _, r := range []job.Redrive{
			{}, {Lane: "none/default", Tag: "x", Since: time.Now()}, {States: []job.State{job.Succeeded}}, {States: []job.State{job.Running}},
			{Name: "x", Reasons: []string{""}}, {Name: "x", Reasons: []string{"crashed", "crash"}}, {Name: "x", Limit: -1}, {Name: "x", Limit: job.MaxRedrive + 1},
			{Name: "x", Since: time.Now(), Until: time.Now().Add(-time.Hour)},
		} {
			_, err := d.Redrive(t.Context(), r, "me")
			wantIs(t, err, job.ErrInvalid)
		}
	})
}
