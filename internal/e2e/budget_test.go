package e2e_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/job"
)

// dispatcherCommand runs one of the operator's commands and gives its output.
func (s *system) dispatcherCommand(want int, args ...string) string {
	s.t.Helper()
	p := s.start("dispatcher", []string{"TURNPIKE_SERVER=http://" + s.addr}, args...)
	if got := p.wait(); got != want {
		p.mu.Lock()
		defer p.mu.Unlock()
		s.t.Fatalf("dispatcher %v: exit code %d, want %d\n%s", args, got, want, strings.Join(p.log, "\n"))
	}
	return p.out.String()
}

// What a turn cost is spent from a budget that was set after it: the next job waits,
// says for what, and runs once there is more.
func TestBudget(t *testing.T) {
	t.Parallel()
	s := newSystem(t, agenttest.Text("Done.").Repeat())
	s.dispatcher()
	s.worker("w1")
	first := s.finished(s.enqueue(nil), job.Succeeded)
	cost := first.CostUSD
	if cost == nil || *cost <= 1 {
		t.Fatalf("the turn cost %v", cost)
	}
	s.dispatcherCommand(0, "budget", "set", "profile", "builder", cost.String(), "--per", "1h", "--warn", (*cost / 2).String(), "--why", "a trial")

	second := s.enqueue(nil)
	parked := s.until(second, "it waits for the budget", func(v job.View) bool { return v.Reason == "parked: budget" })
	if n := len(parked.Events); n != 1 || !strings.Contains(parked.Events[0].Note, "the budget of profile builder") {
		t.Errorf("told %+v", parked.Events)
	}
	var list []job.Budget
	if err := json.Unmarshal([]byte(s.dispatcherCommand(0, "budget", "list", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].SpentUSD != *cost || list[0].State != job.BudgetSpent || list[0].LeftUSD != 0 || list[0].Until == nil || list[0].By == "" {
		t.Errorf("lists %+v", list)
	}

	s.dispatcherCommand(0, "budget", "set", "profile", "builder", (*cost * 3).String(), "--per", "1h")
	s.finished(second, job.Succeeded)
	added := fmt.Sprintf("cost cap %s, what is left of the budget of profile builder per 1h", *cost*2)
	if n := s.count(`SELECT count(*) FROM turnpike.attempts WHERE job_id = $1 AND $2 = ANY (added)`, string(second), added); n != 1 {
		t.Errorf("the turn was not capped at what was left")
	}
	s.dispatcherCommand(0, "budget", "remove", "profile", "builder", "--per", "1h")
	s.dispatcherCommand(3, "budget", "remove", "profile", "builder", "--per", "1h")
}
