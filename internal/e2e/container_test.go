package e2e_test

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/job"
	"turnpike/internal/testenv"
)

// boxed is a ceiling for containers, whose network leads to the provider and nowhere else.
const boxed = `
placements: [none-confined, container]
agents: [claude]
tools: ["*"]
images: [%[1]s]
workspaces: {dirs: [{path: %[2]s, access: rw}]}
domains: [%[3]s]
network: proxied
hosts: {"%[4]s": "%[4]s"}
accounts:
  default:
    env: {ANTHROPIC_API_KEY: MODEL_KEY, ANTHROPIC_BASE_URL: MODEL_URL}
    agents: [claude]
`

// container starts a worker that serves containers.
func (s *system) container(state string) *process {
	s.t.Helper()
	at, err := url.Parse(s.script.URL())
	if err != nil {
		s.t.Fatal(err)
	}
	return s.workerUnder(fmt.Sprintf(boxed, testenv.AgentImage(s.t), s.workspaces(), at.Hostname(), at.Host), state, "--slots", "container=1")
}

func inContainer(image, dir string) func(map[string]any) {
	return func(r map[string]any) {
		in(dir)(r)
		r["profile"] = map[string]any{"name": "builder", "sandbox": "container", "sandbox_image": image, "timeout": "2m", "max_turns": 20}
		r["valid_outcomes"] = []string{"done"}
	}
}

// containers lists those of the engine that were made from an image, whatever their state.
func containers(t *testing.T, image, format string) []string {
	t.Helper()
	out, err := exec.Command("docker", "ps", "--all", "--no-trunc", "--filter", "ancestor="+image, "--filter", "label=turnpike.session", "--format", format).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// A job of the lane of containers runs in one, which is gone when the job is finished.
func TestContainerTurn(t *testing.T) {
	t.Parallel()
	s := newSystem(t, agenttest.Write("hello.txt", "hello\n"), agenttest.Shell("cat /proc/1/comm /etc/hostname > inside"),
		agenttest.ReportStatus("done", "in a container"), agenttest.Text("Done."))
	s.dispatcher()
	s.container("w1")
	dir := s.workspace("turn")
	v := s.finished(s.enqueue(inContainer(testenv.AgentImage(t), dir)), job.Succeeded)
	if v.Lane != "container/default" || len(v.Attempts) != 1 || v.Attempts[0].Outcome == nil || v.Attempts[0].Outcome.Note != "in a container" {
		t.Errorf("on %s: %+v", v.Lane, v.Attempts)
	}
	if v.CostUSD == nil || *v.CostUSD <= 0 {
		t.Errorf("cost %v, want it known", v.CostUSD)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "hello.txt")); err != nil || string(b) != "hello\n" {
		t.Errorf("hello.txt: %q, %v", b, err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "inside")); err != nil || strings.Contains(string(b), host) || len(strings.Fields(string(b))) != 2 {
		t.Errorf("inside: %q, %v", b, err)
	}
	if n := s.count("SELECT count(*) FROM turnpike.orphans WHERE state <> 'gone'"); n != 0 {
		t.Errorf("%d orphans", n)
	}
}

// A worker that is killed leaves its container, and its successor ends it.
func TestContainerOfADeadWorker(t *testing.T) {
	t.Parallel()
	gate := agenttest.NewGate()
	s := newSystem(t, agenttest.Shell("echo $TURNPIKE_JOB > mine"), agenttest.Text("Done.").Held(gate))
	defer gate.Open()
	s.dispatcher()
	w := s.container("w1")
	image, dir := testenv.AgentImage(t), s.workspace("turn")
	id := s.enqueue(inContainer(image, dir))
	if _, err := s.script.Wait(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	s.until(id, "a beat tells of the tool call", func(v job.View) bool { return v.StartedAt != nil })
	// Other tests have containers of this image, too.
	var mine string
	if err := s.db.QueryRow(t.Context(), "SELECT orphan #>> '{identity,id}' FROM turnpike.queue WHERE job_id = $1", string(id)).Scan(&mine); err != nil || mine == "" {
		t.Fatalf("the container on record: %q, %v", mine, err)
	}
	if !strings.Contains(strings.Join(containers(t, image, "{{.ID}}"), " "), mine) {
		t.Fatalf("the engine does not know %s", mine)
	}
	w.kill()
	s.container("w1")
	v := s.finished(id, job.Failed)
	if len(v.Attempts) != 1 || v.Attempts[0].Ending != job.EndLost {
		t.Errorf("attempts %+v", v.Attempts)
	}
	s.eventually("the orphan is gone", func() bool {
		return s.count("SELECT count(*) FROM turnpike.orphans WHERE job_id = $1 AND state <> 'gone'", string(id)) == 0
	})
	if n := s.count("SELECT count(*) FROM turnpike.orphans WHERE job_id = $1 AND kind = 'container'", string(id)); n != 1 {
		t.Errorf("%d records of the container", n)
	}
	if strings.Contains(strings.Join(containers(t, image, "{{.ID}}"), " "), mine) {
		t.Errorf("the container %s is still there", mine)
	}
}
