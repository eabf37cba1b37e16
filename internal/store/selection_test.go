package store_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
	"turnpike/internal/store"
)

func ids(sel []job.Selected) (l []job.ID) {
	for _, s := range sel {
		l = append(l, s.Job)
	}
	return l
}

func tenant(name string) func(*job.Request) { return func(r *job.Request) { r.Tenant = name } }

func key(k string) func(*job.Request) { return func(r *job.Request) { r.ConcurrencyKey = k } }

func TestSelect(t *testing.T) {
	t.Parallel()
	t.Run("takes the most urgent first, and the older of two alike", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		a := d.enqueue()
		b := d.enqueue(func(r *job.Request) { r.Priority = 10 })
		c := d.enqueue()
		if got, want := ids(d.dispatch(2)), []job.ID{b, a}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if got, want := ids(d.dispatch(5)), []job.ID{c}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("lets what waits overtake what is more urgent, a minute for each point", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		waited := func(by time.Duration) func(*job.Request) {
			return func(r *job.Request) { r.RunAt = time.Now().Add(-by) }
		}
		urgent := d.enqueue(func(r *job.Request) { r.Priority = 10 })
		nine, eleven := d.enqueue(waited(9*time.Minute)), d.enqueue(waited(11*time.Minute))
		least := d.enqueue(waited(2*time.Hour), func(r *job.Request) { r.Priority = -100 })
		if got, want := ids(d.dispatch(9)), []job.ID{least, eleven, urgent, nine}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("keeps the place of what was given back or tried again", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		again := d.running(func(r *job.Request) { r.Retry.Policy = job.RetryAlways })
		returned := d.running()
		later := d.enqueue()
		d.settle(ended(again, job.EndTimeout, started))
		d.settle(ended(returned, job.EndDrained))
		d.due()
		if got, want := ids(d.dispatch(9)), []job.ID{again.Job, returned.Job, later}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("leaves what is delayed alone, which ages from its time on", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		delayed := d.enqueue(func(r *job.Request) { r.RunAt = time.Now().Add(time.Hour) })
		early := d.enqueue()
		if got, want := ids(d.dispatch(9)), []job.ID{early}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		next := d.enqueue()
		d.due()
		if got, want := ids(d.dispatch(9)), []job.ID{next, delayed}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("takes turns between tenants, counting what is live", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		var big []job.ID
		for range 20 {
			big = append(big, d.enqueue(tenant("big")))
		}
		d.dispatch(4)
		small := d.enqueue(tenant("small"))
		tiny := d.enqueue(tenant("tiny"))
		if got, want := ids(d.dispatch(3)), []job.ID{small, tiny, big[4]}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("leaves other lanes alone", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		d.enqueue(func(r *job.Request) { r.Pool = "other" })
		if got := d.dispatch(5); len(got) != 0 {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("runs one job of a key at a time, across lanes and not across tenants", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		a, b := d.enqueue(key("k")), d.enqueue(key("k"))
		other := d.enqueue(key("k"), tenant("other"))
		elsewhere := d.enqueue(key("k"), func(r *job.Request) { r.Pool = "gpu" })
		if got, want := ids(d.dispatch(9)), []job.ID{a, other}; !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		gpu := job.Lane{Placement: lane.Placement, Pool: "gpu"}
		if got, err := d.Select(t.Context(), d.epoch, gpu, 9); err != nil || len(got) != 0 {
			t.Fatal(got, err)
		}
		c := d.claim(job.Selected{Delivery: job.Delivery{Job: a, Dispatch: 1}})[0]
		d.settle(ended(c, job.EndDone))
		if got, want := ids(d.dispatch(9)), []job.ID{b}; !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		if _, err := d.Cancel(t.Context(), b, "me", ""); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Select(t.Context(), d.epoch, gpu, 9); err != nil || !slices.Equal(ids(got), []job.ID{elsewhere}) {
			t.Fatal(got, err)
		}
	})
	t.Run("lets the next of a key go while one of it waits for a paused lane", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		first := d.claim(func() []job.Selected { d.enqueue(key("k")); return d.dispatch(1) }()...)[0]
		gpu := job.Lane{Placement: lane.Placement, Pool: "gpu"}
		held := d.enqueue(key("k"), func(r *job.Request) { r.Pool = "gpu" })
		next := d.enqueue(key("k"))
		for _, l := range []job.Lane{gpu, lane} {
			if got, err := d.Select(t.Context(), d.epoch, l, 9); err != nil || len(got) != 0 {
				t.Fatal(got, err)
			}
		}
		if _, err := d.Pause(t.Context(), job.ScopeLane, gpu.String(), time.Time{}, "me", "broken"); err != nil {
			t.Fatal(err)
		}
		d.settle(ended(first, job.EndDone)) // lets out the first in line, which may not run
		d.due()
		got := d.dispatch(9)
		if want := []job.ID{next}; !slices.Equal(ids(got), want) {
			t.Fatalf("got %v, want %v", ids(got), want)
		}
		d.settle(ended(d.claim(got...)[0], job.EndDone))
		if err := d.Lift(t.Context(), job.ScopeLane, gpu.String(), "me", ""); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Select(t.Context(), d.epoch, gpu, 9); err != nil || !slices.Equal(ids(got), []job.ID{held}) {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("finds what may run behind a backlog that may not", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		var entries []job.Entry
		for range 1000 {
			entries = append(entries, entry(t, key("k")))
		}
		if _, err := d.Enqueue(t.Context(), entries); err != nil {
			t.Fatal(err)
		}
		free := d.enqueue()
		got := ids(d.dispatch(2))
		if len(got) != 2 || got[1] != free {
			t.Errorf("got %v, want one of the key and %s", got, free)
		}
	})
	t.Run("commits before it answers, under its epoch only", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		id := d.enqueue()
		if err := d.Resign(t.Context(), d.epoch); err != nil {
			t.Fatal(err)
		}
		_, err := d.Select(t.Context(), d.epoch, lane, 1)
		wantIs(t, err, job.ErrNotLeader)
		if s := d.state(id); s != job.Queued {
			t.Errorf("the job is %s", s)
		}
		next, err := d.Lead(t.Context(), "next", time.Hour)
		if err != nil || next <= d.epoch {
			t.Fatal(next, err)
		}
		_, err = d.Lead(t.Context(), "third", time.Hour)
		wantIs(t, err, job.ErrNotLeader)
		if again, err := d.Lead(t.Context(), "next", time.Hour); err != nil || again != next {
			t.Errorf("renewed: epoch %d, %v", again, err)
		}
		if got, err := d.Select(t.Context(), next, lane, 1); err != nil || len(got) != 1 {
			t.Error(got, err)
		}
	})
	t.Run("at once with settling strands nobody behind a key", func(t *testing.T) {
		t.Parallel()
		d := open(t)
		const n = 60
		for range n {
			d.enqueue(key("k"))
		}
		settles := make(chan job.Claimed, n)
		var wg sync.WaitGroup
		wg.Go(func() {
			for c := range settles {
				if _, err := d.Settle(t.Context(), []job.Report{ended(c, job.EndDone)}); err != nil {
					t.Error(err)
				}
			}
		})
		done := 0
		deadline := time.Now().Add(2 * time.Minute)
		for done < n && time.Now().Before(deadline) {
			got := d.dispatch(3)
			if len(got) > 1 {
				t.Errorf("%d of one key at once", len(got))
			}
			for _, c := range d.claim(got...) {
				done++
				settles <- c
			}
		}
		close(settles)
		wg.Wait()
		if done != n {
			t.Errorf("%d of %d ran", done, n)
		}
	})
	t.Run("reads the ready index, whatever waits", func(t *testing.T) {
		t.Parallel()
		d := open(t, slowly)
		// The queue's rows alone: what is asked is only how they are found.
		backlog := func(n int, columns, values string) {
			d.sql(`INSERT INTO turnpike.queue (job_id, rank, run_at, backoff_ms, max_tries, policy, lane, tenant, agent, account, checked, state` + columns + `)
				SELECT gen_random_uuid(), i, now(), 1000, 3, 'always', 'none-confined/default', 'tenant-' || i % 7, 'claude', '', true, ` + values +
				` FROM generate_series(1, ` + fmt.Sprint(n) + `) i`)
		}
		backlog(40_000, "", `'queued'`)
		backlog(20_000, ", concurrency_key, parked", `'queued', 'k', 'key'`)
		backlog(10_000, ", wake_at, parked", `'queued', 'infinity', 'pause'`)
		backlog(20_000, ", wake_at", `'scheduled', now() + interval '1 hour'`)
		backlog(9_800, ", chain", `'queued', '[{"profile": 0, "lane": "none-confined/default", "agent": "claude", "account": ""}]'`)
		backlog(200, ", dispatched_at, dispatch_no", `'dispatched', now(), 1`)
		d.sql(`INSERT INTO turnpike.weights SELECT 'tenant-' || i, i + 2, 'me' FROM generate_series(0, 3) i`)
		d.sql(`INSERT INTO turnpike.pauses (scope, name, until, reason, by, ending) VALUES ('account', '~claude', now() - interval '1 second', '', '', 'limited'),
			('key', 'tenant-1/k', 'infinity', '', '', NULL)`)
		d.sql(`ANALYZE turnpike.queue`)
		plan := d.explain(store.ChooseSQL, pgx.NamedArgs{"lane": lane.String(), "window": 128, "most": 50})
		if strings.Contains(plan, "Seq Scan on queue") || !strings.Contains(plan, "queue_ready") || !strings.Contains(plan, "queue_parked") ||
			strings.Contains(plan, "queue_tenant") {
			t.Errorf("selection does not go by its indexes:\n%s", plan)
		}
		offered := names(d, `SELECT job_id::text FROM turnpike.queue WHERE state = 'dispatched' LIMIT 8`)
		stale, tokens := make([]int, len(offered)), make([]string, len(offered))
		for i := range offered {
			stale[i], tokens[i] = 7, string(job.NewToken())
		}
		for what, s := range map[string]struct {
			sql  string
			args pgx.StrictNamedArgs
		}{
			"a look": {store.LookSQL, pgx.StrictNamedArgs{"unready": "1 hour", "lately": "30 seconds"}},
			"a claim": {store.ClaimSQL, pgx.StrictNamedArgs{"jobs": offered, "numbers": stale, "tokens": tokens, "lane": lane.String(),
				"worker": "w", "lease": "1 minute", "kind": "process"}},
		} {
			if n, plan := d.reads(s.sql, s.args); n > 1000 {
				t.Errorf("%s reads %d rows where nothing is to be done:\n%s", what, n, plan)
			}
		}
		// What its functions ask is not in its plan.
		if plan := d.explain(`SELECT live FROM turnpike.v_pauses WHERE state = 'slow start'`); strings.Contains(plan, "Seq Scan on queue") {
			t.Errorf("a slow start counts more than what is live:\n%s", plan)
		}
	})
}

// explain is how the server would carry a statement out.
func (d *desk) explain(sql string, args ...any) string {
	d.t.Helper()
	rows, err := d.pool.Query(d.t.Context(), "EXPLAIN "+sql, args...)
	if err != nil {
		d.t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// reads is the most rows that any step of a statement looks at, planned as the hot ones
// are; what it writes is undone.
func (d *desk) reads(sql string, args pgx.StrictNamedArgs) (most int, plan string) {
	d.t.Helper()
	ctx := d.t.Context()
	tx, err := d.pool.Begin(ctx)
	if err != nil {
		d.t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, store.PlannedSQL); err != nil {
		d.t.Fatal(err)
	}
	rows, err := tx.Query(ctx, "EXPLAIN (ANALYZE, TIMING OFF) "+sql, args)
	if err != nil {
		d.t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.t.Fatal(err)
	}
	plan = strings.Join(lines, "\n")
	for _, m := range regexp.MustCompile(`(?:actual rows=|Rows Removed by Filter: )(\d+)`).FindAllStringSubmatch(plan, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			d.t.Fatal(err)
		}
		most = max(most, n)
	}
	return most, plan
}

func TestPublish(t *testing.T) {
	t.Parallel()
	d := open(t)
	a, b := d.enqueue(), d.enqueue()
	sel := d.dispatch(2)
	list := func(t *testing.T, got []job.Selected, err error) []string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		l := []string{}
		for _, s := range got {
			name := map[job.ID]string{a: "a", b: "b"}[s.Job]
			l = append(l, fmt.Sprint(name, s.Dispatch))
			if s.Lane != lane || s.Version != job.MessageVersion || s.Tenant != job.DefaultTenant {
				t.Errorf("%+v", s)
			}
		}
		slices.Sort(l)
		return l
	}
	want := func(t *testing.T, got []string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	got, err := d.Unpublished(t.Context(), d.epoch, 10)
	want(t, list(t, got, err), "a1", "b1")
	if err := d.Published(t.Context(), []job.Delivery{sel[0].Delivery, {Job: b, Dispatch: 7}}); err != nil {
		t.Fatal(err)
	}
	got, err = d.Unpublished(t.Context(), d.epoch, 10)
	want(t, list(t, got, err), "b1")
	got, err = d.Redispatch(t.Context(), d.epoch, lane, time.Hour, false, 10)
	want(t, list(t, got, err))
	got, err = d.Redispatch(t.Context(), d.epoch, lane, time.Hour, true, 10)
	want(t, list(t, got, err), "a2")
	got, err = d.Redispatch(t.Context(), d.epoch, lane, time.Hour, true, 10) // done is done
	want(t, list(t, got, err))
	got, err = d.Redispatch(t.Context(), d.epoch, lane, 0, false, 10)
	want(t, list(t, got, err), "a3", "b2")
	if got := d.claim(sel...); len(got) != 0 {
		t.Errorf("claimed by old numbers: %+v", got)
	}
	if n, err := d.Pause(t.Context(), job.ScopeLane, lane.String(), time.Time{}, "me", "test"); err != nil || n != 2 {
		t.Errorf("%d went back, %v", n, err)
	}
	if got := d.dispatch(10); len(got) != 0 {
		t.Errorf("selected from a paused lane: %+v", got)
	}
	if err := d.Lift(t.Context(), job.ScopeLane, lane.String(), "me", ""); err != nil {
		t.Fatal(err)
	}
	want(t, list(t, d.dispatch(10), nil), "a4", "b3")
}

func TestPromote(t *testing.T) {
	t.Parallel()
	d := open(t)
	at := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	id := d.enqueue(func(r *job.Request) { r.RunAt = at })
	late := d.enqueue(func(r *job.Request) { r.Deadline = time.Now().Add(-time.Second) })
	if s := d.state(id); s != job.Scheduled {
		t.Fatalf("the job is %s", s)
	}
	n, next, err := d.Promote(t.Context(), d.epoch, 10)
	if err != nil || n != 1 || !next.Equal(at) {
		t.Errorf("moved %d, next at %v (want %v), %v", n, next, at, err)
	}
	if v := d.get(late); v.State != job.Failed || v.Reason != "deadline" {
		t.Errorf("%s/%s", v.State, v.Reason)
	}
	d.sql(`UPDATE turnpike.queue SET wake_at = now()`)
	if n, next, err = d.Promote(t.Context(), d.epoch, 10); err != nil || n != 1 || !next.IsZero() {
		t.Errorf("moved %d, next at %v, %v", n, next, err)
	}
	if got := ids(d.dispatch(5)); !slices.Equal(got, []job.ID{id}) {
		t.Errorf("selected %v", got)
	}
	if _, _, err = d.Promote(t.Context(), d.epoch+1, 10); err == nil {
		t.Error("promoted under a wrong epoch")
	}
}

func TestUnchecked(t *testing.T) {
	t.Parallel()
	d := open(t)
	body, err := json.Marshal(request())
	if err != nil {
		t.Fatal(err)
	}
	good := job.ID(ask[string](d, `SELECT turnpike.enqueue($1::jsonb)::text`, string(body)))
	bad := job.ID(ask[string](d, `SELECT turnpike.enqueue($1::jsonb)::text`, string(body)))
	if got := d.dispatch(5); len(got) != 0 {
		t.Fatalf("selected unchecked: %+v", got)
	}
	if v := d.get(good); v.State != job.Queued || v.Reason != "unchecked" {
		t.Errorf("%s/%s", v.State, v.Reason)
	}
	got, err := d.Unchecked(t.Context(), d.epoch, 10)
	if err != nil || len(got) != 2 || got[0].ID != good {
		t.Fatal(got, err)
	}
	if r, err := job.Decode(got[0].Request); err != nil || r.Prompt != "do it" {
		t.Errorf("%+v, %v", r, err)
	}
	for range 2 {
		if err := d.Checked(t.Context(), d.epoch, []job.ID{good}, map[job.ID]string{bad: "profile.model: begins with a dash"}); err != nil {
			t.Fatal(err)
		}
	}
	if v := d.get(bad); v.State != job.Failed || v.Reason != "refused" || len(v.Events) != 1 || !strings.Contains(v.Events[0].Note, "dash") {
		t.Errorf("%+v", v)
	}
	if got := ids(d.dispatch(5)); !slices.Equal(got, []job.ID{good}) {
		t.Errorf("selected %v", got)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	d := open(t)
	gpu := job.Lane{Placement: "container", Pool: "gpu"}
	d.enqueue()
	d.enqueue(func(r *job.Request) { r.Pool = "third" })
	d.dispatch(1)
	for i, w := range []job.WorkerInfo{
		{ID: "w1", Lanes: []job.LaneSlots{{Lane: gpu, Slots: 4, Free: 3}, {Lane: lane, Slots: 2, Free: 1}}},
		{ID: "w2", Lanes: []job.LaneSlots{{Lane: lane, Slots: 8, Free: 8}}},
		{ID: "w3", Lanes: []job.LaneSlots{{Lane: lane, Slots: 8, Free: 8, Closed: "disk full"}}},
		{ID: "w4", Lanes: []job.LaneSlots{{Lane: lane, Slots: 8, Free: 8}}, Draining: true},
	} {
		w.Ceiling = "c"
		if err := d.Register(t.Context(), w); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, err := d.Pause(t.Context(), job.ScopeLane, gpu.String(), time.Now().Add(time.Hour), "me", ""); err != nil {
		t.Fatal(err)
	}
	got, err := d.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []job.LaneLoad{
		{Lane: gpu, Slots: 4, Free: 3, Paused: true},
		{Lane: lane, Slots: 10, Free: 9, Dispatched: 1},
		{Lane: job.Lane{Placement: lane.Placement, Pool: "third"}, Ready: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
