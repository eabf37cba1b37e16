package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"

	"turnpike/internal/chaos"
	"turnpike/internal/queue"
	"turnpike/internal/testenv"
)

// programs is where the programs under test and the agent were built.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "turnpike-chaos-")
	if err == nil {
		programs, err = dir, build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the programs:", err)
		os.Exit(1)
	}
	testenv.Main(cleaned{m, dir})
}

// cleaned runs the tests and removes the programs that were built for them.
type cleaned struct {
	*testing.M
	dir string
}

func (c cleaned) Run() int {
	defer os.RemoveAll(c.dir)
	return c.M.Run()
}

func build(dir string) error {
	for out, args := range map[string][]string{
		// Of one named build, as worker and launcher must be to work together.
		"": {"-ldflags", "-X turnpike/internal/buildinfo.Version=chaos", "turnpike/cmd/dispatcher", "turnpike/cmd/worker", "turnpike/cmd/launcher"},
		// A directory of its own: a turn may read what its agent lies in.
		"agent": {"turnpike/internal/chaos/standin"},
	} {
		if err := os.MkdirAll(filepath.Join(dir, out), 0o755); err != nil {
			return err
		}
		cmd := exec.Command("go", append([]string{"build", "-buildvcs=false", "-o", filepath.Join(dir, out) + "/"}, args...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, said)
		}
	}
	return nil
}

// soon bounds every wait for something that must happen; only a failure waits that long.
const soon = 3 * time.Minute

// slots of each worker.
const slots = 6

// site is one installation, and what breaks it.
type site struct {
	dir                    string
	mark                   string // in the environment of everything a turn starts
	plan                   *chaos.Plan
	ledger                 *chaos.Ledger
	pg                     *postgres
	broker                 *testenv.Broker
	db                     *pgxpool.Pool            // as the superuser: the test's own eyes
	asDispatcher, asWorker func(addr string) string // DSN through a proxy
	addrs                  []string                 // of the dispatchers
	wire                   *testenv.Proxy           // between the dispatchers and Postgres
	wires                  []*testenv.Proxy         // and between each worker and it
	things                 map[string]*thing        // by name
	over                   bool                     // they were ended

	mu       sync.Mutex // guards what follows
	problems []string
	lost     map[string]bool // state directories that nobody serves any more
}

// newSite sets up everything but the programs. script is what turns do.
func newSite(t *testing.T, plan *chaos.Plan, script func(n, attempt int) chaos.Script) *site {
	t.Helper()
	// Not t.TempDir: what a failure left is for a person to look at.
	dir, err := os.MkdirTemp("", "turnpike-site-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs and state directories are in %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	// Postgres may run under another uid.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &site{
		dir: dir, mark: fmt.Sprintf("chaos-%d-%d", plan.Seed, os.Getpid()), plan: plan,
		things: map[string]*thing{}, lost: map[string]bool{},
	}
	if s.ledger, err = chaos.NewLedger(script); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.ledger.Close)
	s.pg = startPostgres(t, s.path("pg"))
	if s.db, err = pgxpool.New(t.Context(), s.pg.server.SuperuserDSN(database)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.db.Close)
	if _, err := s.db.Exec(t.Context(), eyes); err != nil {
		t.Fatal(err)
	}
	s.asDispatcher, s.asWorker = s.pg.login("turnpike_dispatcher"), s.pg.login("turnpike_worker")
	s.wire = testenv.NewProxy(t, s.pg.socket())
	var users []*server.User
	for _, r := range queue.Roles() {
		p := queue.PermissionsOf(r)
		users = append(users, &server.User{Username: string(r), Permissions: &server.Permissions{
			Publish: subjects(p.Publish), Subscribe: subjects(p.Subscribe),
		}})
	}
	s.broker = testenv.NATS(t, users...)
	if err := os.WriteFile(s.path("ceiling.yaml"), []byte(ceiling), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range plan.Size.Dispatchers {
		s.addrs = append(s.addrs, freeAddr(t))
		s.add("dispatcher", i)
	}
	for i := range plan.Size.Workers {
		s.wires = append(s.wires, testenv.NewProxy(t, s.pg.socket()))
		s.add("worker", i)
	}
	return s
}

