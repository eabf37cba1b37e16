package deliverytest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/dispatcher"
	"turnpike/internal/job"
	"turnpike/internal/queue"
	"turnpike/internal/testenv"
	"turnpike/internal/vcs"
	"turnpike/internal/worker"
	"turnpike/internal/worker/deliverytest"
	"turnpike/internal/workspace"
)

// noSessions keeps no session directories: a turn that starts no process writes none.
type noSessions struct{}

func (noSessions) New(name string) (string, error)      { return filepath.Join("/nonexistent", name), nil }
func (noSessions) Read(string) (worker.Past, error)     { return worker.Past{}, os.ErrNotExist }
func (noSessions) List() ([]worker.SessionEntry, error) { return nil, nil }
func (noSessions) Remove(string) error                  { return nil }

// The loops of dispatcher and worker, with a database and a cluster of brokers that loses
// the leader of the jobs' stream while they work: each job runs once and succeeds.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	const jobs = 200
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()

	env, cluster := testenv.Postgres(t, schema), testenv.NATSCluster(t)
	db := openStore(t, env.DSN())
	connect := func(name string) *queue.Conn {
		nc, err := queue.Connect(queue.Config{URL: cluster.URL(), Name: name, Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	dispatching, working := connect("dispatcher"), connect("worker")

	dir := t.TempDir()
	state, err := worker.OpenStateDir(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := state.Close(); err != nil {
			t.Error(err)
		}
	})
	ceiling, err := worker.ParseCeiling(fmt.Appendf(nil, "placements: [none]\nagents: [claude]\ntools: [Read]\nworkspaces: {dirs: [{path: %q, access: rw}]}\n", dir))
	if err != nil {
		t.Fatal(err)
	}
	lane := job.Lane{Placement: "none", Pool: deliverytest.Lane.Pool}
	bell := dispatcher.NewBell()
	d := &dispatcher.Dispatcher{
		Store: db, Publisher: dispatching, Streams: &queue.Admin{Conn: dispatching, Replicas: cluster.Size()}, Reports: dispatching, Wakes: dispatching,
		Sweep:  func(context.Context, int64) error { return nil },
		Holder: "test", Bell: bell, Health: &dispatcher.Health{Log: quiet}, Log: quiet,
	}
	var ran atomic.Int64
	half := make(chan struct{})
	p := &worker.Pool{
		Turns: &worker.Turns{
			Ceiling: ceiling, State: state, Sessions: noSessions{}, Workspaces: vcs.Provider[vcs.Spec](&workspace.Set{Dir: &workspace.Dir{}}),
			Run: func(context.Context, worker.Launch) (*agent.Result, error) {
				if ran.Add(1) == jobs/2 {
					close(half)
				}
				return &agent.Result{Name: "noop", Role: "test", Agent: "claude", StartedAt: time.Now(), NumTurns: 1}, nil
			},
			End:    func(context.Context, agent.Identity) (bool, error) { return false, nil },
			Worker: "w1", Host: "h1", Log: quiet,
		},
		Lanes: []worker.LaneConfig{{Lane: lane, Slots: 8, Deliveries: pulled{working.Puller(lane, 5*time.Second)}}},
		Store: db, Cancels: working, Results: working,
		Version: "test", Log: quiet,
	}
	running, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { d.Run(running) })
	all.Go(func() {
		if err := p.Run(running); err != nil {
			t.Error(err)
		}
	})
	defer all.Wait()
	defer stop()

	intake := &dispatcher.Intake{Jobs: db, Bell: bell, Log: quiet}
	requests := make([]json.RawMessage, jobs)
	for i := range requests {
		requests[i] = fmt.Appendf(nil, `{"api_version":"turnpike/v1","name":"noop","profile":{"name":"test","agent":"claude","sandbox":"none"},`+
			`"grants":{"tools":["Read"]},"workspace":{"dir":%q},"work":{"key":"TEST-1"},"prompt":"do it"}`, dir)
	}
	producer := job.Producer{Name: "test", Tenants: []string{job.AnyTenant}}
	for len(requests) > 0 {
		n := min(len(requests), dispatcher.MaxBatch)
		if _, err := intake.AcceptAll(ctx, producer, "", requests[:n]); err != nil {
			t.Fatal(err)
		}
		requests = requests[n:]
	}

	select {
	case <-half:
	case <-ctx.Done():
		t.Fatalf("%d turns ran, then: %v", ran.Load(), ctx.Err())
	}
	cluster.KillNode(t, cluster.Leader(t, "TURNPIKE_JOBS_NONE"))
	eyes := env.Pool(t)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		var succeeded, attempts int
		if err := eyes.QueryRow(ctx, `
			SELECT (SELECT count(*) FROM turnpike.v_jobs WHERE state = 'succeeded'), (SELECT count(*) FROM turnpike.v_attempts)`).Scan(&succeeded, &attempts); err != nil {
			t.Fatalf("%d turns ran, then: %v", ran.Load(), err)
		}
		if succeeded == jobs {
			if attempts != jobs || ran.Load() != jobs {
				t.Errorf("%d jobs had %d attempts, and %d turns ran", jobs, attempts, ran.Load())
			}
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d of %d jobs succeeded, %d turns ran", succeeded, jobs, ran.Load())
		case <-tick.C:
		}
	}
}
