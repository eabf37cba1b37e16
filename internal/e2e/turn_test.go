package e2e_test

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/job"
)

// A job is enqueued over HTTP, and everything about it stands in Postgres.
func TestTurn(t *testing.T) {
	t.Parallel()
	s := newSystem(t, agenttest.Write("hello.txt", "hello\n"), agenttest.Shell("echo $TURNPIKE_JOB $TURNPIKE_ATTEMPT $TURNPIKE_FENCE > fence"),
		agenttest.ReportStatus("done", "wrote hello.txt"), agenttest.Text("All done."))
	s.dispatcher()
	s.worker("w1")
	dir := s.workspace("turn")
	id := s.enqueue(func(r map[string]any) {
		in(dir)(r)
		r["valid_outcomes"] = []string{"done", "blocked"}
		r["work"] = map[string]any{"key": "E2E-1", "tags": []string{"a"}}
	})
	v := s.finished(id, job.Succeeded)

	if b, err := os.ReadFile(filepath.Join(dir, "hello.txt")); err != nil || string(b) != "hello\n" {
		t.Errorf("hello.txt: %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "fence")); err != nil || string(b) != string(id)+" 1 1\n" {
		t.Errorf("the turn knew its attempt as %q, %v", b, err)
	}
	if len(v.Attempts) != 1 {
		t.Fatalf("%d attempts", len(v.Attempts))
	}
	a := v.Attempts[0]
	if a.Ending != job.EndDone || a.Outcome == nil || a.Outcome.Status != "done" || a.Outcome.Note != "wrote hello.txt" || a.Outcome.Work.Key != "E2E-1" || a.ResultText != "All done." {
		t.Errorf("attempt %+v, outcome %+v", a, a.Outcome)
	}
	if v.CostUSD == nil || *v.CostUSD <= 0 {
		t.Errorf("cost %v, want it known", v.CostUSD)
	}
	if a.Conversation == "" || a.NumTurns == 0 || a.AgentVersion == "" {
		t.Errorf("attempt %+v", a)
	}
	if n := s.count("SELECT count(*) FROM turnpike.costs WHERE job_id = $1 AND cost_usd > 0", string(id)); n == 0 {
		t.Error("no row of costs")
	}
	if n := s.count("SELECT count(*) FROM turnpike.outcomes WHERE job_id = $1 AND status = 'done'", string(id)); n != 1 {
		t.Errorf("%d outcomes", n)
	}
	if n := s.count("SELECT count(*) FROM turnpike.queue"); n != 0 {
		t.Errorf("%d rows are left in the queue", n)
	}
	if n := s.count("SELECT count(*) FROM turnpike.orphans WHERE state NOT IN ('gone')"); n != 0 {
		t.Errorf("%d orphans", n)
	}
	out := s.run("dispatcher", 0, "logs", string(id), "--server", "http://"+s.addr)
	if !strings.Contains(out, "All done.") || !strings.Contains(out, "> Write") || !strings.Contains(out, "=== attempt 1 done: "+strconv.Itoa(a.NumTurns)+" turns, cost $") {
		t.Errorf("logs:\n%s", out)
	}
	if out := s.run("dispatcher", 0, "report", "--by", "agent", "--server", "http://"+s.addr); !strings.Contains(out, "claude") {
		t.Errorf("report:\n%s", out)
	}
}

// run runs a command to its end and returns its stdout.
func (s *system) run(name string, want int, args ...string) string {
	s.t.Helper()
	p := s.start(name, nil, args...)
	if got := p.wait(); got != want {
		s.t.Fatalf("%s %v ends with %d, want %d\n%s\n%s", name, args, got, want, p.out.String(), strings.Join(p.log, "\n"))
	}
	return p.out.String()
}

// A producer uses nothing but SQL, inside a transaction of its own.
func TestEnqueueBySQL(t *testing.T) {
	t.Parallel()
	s := newSystem(t, agenttest.Text("Hello."))
	s.dispatcher()
	s.worker("w1")
	enqueue := func(body []byte) (id string) {
		t.Helper()
		if err := s.db.QueryRow(t.Context(), "SELECT turnpike.enqueue($1)", string(body)).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	s.finished(job.ID(enqueue(request(nil))), job.Succeeded)

	// What SQL does not check is checked before selection.
	v := s.finished(job.ID(enqueue(request(func(r map[string]any) {
		r["grants"] = map[string]any{"mounts": []any{map[string]any{"path": "relative", "access": "ro"}}}
	}))), job.Failed)
	if !strings.Contains(v.Reason, "refused") && !strings.Contains(v.Reason, "grants.mounts[0].path") {
		t.Errorf("reason %q", v.Reason)
	}
}

// A tenant that has as many unfinished jobs as it may is told so, and others are not.
func TestQueueLimit(t *testing.T) {
	t.Parallel()
	s := newSystem(t, agenttest.Text("Never said."))
	s.dispatcher() // no worker: what is enqueued stays
	s.run("dispatcher", 0, "limit", "acme", "1", "--server", "http://"+s.addr)
	of := func(tenant string) []byte { return request(func(r map[string]any) { r["tenant"] = tenant }) }
	for _, c := range []struct {
		tenant string
		want   int
	}{{"acme", http.StatusCreated}, {"acme", http.StatusTooManyRequests}, {"other", http.StatusCreated}} {
		if got := s.call(http.MethodPost, "/v1/jobs", of(c.tenant), nil); got != c.want {
			t.Errorf("a job of %s: %d, want %d", c.tenant, got, c.want)
		}
	}
	if n := s.count("SELECT count(*) FROM turnpike.jobs"); n != 2 {
		t.Errorf("%d jobs were written, want 2", n)
	}
}

// What is outside the ceiling is refused, is not retried and starts nothing.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := newSystem(t, agenttest.Text("Never said."))
	s.dispatcher()
	s.worker("w1")
	v := s.finished(s.enqueue(retry(job.RetryAlways, func(r map[string]any) {
		grantsOf(r)["mounts"] = []any{
			map[string]any{"path": "workspace:", "access": "rw"}, map[string]any{"path": "/etc", "access": "ro"},
		}
	})), job.Failed)
	if len(v.Attempts) != 1 || v.Attempts[0].Ending != job.EndRefused || v.Attempts[0].StartedAt != nil {
		t.Errorf("attempts %+v", v.Attempts)
	}
	if !strings.Contains(v.Attempts[0].Reason, "/etc") {
		t.Errorf("reason %q does not say what was refused", v.Attempts[0].Reason)
	}
	if n := len(s.script.Requests()); n != 0 {
		t.Errorf("the model was asked %d times", n)
	}
}

// Malformed requests get a problem document that names the field; nothing is
// written. The same through the command line ends with 2.
func TestMalformed(t *testing.T) {
	t.Parallel()
	s := newSystem(t, agenttest.Text("Never said."))
	s.dispatcher()
	with := func(edit func(map[string]any)) string { return string(request(edit)) }
	for name, c := range map[string]struct{ body, field string }{
		"wrong type":    {with(func(r map[string]any) { r["prompt"] = 7 }), "prompt"},
		"unknown field": {with(func(r map[string]any) { r["promt"] = "x" }), "promt"},
		"duplicate key": {strings.Replace(with(nil), "{", `{"name":"a","name":"b",`, 1), "name"},
		"too large":     {with(func(r map[string]any) { r["prompt"] = strings.Repeat("x", 600<<10) }), "prompt"},
		"far too large": {with(func(r map[string]any) { r["prompt"] = strings.Repeat("x", 2<<20) }), ""},
		"bad UTF-8":     {strings.Replace(with(nil), "Do what", "Do \xff what", 1), "prompt"},
		"NUL":           {strings.Replace(with(nil), "Do what", `Do \u0000 what`, 1), "prompt"},
		"deep nesting": {with(func(r map[string]any) {
			r["env"] = json.RawMessage(strings.Repeat(`{"a":`, 99) + "1" + strings.Repeat("}", 99))
		}), ""},
		"negative cost cap": {with(func(r map[string]any) { r["cost_cap_usd"] = "-1" }), "cost_cap_usd"},
		"relative mount": {with(func(r map[string]any) {
			r["grants"] = map[string]any{"mounts": []any{map[string]any{"path": "src", "access": "ro"}}}
		}), "grants.mounts[0].path"},
		"unknown sandbox":   {with(func(r map[string]any) { r["profile"] = map[string]any{"sandbox": "vm"} }), "profile.sandbox"},
		"a profile by name": {with(func(r map[string]any) { r["profile"] = "builder" }), "profile"},
		"not JSON":          {"prompt: hello", ""},
		"a batch with one":  {"[" + with(nil) + "," + with(func(r map[string]any) { r["pool"] = "NO" }) + "]", "pool"},
	} {
		t.Run(name, func(t *testing.T) {
			var doc struct {
				Status int    `json:"status"`
				Title  string `json:"title"`
				Errors []struct {
					Location string `json:"location"`
				} `json:"errors"`
			}
			status := s.call(http.MethodPost, "/v1/jobs", []byte(c.body), &doc)
			if status < 400 || status > 499 || doc.Status != status || doc.Title == "" {
				t.Errorf("status %d, document %+v", status, doc)
			}
			if c.field != "" && (len(doc.Errors) == 0 || !strings.Contains(doc.Errors[0].Location, c.field)) {
				t.Errorf("document %+v does not name %s", doc, c.field)
			}
			file := filepath.Join(t.TempDir(), "request.json")
			if err := os.WriteFile(file, []byte(c.body), 0o600); err != nil {
				t.Fatal(err)
			}
			s.run("dispatcher", 2, "enqueue", "-f", file, "--server", "http://"+s.addr)
		})
	}
	if n := s.count("SELECT count(*) FROM turnpike.jobs"); n != 0 {
		t.Errorf("%d jobs were written", n)
	}
}

// What a confined turn tries and must not reach, with the real CLI's own shell;
// and that it can do its work all the same.
func TestConfinedTurn(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "file"), []byte("what lies "+"outside"), 0o644); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(outside, "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	script := `
echo "environ: $(cat /proc/*/environ 2>/dev/null | tr '\0' '\n' | grep -c TURNPIKE_SECRET)"
cat /etc/shadow ` + outside + `/file
ls -d /root ` + outside + `
python3 -c 'import socket, sys
for path in sys.argv[1:]:
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect(path)
        print("socket: CONNECTED", path)
    except OSError as e:
        print("socket refused", e.errno)' ` + socket + ` /var/run/docker.sock /run/docker.sock /var/run/postgresql/.s.PGSQL.5432
echo x > .git/config && echo "git: WRITTEN"
echo x > .git/hooks/post-checkout && echo "hook: WRITTEN"
env | grep -E 'TURNPIKE_(DATABASE|NATS)|PGPASSWORD|MODEL_' && echo "credentials: SEEN"
echo top > created-at-top && echo "top: ok"
cat > main.go <<'GO'
package main

import "fmt"

func main() { fmt.Println("built", 6*7) }
GO
cat > go.mod <<'GO'
module small

go 1.20
GO
export PATH=$PATH:/usr/local/go/bin GOCACHE=$PWD/.cache GOPATH=$PWD/.gopath GOFLAGS=-mod=mod GOTOOLCHAIN=local
go build -buildvcs=false -o small . 2>&1 && ./small
echo end`
	s := newSystem(t, agenttest.Shell(script), agenttest.Text("Done."))
	s.dispatcher()
	s.worker("w1")
	dir := s.workspace("confined")
	if err := os.MkdirAll(filepath.Join(dir, ".git", "hooks"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".git", "config"), []byte("[core]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.finished(s.enqueue(in(dir)), job.Succeeded)
	requests := s.script.Requests()
	var said string
	for _, r := range requests[len(requests)-1].Results {
		said += r.Text + "\n"
	}
	if n := strings.Count(said, "socket refused"); n != 4 {
		t.Errorf("%d sockets were refused, want 4", n)
	}
	for _, want := range []string{"environ: 0", "top: ok", "built 42", "end"} {
		if !strings.Contains(said, want) {
			t.Errorf("the turn's shell does not say %q", want)
		}
	}
	for _, never := range []string{"WRITTEN", "SEEN", "CONNECTED", "root:", "what lies outside"} {
		if strings.Contains(said, never) {
			t.Errorf("the turn's shell says %q", never)
		}
	}
	if t.Failed() {
		t.Log(said)
	}
	if b, err := os.ReadFile(filepath.Join(dir, ".git", "config")); err != nil || string(b) != "[core]\n" {
		t.Errorf(".git/config: %q, %v", b, err)
	}
}
