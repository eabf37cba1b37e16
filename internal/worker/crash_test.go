package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/job"
	"turnpike/internal/worker"
)

// bench is what the test's fake can use of testing.TB in a process of its own.
type bench struct{ testing.TB }

func (bench) Helper()         {}
func (bench) Fatal(a ...any)  { fmt.Fprintln(os.Stderr, a...); os.Exit(3) }
func (bench) Cleanup(func())  {}
func (bench) TempDir() string { return os.Getenv("WORKER_TEST_CRASH_DIR") }

// crash is a worker in a process of its own that kills itself at a point.
func crash(dir, point string) {
	t := bench{}
	state, err := worker.OpenStateDir(filepath.Join(dir, "state"))
	must(t, err)
	r := rigIn(t, dir, state, 1)
	r.pool.Turns.Hooks = worker.Hooks{At: func(p worker.Point) {
		if string(p) == point {
			b, err := json.Marshal(r.store.leases)
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, "leases"), b, 0o600))
			must(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
			select {}
		}
	}}
	r.stream.push(r.store.add(1, plain()))
	r.runs.finish <- &agent.Result{ResultText: "the result", CostKnown: true, CostUSD: 1}
	if err := r.pool.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// TestCrash kills a worker at every point of an attempt's life and has another one
// start in its state directory: nothing that was known is lost, nothing is left
// running, and nothing is told twice.
func TestCrash(t *testing.T) {
	for _, point := range worker.Points() {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
			cmd.Env = append(os.Environ(), "WORKER_TEST_CRASH_DIR="+dir, "WORKER_TEST_CRASH_POINT="+string(point))
			out, err := cmd.CombinedOutput()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.String() != "signal: killed" {
				t.Fatalf("it ended with %v: %s", err, out)
			}

			state, err := worker.OpenStateDir(filepath.Join(dir, "state"))
			must(t, err)
			defer state.Close()
			r := rigIn(t, dir, state, 1)
			b, err := os.ReadFile(filepath.Join(dir, "leases"))
			must(t, err)
			must(t, json.Unmarshal(b, &r.store.leases))
			var ended []agent.Identity
			r.pool.Turns.End = func(_ context.Context, id agent.Identity) (bool, error) {
				ended = append(ended, id)
				return true, nil
			}
			past := worker.Past{
				StartedAt: time.Now().Add(-time.Minute), Progress: agent.Progress{CostUSD: 0.5, CostKnown: true, Conversation: "conv"},
				Interrupted: agent.Interrupted{Transcript: "t.jsonl", Turns: 4},
			}
			if point == worker.AfterMark {
				past = worker.Past{} // its session directory is empty
			}
			r.pool.Turns.Sessions = sessions{root: state.Sessions(), past: past}
			stop := r.serve(t)
			reports := map[worker.Point]struct {
				ending job.Ending
				cost   string
				ended  bool
			}{
				worker.AfterClaim:  {},                       // nothing is known here: the reaper closes the attempt
				worker.AfterMark:   {job.EndLost, "", false}, // nothing was started
				worker.AfterStart:  {job.EndLost, "0.50", true},
				worker.AfterTurn:   {job.EndLost, "0.50", false},
				worker.BeforeSpool: {job.EndLost, "0.50", false},
				worker.AfterSpool:  {job.EndDone, "1.00", false},
				worker.AfterSettle: {job.EndDone, "1.00", false},
			}
			want := reports[point]
			if want.ending != "" {
				rep := <-r.store.reported
				cost := "" // unknown
				if rep.CostUSD != nil {
					cost = rep.CostUSD.String()
				}
				if rep.Ending != want.ending || cost != want.cost || rep.Started == (point == worker.AfterMark) {
					t.Errorf("reported %s at a cost of %q, started %v: %s", rep.Ending, cost, rep.Started, rep.Reason)
				}
				if rep.Ending == job.EndDone && rep.ResultText != "the result" {
					t.Errorf("the result is lost: %+v", rep)
				}
			}
			must(t, stop())
			if (len(ended) > 0) != want.ended {
				t.Errorf("ended %v", ended)
			}
			if want.ended {
				o := r.store.orphans[0]
				if o.State != job.OrphanGone || o.StoppedBy != "w1" || !strings.Contains(o.Note, "killed") || o.Transcript != "t.jsonl" || o.Turns != 4 {
					t.Errorf("recorded %+v", o)
				}
			}
			if len(r.store.reported) != 0 {
				t.Error("more than one report")
			}
			r.isEmpty(t)
		})
	}
}

