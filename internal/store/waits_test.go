package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"turnpike/internal/job"
)

// behind has a request come after jobs.
func behind(p job.AfterPolicy, refs ...job.ID) func(*job.Request) {
	return func(r *job.Request) {
		r.After = &job.After{OnFailure: p}
		for _, ref := range refs {
			r.After.Jobs = append(r.After.Jobs, string(ref))
		}
	}
}

func from(id job.ID) func(*job.Request) {
	return func(r *job.Request) { r.ResumeFrom = string(id) }
}

func conversing(id string) func(*job.Report) {
	return func(r *job.Report) { r.Conversation, r.Kept = id, true }
}

// promote has the leader look at what became due or cannot run.
func (d *desk) promote() {
	d.t.Helper()
	if _, _, err := d.Promote(d.t.Context(), d.epoch, 100); err != nil {
		d.t.Fatal(err)
	}
}

// dangling are waits for nobody and jobs that wait for nothing: there never are any.
const dangling = `
	SELECT json_agg(x) FROM (
		SELECT w.job_id, 'waits for what is not in the queue' FROM turnpike.waits w
		WHERE NOT EXISTS (SELECT FROM turnpike.queue q WHERE q.job_id = w.awaits)
		UNION ALL
		SELECT w.job_id, 'waits and is not parked' FROM turnpike.waits w
		WHERE NOT EXISTS (SELECT FROM turnpike.queue q WHERE q.job_id = w.job_id AND q.parked = 'after')
		UNION ALL
		SELECT q.job_id, 'is parked and waits for nothing' FROM turnpike.queue q
		WHERE q.parked = 'after' AND q.doomed IS NULL AND NOT EXISTS (SELECT FROM turnpike.waits w WHERE w.job_id = q.job_id)) x`

func (d *desk) nothingDangles() {
	d.t.Helper()
	if got := ask[*string](d, `SELECT (`+dangling+`)::text`); got != nil {
		d.t.Errorf("dangling: %s", *got)
	}
}

// nobodyWaits is what is left when all is over.
func (d *desk) nobodyWaits() {
	d.t.Helper()
	d.nothingDangles()
	if n := ask[int](d, `SELECT count(*) FROM turnpike.waits`); n != 0 {
		d.t.Errorf("%d waits are left", n)
	}
}

func (d *desk) is(id job.ID, state job.State, reason string) job.View {
	d.t.Helper()
	v := d.get(id)
	if v.State != state || v.Reason != reason {
		d.t.Errorf("job %s is %s (%s), want %s (%s)", id, v.State, v.Reason, state, reason)
	}
	return v
}

// only runs one job; others that are selected go back.
func (d *desk) only(id job.ID) job.Claimed {
	d.t.Helper()
	c := d.run(id)
	d.sql(`UPDATE turnpike.queue SET state = 'queued', dispatched_at = NULL WHERE state = 'dispatched'`)
	return c
}

