package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/job"
	"turnpike/internal/queue"
)

// schedule asks for one by the command line.
func (s *system) schedule(name string) (v job.ScheduleView) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.dispatcherCommand(0, "schedule", "get", name, "-o", "json")), &v); err != nil {
		s.t.Fatal(err)
	}
	return v
}

// A schedule set by the command line runs turns. The dispatcher that leads is killed, and
// the one that takes over makes up for what was missed, once.
func TestSchedule(t *testing.T) {
	t.Parallel()
	s := newSystem(t, agenttest.Text("Done.").Repeat())
	leases := []string{"--lease", "1m"} // nobody waits for one to lapse
	leader := s.dispatcher(leases...)
	s.worker("w1", leases...)
	file := filepath.Join(s.dir, "request.json")
	if err := os.WriteFile(file, request(nil), 0o600); err != nil {
		t.Fatal(err)
	}
	s.dispatcherCommand(2, "schedule", "set", "yearly", "--cron", "0 0 30 2 *", "-f", file)
	s.dispatcherCommand(0, "schedule", "set", "yearly", "--cron", "@yearly", "--tz", "Europe/Berlin", "-f", file)
	// come makes the time of the schedule come.
	come := func(ago string) {
		t.Helper()
		if _, err := s.db.Exec(t.Context(), `UPDATE turnpike.schedules SET next_at = now() - $1::text::interval`, ago); err != nil {
			t.Fatal(err)
		}
	}
	made := func(n int64) job.View {
		t.Helper()
		var v job.ScheduleView
		s.eventually("the schedule acts", func() bool { v = s.schedule("yearly"); return v.Fired == n })
		return s.finished(v.LastJob, job.Succeeded)
	}

	come("5 seconds")
	if v := made(1); len(v.Events) == 0 || v.Events[0].What != "schedule" || !strings.HasPrefix(v.Events[0].Note, "default/yearly for ") {
		t.Errorf("told %+v", v.Events)
	}

	s.addr = freeAddr(t)
	heir := s.start("dispatcher", s.env(queue.Dispatcher, "turnpike_dispatcher"), append([]string{"serve", "--listen", s.addr, "--log-format", "json"}, leases...)...)
	leader.kill()
	come("2 years 1 day")
	heir.waitLog(`"leading"`)
	if v := made(2); !strings.Contains(v.Events[0].Note, "missed since") {
		t.Errorf("told %+v", v.Events)
	}
	if n := s.count(`SELECT count(*) FROM turnpike.jobs`); n != 2 {
		t.Errorf("%d jobs of two firings", n)
	}

	s.dispatcherCommand(0, "schedule", "pause", "yearly", "--why", "a freeze")
	if v := s.schedule("yearly"); v.Paused == nil || v.Paused.Why != "a freeze" || v.Zone != "Europe/Berlin" {
		t.Errorf("%+v", v)
	}
	s.dispatcherCommand(0, "schedule", "resume", "yearly")
	if next := strings.Fields(s.dispatcherCommand(0, "schedule", "next", "yearly", "-n", "3", "-o", "name")); len(next) != 3 || !strings.HasSuffix(next[0], "-12-31T23:00:00Z") {
		t.Errorf("next %v", next)
	}
	s.dispatcherCommand(0, "schedule", "remove", "yearly")
	s.dispatcherCommand(3, "schedule", "get", "yearly")
}
