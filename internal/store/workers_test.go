package store_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"turnpike/internal/job"
	"turnpike/internal/store"
)

func TestRegister(t *testing.T) {
	t.Parallel()
	d := open(t)
	info := func(id, ceiling string) job.WorkerInfo {
		return job.WorkerInfo{ID: id, Host: "h", Ceiling: ceiling, StateDir: "dir", Lanes: []job.LaneSlots{{Lane: lane, Slots: 1, Free: 1}}}
	}
	register := func(w job.WorkerInfo) error { return d.Register(t.Context(), w) }
	if err := register(info("a", "one")); err != nil {
		t.Fatal(err)
	}
	if err := register(info("b", "one")); err != nil {
		t.Fatal(err)
	}
	wantIs(t, register(info("c", "two")), job.ErrCeiling)
	// Another pool's ceiling is its own.
	other := info("d", "two")
	other.Lanes[0].Lane.Pool = "other"
	if err := register(other); err != nil {
		t.Fatal(err)
	}
	// Draining, or not seen for a while, it has no say any more.
	draining := info("a", "one")
	draining.Draining = true
	if err := d.Seen(t.Context(), draining); err != nil {
		t.Fatal(err)
	}
	wantIs(t, register(info("c", "two")), job.ErrCeiling)
	d.sql(`UPDATE turnpike.workers SET seen_at = now() - interval '1 minute' WHERE id = 'b'`)
	if err := register(info("c", "two")); err != nil {
		t.Fatal(err)
	}
	wantIs(t, d.Seen(t.Context(), info("b", "one")), job.ErrCeiling) // it comes back to a changed pool
	// One that was forgotten is known again.
	d.sql(`DELETE FROM turnpike.workers`)
	if err := d.Seen(t.Context(), info("c", "two")); err != nil {
		t.Fatal(err)
	}
	if n := ask[int](d, `SELECT count(*) FROM turnpike.v_workers WHERE alive AND free = 1`); n != 1 {
		t.Errorf("%d workers", n)
	}
}

func TestOrphans(t *testing.T) {
	t.Parallel()
	d := open(t)
	if err := d.Register(t.Context(), job.WorkerInfo{ID: worker, StateDir: "dir-1", Lanes: []job.LaneSlots{{Lane: lane}}}); err != nil {
		t.Fatal(err)
	}
	c := d.running()
	o := job.Orphan{Job: c.Job, Attempt: 1, Kind: "process", Worker: worker, State: job.OrphanLive, Identity: json.RawMessage(`{"pid": 7, "x": "\u0000"}`)}
	if err := d.RecordOrphan(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	o.State, o.Note, o.Turns = job.OrphanUnreachable, "host is gone", 3
	if err := d.RecordOrphan(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	list := func(f store.OrphanFilter) []job.Orphan {
		t.Helper()
		got, err := d.Orphans(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for what, f := range map[string]store.OrphanFilter{
		"all": {}, "by worker": {Worker: worker}, "by directory": {StateDir: "dir-1"}, "by state": {States: []job.OrphanState{job.OrphanUnreachable}},
	} {
		if diff := cmp.Diff([]job.Orphan{o}, list(f), cmpopts.IgnoreFields(job.Orphan{}, "Identity")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	for what, f := range map[string]store.OrphanFilter{
		"another worker": {Worker: "x"}, "another directory": {StateDir: "x"}, "another state": {States: []job.OrphanState{job.OrphanGone}},
	} {
		if got := list(f); len(got) != 0 {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if err := d.CloseOrphan(t.Context(), job.Orphan{Job: c.Job, Attempt: 1, Kind: "process"}, "me", "killed"); err != nil {
		t.Fatal(err)
	}
	if err := d.RecordOrphan(t.Context(), o); err != nil { // what is gone stays gone
		t.Fatal(err)
	}
	if got := list(store.OrphanFilter{}); got[0].State != job.OrphanGone || got[0].StoppedBy != "me" || got[0].Note != "killed" {
		t.Errorf("%+v", got)
	}
	if n := ask[int](d, `SELECT count(*) FROM turnpike.v_orphans WHERE state = 'creating' AND kind = 'process'`); n != 1 {
		t.Errorf("%d records of what runs now", n)
	}
}
