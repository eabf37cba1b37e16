package e2e_test

import (
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/job"
)

// unhurried are leases that outlive a busy machine, for tests in which none may lapse.
var unhurried = []string{"--lease", "1m"}

// at is a request whose turn lasts until the test opens the gate of that word. The
// other turns of the test may take their time.
func at(gate string) func(map[string]any) {
	return func(r map[string]any) {
		r["prompt"] = gate
		r["profile"] = map[string]any{"name": "builder", "confine": true, "timeout": "10m", "max_turns": 20}
	}
}

// pulled waits until a worker waits for jobs at the stream.
func (s *system) pulled() {
	s.t.Helper()
	nc, err := nats.Connect(s.broker.URL())
	if err != nil {
		s.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	s.eventually("a worker pulls", func() bool {
		lane, err := js.Consumer(s.t.Context(), "TURNPIKE_JOBS_NONE_CONFINED", "pool-default")
		return err == nil && lane.CachedInfo().NumWaiting > 0
	})
}

// NATS goes while jobs flow and stays away. What is enqueued meanwhile runs all the
// same, and nothing runs twice when it is back with what was published before.
func TestBrokerAway(t *testing.T) {
	t.Parallel()
	gates := map[string]*agenttest.Gate{"long": agenttest.NewGate(), "short": agenttest.NewGate()}
	s := newSystem(t, agenttest.Func(func(r *agenttest.Request) agenttest.Step {
		return agenttest.Text("Done.").Held(gates[word(r.Prompt)])
	}))
	s.dispatcher(unhurried...)
	w := s.worker("w1", append(unhurried, "--beat", "2s")...)
	s.pulled()
	long := s.enqueue(at("long"))
	s.running(long)
	var ids []job.ID
	for range 3 { // one takes the other slot, two wait in the stream
		ids = append(ids, s.enqueue(at("short")))
	}
	s.eventually("the stream has what no slot has", func() bool {
		return s.count("SELECT count(*) FROM turnpike.queue WHERE state = 'dispatched' AND published_at IS NOT NULL") == 2
	})

	s.broker.Stop(t)
	gates["short"].Open()
	for range 2 {
		ids = append(ids, s.enqueue(at("short")))
	}
	for _, id := range ids {
		s.finished(id, job.Succeeded)
	}
	w.waitLog("the stream gives nothing")
	s.eventually("the database knows how the worker finds its jobs", func() bool {
		return s.count("SELECT count(*) FROM turnpike.v_workers WHERE via = 'postgres'") == 1
	})
	gates["long"].Open()
	s.finished(long, job.Succeeded)

	s.broker.Start(t)
	s.pulled()
	for range 2 {
		ids = append(ids, s.enqueue(at("short")))
	}
	for _, id := range append(ids, long) {
		if v := s.finished(id, job.Succeeded); len(v.Attempts) != 1 {
			t.Errorf("job %s ran %d times", id, len(v.Attempts))
		}
	}
}

// An installation without NATS runs turns. Neither program needs to know an address, and
// none that it knows is dialled.
func TestNoBroker(t *testing.T) {
	t.Parallel()
	gate := agenttest.NewGate()
	defer gate.Open()
	s := newSystem(t, agenttest.Func(func(r *agenttest.Request) agenttest.Step {
		if word(r.Prompt) == "long" {
			return agenttest.Text("Done.").Held(gate)
		}
		return agenttest.Text("Done.")
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dialled := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_ = c.Close()
		}
		dialled <- err
	}()
	s.brokerURL = "nats://" + l.Addr().String()
	s.dispatcher(append(unhurried, "--transport", "postgres")...)
	s.worker("w1", append(unhurried, "--beat", "2s", "--transport", "postgres")...)
	cancelled := s.enqueue(at("long"))
	var ids []job.ID
	for range 3 { // more than there are slots
		ids = append(ids, s.enqueue(nil))
	}
	for _, id := range ids {
		if v := s.finished(id, job.Succeeded); len(v.Attempts) != 1 {
			t.Errorf("job %s ran %d times", id, len(v.Attempts))
		}
	}

	// A cancel comes with the next beat.
	s.running(cancelled)
	if status := s.call(http.MethodPost, "/v1/jobs/"+string(cancelled)+"/cancel", []byte(`{"why":"wrong branch"}`), nil); status != http.StatusAccepted {
		t.Errorf("cancel: %d", status)
	}
	s.finished(cancelled, job.Cancel)

	// What NATS would keep is told to be elsewhere.
	var problem struct{ Type string }
	if status := s.call(http.MethodGet, "/v1/jobs/"+string(ids[0])+"/transcript", nil, &problem); status != http.StatusNotFound || !strings.HasSuffix(problem.Type, "not-kept") {
		t.Errorf("the transcript: %d %+v", status, problem)
	}
	conversation := s.view(ids[0]).Attempts[0].Conversation
	v := s.finished(s.enqueue(func(r map[string]any) { r["resume_id"] = conversation }), job.Failed)
	if text, err := json.Marshal(v); err != nil || v.Reason != "refused" || !strings.Contains(string(text), "without NATS") {
		t.Errorf("continued: %s", text)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-dialled; err == nil {
		t.Error("NATS was dialled")
	}
}
