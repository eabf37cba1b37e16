package killtest_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/procs"
	"turnpike/internal/agent/runner"
	"turnpike/internal/agent/session"
	"turnpike/internal/vcs"
)

var (
	kills = flag.Int("kills", 10, "how often each agent is killed")
	seed  = flag.Uint64("seed", 0, "what the moments are chosen from; 0 is a new one")
)

// patience bounds what a CLI may take on a busy machine.
const patience = 5 * time.Minute

// The ways to kill a turn.
const (
	killed    = "killed"    // SIGKILL to the agent itself, as the system does when memory is short
	cancelled = "cancelled" // the caller's context ends
)

// plan is one kill.
type plan struct {
	how     string
	after   int // events; 0 is at once
	confine bool
}

// TestKills kills turns at random moments.
func TestKills(t *testing.T) {
	t.Parallel()
	from := *seed
	if from == 0 {
		from = rand.Uint64()
	}
	fmt.Printf("killtest: -seed %d\n", from)
	for _, name := range agent.Agents() {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the turns of one agent come one after the other: they cost seconds of CPU each
			s := subjects[name]
			whole := s.turn(t, plan{after: math.MaxInt, confine: true})
			whole.wantComplete(t)
			if whole.res.Signal != 0 || whole.res.ExitCode != 0 {
				t.Errorf("nobody killed it, and it ended with code %d, signal %d", whole.res.ExitCode, whole.res.Signal)
			}
			if t.Failed() {
				t.FailNow()
			}
			landed := 0
			for i := range *kills {
				h := fnv.New64a()
				fmt.Fprint(h, name, i)
				r := rand.New(rand.NewPCG(from, h.Sum64()))
				p := plan{how: killed, after: r.IntN(len(whole.lines) + 1), confine: r.IntN(3) > 0}
				if r.IntN(4) == 0 {
					p.how = cancelled
				}
				t.Run(strconv.Itoa(i), func(t *testing.T) {
					got := s.turn(t, p)
					if got.res.IsError {
						landed++
						got.wantKilled(t, p)
					} else {
						got.wantComplete(t) // it had ended by itself
					}
					if t.Failed() {
						t.Logf("-seed %d: %s after %d of %d events, confined %t", from, p.how, p.after, len(whole.lines), p.confine)
						t.Logf("%+v", got.res)
					}
				})
			}
			if *kills >= 10 && landed < *kills/2 {
				t.Errorf("only %d of %d turns were hit", landed, *kills)
			}
		})
	}
}

// turn is what one turn came to.
type turn struct {
	s        subject
	res      *agent.Result
	lines    [][]byte // as they were observed
	requests int
}

// steps leave a process that wants to outlive the turn, write a file, report and close.
func steps() []agenttest.Step {
	return []agenttest.Step{
		agenttest.Together(agenttest.Text("I begin."), agenttest.Shell("setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo begun")),
		agenttest.Write("out.txt", "written\n"),
		agenttest.Report("all green"),
		agenttest.Text("All is done, and this is the last word of it."),
	}
}

// turn runs a turn and kills it as planned. What holds however it ended is checked here.
func (s subject) turn(t *testing.T, p plan) *turn {
	t.Helper()
	sc := agenttest.NewProvider(t).Script("turn", steps()...)
	driver := s.driver(sc.URL())
	backend := driver.Descriptor()
	dir := t.TempDir()
	got := &turn{s: s}
	rec := &recorder{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sessions := filepath.Join(t.TempDir(), "sessions")

	moment := make(chan struct{})
	now := sync.OnceFunc(func() { close(moment) })
	r := &runner.Runner{
		Bins:        map[string]string{backend.Name: s.bin(t)},
		SessionsDir: sessions,
		Drivers:     map[string]agent.Driver{backend.Name: driver},
		Watch:       agent.Watch{FirstEvent: patience, Idle: patience},
		Network:     agent.Network{Open: true},
		Confiner:    confine.Platform(confine.Options{UnixSockets: true}),
		Environ:     func() []string { return append(s.env(sc.URL()), "PATH="+os.Getenv("PATH")) },
		Recorder:    rec,
		Observer: agent.Observer{
			Started: func(agent.Control) {
				if p.after == 0 {
					now()
				}
			},
			Line: func(line []byte) {
				got.lines = append(got.lines, bytes.Clone(line))
				if len(got.lines) == p.after {
					now()
				}
			},
		},
	}
	over := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		select {
		case <-over:
		case <-moment:
			if p.how == cancelled {
				cancel()
				return
			}
			if pid, ok := agentOf(t, sessions, rec.label()); ok {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
			}
		}
	})
	res, err := r.Run(ctx, agent.Request{
		Name: "killed", Prompt: "Do what the script says.", ValidOutcomes: []string{"shipped"},
		Profile:   agent.Profile{Name: "builder", Agent: backend.Name, Model: s.model, Confine: p.confine, Timeout: patience},
		Workspace: vcs.Workspace{Dir: dir},
		Grants: &agent.Grants{
			Env: []string{"*"}, Tools: []string{agent.ToolsAll},
			Mounts: []agent.Mount{{Path: dir, Access: agent.ReadWrite}},
		},
	})
	close(over)
	killer.Wait()
	if err != nil {
		t.Fatal(err)
	}
	got.res, got.requests = res, len(sc.Requests())
	got.check(t, sessions, rec)
	return got
}

