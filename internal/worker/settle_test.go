package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"turnpike/internal/job"
	"turnpike/internal/worker"
)

func reportOf(n int) job.Report {
	id := job.ID(fmt.Sprintf("00000000-0000-7000-8000-%012d", n))
	return job.Report{Version: job.ReportVersion, Lease: job.Lease{Job: id, Attempt: 1, Token: "t"}, Ending: job.EndDone, ResultText: fmt.Sprint(n)}
}

func TestSettler(t *testing.T) {
	type bench struct {
		*worker.Settler
		store *store
		state *worker.StateDir
		rig   *rig
	}
	inBubble := func(name string, story func(t *testing.T, b *bench)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 1)
				b := &bench{&worker.Settler{Reports: r.store, State: r.state, Log: quiet()}, r.store, r.state, r}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- b.Run(ctx) }()
				story(t, b)
				cancel()
				must(t, <-done)
			})
		})
	}
	inBubble("settles together what ends together", func(t *testing.T, b *bench) {
		calls := 0
		last := ""
		b.store.set(func() { b.store.refuse = func(r job.Report) error { calls++; last = r.ResultText; return nil } })
		for n := range 50 {
			must(t, b.Put(reportOf(n+1)))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if calls != 50 || last == "" || b.Count() != 0 {
			t.Errorf("%d reports seen, %d left", calls, b.Count())
		}
		b.rig.isEmpty(t)
	})
	inBubble("one report that Postgres will not take holds up no other", func(t *testing.T, b *bench) {
		b.store.set(func() {
			b.store.refuse = func(r job.Report) error {
				if r.Lease == reportOf(2).Lease {
					return errors.New("constraint")
				}
				return nil
			}
		})
		for n := range 3 {
			must(t, b.Put(reportOf(n+1)))
		}
		time.Sleep(time.Minute)
		if b.Count() != 1 || len(b.store.settled) != 2 || !b.Pending(reportOf(2).Lease.Job, 1) || len(b.rig.files(t, "rejected")) != 0 {
			t.Errorf("%d are left, %d settled", b.Count(), len(b.store.settled))
		}
		b.store.set(func() { b.store.refuse = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		b.rig.isEmpty(t)
	})
	inBubble("settles the least of what Postgres will not take, and sets the whole aside", func(t *testing.T, b *bench) {
		b.store.set(func() {
			b.store.refuse = func(r job.Report) error {
				if r.ResultText == "1" {
					return errors.New("value out of range")
				}
				return nil
			}
		})
		whole := reportOf(1)
		usd := job.USDFromFloat(0.25)
		whole.IsError, whole.Started, whole.ToolCalls, whole.CostUSD, whole.Reason = true, true, 7, &usd, "why"
		must(t, b.Put(whole))
		got := <-b.store.reported
		if got.Ending != whole.Ending || got.Reason != "why" || !got.IsError || !got.Started || got.ToolCalls != 7 || got.CostUSD.String() != "0.25" || got.ResultText != "" || len(got.Notes) != 1 {
			t.Errorf("settled %+v", got)
		}
		synctest.Wait()
		if files := b.rig.files(t, "rejected"); len(files) != 1 || b.Count() != 0 || len(b.rig.files(t, "spool")) != 0 {
			t.Errorf("rejected %v, %d left", files, b.Count())
		}
	})
	inBubble("settles the least of what cannot be written", func(t *testing.T, b *bench) {
		r := reportOf(1)
		r.Result, r.RetryAfter = json.RawMessage("{"), time.Unix(1<<50, 0)
		must(t, b.Put(r))
		if got := <-b.store.reported; got.Ending != r.Ending || got.RetryAfter.Year() != 9999 || len(got.Notes) != 1 {
			t.Errorf("settled %+v", got)
		}
		synctest.Wait()
		b.rig.isEmpty(t)
	})
	inBubble("sets aside what Postgres does not know", func(t *testing.T, b *bench) {
		b.store.set(func() { b.store.unknown[reportOf(1).Lease.Job] = true })
		must(t, b.Put(reportOf(1)))
		time.Sleep(time.Second)
		synctest.Wait()
		if files := b.rig.files(t, "rejected"); len(files) != 1 || b.Count() != 0 {
			t.Errorf("rejected %v, %d left", files, b.Count())
		}
	})
	inBubble("sets aside what Postgres will never take", func(t *testing.T, b *bench) {
		b.store.set(func() {
			b.store.refuse = func(r job.Report) error {
				if r.ResultText == "1" {
					return &job.FieldError{Field: "ending", Problem: "is none"}
				}
				return nil
			}
		})
		must(t, b.Put(reportOf(1)))
		must(t, b.Put(reportOf(2)))
		time.Sleep(time.Second)
		synctest.Wait()
		if files := b.rig.files(t, "rejected"); len(files) != 1 || b.Count() != 0 || len(b.store.settled) != 1 {
			t.Errorf("rejected %v, %d left, %d settled", files, b.Count(), len(b.store.settled))
		}
	})
	inBubble("replays, and sets aside what cannot be read", func(t *testing.T, b *bench) {
		dir := filepath.Join(b.state.Path(), "spool")
		good, err := json.Marshal(reportOf(1))
		must(t, err)
		newer, err := json.Marshal(job.Report{Version: 99, Lease: reportOf(5).Lease, Ending: job.EndDone})
		must(t, err)
		name := func(n int) string { return string(reportOf(n).Lease.Job) + ".1.json" }
		for file, text := range map[string]string{
			name(1): string(good), name(2): string(good), name(3): `{"version":1,`, name(4): "", name(5): string(newer), "notes.txt": "x",
		} {
			must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
		}
		must(t, os.Mkdir(filepath.Join(dir, name(6)), 0o700))
		never := 0
		b.Settled = func(s job.Settled) {
			if s.How == job.SettledNever {
				never++
			}
		}
		must(t, b.Replay())
		time.Sleep(time.Second)
		synctest.Wait()
		if never != 4 {
			t.Errorf("told of %d that will never be settled, want 4", never)
		}
		if len(b.store.settled) != 1 || len(b.rig.files(t, "spool")) != 0 || len(b.rig.files(t, "rejected")) != 6 {
			t.Errorf("settled %d, spool %v, rejected %v", len(b.store.settled), b.rig.files(t, "spool"), b.rig.files(t, "rejected"))
		}
	})
	inBubble("settles what the disk would not take", func(t *testing.T, b *bench) {
		dirs := []string{filepath.Join(b.state.Path(), "journal"), filepath.Join(b.state.Path(), "spool")}
		for _, dir := range dirs {
			must(t, os.RemoveAll(dir))
		}
		b.store.set(func() { b.store.away = true })
		if err := b.Put(reportOf(1)); err == nil {
			t.Error("want to hear that it is not durable")
		}
		time.Sleep(time.Minute)
		b.store.set(func() { b.store.away = false })
		if rep := <-b.store.reported; rep.ResultText != "1" {
			t.Errorf("got %+v", rep)
		}
		for _, dir := range dirs {
			must(t, os.Mkdir(dir, 0o700))
		}
	})
	inBubble("takes a report that was not settled at once out of the journal", func(t *testing.T, b *bench) {
		b.store.set(func() { b.store.away = true })
		must(t, b.Put(reportOf(1)))
		if files := b.rig.files(t, "spool"); len(files) != 0 {
			t.Errorf("the spool holds %v before anything was tried", files)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if files := b.rig.files(t, "spool"); len(files) != 1 {
			t.Errorf("the spool holds %v", files)
		}
		b.store.set(func() { b.store.away = false })
		<-b.store.reported
		synctest.Wait()
		b.rig.isEmpty(t)
	})
	inBubble("settling again changes nothing", func(t *testing.T, b *bench) {
		must(t, b.Put(reportOf(1)))
		<-b.store.reported
		must(t, b.Put(reportOf(1)))
		time.Sleep(time.Second)
		synctest.Wait()
		if len(b.store.reported) != 0 {
			t.Error("it was settled twice")
		}
		b.rig.isEmpty(t)
	})
}

func TestStateDir(t *testing.T) {
	t.Run("is one worker's alone", func(t *testing.T) {
		dir := t.TempDir()
		s, err := worker.OpenStateDir(dir)
		must(t, err)
		if _, err := worker.OpenStateDir(dir); !errors.Is(err, worker.ErrLocked) {
			t.Errorf("got %v", err)
		}
		must(t, s.Close())
		again, err := worker.OpenStateDir(dir)
		must(t, err)
		defer again.Close()
		if s.ID() != again.ID() || len(s.ID()) != 32 {
			t.Errorf("ids %q and %q", s.ID(), again.ID())
		}
	})
	t.Run("forgets half-written files", func(t *testing.T) {
		dir := t.TempDir()
		s, err := worker.OpenStateDir(dir)
		must(t, err)
		must(t, s.Close())
		must(t, os.WriteFile(filepath.Join(dir, "spool", ".unfinished-1"), []byte("{"), 0o600))
		s, err = worker.OpenStateDir(dir)
		must(t, err)
		defer s.Close()
		if entries, err := os.ReadDir(filepath.Join(dir, "spool")); err != nil || len(entries) != 0 {
			t.Errorf("%v, %v", entries, err)
		}
	})
}

// sweeper notes when it is asked to sweep.
type sweeper chan time.Time

func (s sweeper) Sweep(_ context.Context, now time.Time) error { s <- now; return nil }

func TestRetention(t *testing.T) {
	r := newRig(t, 1)
	root := r.state.Sessions()
	mk := func(name string, age time.Duration) string {
		dir := filepath.Join(root, name)
		must(t, os.Mkdir(dir, 0o700))
		at := time.Now().Add(-age)
		must(t, os.Chtimes(dir, at, at))
		return dir
	}
	running := string(reportOf(7).Lease.Job) + ".1"
	old, busy, fresh, second := mk("old-1", 100*time.Hour), mk(running+"-abc", 100*time.Hour), mk("fresh-1", time.Hour), mk("second-1", 2*time.Hour)
	must(t, os.WriteFile(filepath.Join(r.state.Path(), "rejected", "x"), nil, 0o600))
	ret := worker.Retention{
		SessionAge: 10 * time.Hour, SessionBytes: 150, RejectedAge: time.Nanosecond, Turns: r.pool.Turns, Log: quiet(),
		InUse: func(id job.ID, attempt int) bool { return id == reportOf(7).Lease.Job && attempt == 1 },
	}
	swept := make(sweeper, 1)
	ret.Workspaces = swept
	must(t, ret.Sweep(t.Context(), time.Now().Add(time.Minute)))
	if len(swept) != 1 {
		t.Error("workspaces were not swept")
	}
	for dir, want := range map[string]bool{old: false, busy: true, fresh: true, second: false} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: kept is %v, want %v", strings.TrimPrefix(dir, root), err == nil, want)
		}
	}
	if files := r.files(t, "rejected"); len(files) != 0 {
		t.Errorf("rejected holds %v", files)
	}
}
