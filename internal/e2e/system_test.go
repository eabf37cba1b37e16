package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/job"
	"turnpike/internal/queue"
	"turnpike/internal/store"
	"turnpike/internal/testenv"
)

// programs is where the two programs under test were built.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "turnpike-e2e-")
	if err == nil {
		programs = dir
		cmd := exec.Command("go", "build", "-o", dir+"/", "turnpike/cmd/dispatcher", "turnpike/cmd/worker")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		var out []byte
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the programs:", err)
		os.Exit(1)
	}
	testenv.Main(cleaned{m, dir})
}

var migrated = testenv.Migrated(func(ctx context.Context, dsn string) error {
	_, err := store.Migrate(ctx, dsn, nil)
	return err
})

// lease is the lease length of the tests: long enough for a busy machine, short
// enough to wait for.
const lease = 4 * time.Second

// soon bounds every wait for something that must happen. Only a failure waits that
// long: it is chosen for a machine that builds and tests other things meanwhile.
const soon = 5 * time.Minute

// system is one installation.
type system struct {
	t        *testing.T
	dir      string
	db       *pgxpool.Pool // as the superuser: the test's own eyes
	dsn      func(role string) string
	broker   *testenv.Broker
	provider *agenttest.Provider
	script   *agenttest.Script
	addr     string // of the dispatcher
	claude   string

	brokerURL string     // instead of the broker's own
	token     string     // the test's own, for the dispatcher; empty where it asks for none
	secretEnv []string   // what the next worker holds beside the model's key
	secrets   []string   // what nothing of this system may tell
	started   []*process // whose logs may not tell it either
}

// newSystem sets up everything but the two programs. Steps are what the model
// answers.
func newSystem(t *testing.T, steps ...agenttest.Step) *system {
	t.Helper()
	db := testenv.Postgres(t, migrated)
	s := prepare(t, steps...)
	s.db = db.Pool(t)
	s.dsn = func(role string) string { return s.secretIn(db.Login(t, role)) }
	s.secrets = append(s.secrets, canary)
	t.Cleanup(s.keepsSecrets) // once the programs have stopped
	return s
}

func prepare(t *testing.T, steps ...agenttest.Step) *system {
	t.Helper()
	s := &system{t: t, dir: t.TempDir(), claude: agenttest.ClaudeBin(t)}
	var users []*server.User
	for _, r := range queue.Roles() {
		p := queue.PermissionsOf(r)
		users = append(users, &server.User{Username: string(r), Permissions: &server.Permissions{
			Publish: subjects(p.Publish), Subscribe: subjects(p.Subscribe),
		}})
	}
	s.broker = testenv.NATS(t, users...)
	s.provider = agenttest.NewProvider(t)
	s.script = s.provider.Script("main", steps...)
	s.addr = freeAddr(t)
	return s
}

func subjects(l []string) *server.SubjectPermission {
	if len(l) == 0 {
		return &server.SubjectPermission{Deny: []string{">"}}
	}
	return &server.SubjectPermission{Allow: l}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// process is a program that was started.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	out  bytes.Buffer // stdout
	done chan struct{}
	err  error

	mu      sync.Mutex
	log     []string
	changed chan struct{} // closed and made anew with each line of log
}

// start runs a program; what it writes to stderr is shown when the test fails.
func (s *system) start(name string, env []string, args ...string) *process {
	s.t.Helper()
	p := &process{t: s.t, name: name, done: make(chan struct{}), changed: make(chan struct{})}
	p.cmd = exec.Command(filepath.Join(programs, name), args...)
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir}, env...)
	p.cmd.Dir = s.dir
	p.cmd.Stdout = &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		lines := bufio.NewReader(stderr)
		for {
			l, err := lines.ReadString('\n')
			if l != "" {
				p.mu.Lock()
				p.log = append(p.log, strings.TrimSpace(l))
				close(p.changed)
				p.changed = make(chan struct{})
				p.mu.Unlock()
			}
			if err != nil {
				break
			}
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	s.started = append(s.started, p)
	s.t.Cleanup(func() {
		select {
		case <-p.done:
		default:
			p.signal(syscall.SIGTERM)
			select {
			case <-p.done:
			case <-time.After(20 * time.Second):
				s.t.Errorf("%s does not stop", name)
				p.kill()
			}
		}
		if s.t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			s.t.Logf("--- %s\n%s", name, strings.Join(p.log[max(0, len(p.log)-60):], "\n"))
		}
	})
	return p
}

