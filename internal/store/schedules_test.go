package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"turnpike/internal/job"
	"turnpike/internal/store"
)

// schedule sets one that acts every minute.
func (d *desk) schedule(name string, edit ...func(*job.Schedule)) job.ScheduleView {
	d.t.Helper()
	body, err := json.Marshal(request())
	if err != nil {
		d.t.Fatal(err)
	}
	s := job.Schedule{Tenant: job.DefaultTenant, Name: name, Cron: "* * * * *", Zone: "UTC", Missed: job.MissedOnce, Overlap: job.OverlapSkip, Request: body}
	for _, e := range edit {
		e(&s)
	}
	v, err := d.SetSchedule(d.t.Context(), s, "anna")
	if err != nil {
		d.t.Fatal(err)
	}
	return v
}

func overlaps(o job.Overlap) func(*job.Schedule) { return func(s *job.Schedule) { s.Overlap = o } }

func asking(edit ...func(*job.Request)) func(*job.Schedule) {
	return func(s *job.Schedule) {
		body, err := json.Marshal(request(edit...))
		if err != nil {
			panic(err) // plain data
		}
		s.Request = body
	}
}

// come makes the time of every schedule come: the minute that is now, and as many before
// it as were missed.
func (d *desk) come(missed int) {
	d.t.Helper()
	d.sql(`UPDATE turnpike.schedules SET next_at = date_trunc('minute', now()) - make_interval(mins => $1)`, missed)
}

// decided is what is to be done about the one schedule that is due, seconds after the
// last of its times whatever the clock says by now.
func (d *desk) decided(missed int) job.Firing {
	d.t.Helper()
	due, err := d.Due(d.t.Context(), 10)
	if err != nil || len(due) != 1 {
		d.t.Fatalf("due: %v, %v", due, err)
	}
	due[0].Now = due[0].At.Add(time.Duration(missed)*time.Minute + 5*time.Second)
	f, err := due[0].Firing()
	if err != nil {
		d.t.Fatal(err)
	}
	return f
}

// fire makes the time come and acts on it.
func (d *desk) fire(missed int) job.Fired {
	d.t.Helper()
	d.come(missed)
	fired, err := d.Fire(d.t.Context(), d.epoch, d.decided(missed))
	if err != nil {
		d.t.Fatal(err)
	}
	return fired
}

func (d *desk) scheduled(name string) job.ScheduleView {
	d.t.Helper()
	v, err := d.Schedule(d.t.Context(), job.DefaultTenant, name)
	if err != nil {
		d.t.Fatal(err)
	}
	return v
}