func TestRecovery(t *testing.T) {
	// leave makes the state of a worker that died while a turn ran.
	leave := func(t *testing.T) (*rig, *worker.Recovery) {
		dir := t.TempDir()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), "WORKER_TEST_CRASH_DIR="+dir, "WORKER_TEST_CRASH_POINT="+string(worker.AfterStart))
		if err := cmd.Run(); err == nil {
			t.Fatal("it did not die")
		}
		state, err := worker.OpenStateDir(filepath.Join(dir, "state"))
		must(t, err)
		t.Cleanup(func() { state.Close() })
		r := rigIn(t, dir, state, 1)
		return r, &worker.Recovery{
			State: state, Worker: "w2", Host: "h1", Sessions: sessions{root: state.Sessions()}, Orphans: r.store, Log: quiet(),
			End: func(context.Context, agent.Identity) (bool, error) { return true, nil },
		}
	}
	t.Run("keeps the mark of what cannot be ended, and reports once", func(t *testing.T) {
		r, rec := leave(t)
		var reports []job.Report
		rec.Put = func(rep job.Report) error { reports = append(reports, rep); return nil }
		rec.End = func(context.Context, agent.Identity) (bool, error) { return false, errors.New("permission denied") }
		for range 2 {
			if err := rec.Run(t.Context()); err == nil {
				t.Error("want to hear of it")
			}
		}
		if len(reports) != 1 || r.store.orphans[0].State != job.OrphanUnreachable {
			t.Errorf("%d reports, orphans %+v", len(reports), r.store.orphans)
		}
		if left := reports[0].Left; len(left) != 1 || left[0].State != job.OrphanUnreachable {
			t.Errorf("the report says that it left %+v", left)
		}
		rec.End = func(context.Context, agent.Identity) (bool, error) { return false, nil }
		must(t, rec.Run(t.Context()))
		if last := r.store.orphans[len(r.store.orphans)-1]; last.State != job.OrphanGone || len(reports) != 1 {
			t.Errorf("%d reports, last orphan %+v", len(reports), last)
		}
		r.isEmpty(t)
	})
	t.Run("sends the orphans with the report while Postgres is away", func(t *testing.T) {
		r, rec := leave(t)
		r.store.away = true
		var rep job.Report
		rec.Put = func(got job.Report) error { rep = got; return nil }
		must(t, rec.Run(t.Context()))
		if len(rep.Left) != 1 || rep.Left[0].State != job.OrphanGone {
			t.Errorf("reported %+v", rep.Left)
		}
	})
	t.Run("reports the result of a turn that had ended", func(t *testing.T) {
		_, rec := leave(t)
		var rep job.Report
		rec.Put = func(got job.Report) error { rep = got; return nil }
		rec.Sessions = sessions{past: worker.Past{Result: &agent.Result{ResultText: "whole", StartedAt: time.Now()}}}
		must(t, rec.Run(t.Context()))
		if rep.Ending != job.EndDone || rep.ResultText != "whole" {
			t.Errorf("reported %+v", rep)
		}
	})
	t.Run("goes on past a mark that cannot be read, and leaves it", func(t *testing.T) {
		r, rec := leave(t)
		rec.Put = func(job.Report) error { return nil }
		broken := filepath.Join(r.state.Path(), "marks", "broken.json")
		must(t, os.WriteFile(broken, []byte("{"), 0o600))
		if err := rec.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "broken.json") {
			t.Errorf("got %v", err)
		}
		if files := r.files(t, "marks"); len(files) != 1 {
			t.Errorf("marks holds %v", files)
		}
	})
}

func TestRunLocal(t *testing.T) {
	local := func(t *testing.T) (*rig, *worker.Turns) {
		r := newRig(t, 1)
		return r, r.pool.Turns
	}
	t.Run("gives the result and leaves nothing", func(t *testing.T) {
		r, turns := local(t)
		r.runs.finish <- &agent.Result{ResultText: "ok"}
		res, err := turns.RunLocal(t.Context(), plain(), nil)
		must(t, err)
		if res.ResultText != "ok" || r.places.released != 1 {
			t.Errorf("got %+v, released %d", res, r.places.released)
		}
		r.isEmpty(t)
	})
	t.Run("starts nothing outside the ceiling", func(t *testing.T) {
		r, turns := local(t)
		req := plain()
		req.Grants.Mounts = append(req.Grants.Mounts, job.Mount{Path: "/etc", Access: "ro"})
		res, err := turns.RunLocal(t.Context(), req, nil)
		if res != nil || !errors.Is(err, agent.ErrNotGranted) {
			t.Errorf("got %+v, %v", res, err)
		}
		if len(r.files(t, "sessions")) != 0 {
			t.Error("something was written")
		}
	})
	t.Run("starts nothing that cannot be marked", func(t *testing.T) {
		r, turns := local(t)
		marks := filepath.Join(r.state.Path(), "marks")
		must(t, os.Remove(marks))
		must(t, os.WriteFile(marks, nil, 0o600))
		res, err := turns.RunLocal(t.Context(), plain(), nil)
		if res != nil || !errors.Is(err, agent.ErrUnready) {
			t.Errorf("got %+v, %v", res, err)
		}
		if len(r.runs.started) != 0 {
			t.Error("it was started")
		}
	})
	t.Run("ends what the turn left running", func(t *testing.T) {
		r, turns := local(t)
		var ended []agent.Identity
		turns.End = func(_ context.Context, id agent.Identity) (bool, error) { ended = append(ended, id); return true, nil }
		turns.Run = func(ctx context.Context, l worker.Launch) (*agent.Result, error) {
			return &agent.Result{}, l.Recorder.Live(ctx, agent.Identity{Kind: agent.KindServer, PID: 9})
		}
		if _, err := turns.RunLocal(t.Context(), plain(), nil); err != nil || len(ended) != 1 {
			t.Errorf("ended %v, %v", ended, err)
		}
		r.isEmpty(t)
	})
	t.Run("a runner that loses a started turn does not make it unstarted", func(t *testing.T) {
		_, turns := local(t)
		turns.Run = func(_ context.Context, l worker.Launch) (*agent.Result, error) {
			l.Observer.Started(nil)
			l.Observer.Progress(agent.Progress{CostUSD: 2, CostKnown: true})
			return nil, fs.ErrClosed
		}
		res, err := turns.RunLocal(t.Context(), plain(), nil)
		if res == nil || !res.IsError || res.CostUSD != 2 || !res.CostPartial || !errors.Is(err, fs.ErrClosed) {
			t.Errorf("got %+v, %v", res, err)
		}
	})
}