func TestAfter(t *testing.T) {
	t.Parallel()

	t.Run("waits for all of them, and for its time", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		a, b := d.enqueue(), d.enqueue(func(r *job.Request) { r.Name = "b" })
		id := d.enqueue(behind("", a, b, a))
		later := d.enqueue(behind("", b), func(r *job.Request) { r.RunAt = time.Now().Add(time.Hour) })
		v := d.is(id, job.Queued, "parked: after")
		if diff := cmp.Diff([]job.Waiting{{ID: a, State: job.Queued}, {ID: b, Name: "b", State: job.Queued}}, v.After); diff != "" {
			t.Error(diff)
		}
		if want := fmt.Sprintf("job %s, job %s", a, b); len(v.Events) != 1 || v.Events[0].What != "after" || v.Events[0].Note != want {
			t.Errorf("events %+v, want %s", v.Events, want)
		}
		waiting := func(id job.ID) job.Waiting { return job.Waiting{ID: id, State: job.Queued, Reason: "parked: after"} }
		if diff := cmp.Diff([]job.Waiting{waiting(id), waiting(later)}, d.get(b).Before); diff != "" {
			t.Error(diff)
		}
		d.settle(ended(d.only(a), job.EndDone))
		d.is(id, job.Queued, "parked: after")
		d.settle(ended(d.only(b), job.EndDone))
		d.is(id, job.Queued, "")
		d.is(later, job.Scheduled, "")
		d.settle(ended(d.only(id), job.EndDone))
		d.due()
		d.settle(ended(d.only(later), job.EndDone))
		d.nobodyWaits()
	})

	t.Run("an attempt that is tried again keeps them waiting", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		a := d.enqueue()
		id := d.enqueue(behind("", a))
		d.settle(ended(d.run(a), job.EndTimeout))
		d.is(a, job.Scheduled, "")
		d.is(id, job.Queued, "parked: after")
		d.nothingDangles()
	})

	// Every way to leave the queue other than success.
	for name, end := range map[string]struct {
		as  string
		how func(d *desk, id job.ID)
	}{
		"settled": {"failed/agent", func(d *desk, id job.ID) {
			d.settle(ended(d.run(id), job.EndDone, func(r *job.Report) { r.IsError = true }))
		}},
		"reaped": {"failed/crashed", func(d *desk, id job.ID) {
			d.sql(`UPDATE turnpike.queue SET crashes = 2 WHERE job_id = $1`, string(id))
			d.run(id)
			d.lapse(id)
			d.reap()
		}},
		"cancelled": {"cancelled", func(d *desk, id job.ID) {
			if _, err := d.Cancel(d.t.Context(), id, "me", ""); err != nil {
				d.t.Fatal(err)
			}
		}},
		"cancelled while it ran": {"cancelled", func(d *desk, id job.ID) {
			c := d.run(id)
			if _, err := d.Cancel(d.t.Context(), id, "me", ""); err != nil {
				d.t.Fatal(err)
			}
			d.settle(ended(c, job.EndCancelled))
		}},
		"expired": {"failed/deadline", func(d *desk, id job.ID) {
			d.sql(`UPDATE turnpike.queue SET deadline = now() WHERE job_id = $1`, string(id))
			d.promote()
		}},
		"given up": {"failed/unready", func(d *desk, id job.ID) {
			d.sql(`UPDATE turnpike.queue SET unready_since = now() - interval '2 days' WHERE job_id = $1`, string(id))
			d.promote()
		}},
		"refused": {"failed/refused", func(d *desk, id job.ID) {
			d.sql(`UPDATE turnpike.queue SET checked = false WHERE job_id = $1`, string(id))
			if err := d.Checked(d.t.Context(), d.epoch, nil, map[job.ID]string{id: "no"}); err != nil {
				d.t.Fatal(err)
			}
		}},
	} {
		t.Run("fails with one that was "+name, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			a, other := d.enqueue(), d.enqueue()
			strict := d.enqueue(behind(job.AfterFail, a, other))
			lax := d.enqueue(behind(job.AfterRun, a))
			next := d.enqueue(behind("", strict))
			last := d.enqueue(behind("", next, lax))
			end.how(d, a)
			d.nothingDangles()
			d.is(lax, job.Queued, "")
			d.promote()
			const after = "job %s, which it comes after, ended as %s"
			for id, note := range map[job.ID]string{strict: fmt.Sprintf(after, a, end.as), next: fmt.Sprintf(after, strict, "failed/dependency"),
				last: fmt.Sprintf(after, next, "failed/dependency")} {
				v := d.is(id, job.Failed, "dependency")
				if got := v.Events[len(v.Events)-1].Note; got != note {
					t.Errorf("%s: %q, want %q", id, got, note)
				}
			}
			d.nobodyWaits()
		})
	}

	t.Run("what is finished is met at once", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		ends := func(how job.Ending) job.ID {
			c := d.running()
			d.settle(ended(c, how))
			return c.Job
		}
		good, bad := ends(job.EndDone), ends(job.EndCapped)
		d.is(d.enqueue(behind("", good)), job.Queued, "")
		d.is(d.enqueue(behind("", good), func(r *job.Request) { r.RunAt = time.Now().Add(time.Hour) }), job.Scheduled, "")
		d.is(d.enqueue(behind(job.AfterRun, good, bad)), job.Queued, "")
		id := d.enqueue(behind("", good, bad))
		d.promote()
		d.is(id, job.Failed, "dependency")
		d.nobodyWaits()
	})

	t.Run("a batch may refer to itself, backwards", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		dag := []job.Entry{entry(t), entry(t, behind("", "#0")), entry(t, behind("", "#0")), entry(t, behind("", "#1", "#2"), from("#2"))}
		for i := range dag {
			dag[i].IdempotencyKey = fmt.Sprint("dag#", i)
		}
		got, err := d.Enqueue(t.Context(), dag)
		if err != nil {
			t.Fatal(err)
		}
		again, err := d.Enqueue(t.Context(), dag)
		if err != nil || again[3].ID != got[3].ID || !again[3].Existing {
			t.Errorf("again: %+v, %v", again, err)
		}
		var waits []job.ID
		for _, w := range d.get(got[3].ID).After {
			waits = append(waits, w.ID)
		}
		if diff := cmp.Diff([]job.ID{got[1].ID, got[2].ID}, waits); diff != "" {
			t.Error(diff)
		}
		for i, a := range got {
			c := d.only(a.ID)
			if i < 3 && c.Origin != nil || i == 3 && (c.Origin == nil || *c.Origin != job.Origin{Job: got[2].ID, Conversation: "c2"}) {
				t.Errorf("job %d goes on from %+v", i, c.Origin)
			}
			d.settle(ended(c, job.EndDone, conversing(fmt.Sprint("c", i))))
		}
		d.nobodyWaits()

		// One that was there already stands for the entry.
		key := func(r *job.Request) { r.DedupKey = "k" }
		first := d.enqueue(key)
		got, err = d.Enqueue(t.Context(), []job.Entry{entry(t, key), entry(t, behind("", "#0"))})
		if err != nil || got[0].ID != first || d.get(got[1].ID).After[0].ID != first {
			t.Errorf("%+v, %v", got, err)
		}
	})

	t.Run("refuses what the tenant does not have", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		tenant := func(r *job.Request) { r.Tenant = "other" }
		foreign, mine := d.enqueue(tenant), d.enqueue()
		unknown := job.ID("0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11")
		for name, c := range map[string]struct {
			batch []job.Entry
			field string
		}{
			"an unknown job":          {[]job.Entry{entry(t, behind("", mine, unknown))}, "after.jobs[1]"},
			"another tenant's":        {[]job.Entry{entry(t, behind("", foreign))}, "after.jobs[0]"},
			"of nobody to resume":     {[]job.Entry{entry(t, from(unknown))}, "resume_from"},
			"another's to resume":     {[]job.Entry{entry(t, from(foreign))}, "resume_from"},
			"itself":                  {[]job.Entry{entry(t, behind("", "#0"))}, "after.jobs[0]"},
			"one behind it":           {[]job.Entry{entry(t, behind("", "#1")), entry(t)}, "[0].after.jobs[0]"},
			"one that is not there":   {[]job.Entry{entry(t), entry(t, behind("", "#0", "#999"))}, "[1].after.jobs[1]"},
			"another's in the batch":  {[]job.Entry{entry(t, tenant), entry(t, behind("", "#0"))}, "[1].after.jobs[0]"},
			"the second of the batch": {[]job.Entry{entry(t, behind("", mine)), entry(t, from(unknown))}, "[1].resume_from"},
		} {
			_, err := d.Enqueue(t.Context(), c.batch)
			if fe, ok := errors.AsType[*job.FieldError](err); !ok || fe.Field != c.field {
				t.Errorf("%s: %v, want field %s", name, err, c.field)
			}
		}
		answer := func(id job.ID) string {
			_, err := d.Enqueue(t.Context(), []job.Entry{entry(t, behind("", id))})
			return strings.ReplaceAll(fmt.Sprint(err), string(id), "ID")
		}
		if a, b := answer(foreign), answer(unknown); a != b {
			t.Errorf("another tenant's job is answered %q, an unknown one %q", a, b)
		}
		if n := ask[int](d, `SELECT count(*) FROM turnpike.jobs`); n != 2 {
			t.Errorf("%d jobs are there, want the two", n)
		}
	})

	t.Run("one that waits may go before what it waits for", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		a := d.enqueue()
		id := d.enqueue(behind("", a))
		next := d.enqueue(behind(job.AfterRun, id))
		if _, err := d.Cancel(t.Context(), id, "me", ""); err != nil {
			t.Fatal(err)
		}
		d.is(next, job.Queued, "")
		d.nobodyWaits()
		d.settle(ended(d.run(a), job.EndDone))
	})

	t.Run("in SQL", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		a := d.enqueue()
		body, err := json.Marshal(request(behind("", a)))
		if err != nil {
			t.Fatal(err)
		}
		id := job.ID(ask[string](d, `SELECT turnpike.enqueue($1)::text`, string(body)))
		if err := d.Checked(t.Context(), d.epoch, []job.ID{id}, nil); err != nil {
			t.Fatal(err)
		}
		d.is(id, job.Queued, "parked: after")
		// Not checked yet when it is let go.
		late := job.ID(ask[string](d, `SELECT turnpike.enqueue($1)::text`, string(body)))
		d.is(late, job.Queued, "parked: after")
		d.settle(ended(d.run(a), job.EndDone))
		d.is(id, job.Queued, "")
		d.is(late, job.Queued, "unchecked")
		ok := `{"api_version":"turnpike/v1","prompt":"p","grants":{},"workspace":{"scratch":true}`
		for body, field := range map[string]string{
			ok + `,"after":[]}`:                                                       "after",
			ok + `,"after":{}}`:                                                       "after.jobs",
			ok + `,"after":{"jobs":"x"}}`:                                             "after.jobs",
			ok + `,"after":{"jobs":[1]}}`:                                             "after.jobs",
			ok + `,"after":{"jobs":["x"]}}`:                                           "after.jobs[0]",
			ok + `,"after":{"jobs":["#0"]}}`:                                          "after.jobs[0]",
			ok + `,"after":{"jobs":["` + string(a) + `","#1000"]}}`:                   "after.jobs[1]",
			ok + `,"after":{"jobs":["` + string(a) + `"],"on_failure":"skip"}}`:       "after.on_failure",
			ok + `,"after":{"jobs":["0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11"]}}`:        "after.jobs[0]",
			ok + `,"after":{"jobs":[` + strings.Repeat(`"#0",`, 32) + `"#0"]}}`:       "after.jobs",
			ok + `,"resume_from":"x"}`:                                                "resume_from",
			ok + `,"resume_from":7}`:                                                  "resume_from",
			ok + `,"resume_from":"` + string(a) + `","resume_id":"c"}`:                "resume_from",
			ok + `,"resume_from":"` + string(a) + `","after":{"on_failure":"maybe"}}`: "after.on_failure",
			ok + `,"resume_from":"0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11","after":{}}`:  "resume_from",
		} {
			_, err := d.pool.Exec(t.Context(), `SELECT turnpike.enqueue($1)`, body)
			pg, ok := errors.AsType[*pgconn.PgError](err)
			if !ok || pg.Code != "TQ003" || pg.ColumnName != field {
				t.Errorf("%.200s: got %v (field %q), want %q refused", body, err, pgField(pg), field)
			}
		}
	})

	t.Run("a retry waits for nothing, and revives nothing", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		got, err := d.Enqueue(t.Context(), []job.Entry{entry(t), entry(t, behind("", "#0"))})
		if err != nil {
			t.Fatal(err)
		}
		d.settle(ended(d.run(got[0].ID), job.EndCapped))
		d.promote()
		if _, err := d.Retry(t.Context(), got[0].ID, "me"); err != nil {
			t.Fatal(err)
		}
		d.is(got[1].ID, job.Failed, "dependency")
		again, err := d.Retry(t.Context(), got[1].ID, "me")
		if err != nil {
			t.Fatal(err)
		}
		d.is(again.ID, job.Queued, "unchecked")
	})
}

