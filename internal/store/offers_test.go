package store_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
	"turnpike/internal/store"
)

func TestOffered(t *testing.T) {
	t.Parallel()
	d := open(t)
	offered := func(name string, since time.Time, n int) job.Offered {
		t.Helper()
		got, err := d.Offered(t.Context(), name, lane, since, n)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := offered("w1", time.Time{}, 3); len(got.Jobs) != 0 || !got.All || got.AsOf.IsZero() {
		t.Errorf("of nothing: %+v", got)
	}
	for range 20 {
		d.enqueue()
	}
	d.enqueue(func(r *job.Request) { r.Pool = "other" })
	selected := d.dispatch(10)
	want := map[job.ID]int{}
	for _, s := range selected {
		want[s.Job] = s.Dispatch
	}
	all := offered("w1", time.Time{}, 100)
	for _, o := range all.Jobs {
		if want[o.Job] != o.Dispatch || o.Lane != lane || o.At.IsZero() {
			t.Errorf("offer %+v", o)
		}
	}
	if len(all.Jobs) != 10 || !all.All {
		t.Errorf("%d offers, all %v", len(all.Jobs), all.All)
	}
	few := offered("w1", time.Time{}, 4)
	if len(few.Jobs) != 4 || few.All {
		t.Errorf("%d offers, all %v", len(few.Jobs), few.All)
	}
	ids := func(o job.Offered) (l []job.ID) {
		for _, j := range o.Jobs {
			l = append(l, j.Job)
		}
		return l
	}
	if !slices.Equal(ids(few), ids(all)[:4]) {
		t.Error("a worker's order changes")
	}
	if slices.Equal(ids(offered("w2", time.Time{}, 100)), ids(all)) {
		t.Error("two workers have one order")
	}
	d.claim(selected[:3]...)
	if got := offered("w1", time.Time{}, 100); len(got.Jobs) != 7 {
		t.Errorf("%d offers after 3 claims", len(got.Jobs))
	}
	if got := offered("w1", all.AsOf, 100); len(got.Jobs) != 0 || !got.All {
		t.Errorf("%d offers since then", len(got.Jobs))
	}
	if got := offered("w1", few.Jobs[0].At, 100); len(got.Jobs) != 7 {
		t.Errorf("%d offers since they were dispatched", len(got.Jobs))
	}

	// Whatever waits and runs, a look reads what was dispatched lately.
	for range 3 {
		var entries []job.Entry
		for range 400 {
			entries = append(entries, entry(t))
		}
		if _, err := d.Enqueue(t.Context(), entries); err != nil {
			t.Fatal(err)
		}
	}
	d.sql(`ANALYZE turnpike.queue`)
	rows, err := d.pool.Query(t.Context(), "EXPLAIN "+store.OfferedSQL,
		pgx.NamedArgs{"lane": lane.String(), "since": time.Now().Add(-time.Minute), "window": 500, "salt": 7, "most": 4})
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if plan := strings.Join(lines, "\n"); strings.Contains(plan, "Seq Scan") || !strings.Contains(plan, "queue_live") {
		t.Errorf("a look does not go by its index:\n%s", plan)
	}
}
