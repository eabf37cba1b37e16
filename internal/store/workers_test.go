package store_test

import (
	"encoding/json"
	"testing"
	"time"

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

func TestAbandon(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	d := open(t)
	register := func(id, host, dir string) {
		t.Helper()
		if err := d.Register(t.Context(), job.WorkerInfo{ID: id, Host: host, StateDir: dir, Lanes: []job.LaneSlots{{Lane: lane}}}); err != nil {
			t.Fatal(err)
		}
	}
	register(worker, "h1", "dir-1")
	c := d.running()
	d.sql(`UPDATE turnpike.queue SET started_at = now()`)
	d.lapse(c.Job)
	d.reap() // leaves an orphan
	at := func(back time.Duration) {
		t.Helper()
		d.sql(`UPDATE turnpike.orphans SET created_at = now() - $1::interval`, back)
		d.sql(`UPDATE turnpike.workers SET seen_at = now() - $1::interval WHERE id = $2`, back, worker)
	}
	abandoned := func(after time.Duration) int {
		t.Helper()
		n, err := d.Abandon(t.Context(), d.epoch, after, 10)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := abandoned(day); n != 0 {
		t.Errorf("%d were given up at once", n)
	}
	at(25 * time.Hour)
	for what, seen := range map[string][3]string{
		"another worker of its host":            {"h1:2:2", "h1", "dir-2"},
		"a worker with its state directory":     {"h2:1:1", "h2", "dir-1"},
		"its worker, after it was not for long": {worker, "h1", "dir-1"},
	} {
		register(seen[0], seen[1], seen[2])
		if n := abandoned(day); n != 0 {
			t.Errorf("given up although %s was seen", what)
		}
		d.sql(`DELETE FROM turnpike.workers WHERE id <> $1`, worker)
		at(25 * time.Hour)
	}
	register("h3:1:1", "h3", "dir-3") // somebody else's
	d.sql(`DELETE FROM turnpike.workers WHERE id = $1`, worker)
	if n := abandoned(26 * time.Hour); n != 0 {
		t.Errorf("%d were given up too early", n)
	}
	if n := abandoned(day); n != 1 {
		t.Errorf("%d were given up, want 1", n)
	}
	if n := abandoned(day); n != 0 {
		t.Errorf("%d were given up again", n)
	}
	left, err := d.OrphansLeft(t.Context())
	if err != nil || len(left) != 1 || left[0].State != job.OrphanUnreachable || left[0].Host != "h1" || left[0].Note != "its host was not seen for 24:00:00" {
		t.Errorf("left %+v, %v", left, err)
	}
	if n := ask[int](d, `SELECT count(*) FROM turnpike.v_orphans WHERE abandoned_at IS NOT NULL AND host = 'h1'`); n != 1 {
		t.Errorf("%d in the view", n)
	}
	want := "what attempt 1 left (process) is on host h1 of worker host:1:1, which was not seen for 24:00:00"
	if got := ask[string](d, `SELECT note FROM turnpike.events WHERE job_id = $1 AND what = 'unreachable'`, string(c.Job)); got != want {
		t.Errorf("event %q, want %q", got, want)
	}

	// It came back after all and cannot end it: that is somebody's business again.
	o := job.Orphan{Job: c.Job, Attempt: 1, Kind: "process", Worker: worker, State: job.OrphanUnreachable, StoppedBy: "h1:9:9", Note: "permission denied"}
	if err := d.RecordOrphan(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if ask[bool](d, `SELECT abandoned_at IS NOT NULL FROM turnpike.orphans`) {
		t.Error("given up although a worker looked")
	}
	if n := abandoned(day); n != 1 {
		t.Errorf("%d were given up when it went away again", n)
	}
	o.State, o.Note = job.OrphanGone, "had ended with its worker"
	if err := d.RecordOrphan(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if left, err = d.OrphansLeft(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("left %+v, %v", left, err)
	}
	_, err = d.Abandon(t.Context(), d.epoch+1, day, 10)
	wantIs(t, err, job.ErrNotLeader)
}
