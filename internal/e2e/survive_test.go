package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/job"
	"turnpike/internal/testenv"
)

// mark is found in the environment and arguments of everything a turn starts.
func mark(t *testing.T) string { return fmt.Sprintf("mark-%s-%d", t.Name(), time.Now().UnixNano()) }

func marked(m string) func(map[string]any) {
	return func(r map[string]any) {
		r["env"] = map[string]any{"MARK": m}
		grantsOf(r)["env"] = []string{"MARK", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"}
	}
}

// The worker is killed while a turn runs a tool. Nothing of the turn lives on,
// the attempt is on record as lost with the cost known so far, and the policy
// decides what follows.
func TestWorkerKilled(t *testing.T) {
	t.Parallel()
	for policy, want := range map[job.RetryPolicy]job.State{job.RetryIfNotStarted: job.Failed, job.RetryAlways: job.Succeeded} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			gate := agenttest.NewGate()
			s := newSystem(t, agenttest.Shell("(setsid sleep 600 &) ; echo started"), agenttest.Text("Done.").Held(gate))
			s.dispatcher()
			w := s.worker("w1")
			m := mark(t)
			id := s.enqueue(retry(policy, marked(m)))
			if _, err := s.script.Wait(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
			s.until(id, "a beat tells of the tool call", func(v job.View) bool { return v.StartedAt != nil })
			if len(processes(m)) == 0 {
				t.Fatal("no process bears the mark: the test sees nothing")
			}
			w.kill()
			s.gone(m)
			gate.Open()

			s.worker("w1") // the successor on the same state directory
			v := s.finished(id, want)
			first := v.Attempts[0]
			if first.Ending != job.EndLost {
				t.Errorf("first attempt %+v, want it lost", first)
			}
			if first.CostUSD != nil { // the CLI tells costs at its end: this one never came to it
				t.Errorf("first attempt cost %v, want it unknown", *first.CostUSD)
			}
			if n := s.count("SELECT count(*) FROM turnpike.orphans WHERE job_id = $1", string(id)); n == 0 {
				t.Error("no orphan on record")
			}
			s.eventually("the orphan is gone", func() bool {
				return s.count("SELECT count(*) FROM turnpike.orphans WHERE job_id = $1 AND state <> 'gone'", string(id)) == 0
			})
			if runs := map[job.State]int{job.Failed: 1, job.Succeeded: 2}[want]; len(v.Attempts) != runs {
				t.Errorf("%d attempts, want %d", len(v.Attempts), runs)
			}
		})
	}
}