func (p *process) signal(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig) // it may have ended by itself
}

// kill is kill -9, and returns when the process is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// wait returns the exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(soon):
		p.t.Fatalf("%s %v goes on for ever", p.name, p.cmd.Args[1:])
	}
	if exit, ok := errors.AsType[*exec.ExitError](p.err); ok {
		return exit.ExitCode()
	}
	return 0
}

// waitLog returns once a line of the log contains text.
func (p *process) waitLog(text string) {
	p.t.Helper()
	deadline := time.After(soon)
	for {
		p.mu.Lock()
		changed := p.changed
		found := slices.ContainsFunc(p.log, func(l string) bool { return strings.Contains(l, text) })
		p.mu.Unlock()
		if found {
			return
		}
		select {
		case <-changed:
		case <-p.done:
			p.t.Fatalf("%s ended (%v) without saying %q", p.name, p.err, text)
		case <-deadline:
			p.t.Fatalf("%s never says %q", p.name, text)
		}
	}
}

func (s *system) env(role queue.Role, dbRole string) []string {
	nats := s.brokerURL
	if nats == "" {
		nats = s.secretIn(s.broker.As(string(role)))
	}
	return []string{"TURNPIKE_DATABASE_URL=" + s.dsn(dbRole), "TURNPIKE_NATS_URL=" + nats}
}