func TestResumeFrom(t *testing.T) {
	t.Parallel()
	d := open(t)

	t.Run("goes on where the last attempt of the other ended", func(t *testing.T) {
		a := d.enqueue()
		id := d.enqueue(from(a))
		d.is(id, job.Queued, "parked: after")
		d.settle(ended(d.run(a), job.EndDrained)) // not started: given back
		d.settle(ended(d.run(a), job.EndDone, conversing("conv-1")))
		c := d.run(id)
		if c.Origin == nil || *c.Origin != (job.Origin{Job: a, Conversation: "conv-1"}) || c.Resume != "" {
			t.Errorf("claimed %+v", c)
		}
		d.settle(ended(c, job.EndCapped, conversing("conv-1")))

		// Again: from where it began, not from where it ended.
		again, err := d.Retry(t.Context(), id, "me")
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Checked(t.Context(), d.epoch, []job.ID{again.ID}, nil); err != nil {
			t.Fatal(err)
		}
		if c = d.run(again.ID); c.Origin == nil || c.Origin.Job != a {
			t.Errorf("claimed %+v", c.Origin)
		}
		d.settle(ended(c, job.EndDone))
		if c = d.running(from(a)); c.Origin == nil || c.Origin.Conversation != "conv-1" {
			t.Errorf("claimed %+v", c.Origin)
		}
		d.settle(ended(c, job.EndDone))
	})

	t.Run("an older worker says only whether it could go on itself", func(t *testing.T) {
		a := d.enqueue()
		d.settle(ended(d.run(a), job.EndDone, func(r *job.Report) { r.Conversation, r.Resumable = "conv-2", true }))
		d.sql(`ALTER TABLE turnpike.attempts DISABLE TRIGGER keep_history`)
		d.sql(`UPDATE turnpike.attempts SET kept = NULL WHERE job_id = $1`, string(a))
		d.is(d.enqueue(from(a)), job.Queued, "")
	})

	wrong := func(r *job.Report) { r.IsError = true }
	whatever := func(r *job.Request) { r.After = &job.After{OnFailure: job.AfterRun} }
	for name, c := range map[string]struct {
		report []func(*job.Report)
		edit   func(*job.Request)
		says   string
	}{
		"nothing was kept":                      {[]func(*job.Report){func(r *job.Report) { r.Conversation, r.Resumable = "c", true }}, whatever, "left no conversation"},
		"there was no conversation":             {[]func(*job.Report){conversing("")}, whatever, "left no conversation"},
		"another agent had it":                  {[]func(*job.Report){conversing("c"), func(r *job.Report) { r.Agent = "codex" }}, whatever, "is one of codex, which claude cannot continue"},
		"the other failed":                      {[]func(*job.Report){conversing("c"), wrong}, func(*job.Request) {}, "ended as failed/agent"},
		"the other failed, which was no matter": {[]func(*job.Report){wrong}, whatever, "left no conversation"},
	} {
		t.Run("fails where "+name, func(t *testing.T) {
			a := d.enqueue()
			early := d.enqueue(from(a), c.edit)
			d.settle(ended(d.run(a), job.EndDone, c.report...))
			for _, id := range []job.ID{early, d.enqueue(from(a), c.edit)} {
				d.promote()
				v := d.is(id, job.Failed, "dependency")
				if note := v.Events[len(v.Events)-1].Note; !strings.Contains(note, c.says) || !strings.Contains(note, string(a)) {
					t.Errorf("%q does not say %q", note, c.says)
				}
			}
		})
	}

	t.Run("of one that failed", func(t *testing.T) {
		a := d.enqueue()
		id := d.enqueue(from(a), whatever)
		d.settle(ended(d.run(a), job.EndCapped, conversing("conv-3")))
		if c := d.run(id); c.Origin == nil || c.Origin.Conversation != "conv-3" {
			t.Errorf("claimed %+v", c.Origin)
		}
	})
	d.nobodyWaits()
}