// The leader stands still for longer than it leads, and another that stood by leads. When
// the first goes on, its epoch is over.
func TestLeaderStopped(t *testing.T) {
	t.Parallel()
	gate := agenttest.NewGate()
	s := newSystem(t, agenttest.Text("Done.").Held(gate))
	first := s.dispatcher()
	first.waitLog(`"msg":"leading"`)
	s.worker("w1")
	s.addr = freeAddr(t)
	second := s.dispatcher()
	var ids []job.ID
	for range 6 { // two run, the others wait
		ids = append(ids, s.enqueue(nil))
	}
	if _, err := s.script.Wait(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	first.signal(syscall.SIGSTOP)
	second.waitLog(`"msg":"leading"`)
	gate.Open()
	for _, id := range append(ids, s.enqueue(nil)) {
		if v := s.finished(id, job.Succeeded); len(v.Attempts) != 1 {
			t.Errorf("job %s ran %d times", id, len(v.Attempts))
		}
	}
	first.signal(syscall.SIGCONT)
	first.waitLog(`"msg":"leading no more"`)
	if v := s.finished(s.enqueue(nil), job.Succeeded); len(v.Attempts) != 1 {
		t.Errorf("a job ran %d times", len(v.Attempts))
	}
	if n := s.count("SELECT epoch FROM turnpike.leader"); n != 2 {
		t.Errorf("epoch %d; want the second dispatcher's", n)
	}
}

// The dispatcher is killed with jobs in every state; another takes over.
func TestDispatcherKilled(t *testing.T) {
	t.Parallel()
	gate := agenttest.NewGate()
	s := newSystem(t, agenttest.Text("Done.").Held(gate))
	d := s.dispatcher()
	s.worker("w1")
	var ids []job.ID
	for range 6 { // two run, the others wait
		ids = append(ids, s.enqueue(nil))
	}
	if _, err := s.script.Wait(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	d.kill()
	gate.Open()
	s.dispatcher()
	for _, id := range ids {
		if v := s.finished(id, job.Succeeded); len(v.Attempts) != 1 {
			t.Errorf("job %s ran %d times", id, len(v.Attempts))
		}
	}
}

// Postgres is stopped for two leases while one turn runs on and another ends. No
// turn is lost and no result.
func TestPostgresAway(t *testing.T) {
	t.Parallel()
	pg := testenv.PrivatePostgres(t, migrated)
	gates := map[string]*agenttest.Gate{"short": agenttest.NewGate(), "long": agenttest.NewGate()}
	s := prepare(t, agenttest.Func(func(r *agenttest.Request) agenttest.Step {
		return agenttest.Text("Done.").Held(gates[word(r.Prompt)])
	}))
	s.db = pg.Pool(t)
	logins := map[string]string{}
	s.dsn = func(role string) string {
		if logins[role] == "" {
			logins[role] = pg.Login(t, role)
		}
		return logins[role]
	}
	s.dispatcher()
	s.worker("w1")
	prompt := func(p string) func(map[string]any) { return func(r map[string]any) { r["prompt"] = p } }
	short, long := s.enqueue(prompt("short")), s.enqueue(prompt("long"))
	s.running(short)
	s.running(long)

	pg.Stop(t)
	gates["short"].Open() // its turn ends with nowhere to report to
	outage := time.NewTimer(2 * lease)
	<-outage.C
	pg.Start(t)
	s.finished(short, job.Succeeded)
	gates["long"].Open()
	v := s.finished(long, job.Succeeded)
	for _, v := range []job.View{s.view(short), v} {
		if len(v.Attempts) != 1 || v.Attempts[0].Ending != job.EndDone {
			t.Errorf("attempts %+v, want one that is done", v.Attempts)
		}
	}
}

func word(prompt string) string {
	for _, w := range []string{"short", "long"} {
		if len(prompt) >= len(w) && prompt[:len(w)] == w {
			return w
		}
	}
	return ""
}

// The JetStream store is deleted while jobs flow. Every job still ends, once.
func TestStreamLost(t *testing.T) {
	t.Parallel()
	s := newSystem(t, agenttest.Text("Done."))
	s.dispatcher()
	s.worker("w1")
	var ids []job.ID
	for range 8 {
		ids = append(ids, s.enqueue(nil))
	}
	s.finished(ids[0], job.Succeeded)
	s.broker.Stop(t)
	s.broker.Wipe(t)
	s.broker.Start(t)
	for range 2 {
		ids = append(ids, s.enqueue(nil))
	}
	for _, id := range ids {
		if v := s.finished(id, job.Succeeded); len(v.Attempts) != 1 {
			t.Errorf("job %s ran %d times", id, len(v.Attempts))
		}
	}
}

// A person cancels a running turn; its tree goes, and who looks finds why. Cancelling a
// finished job is refused.
func TestCancel(t *testing.T) {
	t.Parallel()
	gate := agenttest.NewGate()
	defer gate.Open()
	s := newSystem(t, agenttest.Text("Done.").Held(gate))
	s.dispatcher()
	s.worker("w1")
	m := mark(t)
	id := s.enqueue(marked(m))
	s.running(id)
	var a job.CancelAnswer
	if status := s.call(http.MethodPost, "/v1/jobs/"+string(id)+"/cancel", []byte(`{"why":"wrong branch"}`), &a); status != http.StatusAccepted || a.State != job.Running {
		t.Fatalf("cancel: %d %+v", status, a)
	}
	v := s.finished(id, job.Cancel)
	if len(v.Attempts) != 1 || v.Attempts[0].Ending != job.EndCancelled || !strings.Contains(v.Attempts[0].Reason, "wrong branch") {
		t.Errorf("attempts %+v, want one that was cancelled and says why", v.Attempts)
	}
	s.gone(m)
	if status := s.call(http.MethodPost, "/v1/jobs/"+string(id)+"/cancel", []byte(`{}`), nil); status != http.StatusConflict {
		t.Errorf("cancelling again: %d, want 409", status)
	}
}

// A worker that is told to stop gives its turns the grace they need.
func TestDrain(t *testing.T) {
	t.Parallel()
	gate := agenttest.NewGate()
	s := newSystem(t, agenttest.Text("Done.").Held(gate))
	s.dispatcher()
	w := s.worker("w1")
	id := s.enqueue(nil)
	waiting := s.enqueue(nil)
	s.running(id)
	s.running(waiting)
	w.signal(syscall.SIGTERM)
	w.waitLog("drain")
	later := s.enqueue(nil) // not taken any more
	gate.Open()
	if code := w.wait(); code != 0 {
		t.Errorf("the worker ends with %d", code)
	}
	s.finished(id, job.Succeeded)
	s.finished(waiting, job.Succeeded)
	if v := s.view(later); v.State == job.Running || v.State.Final() {
		t.Errorf("a draining worker took a job: %s", v.State)
	}
	s.worker("w2")
	s.finished(later, job.Succeeded)
}