// check looks at what holds however a turn ended.
func (got *turn) check(t *testing.T, sessions string, rec *recorder) {
	t.Helper()
	res := got.res
	// The transcript is what was observed, to the line.
	text, err := os.ReadFile(res.Transcript)
	if err != nil {
		t.Error(err)
	}
	if want := bytes.Join(got.lines, []byte("\n")); !bytes.Equal(bytes.TrimSuffix(text, []byte("\n")), want) {
		t.Errorf("the transcript has %d bytes, observed were %d", len(text), len(want))
	}
	d, err := session.Open(res.SessionDir)
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := d.Result(); err != nil || !d.Ended() || kept.NumTurns != res.NumTurns || kept.CostUSD != res.CostUSD || kept.ErrorSubtype != res.ErrorSubtype {
		t.Errorf("kept is %+v, %v", kept, err)
	}

	// Turns and cost are those the transcript shows, and nothing beyond what was asked.
	want := got.s.count(got.lines)
	if res.NumTurns != want.turns {
		t.Errorf("%d turns, the transcript shows %d", res.NumTurns, want.turns)
	}
	if res.CostKnown != want.priced || math.Abs(res.CostUSD-want.cost) > 1e-9 {
		t.Errorf("cost $%v, known %t; the transcript shows $%v, %t", res.CostUSD, res.CostKnown, want.cost, want.priced)
	}
	if want.turns > got.requests {
		t.Errorf("%d turns, and %d requests", want.turns, got.requests)
	}
	if res.HasOutcome && res.Outcome.Status != "shipped" {
		t.Errorf("outcome %+v", res.Outcome)
	}
	if res.HasOutcome && res.ToolCalls < 1 {
		t.Error("the outcome was reported without a tool call")
	}

	// Nothing is left, and whoever keeps the record was told.
	if !slices.Equal(rec.told, []string{"creating", "live", "gone"}) {
		t.Errorf("the recorder was told %q", rec.told)
	}
	if left := marked(sessions, rec.label()); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	if n, err := procs.Sweep(context.WithoutCancel(t.Context()), sessions); n != 0 || err != nil {
		t.Errorf("%d processes had to be swept up, %v", n, err)
	}
	if alive, err := procs.Find(t.Context(), rec.identity); alive || err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("the root is alive: %t, %v", alive, err)
	}
}

func (got *turn) wantComplete(t *testing.T) {
	t.Helper()
	res := got.res
	// How the process ended is no part of it: the turn had ended before.
	if res.IsError || res.ErrorSubtype != "" || res.ResultText != "All is done, and this is the last word of it." ||
		!res.HasOutcome || res.ToolCalls != len(steps())-1 || res.NumTurns != got.requests || res.ClaudeID == "" {
		stderr, _ := os.ReadFile(filepath.Join(res.SessionDir, "stderr.log"))
		t.Errorf("not complete: %+v\nstderr: %s", res, stderr)
	}
}

func (got *turn) wantKilled(t *testing.T, p plan) {
	t.Helper()
	res := got.res
	want := agent.SubtypeCancelled
	if p.how == killed {
		want = "signal_killed"
		if res.Signal != int(syscall.SIGKILL) || res.ExitCode != -1 {
			t.Errorf("signal %d, exit code %d", res.Signal, res.ExitCode)
		}
	}
	if res.ErrorSubtype != want || res.TimedOut || res.CostCapped || res.Failure != "" || res.RateLimit != nil {
		t.Errorf("%q, timed out %t, capped %t, failure %q; want %q", res.ErrorSubtype, res.TimedOut, res.CostCapped, res.Failure, want)
	}
	if len(got.lines) < p.after {
		t.Errorf("killed after %d events, of which %d were kept", p.after, len(got.lines))
	}
}

// recorder is told what was started.
type recorder struct {
	mu       sync.Mutex
	told     []string
	identity agent.Identity
}

func (r *recorder) tell(what string, who agent.Identity) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, what)
	r.identity = who
	return nil
}

func (r *recorder) Creating(_ context.Context, who agent.Identity) error {
	return r.tell("creating", who)
}
func (r *recorder) Live(_ context.Context, who agent.Identity) error { return r.tell("live", who) }
func (r *recorder) Gone(_ context.Context, who agent.Identity) error { return r.tell("gone", who) }

func (r *recorder) label() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.identity.Label
}

// process is one that bears a session's mark.
type process struct {
	pid     int
	started uint64
	exe     string
	command string
}

func (p process) String() string { return fmt.Sprintf("%d %s", p.pid, p.command) }

// marked are the processes of a session, oldest first.
func marked(sessions, label string) []process {
	mark := procs.Marker(sessions, label)
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		panic(err) // the pattern is good
	}
	var found []process
	for _, e := range entries {
		env, err := os.ReadFile(e + "/environ")
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), mark) {
			continue // it may have gone while we look
		}
		stat, _ := os.ReadFile(e + "/stat")
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 20 || fields[0] == "Z" {
			continue
		}
		p := process{}
		p.pid, _ = strconv.Atoi(filepath.Base(e))
		p.started, _ = strconv.ParseUint(fields[19], 10, 64)
		p.exe, _ = os.Readlink(e + "/exe")
		command, _ := os.ReadFile(e + "/cmdline")
		p.command = strings.ReplaceAll(string(command), "\x00", " ")
		found = append(found, p)
	}
	slices.SortFunc(found, func(a, b process) int {
		return cmp.Or(cmp.Compare(a.started, b.started), cmp.Compare(a.pid, b.pid))
	})
	return found
}

// agentOf is the agent of a session: the oldest of its processes that is none of ours.
func agentOf(t *testing.T, sessions, label string) (int, bool) {
	self, err := os.Executable()
	if err != nil {
		t.Error(err)
		return 0, false
	}
	for _, p := range marked(sessions, label) {
		if p.exe != self {
			return p.pid, true
		}
	}
	return 0, false
}
