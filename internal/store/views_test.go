package store_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
	"turnpike/internal/work"
)

func TestListAndReport(t *testing.T) {
	t.Parallel()
	d := open(t)
	cost := func(c int64) func(*job.Report) {
		return func(r *job.Report) {
			u := job.USD(c)
			r.CostUSD, r.NumTurns, r.DurationMS, r.Model = &u, 2, 1000, "opus"
		}
	}
	a := d.running(tenant("acme"), func(r *job.Request) { r.Name, r.Work = "alpha", work.Ref{Key: "W1"} })
	d.settle(ended(a, job.EndDone, touched, cost(1_500_000)))
	b := d.running(tenant("acme"))
	d.settle(ended(b, job.EndOverloaded, started, func(r *job.Report) { // unpriced
		guess := job.USD(300_000)
		r.Usage = []job.ModelUsage{{Model: "m", InputTokens: 7, EstimatedUSD: &guess}}
		r.Notes = []string{"the cap had no effect"}
	}))
	d.due()
	d.settle(ended(d.run(b.Job), job.EndCapped, touched, cost(500_000)))
	c := d.running(tenant("other"))
	d.settle(ended(c, job.EndUnready)) // nothing started: nothing to price
	if _, err := d.Cancel(t.Context(), c.Job, "me", ""); err != nil {
		t.Fatal(err)
	}
	e := d.running(tenant("other"))
	f := d.enqueue(func(r *job.Request) { r.RunAt = time.Now().Add(time.Hour) })

	t.Run("list", func(t *testing.T) {
		for what, c := range map[string]struct {
			filter job.Filter
			want   []job.ID
		}{
			"everything, the newest first": {job.Filter{}, []job.ID{f, e.Job, c.Job, b.Job, a.Job}},
			"limit":                        {job.Filter{Limit: 2}, []job.ID{f, e.Job}},
			"before":                       {job.Filter{Before: e.Job, Limit: 2}, []job.ID{c.Job, b.Job}},
			"tenant":                       {job.Filter{Tenant: "acme"}, []job.ID{b.Job, a.Job}},
			"name":                         {job.Filter{Name: "alpha"}, []job.ID{a.Job}},
			"work":                         {job.Filter{WorkKey: "W1"}, []job.ID{a.Job}},
			"pool":                         {job.Filter{Pool: "none such"}, nil},
			"final states":                 {job.Filter{States: []job.State{job.Failed, job.Cancel}}, []job.ID{c.Job, b.Job}},
			"unfinished states":            {job.Filter{States: []job.State{job.Running, job.Scheduled}}, []job.ID{f, e.Job}},
			"both":                         {job.Filter{States: []job.State{job.Running, job.Succeeded}}, []job.ID{e.Job, a.Job}},
		} {
			got, err := d.List(t.Context(), c.filter)
			if err != nil {
				t.Fatal(err)
			}
			var l []job.ID
			for _, s := range got {
				l = append(l, s.ID)
			}
			if !slices.Equal(l, c.want) {
				t.Errorf("%s: got %v, want %v", what, l, c.want)
			}
		}
	})
	t.Run("get sums what is known over the attempts", func(t *testing.T) {
		v := d.get(b.Job)
		if len(v.Attempts) != 2 || v.CostUSD == nil || *v.CostUSD != 500_000 || v.Attempts[0].CostUSD != nil || v.Attempt != 2 || v.Reason != "capped" {
			t.Errorf("%+v", v)
		}
		if v.EstimatedUSD == nil || *v.EstimatedUSD != 300_000 {
			t.Errorf("estimated at %v, want 0.30 apart from what is known", v.EstimatedUSD)
		}
		if u := v.Attempts[0].Usage; len(u) != 1 || u[0].CostUSD != nil || u[0].EstimatedUSD == nil || *u[0].EstimatedUSD != 300_000 {
			t.Errorf("usage %+v", u)
		}
		events := slices.SortedFunc(slices.Values(v.Events), func(a, b job.EventView) int { return strings.Compare(a.What, b.What) })
		if len(events) != 2 || events[0].What != "given back" || events[1].What != "note" || events[1].Note != "attempt 1: the cap had no effect" {
			t.Errorf("events %+v", v.Events)
		}
		if v := d.get(c.Job); v.CostUSD != nil || v.EstimatedUSD != nil {
			t.Errorf("a cost of nothing: %v, estimated at %v", v.CostUSD, v.EstimatedUSD)
		}
	})
	t.Run("report", func(t *testing.T) {
		usd := func(c int64) *job.USD { u := job.USD(c); return &u }
		for by, want := range map[string][]job.ReportRow{
			"tenant": {
				{Key: "acme", Jobs: 2, Succeeded: 1, Failed: 1, Attempts: 3, CostUSD: usd(2_000_000), EstimatedUSD: usd(300_000), Unpriced: 1, Turns: 4, DurationMS: 2000},
				{Key: "default", Jobs: 1},
				{Key: "other", Jobs: 2, Cancelled: 1, Attempts: 1},
			},
			"agent": {{Key: "claude", Jobs: 5, Succeeded: 1, Failed: 1, Cancelled: 1, Attempts: 4, CostUSD: usd(2_000_000), EstimatedUSD: usd(300_000), Unpriced: 1, Turns: 4, DurationMS: 2000}},
		} {
			got, err := d.Report(t.Context(), by, time.Now().Add(-time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("by %s (-want +got):\n%s", by, diff)
			}
		}
		for _, by := range []string{"model", "pool", "name", "day"} {
			if got, err := d.Report(t.Context(), by, time.Time{}); err != nil || len(got) == 0 {
				t.Errorf("by %s: %v, %v", by, got, err)
			}
		}
		if got, err := d.Report(t.Context(), "tenant", time.Now().Add(time.Hour)); err != nil || len(got) != 0 {
			t.Errorf("since the future: %v, %v", got, err)
		}
		_, err := d.Report(t.Context(), "prompt", time.Time{})
		wantIs(t, err, job.ErrInvalid)
	})
	t.Run("views agree", func(t *testing.T) {
		if got := ask[string](d, `SELECT string_agg(state || ' ' || coalesce(cost_usd::text, '-') || ' ' || unpriced_attempts, ', ' ORDER BY job_id) FROM turnpike.v_jobs`); got !=
			"succeeded 1.500000 0, failed 0.500000 1, cancelled - 0, running - 0, scheduled - 0" {
			t.Error(got)
		}
	})
	t.Run("estimates stand apart, by attempt", func(t *testing.T) {
		if got := ask[string](d, `SELECT string_agg(attempt || ' ' || coalesce(cost_usd::text, '-') || ' ' || coalesce(estimated_usd::text, '-'), ', ' ORDER BY attempt)
			FROM turnpike.v_attempts WHERE job_id = $1`, string(b.Job)); got != "1 - 0.300000, 2 0.500000 -" {
			t.Error(got)
		}
	})
	t.Run("get of nothing", func(t *testing.T) {
		_, err := d.Get(t.Context(), "0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11")
		wantIs(t, err, job.ErrNotFound)
	})
}

// The page on reporting has what the views have, and its queries run as they are there,
// with a reporter's rights.
func TestReportingPage(t *testing.T) {
	t.Parallel()
	d := open(t)
	page, err := os.ReadFile("../../docs/reporting.md")
	if err != nil {
		t.Fatal(err)
	}
	reporter, err := pgx.Connect(t.Context(), d.env.Login(t, "turnpike_reporter"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reporter.Close(t.Context()) })
	ran := 0
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if !strings.HasPrefix(block[1], "SELECT") {
			continue
		}
		ran++
		if _, err := reporter.Exec(t.Context(), block[1]); err != nil {
			t.Errorf("%v:\n%s", err, block[1])
		}
	}
	if ran < 8 {
		t.Errorf("%d queries were found", ran)
	}
	told := map[string]string{} // of each view
	for _, section := range strings.Split(string(page), "\n### `")[1:] {
		view, text, _ := strings.Cut(section, "`")
		told[view], _, _ = strings.Cut(text, "\n## ")
	}
	for _, column := range names(d, `SELECT c.relname || '.' || a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE c.relnamespace = 'turnpike'::regnamespace AND c.relkind = 'v' AND a.attnum > 0`) {
		view, name, _ := strings.Cut(column, ".")
		if !strings.Contains(told[view], "`"+name+"`") {
			t.Errorf("%s is not told", column)
		}
	}
}