func (d *desk) jobs() int {
	d.t.Helper()
	return ask[int](d, `SELECT count(*)::int FROM turnpike.jobs`)
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	t.Run("a time is acted on once, by however many and however often it is tried", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.schedule("minutely")
		d.come(0)
		f := d.decided(0)
		var all sync.WaitGroup
		errs := make([]error, 3)
		for i := range errs {
			all.Go(func() { _, errs[i] = d.Fire(t.Context(), d.epoch, f) })
		}
		all.Wait()
		done := 0
		for _, err := range errs {
			if err == nil {
				done++
			} else {
				wantIs(t, err, job.ErrConflict)
			}
		}
		// As after a crash, or an answer that was lost.
		_, err := d.Fire(t.Context(), d.epoch, f)
		wantIs(t, err, job.ErrConflict)
		if done != 1 || d.jobs() != 1 {
			t.Fatalf("done %d times, %d jobs", done, d.jobs())
		}
		v := d.scheduled("minutely")
		if v.Fired != 1 || v.Skipped != 0 || v.Note != "" || !v.LastAt.Equal(f.At) || v.NextAt.Sub(f.At) != time.Minute || v.LastState != job.Queued {
			t.Errorf("%+v", v)
		}
		j := d.get(v.LastJob)
		if j.Producer != "anna" || !j.RunAt.Equal(f.At) || len(j.Events) != 1 || j.Events[0].What != "schedule" ||
			j.Events[0].Note != "default/minutely for "+f.At.UTC().Format(time.RFC3339) {
			t.Errorf("%+v", j)
		}
	})
	t.Run("the mark alone keeps it from being done twice", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.schedule("minutely", overlaps(job.OverlapQueue))
		first := d.fire(0)
		d.sql(`UPDATE turnpike.schedules SET next_at = last_at`) // as if the row had forgotten
		again, err := d.Fire(t.Context(), d.epoch, d.decided(0))
		if err != nil {
			t.Fatal(err)
		}
		if d.jobs() != 1 || !again.Jobs[0].Existing || again.Jobs[0].ID != first.Jobs[0].ID {
			t.Errorf("%d jobs: %+v, then %+v", d.jobs(), first, again)
		}
	})
	t.Run("one that is cut off half-way did nothing, and is done after", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.schedule("minutely")
		d.come(0)
		f := d.decided(0)
		hasty, err := store.Open(t.Context(), store.Config{DSN: d.env.DSN(), CallTimeout: 500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		defer hasty.Close()
		tx, err := d.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		// The job is written by then, and not told of.
		if _, err := tx.Exec(t.Context(), `LOCK TABLE turnpike.events IN SHARE MODE`); err != nil {
			t.Fatal(err)
		}
		_, err = hasty.Fire(t.Context(), d.epoch, f)
		wantIs(t, err, job.ErrUnavailable)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d.jobs() != 0 {
			t.Fatalf("%d jobs of a firing that failed", d.jobs())
		}
		if _, err := d.Fire(t.Context(), d.epoch, f); err != nil || d.jobs() != 1 {
			t.Errorf("%d jobs, %v", d.jobs(), err)
		}
	})
	t.Run("only the leader fires, and its successor what it did not", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.schedule("minutely")
		d.come(0)
		f := d.decided(0)
		old := d.epoch
		d.sql(`UPDATE turnpike.leader SET until = now() - interval '1 second'`)
		var err error
		if d.epoch, err = d.Lead(t.Context(), "heir", time.Hour); err != nil {
			t.Fatal(err)
		}
		_, err = d.Fire(t.Context(), old, f)
		wantIs(t, err, job.ErrNotLeader)
		wantIs(t, d.Defer(t.Context(), old, f.Due, time.Hour, "no"), job.ErrNotLeader)
		if d.jobs() != 0 {
			t.Fatal("another than the leader fired")
		}
		if _, err := d.Fire(t.Context(), d.epoch, d.decided(0)); err != nil {
			t.Fatal(err)
		}
		_, err = d.Fire(t.Context(), old, f)
		wantIs(t, err, job.ErrNotLeader)
		if d.jobs() != 1 {
			t.Errorf("%d jobs", d.jobs())
		}
	})
	t.Run("a change by a person makes void what was decided", func(t *testing.T) {
		t.Parallel()
		for name, change := range map[string]func(*desk) error{
			"set":    func(d *desk) error { d.schedule("minutely", asking(key("k"))); return nil },
			"pause":  func(d *desk) error { return d.PauseSchedule(t.Context(), job.DefaultTenant, "minutely", "bob", "why") },
			"remove": func(d *desk) error { return d.RemoveSchedule(t.Context(), job.DefaultTenant, "minutely", "bob", "") },
		} {
			d := open(t)
			d.schedule("minutely")
			d.come(0)
			f := d.decided(0)
			if err := change(d); err != nil {
				t.Fatal(err)
			}
			_, err := d.Fire(t.Context(), d.epoch, f)
			wantIs(t, err, job.ErrConflict)
			if d.jobs() != 0 {
				t.Errorf("%s: a job all the same", name)
			}
		}
	})
	t.Run("missed times", func(t *testing.T) {
		t.Parallel()
		for missed, want := range map[job.Missed]struct {
			jobs, skipped int
			note          string
		}{
			job.MissedSkip: {1, 120, "skipped"},
			job.MissedOnce: {1, 120, "made up for"},
			job.MissedAll:  {100, 21, "the 21 oldest are not made up for"},
		} {
			d := open(t)
			d.schedule("minutely", overlaps(job.OverlapQueue), func(s *job.Schedule) { s.Missed = missed })
			fired := d.fire(120)
			v := d.scheduled("minutely")
			if d.jobs() != want.jobs || int(v.Fired) != want.jobs || int(v.Skipped) != want.skipped || v.NoteAt == nil || !strings.HasSuffix(v.Note, want.note) {
				t.Errorf("%s: %d jobs, %+v", missed, d.jobs(), v)
			}
			if e := d.get(v.LastJob).Events; !strings.Contains(e[0].Note, "120 missed since") {
				t.Errorf("%s: told %+v", missed, e)
			}
			var made []job.ID
			for _, a := range fired.Jobs {
				made = append(made, a.ID)
			}
			if got := ids(d.dispatch(1000)); !slices.Equal(got, made) {
				t.Errorf("%s: selected in another order than the times have", missed)
			}
		}
	})
	t.Run("overlap", func(t *testing.T) {
		t.Parallel()
		// begun is a schedule whose last job runs.
		begun := func(t *testing.T, o job.Overlap) (*desk, job.Claimed) {
			t.Helper()
			d := open(t)
			d.schedule("minutely", overlaps(o))
			c := d.run(d.fire(1).Jobs[0].ID)
			d.sql(`DELETE FROM turnpike.idempotency`) // it is a minute later
			return d, c
		}
		t.Run("skip", func(t *testing.T) {
			t.Parallel()
			d, c := begun(t, job.OverlapSkip)
			fired := d.fire(0)
			v := d.scheduled("minutely")
			if len(fired.Jobs) != 0 || fired.Unfinished != c.Job || v.Fired != 1 || v.Skipped != 2 || v.LastJob != c.Job || !strings.Contains(v.Note, string(c.Job)+" is not finished") {
				t.Errorf("%+v: %+v", fired, v)
			}
			d.settle(ended(c, job.EndDone, started))
			if fired := d.fire(0); len(fired.Jobs) != 1 || fired.Unfinished != "" {
				t.Errorf("after it has ended: %+v", fired)
			}
		})
		t.Run("queue", func(t *testing.T) {
			t.Parallel()
			d, c := begun(t, job.OverlapQueue)
			if fired := d.fire(0); len(fired.Jobs) != 1 || fired.Unfinished != c.Job || fired.Cancelled != nil || d.get(c.Job).Cancel != nil {
				t.Errorf("%+v", fired)
			}
		})
		t.Run("cancel one that runs", func(t *testing.T) {
			t.Parallel()
			d, c := begun(t, job.OverlapCancel)
			fired := d.fire(0)
			if len(fired.Jobs) != 1 || fired.Cancelled == nil || fired.Cancelled.State != job.Running || fired.Cancelled.Worker != worker {
				t.Fatalf("%+v", fired)
			}
			if v := d.get(c.Job); v.Cancel == nil || v.Cancel.By != "schedule default/minutely" {
				t.Errorf("%+v", v.Cancel)
			}
		})
		t.Run("cancel one that waits", func(t *testing.T) {
			t.Parallel()
			d := open(t)
			d.schedule("minutely", overlaps(job.OverlapCancel))
			first := d.fire(0).Jobs[0].ID
			d.sql(`DELETE FROM turnpike.idempotency`)
			if fired := d.fire(0); len(fired.Jobs) != 1 || fired.Cancelled == nil || d.state(first) != job.Cancel {
				t.Errorf("%+v, the first is %s", fired, d.state(first))
			}
		})
	})
	t.Run("at the tenant's limit the time is kept, and the others go first", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.schedule("minutely")
		d.come(0)
		if err := d.SetLimit(t.Context(), job.DefaultTenant, 0, "me"); err != nil {
			t.Fatal(err)
		}
		f := d.decided(0)
		_, err := d.Fire(t.Context(), d.epoch, f)
		wantIs(t, err, job.ErrQueueFull)
		if err := d.Defer(t.Context(), d.epoch, f.Due, time.Hour, err.Error()); err != nil {
			t.Fatal(err)
		}
		if due, err := d.Due(t.Context(), 10); err != nil || len(due) != 0 {
			t.Errorf("due %v, %v", due, err)
		}
		if v := d.scheduled("minutely"); !strings.Contains(v.Note, "its limit") || !v.NextAt.Equal(f.At) {
			t.Errorf("%+v", v)
		}
		if err := d.SetLimit(t.Context(), job.DefaultTenant, -1, "me"); err != nil {
			t.Fatal(err)
		}
		d.sql(`UPDATE turnpike.schedules SET retry_at = now()`)
		if fired, err := d.Fire(t.Context(), d.epoch, d.decided(0)); err != nil || len(fired.Jobs) != 1 {
			t.Errorf("%+v", fired)
		}
	})
	t.Run("a pause lasts until it is ended, and makes nothing up", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.schedule("minutely")
		ctx := t.Context()
		if err := d.PauseSchedule(ctx, job.DefaultTenant, "minutely", "bob", "a freeze"); err != nil {
			t.Fatal(err)
		}
		d.come(60)
		if due, err := d.Due(ctx, 10); err != nil || len(due) != 0 {
			t.Fatalf("due %v, %v", due, err)
		}
		v := d.scheduled("minutely")
		if v.Paused == nil || v.Paused.By != "bob" || v.Paused.Why != "a freeze" || v.NextAt != nil {
			t.Errorf("%+v", v)
		}
		if v := d.schedule("minutely"); v.Paused == nil {
			t.Error("setting it resumed it")
		}
		if err := d.ResumeSchedule(ctx, job.DefaultTenant, "minutely", "bob", ""); err != nil {
			t.Fatal(err)
		}
		if v := d.scheduled("minutely"); v.Paused != nil || v.NextAt == nil || !ask[bool](d, `SELECT $1::timestamptz > now()`, *v.NextAt) {
			t.Errorf("%+v", v)
		}
		// Resuming what is not paused loses no time that has come.
		d.come(1)
		came := *d.scheduled("minutely").NextAt
		if err := d.ResumeSchedule(ctx, job.DefaultTenant, "minutely", "bob", ""); err != nil {
			t.Fatal(err)
		}
		if now := *d.scheduled("minutely").NextAt; !now.Equal(came) {
			t.Errorf("next at %s, was %s", now, came)
		}
		if got := names(d, `SELECT what FROM turnpike.audit ORDER BY at`); !slices.Equal(got, []string{"schedule", "pause schedule", "schedule", "resume schedule", "resume schedule"}) {
			t.Errorf("on record: %v", got)
		}
	})
	t.Run("setting one again keeps a time that has come, other times begin anew", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.schedule("minutely")
		d.come(1)
		before := *d.scheduled("minutely").NextAt
		if v := d.schedule("minutely", asking(key("k"))); !v.NextAt.Equal(before) {
			t.Errorf("next at %s, was %s", v.NextAt, before)
		}
		if v := d.schedule("minutely", func(s *job.Schedule) { s.Cron = "*/1 * * * *" }); !v.NextAt.After(before.Add(time.Minute)) {
			t.Errorf("next at %s", v.NextAt)
		}
	})
	t.Run("a clock that was set back repeats nothing", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.schedule("minutely")
		d.fire(0)
		d.sql(`UPDATE turnpike.schedules SET last_at = date_trunc('minute', now()) + interval '1 hour'`)
		ahead := *d.scheduled("minutely").LastAt
		if v := d.schedule("minutely", func(s *job.Schedule) { s.Cron = "*/1 * * * *" }); !v.NextAt.After(ahead) {
			t.Errorf("next at %s, acted at %s", v.NextAt, ahead)
		}
	})
	t.Run("one that is over", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.schedule("minutely", func(s *job.Schedule) { s.Until = time.Now().Add(time.Hour) })
		d.come(0)
		d.sql(`UPDATE turnpike.schedules SET not_after = next_at`)
		if fired, err := d.Fire(t.Context(), d.epoch, d.decided(0)); err != nil || len(fired.Jobs) != 1 {
			t.Errorf("%+v, %v", fired, err)
		}
		if v := d.scheduled("minutely"); v.NextAt != nil {
			t.Errorf("next at %s", v.NextAt)
		}
		s := d.scheduled("minutely").Schedule
		_, err := d.SetSchedule(t.Context(), s, "anna")
		wantIs(t, err, job.ErrInvalid)
	})
	t.Run("a dedup key's job stands for the next", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		dedup := func(r *job.Request) { r.DedupKey = "one" }
		id := d.enqueue(dedup)
		d.schedule("minutely", asking(dedup))
		if fired := d.fire(0); len(fired.Jobs) != 1 || !fired.Jobs[0].Existing || fired.Jobs[0].ID != id {
			t.Errorf("%+v", fired)
		}
	})
	t.Run("tenants have their own names", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		ctx := t.Context()
		for _, tenant := range []string{job.DefaultTenant, "acme"} {
			d.schedule("minutely", func(s *job.Schedule) { s.Tenant = tenant })
		}
		for tenants, want := range map[string]int{"": 2, "acme": 1, "acme default": 2, "nobody": 0} {
			got, err := d.Schedules(ctx, strings.Fields(tenants))
			if tenants == "" {
				got, err = d.Schedules(ctx, nil)
			}
			if err != nil || len(got) != want {
				t.Errorf("%q has %d, %v", tenants, len(got), err)
			}
		}
		if err := d.RemoveSchedule(ctx, "acme", "minutely", "bob", ""); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{
			"get": func() error { _, err := d.Schedule(ctx, "acme", "minutely"); return err }(), "remove": d.RemoveSchedule(ctx, "acme", "minutely", "bob", ""),
			"pause": d.PauseSchedule(ctx, "acme", "minutely", "bob", ""), "resume": d.ResumeSchedule(ctx, "acme", "minutely", "bob", ""),
		} {
			if !errors.Is(err, job.ErrNoSchedule) {
				t.Errorf("%s: %v", what, err)
			}
		}
		d.scheduled("minutely")
	})
	t.Run("what waits for its time is found by the index", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.schedule("minutely")
		d.sql(`INSERT INTO turnpike.schedules (tenant, name, cron, tz, missed, overlap, request, producer, next_at)
			SELECT 'default', 'n' || n, '@daily', 'UTC', 'once', 'skip', '{}', 'x', now() + n * interval '1 minute' FROM generate_series(1, 5000) n`)
		d.sql(`ANALYZE turnpike.schedules`)
		plan := fmt.Sprint(names(d, `EXPLAIN SELECT s.id FROM turnpike.schedules s WHERE s.next_at <= now() AND s.paused_at IS NULL ORDER BY s.next_at LIMIT 100`))
		if !strings.Contains(plan, "schedules_next") {
			t.Error(plan)
		}
	})
}