// dispatcher starts a dispatcher and waits until it is ready.
func (s *system) dispatcher(args ...string) *process {
	s.t.Helper()
	p := s.start("dispatcher", s.env(queue.Dispatcher, "turnpike_dispatcher"),
		append([]string{"serve", "--listen", s.addr, "--lease", lease.String(), "--log-format", "json"}, args...)...)
	s.eventually("the dispatcher is ready", func() bool {
		res, err := http.Get("http://" + s.addr + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	return p
}

// ceiling is what the tests' pool allows.
const ceiling = `
placements: [none, none-confined]
agents: [claude]
tools: ["*"]
workspaces: {scratch: true, dirs: [{path: %s, access: rw}]}
network: open
env: {set: [GOFLAGS, GOCACHE, GOPATH, GOPROXY, MARK]}
accounts:
  default:
    env: {ANTHROPIC_API_KEY: MODEL_KEY, ANTHROPIC_BASE_URL: MODEL_URL}
    agents: [claude]
`

// worker starts a worker on the state directory of this name.
func (s *system) worker(state string, args ...string) *process {
	s.t.Helper()
	return s.workerUnder(fmt.Sprintf(ceiling, s.workspaces()), state, args...)
}

// workerUnder starts a worker of a pool with that ceiling.
func (s *system) workerUnder(ceiling, state string, args ...string) *process {
	s.t.Helper()
	file := filepath.Join(s.dir, "ceiling.yaml")
	if err := os.WriteFile(file, []byte(ceiling), 0o600); err != nil {
		s.t.Fatal(err)
	}
	env := append(s.env(queue.Worker, "turnpike_worker"),
		"MODEL_KEY="+canary+"-model", "MODEL_URL="+s.script.URL(), "TURNPIKE_SECRET_OF_THE_WORKER=abc-"+canary)
	env = append(env, s.secretEnv...)
	p := s.start("worker", env, append([]string{"serve", "--slots", "none-confined=2", "--ceiling", file,
		"--state-dir", filepath.Join(s.dir, state), "--bin", "claude=" + s.claude, "--listen", freeAddr(s.t),
		"--lease", lease.String(), "--beat", "500ms", "--grace", "20s", "--log-format", "json"}, args...)...)
	p.waitLog("serving")
	return p
}

// workspaces is a directory whose content requests may work in.
func (s *system) workspaces() string {
	dir := filepath.Join(s.dir, "workspaces")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	return dir
}

// workspace makes a directory to work in.
func (s *system) workspace(name string) string {
	s.t.Helper()
	dir := filepath.Join(s.workspaces(), name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	return dir
}

// request is a request that works; edit changes it.
func request(edit func(r map[string]any)) []byte {
	r := map[string]any{
		"api_version": "turnpike/v1",
		"name":        "e2e",
		"prompt":      "Do what the script says.",
		"profile":     map[string]any{"name": "builder", "confine": true, "timeout": "2m", "max_turns": 20},
		"grants": map[string]any{
			"env":    []string{"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"},
			"tools":  []string{"*"},
			"mounts": []any{map[string]any{"path": "workspace:", "access": "rw"}},
		},
		"workspace": map[string]any{"scratch": true},
	}
	if edit != nil {
		edit(r)
	}
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // plain data
	}
	return b
}

// grantsOf are the grants of a request made by request.
func grantsOf(r map[string]any) map[string]any {
	g, ok := r["grants"].(map[string]any)
	if !ok {
		panic("the request has no grants")
	}
	return g
}

func in(dir string) func(map[string]any) {
	return func(r map[string]any) { r["workspace"] = map[string]any{"dir": dir} }
}

func retry(policy job.RetryPolicy, edit ...func(map[string]any)) func(map[string]any) {
	return func(r map[string]any) {
		r["retry"] = map[string]any{"policy": policy, "backoff": "1s"}
		for _, e := range edit {
			e(r)
		}
	}
}

// enqueue has the dispatcher accept a request and returns the job.
func (s *system) enqueue(edit func(map[string]any)) job.ID {
	s.t.Helper()
	var a job.Accepted
	if status := s.call(http.MethodPost, "/v1/jobs", request(edit), &a); status >= 300 {
		s.t.Fatalf("enqueue: %d", status)
	}
	return a.ID
}

// call speaks HTTP with the dispatcher and returns the status.
func (s *system) call(method, path string, body []byte, out any) int {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.addr+path, bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Logf("%s %s: %v", method, path, err)
		return http.StatusServiceUnavailable
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if out != nil {
		if err := json.Unmarshal(raw, out); err != nil {
			s.t.Fatalf("%s %s: %d %s", method, path, res.StatusCode, raw)
		}
	}
	if res.StatusCode >= 400 {
		s.t.Logf("%s %s: %d %s", method, path, res.StatusCode, raw)
	}
	return res.StatusCode
}

// view asks the dispatcher for a job.
func (s *system) view(id job.ID) job.View {
	s.t.Helper()
	var v job.View
	if status := s.call(http.MethodGet, "/v1/jobs/"+string(id), nil, &v); status != http.StatusOK {
		s.t.Fatalf("get %s: %d", id, status)
	}
	return v
}

// until waits for a job to satisfy a condition.
func (s *system) until(id job.ID, what string, ok func(job.View) bool) job.View {
	s.t.Helper()
	var v job.View
	s.eventually(what, func() bool { v = s.view(id); return ok(v) })
	return v
}

// finished waits for the job's end and checks how it ended.
func (s *system) finished(id job.ID, want job.State) job.View {
	s.t.Helper()
	v := s.until(id, "the job ends", func(v job.View) bool { return v.State.Final() })
	if v.State != want {
		b, _ := json.MarshalIndent(v, "", " ")
		s.t.Fatalf("job ended %s (%s), want %s\n%s", v.State, v.Reason, want, b)
	}
	return v
}

func (s *system) running(id job.ID) job.View {
	s.t.Helper()
	return s.until(id, "the job runs", func(v job.View) bool { return v.State == job.Running && v.StartedAt != nil })
}

// eventually asks until the answer is yes: for what happens in other processes
// and gives no signal of its own.
func (s *system) eventually(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.NewTimer(soon)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			s.t.Fatalf("it never happens that %s", what)
		}
	}
}

// count runs a query that gives one number.
func (s *system) count(sql string, args ...any) int {
	s.t.Helper()
	var n int
	if err := s.db.QueryRow(s.t.Context(), sql, args...).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// processes lists those whose environment or command line bears a mark.
func processes(mark string) map[int]string {
	found := map[int]string{}
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		panic(err) // the pattern is good
	}
	for _, e := range entries {
		env, _ := os.ReadFile(e + "/environ") // a process may go while we look
		arg, _ := os.ReadFile(e + "/cmdline")
		if !bytes.Contains(env, []byte(mark)) && !bytes.Contains(arg, []byte(mark)) {
			continue
		}
		var pid int
		if _, err := fmt.Sscan(filepath.Base(e), &pid); err == nil && pid != os.Getpid() {
			found[pid] = strings.ReplaceAll(string(arg), "\x00", " ")
		}
	}
	return found
}

// gone waits a second at most for every process with the mark to be gone.
func (s *system) gone(mark string) {
	s.t.Helper()
	deadline := time.Now().Add(time.Second)
	for {
		left := processes(mark)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("after a second these are left: %v", slices.Collect(maps.Values(left)))
		}
	}
}