// Jobs are enqueued after others while those end in every way: none is forgotten, and
// none fails for nothing.
func TestAfterRaces(t *testing.T) {
	t.Parallel()
	d := open(t)
	const rounds, fan = 10, 6
	for round := range rounds {
		if _, err := d.Enqueue(t.Context(), []job.Entry{entry(t), entry(t), entry(t), entry(t)}); err != nil {
			t.Fatal(err)
		}
		roots := d.claim(d.dispatch(4)...)
		var ids []job.ID
		for _, c := range roots {
			ids = append(ids, c.Job)
		}
		var group sync.WaitGroup
		begin := make(chan struct{})
		racing := func(f func(*rand.Rand) error) {
			seed := rand.Uint64()
			group.Go(func() {
				<-begin
				if err := f(rand.New(rand.NewPCG(seed, 1))); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		var mu sync.Mutex // guards waiting
		var waiting []job.ID
		for range fan {
			racing(func(r *rand.Rand) error {
				policy := job.AfterPolicies()[r.IntN(2)]
				mu.Lock()
				of := slices.Concat(ids[:1+r.IntN(4)], waiting[:min(len(waiting), 2)])
				mu.Unlock()
				got, err := d.Enqueue(t.Context(), []job.Entry{entry(t, behind(policy, of...)), entry(t, behind("", append(of, "#0")...))})
				if err != nil {
					return err
				}
				mu.Lock()
				waiting = append(waiting, got[0].ID, got[1].ID)
				mu.Unlock()
				if r.IntN(4) > 0 {
					return nil
				}
				if _, err = d.Cancel(t.Context(), got[0].ID, "me", ""); errors.Is(err, job.ErrFinished) {
					return nil
				}
				return err
			})
		}
		for i, c := range roots {
			racing(func(r *rand.Rand) error {
				_, err := d.Settle(t.Context(), []job.Report{ended(c, job.EndDone, func(rep *job.Report) { rep.IsError = i == 3 && r.IntN(2) == 0 })})
				return err
			})
		}
		racing(func(*rand.Rand) error {
			_, _, err := d.Promote(t.Context(), d.epoch, 100)
			return err
		})
		close(begin)
		group.Wait()
		d.nothingDangles()
		// All of them come to an end.
		for {
			d.promote()
			claimed := d.claim(d.dispatch(100)...)
			if len(claimed) == 0 {
				break
			}
			var reports []job.Report
			for _, c := range claimed {
				reports = append(reports, ended(c, job.EndDone))
			}
			if _, err := d.Settle(t.Context(), reports); err != nil {
				t.Fatal(err)
			}
		}
		if left := names(d, `SELECT format('%s %s %s', job_id, state, parked) FROM turnpike.queue`); len(left) > 0 {
			t.Fatalf("round %d: forgotten: %s", round, left)
		}
	}
	if wrong := names(d, `
		SELECT v.job_id::text FROM turnpike.v_jobs v
		WHERE v.reason = 'dependency' AND NOT EXISTS (
			SELECT FROM turnpike.v_jobs o WHERE o.state <> 'succeeded' AND strpos(v.note, o.job_id::text) > 0)`); len(wrong) > 0 {
		t.Fatalf("failed for nothing: %s", wrong)
	}
}
