package e2e_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/job"
)

// batch has the dispatcher accept requests in one call.
func (s *system) batch(edits ...func(map[string]any)) []job.ID {
	s.t.Helper()
	var bodies [][]byte
	for _, e := range edits {
		bodies = append(bodies, request(e))
	}
	var accepted []job.Accepted
	if status := s.call(http.MethodPost, "/v1/jobs", []byte("["+string(bytes.Join(bodies, []byte(",")))+"]"), &accepted); status >= 300 {
		s.t.Fatalf("enqueue: %d", status)
	}
	var ids []job.ID
	for _, a := range accepted {
		ids = append(ids, a.ID)
	}
	return ids
}

// Turns that are enqueued as a chain are one conversation, whichever workers run them. Two
// that go on from the same turn do not meet, also when they run at once.
func TestChain(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	s := newSystem(t, agenttest.Func(func(*agenttest.Request) agenttest.Step {
		<-begun
		return agenttest.Text("Understood.")
	}).Repeat())
	s.dispatcher()
	first := s.workerOfAll("w1", "--grace", "5s")
	says := func(prompt, from string) func(map[string]any) {
		return all(by("claude"), in(s.workspace("talk")), func(r map[string]any) {
			if r["prompt"] = prompt; from != "" {
				r["resume_from"] = from
			}
		})
	}
	chain := s.batch(says("Remember the mirabelle.", ""), says("Remember the medlar.", "#0"), says("Remember the quince.", "#1"))
	if _, err := s.script.Wait(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if v := s.view(chain[2]); v.Reason != "parked: after" || len(v.After) != 1 || v.After[0].ID != chain[1] {
		t.Errorf("the last of the chain is %s (%s), after %+v", v.State, v.Reason, v.After)
	}
	if out := s.run("dispatcher", 0, "get", string(chain[1]), "--server", "http://"+s.addr); !strings.Contains(out, string(chain[0])+"  running") {
		t.Errorf("get says\n%s", out)
	}
	first.signal(syscall.SIGTERM)
	first.waitLog("drain")
	close(begun)
	if code := first.wait(); code != 0 {
		t.Fatalf("the first worker ends with %d", code)
	}
	a := s.finished(chain[0], job.Succeeded).Attempts[0]
	s.workerOfAll("w2")
	b, c := s.finished(chain[1], job.Succeeded).Attempts[0], s.finished(chain[2], job.Succeeded).Attempts[0]
	if b.Worker == a.Worker || b.Conversation != a.Conversation || c.Conversation != a.Conversation {
		t.Errorf("conversation %q of %s went on as %q of %s and %q", a.Conversation, a.Worker, b.Conversation, b.Worker, c.Conversation)
	}
	heard := func(n int) (l []string) {
		body := string(s.script.Requests()[n].Body)
		for _, fruit := range []string{"mirabelle", "medlar", "quince", "loquat", "damson"} {
			if strings.Contains(body, fruit) {
				l = append(l, fruit)
			}
		}
		return l
	}
	if got, _ := json.Marshal([][]string{heard(0), heard(1), heard(2)}); string(got) != `[["mirabelle"],["mirabelle","medlar"],["mirabelle","medlar","quince"]]` {
		t.Errorf("the turns were told %s", got)
	}

	forks := s.batch(says("Remember the loquat.", string(chain[0])), says("Remember the damson.", string(chain[0])), says("What do you remember?", "#0"))
	for _, id := range forks {
		s.finished(id, job.Succeeded)
	}
	told := map[string]int{}
	for n := 3; n < len(s.script.Requests()); n++ {
		told[strings.Join(heard(n), " ")]++
	}
	if told["mirabelle loquat"] != 2 || told["mirabelle damson"] != 1 || len(told) != 2 {
		t.Errorf("the turns that went on from the first were told %v", told)
	}

	var problem struct {
		Errors []struct{ Location string }
	}
	if status := s.call(http.MethodPost, "/v1/jobs", request(says("Hear.", "0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11")), &problem); status != http.StatusUnprocessableEntity ||
		len(problem.Errors) != 1 || problem.Errors[0].Location != "resume_from" {
		t.Errorf("a job that is not there is answered %d %+v", status, problem)
	}
}