// eyes writes down every move of a queue row, in the order in which Postgres makes them:
// what conflicts is made one after the other.
const eyes = `
	CREATE SCHEMA chaos;
	CREATE TABLE chaos.moves (
		seq bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, job_id uuid NOT NULL, state text, attempt integer NOT NULL,
		lease_no bigint NOT NULL, tenant text NOT NULL, dedup_key text, concurrency_key text);
	CREATE FUNCTION chaos.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
	DECLARE
		r turnpike.queue := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
	BEGIN
		INSERT INTO chaos.moves (job_id, state, attempt, lease_no, tenant, dedup_key, concurrency_key)
		VALUES (r.job_id, CASE TG_OP WHEN 'DELETE' THEN NULL ELSE r.state::text END, r.attempt, r.lease_no, r.tenant, r.dedup_key, r.concurrency_key);
		RETURN NULL;
	END $$;
	CREATE TRIGGER came AFTER INSERT OR DELETE ON turnpike.queue FOR EACH ROW EXECUTE FUNCTION chaos.note();
	CREATE TRIGGER moved AFTER UPDATE ON turnpike.queue FOR EACH ROW
		WHEN (OLD.state IS DISTINCT FROM NEW.state OR OLD.lease_no <> NEW.lease_no) EXECUTE FUNCTION chaos.note()`

const ceiling = `
placements: [none-confined]
agents: [claude]
tools: ["*"]
workspaces: {scratch: true}
network: open
env: {set: [MARK]}
accounts:
  default: {env: {ANTHROPIC_API_KEY: MODEL_KEY}, agents: [claude]}
  metered: {env: {ANTHROPIC_API_KEY: MODEL_KEY}, agents: [claude]}
`

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

func (s *site) path(name ...string) string { return filepath.Join(append([]string{s.dir}, name...)...) }

// problem is something that went otherwise than it may, whatever was broken.
func (s *site) problem(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// act carries out one action of the plan. What is done to Postgres and NATS is done by
// the test's own goroutine.
func (s *site) act(t *testing.T, a chaos.Action) {
	t.Helper()
	switch what := a.Do; a.On {
	case "postgres 0":
		map[string]func(){
			chaos.Down: s.pg.down, chaos.Kill: s.pg.crash, chaos.Up: s.pg.up, chaos.Freeze: s.pg.freeze, chaos.Thaw: s.pg.thaw,
		}[what]()
	case "nats 0":
		if what == chaos.Up {
			s.broker.Start(t)
			return
		}
		s.broker.Stop(t)
		if what == chaos.Wipe {
			s.broker.Wipe(t)
		}
	case "wire " + strconv.Itoa(a.N):
		map[string]func(){chaos.Cut: s.wires[a.N].Cut, chaos.Silence: s.wires[a.N].Hold, chaos.Join: s.wires[a.N].Resume}[what]()
	default:
		s.things[a.On].do <- order{what: what}
	}
}

// everything has every program do the same.
func (s *site) everything(what string) {
	for _, th := range s.things {
		th.do <- order{what: what}
	}
}

// rest waits until nothing is left to be done, and says which messages are there all
// the same.
func (s *site) rest(ctx context.Context, p *producers) (messages []string) {
	// A slow machine has many jobs to do yet.
	for left, before := math.MaxInt, 0; left != before && left > 0; {
		before = left
		s.await("a job is finished, or none is left", func() bool {
			p.lift(ctx)
			var n int
			if err := s.db.QueryRow(ctx, "SELECT count(*) FROM turnpike.queue").Scan(&n); err != nil || n > 0 && n >= before {
				return false
			}
			left = n
			return true
		})
	}
	p.client.CloseIdleConnections()
	s.await("every tree is gone", func() bool { return s.ledger.Open() == 0 })
	s.await("every report is settled", func() bool { return len(s.spooled()) == 0 })
	s.await("the streams are empty", func() bool {
		var err error
		messages, err = s.messages(ctx)
		return err == nil && len(messages) == 0
	})
	return messages
}

// end stops every program in order and returns when all have ended. It may be called
// again.
func (s *site) end() {
	if s.over {
		return
	}
	s.over = true
	s.everything(chaos.Drain)
	for _, th := range s.things {
		close(th.do)
	}
	for _, th := range s.things {
		<-th.done
	}
}

// ready waits until the dispatchers answer and the workers are known.
func (s *site) ready(t *testing.T) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	s.await("the site is up", func() bool {
		for _, addr := range s.addrs {
			res, err := client.Get("http://" + addr + "/readyz")
			if err != nil {
				return false
			}
			res.Body.Close()
			if res.StatusCode != http.StatusOK {
				return false
			}
		}
		var n int
		err := s.db.QueryRow(t.Context(), "SELECT count(*) FROM turnpike.workers").Scan(&n)
		return err == nil && n >= s.plan.Size.Workers
	})
}

// await asks until the answer is yes, for what happens in other processes and gives no
// signal of its own. That it never is, is a problem.
func (s *site) await(what string, ok func() bool) {
	deadline := time.NewTimer(soon)
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			s.problem("it never happens that %s", what)
			return
		}
	}
}

