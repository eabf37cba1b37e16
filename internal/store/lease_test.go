package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
	"turnpike/internal/store"
	"turnpike/internal/work"
)

func TestClaim(t *testing.T) {
	t.Parallel()
	d := open(t)
	claimed := func(t *testing.T, who string, l job.Lane, c job.Claim) int {
		t.Helper()
		got, err := d.Claim(t.Context(), who, l, []job.Claim{c})
		if err != nil {
			t.Fatal(err)
		}
		return len(got)
	}
	dispatched := func(edit ...func(*job.Request)) job.Claim {
		id := d.enqueue(edit...)
		for _, s := range d.dispatch(100) {
			if s.Job == id {
				return job.Claim{Job: s.Job, Dispatch: s.Dispatch, Token: job.NewToken()}
			}
		}
		t.Fatalf("%s was not dispatched", id)
		return job.Claim{}
	}

	t.Run("gives the request with the lease", func(t *testing.T) {
		e := entry(t, func(r *job.Request) { r.Name, r.Tenant, r.Account = "fix it", "acme", "main" })
		acc, err := d.Enqueue(t.Context(), []job.Entry{e})
		if err != nil {
			t.Fatal(err)
		}
		got := d.claim(d.dispatch(100)...)
		if len(got) != 1 {
			t.Fatalf("claimed %d", len(got))
		}
		want := job.Claimed{Lease: job.Lease{Job: acc[0].ID, Attempt: 1, Number: 1, Token: got[0].Token}, Length: time.Hour, Lane: lane,
			Name: "fix it", Tenant: "acme", Account: "main", Request: e.Body}
		if diff := cmp.Diff(want, got[0]); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("repeated with its token is the same lease", func(t *testing.T) {
		c := dispatched()
		var leases [2]job.Lease
		for i := range leases {
			got, err := d.Claim(t.Context(), worker, lane, []job.Claim{c})
			if err != nil || len(got) != 1 {
				t.Fatal(got, err)
			}
			leases[i] = got[0].Lease
		}
		if leases[0] != leases[1] {
			t.Errorf("%+v then %+v", leases[0], leases[1])
		}
	})
	t.Run("refuses", func(t *testing.T) {
		for what, edit := range map[string]func(*job.Claim, *string, *job.Lane){
			"another number":  func(c *job.Claim, _ *string, _ *job.Lane) { c.Dispatch++ },
			"an older number": func(c *job.Claim, _ *string, _ *job.Lane) { c.Dispatch-- },
			"another lane":    func(_ *job.Claim, _ *string, l *job.Lane) { l.Pool = "other" },
			"a job that is not": func(c *job.Claim, _ *string, _ *job.Lane) {
				c.Job = "0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11"
			},
		} {
			c, who, l := dispatched(), worker, lane
			edit(&c, &who, &l)
			if claimed(t, who, l, c) != 0 {
				t.Errorf("%s was granted", what)
			}
		}
	})
	t.Run("refuses what another holds, with any token", func(t *testing.T) {
		c := dispatched()
		if claimed(t, worker, lane, c) != 1 {
			t.Fatal("refused")
		}
		if claimed(t, "other", lane, c) != 0 {
			t.Error("another worker got the lease by its token")
		}
		c.Token = job.NewToken()
		if claimed(t, worker, lane, c) != 0 {
			t.Error("granted twice")
		}
	})
	t.Run("refuses what was cancelled", func(t *testing.T) {
		c := dispatched()
		if _, err := d.Cancel(t.Context(), c.Job, "me", ""); err != nil {
			t.Fatal(err)
		}
		if claimed(t, worker, lane, c) != 0 {
			t.Error("granted")
		}
	})
	t.Run("refuses what is past its deadline", func(t *testing.T) {
		c := dispatched(func(r *job.Request) { r.Deadline = time.Now().Add(time.Hour) })
		d.sql(`UPDATE turnpike.queue SET deadline = now() WHERE job_id = $1`, string(c.Job))
		if claimed(t, worker, lane, c) != 0 {
			t.Error("granted")
		}
	})
	t.Run("refuses what is paused", func(t *testing.T) {
		c := dispatched(func(r *job.Request) { r.Tenant = "slow" })
		// Only the pause itself, as a claim meets it that began before the take-back.
		d.sql(`INSERT INTO turnpike.pauses (scope, name, until, reason, by) VALUES ('tenant', 'slow', 'infinity', '', '')`)
		if claimed(t, worker, lane, c) != 0 {
			t.Error("granted")
		}
	})
	t.Run("by two workers at once is granted to one", func(t *testing.T) {
		for range 20 {
			c := dispatched()
			var wg sync.WaitGroup
			granted := make([]int, 4)
			for i := range granted {
				wg.Go(func() {
					c := c
					c.Token = job.NewToken()
					got, err := d.Claim(t.Context(), worker, lane, []job.Claim{c})
					if err != nil {
						t.Error(err)
					}
					granted[i] = len(got)
				})
			}
			wg.Wait()
			if sum := granted[0] + granted[1] + granted[2] + granted[3]; sum != 1 {
				t.Fatalf("granted %d times", sum)
			}
		}
	})
	t.Run("and a cancel at once agree", func(t *testing.T) {
		for range 20 {
			c := dispatched()
			var wg sync.WaitGroup
			var answer job.CancelAnswer
			var got []job.Claimed
			wg.Go(func() {
				var err error
				if answer, err = d.Cancel(t.Context(), c.Job, "me", ""); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				var err error
				if got, err = d.Claim(t.Context(), worker, lane, []job.Claim{c}); err != nil {
					t.Error(err)
				}
			})
			wg.Wait()
			if (answer.State == job.Running) != (len(got) == 1) || d.state(c.Job) != answer.State {
				t.Fatalf("cancel says %s, %d leases, the job is %s", answer.State, len(got), d.state(c.Job))
			}
		}
	})
}

func TestBeat(t *testing.T) {
	t.Parallel()
	d := open(t)
	beat := func(t *testing.T, beats ...job.Beat) []job.Beaten {
		t.Helper()
		got, err := d.Beat(t.Context(), worker, beats)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	t.Run("answers every lease in order", func(t *testing.T) {
		a, b := d.running(), d.running()
		stranger := job.Lease{Job: "0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11", Token: job.NewToken()}
		got := beat(t, job.Beat{Lease: b.Lease}, job.Beat{Lease: stranger}, job.Beat{Lease: a.Lease})
		want := []job.Beaten{{Job: b.Job, Ours: true}, {Job: stranger.Job}, {Job: a.Job, Ours: true}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("waits for nobody who holds a job's row", func(t *testing.T) {
		a, b := d.running(), d.running()
		tx, err := d.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), `SELECT FROM turnpike.queue WHERE job_id = $1 FOR UPDATE`, string(a.Job)); err != nil {
			t.Fatal(err)
		}
		both := []job.Beat{{Lease: a.Lease, Turns: 3}, {Lease: b.Lease}}
		want := []job.Beaten{{Job: b.Job, Ours: true}}
		if diff := cmp.Diff(want, beat(t, both...)); diff != "" {
			t.Errorf("while it is held (-want +got):\n%s", diff)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		want = []job.Beaten{{Job: a.Job, Ours: true}, {Job: b.Job, Ours: true}}
		if diff := cmp.Diff(want, beat(t, both...)); diff != "" {
			t.Errorf("after it (-want +got):\n%s", diff)
		}
	})
	t.Run("renews a lease that lapsed and was not reaped", func(t *testing.T) {
		c := d.running()
		d.lapse(c.Job)
		if got := beat(t, job.Beat{Lease: c.Lease}); !got[0].Ours {
			t.Error("not ours")
		}
		if got := d.reap(); len(got) != 0 {
			t.Errorf("reaped %+v", got)
		}
	})
	t.Run("does not renew what was reaped", func(t *testing.T) {
		c := d.running()
		d.lapse(c.Job)
		d.reap()
		if got := beat(t, job.Beat{Lease: c.Lease}); got[0].Ours {
			t.Error("ours")
		}
	})
	t.Run("does not renew for another worker", func(t *testing.T) {
		c := d.running()
		got, err := d.Beat(t.Context(), "other", []job.Beat{{Lease: c.Lease}})
		if err != nil || got[0].Ours {
			t.Error(got, err)
		}
	})
	t.Run("tells of a cancel, with who and why", func(t *testing.T) {
		c := d.running()
		for range 2 { // asking again changes nothing
			if got, err := d.Cancel(t.Context(), c.Job, "ada", "wrong branch"); err != nil || got.State != job.Running || got.Worker != worker {
				t.Fatal(got, err)
			}
		}
		got := beat(t, job.Beat{Lease: c.Lease})
		want := []job.Beaten{{Job: c.Job, Ours: true, Cancelled: &job.Cancelled{By: "ada", Why: "wrong branch"}}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("keeps what it tells and what it does not", func(t *testing.T) {
		c := d.running()
		cost := job.USD(1_250_000)
		at := time.Now().Truncate(time.Millisecond)
		beat(t, job.Beat{Lease: c.Lease, StartedAt: at, Conversation: "c1", Turns: 3, ToolCalls: 2, CostUSD: &cost, Running: json.RawMessage(`{"kind":"process","pid":7}`)})
		beat(t, job.Beat{Lease: c.Lease})
		v := d.get(c.Job)
		if v.StartedAt == nil || !v.StartedAt.Equal(at) || v.CostUSD == nil || *v.CostUSD != cost || v.Worker != worker {
			t.Errorf("%+v", v)
		}
		d.lapse(c.Job)
		d.reap()
		got, err := d.Orphans(t.Context(), store.OrphanFilter{Worker: worker})
		if err != nil {
			t.Fatal(err)
		}
		last := got[len(got)-1]
		if last.Job != c.Job || last.Kind != "process" || last.State != job.OrphanLive || !strings.Contains(string(last.Identity), `"pid": 7`) {
			t.Errorf("orphan %+v", last)
		}
		a := d.get(c.Job).Attempts[0]
		if a.Ending != job.EndLost || a.Conversation != "c1" || a.NumTurns != 3 || a.CostUSD == nil || *a.CostUSD != cost {
			t.Errorf("lost attempt %+v", a)
		}
	})
}

// TestHOT holds that no index names what claims and beats change: their updates stay
// on the page, whatever the number of indexes.
func TestHOT(t *testing.T) {
	t.Parallel()
	d := open(t)
	for range 50 {
		d.enqueue(key(string(job.NewToken())), func(r *job.Request) { r.Deadline = time.Now().Add(time.Hour) })
	}
	var jobs, tokens []string
	var numbers []int
	var beats []map[string]any
	for _, s := range d.dispatch(50) {
		token := string(job.NewToken())
		jobs, numbers, tokens = append(jobs, string(s.Job)), append(numbers, s.Dispatch), append(tokens, token)
		beats = append(beats, map[string]any{"job_id": s.Job, "token": token, "started_at": time.Now(), "conversation": "c", "turns": 1, "tool_calls": 1,
			"cost_usd": "1.50", "running": map[string]int{"pid": 7}})
	}
	encoded, err := json.Marshal(beats)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		what, sql string
		args      pgx.StrictNamedArgs
	}{
		{"claim", store.ClaimSQL, pgx.StrictNamedArgs{"jobs": jobs, "numbers": numbers, "tokens": tokens, "lane": lane.String(), "worker": worker,
			"lease": time.Hour, "kind": "process"}},
		{"beat", store.BeatSQL, pgx.StrictNamedArgs{"beats": string(encoded), "worker": worker, "lease": time.Hour}},
	} {
		d.sql(`VACUUM turnpike.queue`) // room on the pages, as there is between two beats
		var before, after struct{ updated, hot int }
		err := pgx.BeginFunc(t.Context(), d.pool, func(tx pgx.Tx) error {
			// They count what the session did since it last told the server.
			const counts = `SELECT pg_stat_get_xact_tuples_updated(r), pg_stat_get_xact_tuples_hot_updated(r)
				FROM (VALUES ('turnpike.queue'::regclass)) q(r)`
			if err := tx.QueryRow(t.Context(), counts).Scan(&before.updated, &before.hot); err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), step.sql, step.args); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), counts).Scan(&after.updated, &after.hot)
		})
		if err != nil {
			t.Fatal(err)
		}
		// Some find their page full when all its rows are claimed in one go. With an
		// index in the way none would be HOT.
		if updated, hot := after.updated-before.updated, after.hot-before.hot; updated != 50 || hot < 25 {
			t.Errorf("%s: %d of %d updates were HOT", step.what, hot, updated)
		}
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	d := open(t)
	is := func(t *testing.T, got job.Settled, how job.SettleCase, state job.State) {
		t.Helper()
		if got.How != how || got.State != state {
			t.Errorf("settled %q with the job %q, want %q with %q", got.How, got.State, how, state)
		}
	}
	cost := job.USD(2_500_000)

	t.Run("keeps everything the report has", func(t *testing.T) {
		c := d.running(func(r *job.Request) { r.Work = work.Ref{Key: "ISSUE-1", Tags: []string{"a"}} })
		exit := 0
		r := ended(c, job.EndDone, touched, func(r *job.Report) {
			r.AgentVersion, r.Model, r.Conversation, r.ResultText, r.NumTurns, r.DurationMS = "2.1", "opus", "c9", "done", 4, 1234
			r.CostUSD = &cost
			half := job.USD(1_250_000)
			r.Usage = []job.ModelUsage{{Model: "haiku", InputTokens: 1, OutputTokens: 2, CacheReadTokens: 3, CacheWriteTokens: 4, CostUSD: &half}, {Model: "opus", InputTokens: 9}}
			r.Outcome = &job.Outcome{Status: "fixed", Note: "by hand", Work: work.Ref{Key: "ISSUE-2", Tags: []string{"b", "c"}}}
			r.Result = json.RawMessage(`{"Role":"x"}`)
			r.Reason = "all\nwell"
		})
		is(t, d.settle(r), job.SettledNow, job.Succeeded)
		v := d.get(c.Job)
		if v.State != job.Succeeded || v.Outcome != "fixed" || v.Work.Key != "ISSUE-2" || len(v.Work.Tags) != 2 || *v.CostUSD != cost || v.EndedAt == nil {
			t.Errorf("%+v", v.Summary)
		}
		got := v.Attempts[0]
		want := job.AttemptView{Attempt: 1, Lane: lane.String(), Ending: job.EndDone, Reason: "all well", Worker: worker, Host: "host", Agent: "claude", AgentVersion: "2.1",
			ClaimedAt: got.ClaimedAt, StartedAt: got.StartedAt, EndedAt: got.EndedAt, DurationMS: 1234, ExitCode: &exit, NumTurns: 4, CostUSD: &cost,
			Usage: r.Usage, Outcome: r.Outcome, Conversation: "c9", ResultText: "done", Result: r.Result}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("again changes nothing", func(t *testing.T) {
		c := d.running()
		r := ended(c, job.EndDone, started, func(r *job.Report) {
			r.CostUSD, r.Usage = &cost, []job.ModelUsage{{Model: "m", CostUSD: &cost}}
		})
		is(t, d.settle(r), job.SettledNow, job.Succeeded)
		r.Ending, r.IsError = job.EndTimeout, true
		is(t, d.settle(r), job.SettledBefore, job.Succeeded)
		if v := d.get(c.Job); *v.CostUSD != cost || len(v.Attempts) != 1 || len(v.Attempts[0].Usage) != 1 {
			t.Errorf("%+v", v)
		}
	})
	t.Run("of nothing known writes nothing", func(t *testing.T) {
		c := d.running()
		r := ended(c, job.EndDone)
		r.Lease.Token = job.NewToken()
		is(t, d.settle(r), job.SettledNever, job.Running)
		r.Lease.Job = "0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11"
		is(t, d.settle(r), job.SettledNever, "")
	})
	t.Run("after the reaper fills in the result and the cost", func(t *testing.T) {
		c := d.running(func(r *job.Request) { r.Retry.Policy = job.RetryNever })
		d.beat(job.Beat{Lease: c.Lease, StartedAt: time.Now()})
		d.lapse(c.Job)
		d.reap()
		if s := d.state(c.Job); s != job.Failed {
			t.Fatalf("the job is %s", s)
		}
		r := ended(c, job.EndDone, touched, func(r *job.Report) {
			r.CostUSD, r.ResultText, r.Outcome = &cost, "done after all", &job.Outcome{Status: "fixed"}
			r.Usage = []job.ModelUsage{{Model: "m", CostUSD: &cost}}
		})
		is(t, d.settle(r), job.SettledLate, job.Failed)
		is(t, d.settle(r), job.SettledBefore, job.Failed)
		v := d.get(c.Job)
		a := v.Attempts[0]
		if !a.Late || a.ResultText != "done after all" || *v.CostUSD != cost || len(a.Usage) != 1 || v.Outcome != "" || v.Reason != "lost" {
			t.Errorf("%+v", v)
		}
		got, err := d.Orphans(t.Context(), store.OrphanFilter{States: []job.OrphanState{job.OrphanGone}})
		if err != nil || len(got) == 0 || got[len(got)-1].Job != c.Job {
			t.Errorf("orphans %+v, %v", got, err)
		}
	})
	t.Run("of a dead worker's attempt, late, is of what that worker had read", func(t *testing.T) {
		half := cost / 2
		for name, c := range map[string]struct {
			beats, report, want *job.USD
			ending              job.Ending
			partly              bool
		}{
			"told by both":       {&half, &cost, &cost, job.EndLost, true},
			"told by the report": {nil, &cost, &cost, job.EndLost, true},
			"told by the beats":  {&cost, nil, &cost, job.EndLost, true},
			"told by nobody":     {nil, nil, nil, job.EndLost, false},
			"of its end, whole":  {&half, &cost, &cost, job.EndDone, false},
			"of its end, cost unknown and told by the beats":  {&half, nil, &half, job.EndDone, true},
			"of its end, cost unknown and told by nobody":     {nil, nil, nil, job.EndDone, false},
			"of its end, whole, though the beats told nought": {nil, &cost, &cost, job.EndDone, false},
		} {
			lost := d.running(func(r *job.Request) { r.Retry.Policy = job.RetryNever })
			d.beat(job.Beat{Lease: lost.Lease, StartedAt: time.Now(), CostUSD: c.beats})
			d.lapse(lost.Job)
			d.reap()
			is(t, d.settle(ended(lost, c.ending, touched, func(r *job.Report) { r.CostUSD = c.report })), job.SettledLate, job.Failed)
			if got := d.get(lost.Job).Attempts[0].CostUSD; !cmp.Equal(c.want, got) {
				t.Errorf("%s: %v is on record, want %v", name, got, c.want)
			}
			if got := ask[bool](d, `SELECT cost_partial FROM turnpike.attempts WHERE job_id = $1`, string(lost.Job)); got != c.partly {
				t.Errorf("%s: as a part of it: %v", name, got)
			}
		}
	})
	t.Run("of a turn that broke off is a part", func(t *testing.T) {
		part := func(r *job.Report) { r.CostUSD, r.CostPartial = &cost, true }
		now := d.running(func(r *job.Request) { r.Retry.Policy = job.RetryNever })
		is(t, d.settle(ended(now, job.EndTimeout, touched, part)), job.SettledNow, job.Failed)
		lost := d.running(func(r *job.Request) { r.Retry.Policy = job.RetryNever })
		d.lapse(lost.Job)
		d.reap()
		is(t, d.settle(ended(lost, job.EndFenced, touched, part)), job.SettledLate, job.Failed)
		for _, id := range []job.ID{now.Job, lost.Job} {
			if got := ask[string](d, `SELECT cost_usd::numeric(10, 2) || ' ' || cost_partial FROM turnpike.attempts WHERE job_id = $1`, string(id)); got != cost.String()+" true" {
				t.Errorf("on record: %s", got)
			}
		}
	})
	t.Run("late while the next attempt runs leaves that one alone", func(t *testing.T) {
		id := d.enqueue()
		first := d.claim(d.dispatch(100)...)[0]
		d.lapse(id)
		d.reap()
		d.due()
		second := d.claim(d.dispatch(100)...)[0]
		if second.Number <= first.Number || second.Attempt != 2 {
			t.Fatalf("second lease %+v after %+v", second.Lease, first.Lease)
		}
		is(t, d.settle(ended(first, job.EndDone)), job.SettledLate, job.Running)
		is(t, d.settle(ended(second, job.EndDone)), job.SettledNow, job.Succeeded)
	})
	t.Run("keeps what an agent printed, whatever it is", func(t *testing.T) {
		c := d.running()
		r := ended(c, job.EndDone, func(r *job.Report) {
			r.ResultText, r.Reason = "nul \x00 and \xff\xfe", "half \xed\xa0\x80"
			r.Result = json.RawMessage(`{"a":"\u0000 \ud800 \\u0000 \ud83d\ude00","b":1e999}`)
			r.RateLimit = json.RawMessage("no JSON \x00 at all")
			r.NumTurns = 1 << 40
			bad := job.USD(-5)
			r.CostUSD = &bad
			r.Usage = []job.ModelUsage{{Model: "\x00", InputTokens: 1 << 62, CostUSD: &bad}, {Model: "\x00", InputTokens: 1 << 62}}
			r.Outcome = &job.Outcome{Status: "o\x00k"}
		})
		is(t, d.settle(r), job.SettledNow, job.Succeeded)
		v := d.get(c.Job)
		if a := v.Attempts[0]; !strings.Contains(string(a.Result), `"a":"\ufffd \ufffd \\u0000 😀"`) && !strings.Contains(string(a.Result), `"a":"\ufffd \ufffd \\u0000 \ud83d\ude00"`) || a.CostUSD != nil {
			t.Errorf("%s %v", a.Result, a.CostUSD)
		}
	})
	t.Run("refuses endings that are not a worker's", func(t *testing.T) {
		c := d.running()
		for _, e := range []job.Ending{"", "exploded"} {
			_, err := d.Settle(t.Context(), []job.Report{ended(c, e)})
			wantIs(t, err, job.ErrInvalid)
		}
		is(t, d.settle(ended(c, job.EndDone)), job.SettledNow, job.Succeeded)
	})
	t.Run("of a dead worker's attempt, by its successor, counts as lost once", func(t *testing.T) {
		c := d.running()
		cost := job.USD(120_000)
		lost := ended(c, job.EndLost, started, func(r *job.Report) {
			r.IsError, r.CostUSD = true, &cost
			r.Usage = []job.ModelUsage{{Model: "m", InputTokens: 1, CostUSD: &cost}}
		})
		is(t, d.settle(lost), job.SettledNow, job.Failed)
		is(t, d.settle(lost), job.SettledBefore, job.Failed)
		if a := d.get(c.Job).Attempts[0]; a.Ending != job.EndLost || a.Late || a.CostUSD == nil || *a.CostUSD != cost || len(a.Usage) != 1 {
			t.Errorf("%+v", a)
		}
	})
	t.Run("of a turn that ended before the cancel keeps its result", func(t *testing.T) {
		c := d.running()
		if _, err := d.Cancel(t.Context(), c.Job, "me", ""); err != nil {
			t.Fatal(err)
		}
		is(t, d.settle(ended(c, job.EndDone, started)), job.SettledNow, job.Succeeded)
		_, err := d.Cancel(t.Context(), c.Job, "me", "")
		wantIs(t, err, job.ErrFinished)
	})
	t.Run("of a cancelled turn is final under any policy", func(t *testing.T) {
		c := d.running(func(r *job.Request) { r.Retry.Policy = job.RetryAlways })
		if _, err := d.Cancel(t.Context(), c.Job, "me", ""); err != nil {
			t.Fatal(err)
		}
		is(t, d.settle(ended(c, job.EndTimeout, touched)), job.SettledNow, job.Cancel)
	})
	t.Run("pauses the account of a limit and no other", func(t *testing.T) {
		account := func(name string) func(*job.Request) { return func(r *job.Request) { r.Account = name } }
		c := d.running(account("max"))
		same, other := d.enqueue(account("max")), d.enqueue(account("pro"))
		d.dispatch(100) // both dispatched
		reset := time.Now().Add(5 * time.Hour).Truncate(time.Second)
		is(t, d.settle(ended(c, job.EndLimited, started, func(r *job.Report) { r.RetryAfter = reset })), job.SettledNow, job.Queued)
		if got := ask[time.Time](d, `SELECT until FROM turnpike.pauses WHERE scope = 'account' AND name = 'max'`); !got.Equal(reset) {
			t.Errorf("paused until %v, want %v", got, reset)
		}
		if s := d.state(same); s != job.Queued {
			t.Errorf("dispatched for the same account: %s", s)
		}
		if s := d.state(other); s != job.Dispatched {
			t.Errorf("dispatched for another: %s", s)
		}
		if got := d.dispatch(100); len(got) != 0 {
			t.Errorf("selected %+v", got)
		}
		if n := ask[int](d, `SELECT count(*) FROM turnpike.queue WHERE account = 'max' AND parked = 'pause' AND tries_spent = 0`); n != 2 {
			t.Errorf("%d are parked unspent, want 2", n)
		}
		d.sql(`UPDATE turnpike.pauses SET until = now() WHERE name = 'max'`)
		d.due()
		if got := d.dispatch(100); len(got) != 2 {
			t.Errorf("selected %+v after the reset", got)
		}
	})
	t.Run("holds a refused credential until a person lifts it", func(t *testing.T) {
		c := d.running(func(r *job.Request) { r.Account = "broken" })
		is(t, d.settle(ended(c, job.EndCredential, started)), job.SettledNow, job.Queued)
		d.dispatch(10)
		d.due()
		if s := d.get(c.Job); s.State != job.Queued || s.Reason != "parked: pause" {
			t.Fatalf("%s %s", s.State, s.Reason)
		}
		if err := d.Lift(t.Context(), job.ScopeAccount, "broken", "me", "renewed"); err != nil {
			t.Fatal(err)
		}
		if got := d.dispatch(10); len(got) != 1 || got[0].Job != c.Job {
			t.Errorf("selected %+v", got)
		}
		d.settle(ended(d.claim(job.Selected{Delivery: job.Delivery{Job: c.Job, Dispatch: 2}})[0], job.EndDone))
	})
	t.Run("gives an overloaded attempt back five times", func(t *testing.T) {
		id := d.enqueue(func(r *job.Request) { r.Retry.MaxTries = 1 })
		for i := range 6 {
			want := job.Scheduled
			if i == 5 {
				want = job.Failed
			}
			is(t, d.settle(ended(d.run(id), job.EndOverloaded, started)), job.SettledNow, want)
			d.due()
		}
	})
	t.Run("continues a conversation where the policy says so", func(t *testing.T) {
		id := d.enqueue(func(r *job.Request) { r.Retry.Policy = job.RetryResume })
		find := func() job.Claimed { return d.run(id) }
		is(t, d.settle(ended(find(), job.EndTimeout, touched, func(r *job.Report) { r.Conversation, r.Resumable = "conv", true })), job.SettledNow, job.Scheduled)
		d.due()
		c := find()
		if c.Resume != "conv" || c.TriesSpent != 1 {
			t.Errorf("%+v", c)
		}
		// Nothing of this attempt: the conversation it was to continue stays.
		is(t, d.settle(ended(c, job.EndUnready)), job.SettledNow, job.Scheduled)
		d.due()
		if c = find(); c.Resume != "conv" || c.TriesSpent != 1 {
			t.Errorf("%+v", c)
		}
		d.settle(ended(c, job.EndDone))
	})
	t.Run("and the reaper agree in either order, and at once", func(t *testing.T) {
		for range 20 {
			c := d.running(func(r *job.Request) { r.Retry.Policy = job.RetryNever })
			d.lapse(c.Job)
			var wg sync.WaitGroup
			var s job.Settled
			var reaped []job.Reaped
			wg.Go(func() {
				got, err := d.Settle(t.Context(), []job.Report{ended(c, job.EndDone)})
				if err != nil {
					t.Error(err)
					return
				}
				s = got[0]
			})
			wg.Go(func() {
				var err error
				if reaped, err = d.Reap(t.Context(), d.epoch, later, 10); err != nil {
					t.Error(err)
				}
			})
			wg.Wait()
			state, how := job.Succeeded, job.SettledNow
			if len(reaped) > 0 {
				state, how = job.Failed, job.SettledLate
			}
			is(t, s, how, state)
			if v := d.get(c.Job); v.State != state || len(v.Attempts) != 1 {
				t.Errorf("%+v", v)
			}
		}
	})
	t.Run("of one report by two at once counts once", func(t *testing.T) {
		c := d.running()
		var wg sync.WaitGroup
		how := make([]job.SettleCase, 4)
		for i := range how {
			wg.Go(func() {
				got, err := d.Settle(t.Context(), []job.Report{ended(c, job.EndDone, func(r *job.Report) { r.CostUSD = &cost })})
				if err != nil {
					t.Error(err)
					return
				}
				how[i] = got[0].How
			})
		}
		wg.Wait()
		now := 0
		for _, h := range how {
			if h == job.SettledNow {
				now++
			} else if h != job.SettledBefore {
				t.Errorf("%q", h)
			}
		}
		if v := d.get(c.Job); now != 1 || *v.CostUSD != cost {
			t.Errorf("settled %d times, cost %v", now, v.CostUSD)
		}
	})
}

func TestReap(t *testing.T) {
	t.Parallel()
	d := open(t)
	t.Run("takes only what lapsed", func(t *testing.T) {
		a, b := d.running(), d.running()
		d.lapse(b.Job)
		got := d.reap()
		want := []job.Reaped{{Job: b.Job, Attempt: 1, Worker: worker, State: job.Scheduled}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if s := d.state(a.Job); s != job.Running {
			t.Errorf("the other is %s", s)
		}
	})
	t.Run("leaves what lapsed by a clock that jumped since it was asked", func(t *testing.T) {
		c := d.running()
		before := ask[time.Time](d, `SELECT now()`)
		d.sql(`UPDATE turnpike.queue SET lease_until = clock_timestamp() WHERE job_id = $1`, string(c.Job))
		if got, err := d.Reap(t.Context(), d.epoch, before, 10); err != nil || len(got) != 0 {
			t.Errorf("%+v, %v", got, err)
		}
		if got := d.reap(); len(got) != 1 || got[0].Job != c.Job {
			t.Errorf("%+v", got)
		}
	})
	t.Run("puts on record what may still run, and nothing where nothing was started", func(t *testing.T) {
		none, some := d.running(), d.running()
		d.beat(job.Beat{Lease: some.Lease, StartedAt: time.Now()})
		d.lapse(none.Job)
		d.lapse(some.Job)
		d.reap()
		left, err := d.OrphansLeft(t.Context())
		has := func(c job.Claimed) bool {
			return slices.ContainsFunc(left, func(o job.Orphan) bool { return o.Job == c.Job })
		}
		if err != nil || has(none) || !has(some) {
			t.Errorf("%+v, %v", left, err)
		}
	})
	t.Run("ends a job that crashed three workers", func(t *testing.T) {
		id := d.enqueue(func(r *job.Request) { r.Retry.Policy, r.Retry.MaxTries = job.RetryAlways, 20 })
		for i := range 3 {
			d.claim(d.dispatch(10)...)
			d.lapse(id)
			d.reap()
			if i < 2 {
				d.due()
			}
		}
		if v := d.get(id); v.State != job.Failed || v.Reason != "crashed" || len(v.Attempts) != 3 {
			t.Errorf("%+v", v)
		}
	})
	t.Run("frees the keys of what it ends", func(t *testing.T) {
		keyed := func(r *job.Request) {
			r.Retry.Policy, r.DedupKey, r.ConcurrencyKey = job.RetryNever, "once", "one at a time"
		}
		c := d.running(keyed)
		next := d.enqueue(key("one at a time"))
		if got := d.dispatch(10); len(got) != 0 {
			t.Fatalf("selected %+v while the key was taken", got)
		}
		d.lapse(c.Job)
		d.reap()
		if again := d.enqueue(keyed); again == c.Job {
			t.Error("the dedup key leads to a job that is over")
		}
		if got := ids(d.dispatch(10)); !slices.Equal(got, []job.ID{next}) {
			t.Errorf("selected %v, want %s, which waited for the key", got, next)
		}
	})
	t.Run("does not run again what may have done something", func(t *testing.T) {
		c := d.running()
		if _, err := d.Beat(t.Context(), worker, []job.Beat{{Lease: c.Lease, StartedAt: time.Now()}}); err != nil {
			t.Fatal(err)
		}
		d.lapse(c.Job)
		if got := d.reap(); got[0].State != job.Failed {
			t.Errorf("%+v", got)
		}
	})
	t.Run("honours a cancel", func(t *testing.T) {
		c := d.running()
		if _, err := d.Cancel(t.Context(), c.Job, "me", ""); err != nil {
			t.Fatal(err)
		}
		d.lapse(c.Job)
		if got := d.reap(); got[0].State != job.Cancel {
			t.Errorf("%+v", got)
		}
	})
	t.Run("is the leader's", func(t *testing.T) {
		_, err := d.Reap(t.Context(), d.epoch+1, later, 1)
		wantIs(t, err, job.ErrNotLeader)
	})
}

// TestFleetStaysHOT has many workers beat at once, as a fleet does: every beat of a lease
// is a HOT update and finds its lease, and the table does not grow by them.
func TestFleetStaysHOT(t *testing.T) {
	t.Parallel()
	const workers, leases, rounds = 50, 10, 4
	d := open(t)
	// in has a store of its own do something, and returns once the server was told of all
	// it did, with the updates and HOT updates of the queue so far.
	in := func(app string, do func(db *store.DB)) (updated, hot int64) {
		t.Helper()
		db, err := store.Open(t.Context(), store.Config{DSN: d.env.DSN(), LeaseLength: time.Hour, App: app, MaxConns: 4, CallTimeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		do(db)
		db.Close()
		for ask[int](d, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, app) > 0 {
			runtime.Gosched()
		}
		return ask[int64](d, `SELECT pg_stat_get_tuples_updated('turnpike.queue'::regclass)`), ask[int64](d, `SELECT pg_stat_get_tuples_hot_updated('turnpike.queue'::regclass)`)
	}
	name := func(w int) string { return fmt.Sprint("w", w) }
	fleet := make([][]job.Beat, workers)
	in("setup", func(db *store.DB) {
		entries := make([]job.Entry, workers*leases)
		for i := range entries {
			entries[i] = entry(t)
		}
		if _, err := db.Enqueue(t.Context(), entries); err != nil {
			t.Fatal(err)
		}
		selected, err := db.Select(t.Context(), d.epoch, lane, len(entries))
		if err != nil || len(selected) != len(entries) {
			t.Fatalf("%d jobs were selected, %v", len(selected), err)
		}
		for w := range fleet {
			var claims []job.Claim
			for _, s := range selected[w*leases : (w+1)*leases] {
				claims = append(claims, job.Claim{Job: s.Job, Dispatch: s.Dispatch, Token: job.NewToken()})
			}
			got, err := db.Claim(t.Context(), name(w), lane, claims)
			if err != nil || len(got) != leases {
				t.Fatalf("%d claims were granted, %v", len(got), err)
			}
			for _, c := range got {
				fleet[w] = append(fleet[w], job.Beat{Lease: c.Lease, StartedAt: time.Now(), Conversation: "c", Turns: 1})
			}
		}
	})
	// beat has every worker beat once a round, all at once. The dead versions go between
	// two rounds, as they do in the ten seconds between two beats.
	beat := func(db *store.DB, rounds int) {
		for range rounds {
			var all sync.WaitGroup
			for w, beats := range fleet {
				all.Go(func() {
					answers, err := db.Beat(t.Context(), name(w), beats)
					if err != nil {
						t.Error(err)
					}
					for _, a := range answers {
						if !a.Ours {
							t.Errorf("the lease of job %s is gone", a.Job)
						}
					}
				})
			}
			all.Wait()
			d.sql(`VACUUM turnpike.queue`)
		}
	}
	// A claim makes a row wider than it was: some move once, to where there is room.
	updated, hot := in("settling", func(db *store.DB) { beat(db, 3) })
	size := ask[int64](d, `SELECT pg_relation_size('turnpike.queue')`)
	beaten, stayed := in("fleet", func(db *store.DB) { beat(db, rounds) })
	// With an index in the way none would be HOT.
	if n, h := beaten-updated, stayed-hot; n != workers*leases*rounds || h < n*95/100 {
		t.Errorf("%d of %d updates were HOT, of %d beats", h, n, workers*leases*rounds)
	}
	if now := ask[int64](d, `SELECT pg_relation_size('turnpike.queue')`); now > size {
		t.Errorf("beats made the table grow from %d to %d bytes", size, now)
	}
}