// order is what is to be done to a program.
type order struct {
	what string
	done chan<- struct{} // closed once it is; nil: nobody waits
}

// thing is a program of the site. Its own goroutine does to it what the plan says, so
// that one that is slow to end holds up no other.
type thing struct {
	site *site
	kind string
	n    int
	do   chan order
	done chan struct{}

	// Of its own goroutine.
	age     int      // how many state directories were lost
	program *program // nil: it was ended
}

// program is one process of a thing.
type program struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // once it has ended
}

func (s *site) add(kind string, n int) {
	th := &thing{site: s, kind: kind, n: n, do: make(chan order, 1000), done: make(chan struct{})}
	s.things[th.name()] = th
	go th.run()
}

func (th *thing) name() string { return th.kind + " " + strconv.Itoa(th.n) }

func (th *thing) run() {
	defer close(th.done)
	for o := range th.do {
		th.look()
		switch o.what {
		case chaos.Start:
			th.start()
		case chaos.Kill:
			th.stop(syscall.SIGKILL)
		case chaos.Lose:
			th.stop(syscall.SIGKILL)
			th.site.mu.Lock()
			th.site.lost[th.stateDir()] = true
			th.site.mu.Unlock()
			th.age++
		case chaos.Drain:
			th.stop(syscall.SIGTERM)
		case chaos.Stop:
			th.signal(syscall.SIGSTOP)
		case chaos.GoOn:
			th.signal(syscall.SIGCONT)
		}
		if o.done != nil {
			close(o.done)
		}
	}
}

func (th *thing) stateDir() string { return th.site.path("state", fmt.Sprintf("w%d-%d", th.n, th.age)) }

// look tells of a program that ended although nobody ended it.
func (th *thing) look() {
	if th.program == nil {
		return
	}
	select {
	case <-th.program.ended:
		th.site.problem("%s ended by itself: %v", th.name(), th.program.err)
		th.program = nil
	default:
	}
}

func (th *thing) signal(sig syscall.Signal) {
	if th.program != nil {
		_ = th.program.cmd.Process.Signal(sig) // that it ended by itself is told elsewhere
	}
}

// stop ends the program and waits for its end.
func (th *thing) stop(sig syscall.Signal) {
	p := th.program
	if p == nil {
		return
	}
	th.program = nil
	_ = p.cmd.Process.Signal(sig) // it may end by itself just now
	select {
	case <-p.ended:
	case <-time.After(soon):
		th.site.problem("%s does not end", th.name())
		_ = p.cmd.Process.Kill() // as above
		<-p.ended
	}
	// One that is only starting ends by the signal itself, which is its right.
	if exit, bad := errors.AsType[*exec.ExitError](p.err); bad && sig == syscall.SIGTERM && exit.ExitCode() > 0 {
		th.site.problem("%s was told to end, and ends with %v", th.name(), exit)
	}
}

// start starts the program unless it runs.
func (th *thing) start() {
	if th.program != nil {
		return
	}
	s := th.site
	var cmd *exec.Cmd
	lease := s.plan.Size.Lease.String()
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir}
	switch th.kind {
	case "dispatcher":
		cmd = exec.Command(filepath.Join(programs, "dispatcher"), "serve", "--listen", s.addrs[th.n], "--slow-start", "2s", "--lease", lease,
			"--ack-wait", "3s", "--log-format", "json")
		env = append(env, "TURNPIKE_DATABASE_URL="+s.asDispatcher(s.wire.Addr()), "TURNPIKE_NATS_URL="+s.broker.As(string(queue.Dispatcher)))
	case "worker":
		cmd = exec.Command(filepath.Join(programs, "worker"), "serve", "--slots", "none-confined="+strconv.Itoa(slots), "--ceiling", s.path("ceiling.yaml"),
			"--state-dir", th.stateDir(), "--bin", "claude="+filepath.Join(programs, "agent", "standin"), "--listen", "", "--min-free-mib", "1",
			"--lease", lease, "--beat", "500ms", "--grace", "500ms", "--drain", "1s", "--log-format", "json")
		env = append(env, "TURNPIKE_DATABASE_URL="+s.asWorker(s.wires[th.n].Addr()),
			"TURNPIKE_NATS_URL="+s.broker.As(string(queue.Worker)), "MODEL_KEY=none")
	}
	log, err := os.OpenFile(s.path(fmt.Sprintf("%s%d.log", th.kind, th.n)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.problem("%v", err)
		return
	}
	defer log.Close()
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = env, s.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		s.problem("start %s: %v", th.name(), err)
		return
	}
	p := &program{cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.err = cmd.Wait()
	}()
	th.program = p
}
