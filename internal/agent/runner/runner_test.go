package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/runner"
	"turnpike/internal/agent/session"
	"turnpike/internal/vcs"
)

// soon is a limit that a test waits out, late one that it never should.
const (
	soon = 200 * time.Millisecond
	late = 5 * time.Minute
)

// records is a Recorder that keeps what it was told.
type records struct {
	mu      sync.Mutex // guards told
	told    []string
	refuses string
}

func (r *records) tell(what string, who agent.Identity) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, what)
	if who.Kind != agent.KindProcess || who.Label == "" || what != "creating" && who.PID == 0 && r.refuses == "" {
		r.told = append(r.told, "without identity")
	}
	if what == r.refuses {
		return errors.New("cannot record")
	}
	return nil
}

func (r *records) Creating(_ context.Context, who agent.Identity) error {
	return r.tell("creating", who)
}
func (r *records) Live(_ context.Context, who agent.Identity) error { return r.tell("live", who) }
func (r *records) Gone(_ context.Context, who agent.Identity) error { return r.tell("gone", who) }

func newRunner(t *testing.T, d driver) *runner.Runner {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &runner.Runner{
		ClaudeBin:   exe,
		SessionsDir: filepath.Join(t.TempDir(), "sessions"),
		Drivers:     map[string]agent.Driver{agent.AgentClaude: d},
		Watch:       agent.Watch{FirstEvent: late, Idle: late, Grace: late},
		Network:     agent.Network{Open: true},
		Environ:     func() []string { return []string{"HOME=/nonexistent", "SECRET=s", "LANG=C", "GH_TOKEN=t"} },
	}
}

func request(t *testing.T) agent.Request {
	t.Helper()
	dir := t.TempDir()
	return agent.Request{
		Name: "try it", Prompt: "do it", SystemPrompt: "be brief", ValidOutcomes: []string{},
		Profile:   agent.Profile{Name: "builder"},
		Workspace: vcs.Workspace{Dir: dir},
		Grants: &agent.Grants{
			Env: []string{"LANG", "GH_*"}, Tools: []string{agent.ToolsAll},
			Mounts: []agent.Mount{{Path: dir, Access: agent.ReadWrite}},
		},
	}
}

func run(t *testing.T, r *runner.Runner, req agent.Request) *agent.Result {
	t.Helper()
	return runIn(t, t.Context(), r, req)
}

func runIn(t *testing.T, ctx context.Context, r *runner.Runner, req agent.Request) *agent.Result {
	t.Helper()
	res, err := r.Run(ctx, req)
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	d, err := session.Open(res.SessionDir)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := d.Result()
	if err != nil {
		t.Fatalf("result.json: %v", err)
	}
	// Time's monotonic reading does not survive, and need not.
	res.StartedAt = res.StartedAt.Round(0)
	if diff := cmp.Diff(res, kept); diff != "" {
		t.Errorf("result.json is not the result:\n%s", diff)
	}
	return res
}

type ending struct {
	IsError  bool
	Subtype  string
	Code     int
	Turns    int
	Cost     float64
	TimedOut bool
	Capped   bool
	Partial  bool
}

func endingOf(r *agent.Result) ending {
	return ending{r.IsError, r.ErrorSubtype, r.ExitCode, r.NumTurns, r.CostUSD, r.TimedOut, r.CostCapped, r.CostPartial}
}

func TestRun(t *testing.T) {
	t.Parallel()
	quick := agent.Watch{FirstEvent: late, Idle: late, Grace: soon}
	tests := map[string]struct {
		does   string
		change func(*runner.Runner, *agent.Request)
		want   ending
	}{
		"succeeds_by_the_final_event": {does: "done", want: ending{Turns: 2, Cost: 0.25}},
		"succeeds_whatever_the_exit_code": {
			does: "succeeds-with-code", want: ending{Code: 3}},
		"fails_as_the_final_event_says": {
			does: "fails", want: ending{IsError: true, Subtype: "max_turns", Code: 1, Turns: 3}},
		"does_not_believe_an_exit_code_of_zero": {
			does: "exit", want: ending{IsError: true, Subtype: agent.SubtypeNoResult, Turns: 1}},
		"keeps_what_came_before_a_cut": {
			does: "cut", want: ending{IsError: true, Subtype: agent.SubtypeNoResult, Turns: 4, Cost: 0.5, Partial: true}},
		"reads_past_malformed_lines": {does: "malformed"},
		"reads_past_a_line_of_50_MB": {does: "huge-line"},
		"names_the_signal": {
			does: "dies", want: ending{IsError: true, Subtype: "signal_killed", Code: -1, Turns: 2}},
		"ends_a_line_without_end": {
			does:   "endless-line",
			change: func(r *runner.Runner, _ *agent.Request) { r.MaxOutput, r.Watch = 4<<20, quick },
			want:   ending{IsError: true, Subtype: agent.SubtypeProtocol, Code: -1}},
		"ends_a_stream_without_end": {
			does:   "endless-events",
			change: func(r *runner.Runner, _ *agent.Request) { r.MaxEvents, r.Watch = 1000, quick },
			want:   ending{IsError: true, Subtype: agent.SubtypeProtocol, Code: -1, Turns: 7}},
		"ends_an_agent_that_never_speaks": {
			does:   "hang",
			change: func(r *runner.Runner, _ *agent.Request) { r.Watch.FirstEvent = soon },
			want:   ending{IsError: true, Subtype: agent.SubtypeFirstEvent, Code: -1, TimedOut: true}},
		"ends_an_agent_that_falls_silent": {
			does:   "hang-after",
			change: func(r *runner.Runner, _ *agent.Request) { r.Watch.Idle = soon },
			want:   ending{IsError: true, Subtype: agent.SubtypeIdle, Code: -1, Turns: 1, Cost: 0.5, TimedOut: true, Partial: true}},
		"ends_a_turn_at_its_timeout": {
			does:   "hang",
			change: func(_ *runner.Runner, q *agent.Request) { q.Profile.Timeout = soon },
			want:   ending{IsError: true, Subtype: agent.SubtypeTimeout, Code: -1, TimedOut: true}},
		"kills_an_agent_that_does_not_listen": {
			does: "ignores-term",
			change: func(r *runner.Runner, _ *agent.Request) {
				r.Watch = agent.Watch{FirstEvent: late, Idle: soon, Grace: soon}
			},
			want: ending{IsError: true, Subtype: agent.SubtypeIdle, Code: -1, Turns: 1, TimedOut: true}},
		"sees_out_an_agent_that_stays_after_its_last_word": {
			does:   "stays",
			change: func(r *runner.Runner, _ *agent.Request) { r.Watch = quick },
			want:   ending{Code: -1}},
		"keeps_the_cost_of_a_final_event_that_answers_a_stop": {
			does:   "ends-when-asked",
			change: func(r *runner.Runner, _ *agent.Request) { r.Watch.Idle = soon },
			want:   ending{IsError: true, Subtype: agent.SubtypeIdle, Turns: 1, Cost: 0.75, TimedOut: true}},
		"stops_at_the_cost_cap": {
			does:   "spends",
			change: func(r *runner.Runner, q *agent.Request) { q.CostCapUSD = 2.5 },
			want:   ending{IsError: true, Subtype: agent.SubtypeCostCap, Code: -1, Turns: 10, Cost: 2.5, Capped: true, Partial: true}},
		"tells_a_turn_that_ended_at_the_cap": {
			does:   "done",
			change: func(_ *runner.Runner, q *agent.Request) { q.CostCapUSD = 0.25 },
			want:   ending{IsError: true, Subtype: agent.SubtypeCostCap, Code: -1, Turns: 2, Cost: 0.25, Capped: true}},
		"leaves_a_turn_under_the_cap": {
			does:   "done",
			change: func(_ *runner.Runner, q *agent.Request) { q.CostCapUSD = 0.26 },
			want:   ending{Turns: 2, Cost: 0.25}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, req := newRunner(t, driver{args: []string{test.does}}), request(t)
			rec := &records{}
			r.Recorder = rec
			if test.change != nil {
				test.change(r, &req)
			}
			res := run(t, r, req)
			got := endingOf(res)
			if test.want.Code < 0 {
				// How a stand-in that was stopped leaves is its own affair.
				got.Code = test.want.Code
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s\n%+v", diff, res)
			}
			if diff := cmp.Diff([]string{"creating", "live", "gone"}, rec.told); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRunKeepsTheSession(t *testing.T) {
	t.Parallel()
	r, req := newRunner(t, driver{args: []string{"huge-line"}}), request(t)
	res := run(t, r, req)
	info, err := os.Stat(res.Transcript)
	if err != nil || info.Size() < 50<<20 {
		t.Fatalf("the transcript is not whole: %v, %v", info, err)
	}
	d, err := session.Open(res.SessionDir)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{d.Prompt(): req.Prompt, d.SystemPrompt(): req.SystemPrompt} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v", path, got, err)
		}
	}
	m, err := d.Meta()
	if err != nil || m.Role != "builder" || m.Agent != agent.AgentClaude || m.Process == nil || m.Process.PID == 0 || m.StartedAt.IsZero() {
		t.Errorf("meta %+v, %v", m, err)
	}
	if lost, err := session.Interrupted(r.SessionsDir); err != nil || len(lost) > 0 {
		t.Errorf("an ended turn counts as lost: %v, %v", lost, err)
	}
}

func TestRunFeedsTheAgent(t *testing.T) {
	t.Parallel()
	for name, interactive := range map[string]bool{"from_the_command": false, "by_the_conversation": true} {
		t.Run(name, func(t *testing.T) {
			r, req := newRunner(t, driver{args: []string{"prompt"}, interactive: interactive}), request(t)
			req.Prompt = strings.Repeat("long ", 100_000)
			if res := run(t, r, req); res.ResultText != req.Prompt {
				t.Fatalf("the agent read %d bytes of %d", len(res.ResultText), len(req.Prompt))
			}
		})
	}
}

func TestRunKeepsStderr(t *testing.T) {
	t.Parallel()
	r := newRunner(t, driver{args: []string{"noisy"}})
	res := run(t, r, request(t))
	d, err := session.Open(res.SessionDir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(d.Stderr()); err != nil || string(got) != "careful\n" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestRunGivesOnlyTheGrantedEnvironment(t *testing.T) {
	t.Parallel()
	r, req := newRunner(t, driver{args: []string{"environment"}}), request(t)
	res := run(t, r, req)
	text, dir, _ := strings.Cut(res.ResultText, "\n")
	var env []string
	if err := json.Unmarshal([]byte(text), &env); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, pair := range env {
		name, _, _ := strings.Cut(pair, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{"HOME", "LANG", "PATH", "STANDIN", "TMPDIR", "TURNPIKE_SESSION"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	if !slices.Contains(env, "HOME="+filepath.Join(res.SessionDir, "home")) {
		t.Errorf("the agent's home is not its own: %v", env)
	}
	if dir != req.Workspace.Dir {
		t.Errorf("the agent works in %s", dir)
	}
}

func TestRunShadowsVersionControl(t *testing.T) {
	t.Parallel()
	r := newRunner(t, driver{args: []string{"shell", "git status"}})
	if res := run(t, r, request(t)); !strings.Contains(res.ResultText, "not granted to this turn") || !strings.Contains(res.ResultText, "126") {
		t.Fatalf("got %q", res.ResultText)
	}
}

func TestRunTakesTheOutcome(t *testing.T) {
	t.Parallel()
	t.Run("from_the_report_tool", func(t *testing.T) {
		r, req := newRunner(t, driver{args: []string{"reports"}}), request(t)
		req.ValidOutcomes = []string{"ok"}
		res := run(t, r, req)
		if !res.HasOutcome || res.Outcome.Status != "ok" || res.Outcome.Note != "all well" {
			t.Fatalf("got %+v", res)
		}
	})
	t.Run("and_offers_no_tool_where_nothing_may_be_reported", func(t *testing.T) {
		offered := false
		r, req := newRunner(t, driver{args: []string{"done"}, launched: func(l agent.Launch) { offered = len(l.MCP) > 0 }}), request(t)
		if res := run(t, r, req); res.HasOutcome || offered {
			t.Fatalf("offered %v, got %+v", offered, res.Outcome)
		}
	})
}

func TestRunLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	r := newRunner(t, driver{args: []string{"daemon"}})
	res := run(t, r, request(t))
	if res.IsError {
		t.Fatalf("got %+v", res)
	}
	pid, err := strconv.Atoi(res.ResultText)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Fatalf("the agent's daemon is still there: %v", err)
	}
}

func TestRunCancelled(t *testing.T) {
	t.Parallel()
	t.Run("keeps_what_was_known", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := newRunner(t, driver{args: []string{"hang-after"}})
		r.Observer.Progress = func(agent.Progress) { cancel() }
		want := ending{IsError: true, Subtype: agent.SubtypeCancelled, Turns: 1, Cost: 0.5, Partial: true}
		got := endingOf(runIn(t, ctx, r, request(t)))
		got.Code = 0
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
	t.Run("is_too_late_once_the_turn_ended_by_itself", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := newRunner(t, driver{args: []string{"stays"}})
		r.Observer.Progress = func(agent.Progress) { cancel() }
		if res := runIn(t, ctx, r, request(t)); res.IsError || res.ResultText != "done" {
			t.Fatalf("got %+v", res)
		}
	})
	t.Run("is_never_a_cost_cap", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, req := newRunner(t, driver{args: []string{"ends-when-asked"}}), request(t)
		req.CostCapUSD = 0.5 // reached only by the answer to the cancellation
		r.Observer.Progress = func(agent.Progress) { cancel() }
		res := runIn(t, ctx, r, req)
		if res.ErrorSubtype != agent.SubtypeCancelled || res.CostCapped || res.CostUSD != 0.75 {
			t.Fatalf("got %+v", res)
		}
	})
	t.Run("before_the_start_starts_nothing", func(t *testing.T) {
		t.Parallel()
		why := errors.New("lease lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		r := newRunner(t, driver{args: []string{"done"}})
		rec := &records{}
		r.Recorder = rec
		if _, err := r.Run(ctx, request(t)); !errors.Is(err, why) || len(rec.told) > 0 {
			t.Fatalf("got %v, %v", err, rec.told)
		}
		nothingLeft(t, r)
	})
}

func TestRunFrozen(t *testing.T) {
	t.Parallel()
	r := newRunner(t, driver{args: []string{"hang-after"}})
	r.Watch.Idle = 5 * soon // a loaded machine takes its time to freeze
	held := make(chan error, 1)
	r.Observer.Started = func(c agent.Control) {
		go func() {
			held <- func() error {
				if err := c.Freeze(); err != nil {
					return err
				}
				// The clocks stand still: longer than every limit passes.
				<-time.After(8 * soon)
				return c.Thaw()
			}()
		}()
	}
	began := time.Now()
	res := run(t, r, request(t))
	if err := <-held; err != nil {
		t.Fatal(err)
	}
	if res.ErrorSubtype != agent.SubtypeIdle || time.Since(began) < 8*soon {
		t.Fatalf("ended after %v with %+v", time.Since(began), res)
	}
}

// TestRunFrozenIsStillStopped: and without going on for a moment, for the end of a turn
// that stands still is mostly that its lease is another's.
func TestRunFrozenIsStillStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := newRunner(t, driver{args: []string{"ends-when-asked"}})
	r.Watch.Grace = late
	var control agent.Control
	frozen := make(chan error, 1)
	r.Observer.Started = func(c agent.Control) { control = c }
	r.Observer.Line = func([]byte) {
		go func() {
			frozen <- control.Freeze()
			cancel()
		}()
	}
	res := runIn(t, ctx, r, request(t))
	if err := <-frozen; err != nil {
		t.Fatal(err)
	}
	if res.ErrorSubtype != agent.SubtypeCancelled || res.Signal != int(syscall.SIGKILL) || res.CostKnown {
		t.Fatalf("got %+v", res)
	}
	if err := control.Freeze(); !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("freezing a turn that ended: %v", err)
	}
}

func TestRunFenced(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		does  string
		lines int
		want  string
	}{
		"is_not_asked_to_end":       {"ends-when-asked", 1, agent.SubtypeCancelled},
		"is_not_waited_for_further": {"stays-when-asked", 2, agent.SubtypeIdle},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			r := newRunner(t, driver{args: []string{test.does}})
			r.Watch = agent.Watch{FirstEvent: late, Idle: late, Grace: late}
			if test.lines > 1 {
				r.Watch.Idle = soon
			}
			lines := 0
			r.Observer.Line = func([]byte) {
				if lines++; lines == test.lines {
					cancel(agent.ErrFenced)
				}
			}
			res := runIn(t, ctx, r, request(t))
			if res.ErrorSubtype != test.want || res.Signal != int(syscall.SIGKILL) || res.CostKnown {
				t.Fatalf("got %+v", res)
			}
		})
	}
}

// nothingLeft checks that a turn that was not started left no session.
func nothingLeft(t *testing.T, r *runner.Runner) {
	t.Helper()
	entries, err := os.ReadDir(r.SessionsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestRunStartsNothing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	tests := map[string]struct {
		driver driver
		change func(*runner.Runner, *agent.Request)
		want   error
		told   []string
	}{
		"without_grants": {
			change: func(_ *runner.Runner, q *agent.Request) { q.Grants = nil }, want: agent.ErrNotGranted},
		"with_an_agent_nobody_drives": {
			change: func(_ *runner.Runner, q *agent.Request) { q.Profile.Agent = agent.AgentPi }, want: agent.ErrUnsupported},
		"in_a_container": {
			change: func(_ *runner.Runner, q *agent.Request) { q.Profile.Sandbox = agent.SandboxContainer }, want: agent.ErrUnsupported},
		"in_a_sandbox": {
			change: func(_ *runner.Runner, q *agent.Request) { q.Profile.Sandbox = agent.SandboxSbx }, want: agent.ErrUnsupported},
		"with_skills_the_agent_is_not_given": {
			change: func(r *runner.Runner, q *agent.Request) { r.Skills, q.Profile.Skills = skills{}, []string{"s"} }, want: agent.ErrUnsupported},
		"with_a_shell_the_agent_does_not_take": {
			change: func(_ *runner.Runner, q *agent.Request) { q.Profile.Shell = "/bin/bash" }, want: agent.ErrUnsupported},
		"with_skills_nobody_prepares": {
			change: func(_ *runner.Runner, q *agent.Request) { q.Profile.Skills = []string{"s"} }, want: agent.ErrUnsupported},
		"with_a_server_of_the_workers_name": {
			change: func(_ *runner.Runner, q *agent.Request) {
				q.Grants.Tools = append(q.Grants.Tools, "mcp__turnpike")
				q.Profile.MCP = map[string]agent.MCPEntry{"turnpike": {Command: "/bin/true"}}
			}, want: agent.ErrNotGranted},
		"without_the_executable": {
			change: func(r *runner.Runner, _ *agent.Request) { r.ClaudeBin = "/nonexistent/claude" }, want: agent.ErrUnready},
		"without_a_place_for_sessions": {
			change: func(r *runner.Runner, _ *agent.Request) { r.SessionsDir = filepath.Join(file, "sessions") }, want: agent.ErrUnready},
		"in_a_session_directory_the_agent_reaches": {
			change: func(_ *runner.Runner, q *agent.Request) {
				q.SessionDir = filepath.Join(q.Workspace.Dir, "session")
			}, want: agent.ErrNotGranted},
		"when_the_agent_is_installed_around_the_sessions": {
			driver: driver{runtime: filepath.Dir(filepath.Dir(file))},
			change: func(r *runner.Runner, q *agent.Request) {
				r.SessionsDir, q.Profile.Confine = filepath.Join(filepath.Dir(file), "sessions"), true
			}, want: agent.ErrUnsupported},
		"when_the_driver_cannot": {
			driver: driver{command: errors.New("no disk")}, want: agent.ErrUnready},
		"when_the_driver_refuses": {
			driver: driver{command: agent.ErrUnsupported}, want: agent.ErrUnsupported},
		"when_nothing_can_be_recorded": {
			change: func(r *runner.Runner, _ *agent.Request) { r.Recorder = &records{refuses: "creating"} },
			want:   agent.ErrUnready, told: []string{"creating"}},
		"when_the_observer_stops_it": {
			change: func(r *runner.Runner, _ *agent.Request) {
				r.Observer.Starting = func(context.Context) (time.Time, error) { return time.Time{}, stop }
			}, want: stop, told: []string{"creating", "gone", "without identity"}},
		"when_the_program_cannot_be_executed": {
			change: func(r *runner.Runner, q *agent.Request) {
				bin := filepath.Join(filepath.Dir(r.SessionsDir), "agent")
				if err := os.WriteFile(bin, []byte("no program"), 0o700); err != nil {
					panic(err)
				}
				r.ClaudeBin = bin
			}, want: agent.ErrUnready, told: []string{"creating", "gone", "without identity"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.driver.args = []string{"done"}
			r, req := newRunner(t, test.driver), request(t)
			r.Recorder = &records{}
			if test.change != nil {
				test.change(r, &req)
			}
			rec, ok := r.Recorder.(*records)
			if !ok {
				t.Fatal("the recorder is another")
			}
			res, err := r.Run(t.Context(), req)
			if !errors.Is(err, test.want) || res != nil {
				t.Errorf("got %+v, %v; want %v", res, err, test.want)
			}
			if diff := cmp.Diff(test.told, rec.told); diff != "" {
				t.Error(diff)
			}
			if r.SessionsDir != filepath.Join(file, "sessions") {
				nothingLeft(t, r)
			}
		})
	}
}

func TestRunInAGivenSession(t *testing.T) {
	t.Parallel()
	r, req := newRunner(t, driver{args: []string{"done"}}), request(t)
	dir, err := r.NewSessionDir("mine")
	if err != nil {
		t.Fatal(err)
	}
	req.SessionDir = dir
	r.Observer.Starting = func(context.Context) (time.Time, error) {
		// Whoever dies while it asks leaves nothing that says that a turn was started.
		if lost, err := session.Interrupted(r.SessionsDir); err != nil || len(lost) > 0 {
			t.Errorf("a turn that is not started yet counts as lost: %v, %v", lost, err)
		}
		return time.Time{}, agent.ErrUnready
	}
	if _, err := r.Run(t.Context(), req); !errors.Is(err, agent.ErrUnready) {
		t.Fatal(err)
	}
	// Nor is one whose time was over when it could be started at last.
	r.Observer.Starting = func(context.Context) (time.Time, error) { return time.Now(), nil }
	if _, err := r.Run(t.Context(), req); !errors.Is(err, agent.ErrUnready) {
		t.Fatal(err)
	}
	if lost, err := session.Interrupted(r.SessionsDir); err != nil || len(lost) > 0 {
		t.Fatalf("a turn that was not started counts as lost: %v, %v", lost, err)
	}
	r.Observer.Starting = nil
	if res := run(t, r, req); res.SessionDir != dir || res.IsError {
		t.Fatalf("got %+v", res)
	}
	if _, err := r.Run(t.Context(), req); !errors.Is(err, session.ErrEnded) {
		t.Fatalf("a second turn in one session: %v", err)
	}
}

func TestRunStopsWhatCannotBeRecorded(t *testing.T) {
	t.Parallel()
	r := newRunner(t, driver{args: []string{"hang"}})
	rec := &records{refuses: "live"}
	r.Recorder = rec
	res := run(t, r, request(t))
	if res.ErrorSubtype != agent.SubtypeUnrecorded || !res.IsError {
		t.Fatalf("got %+v", res)
	}
	if diff := cmp.Diff([]string{"creating", "live", "gone"}, rec.told); diff != "" {
		t.Fatal(diff)
	}
}

func TestRunObserved(t *testing.T) {
	t.Parallel()
	r, req := newRunner(t, driver{args: []string{"done"}}), request(t)
	var told []string
	var stream strings.Builder
	r.Stream = &stream
	r.Observer = agent.Observer{
		Starting: func(context.Context) (time.Time, error) { told = append(told, "starting"); return time.Time{}, nil },
		Started:  func(agent.Control) { told = append(told, "started") },
		Progress: func(agent.Progress) { told = append(told, "progress") },
		Line:     func([]byte) { told = append(told, "line") },
	}
	res := run(t, r, req)
	if len(told) != 6 || told[0] != "starting" || told[1] != "started" || told[2] != "line" {
		t.Errorf("told %v", told)
	}
	kept, err := os.ReadFile(res.Transcript)
	if err != nil || stream.String() != string(kept) {
		t.Errorf("the stream is not the transcript: %q, %q, %v", stream.String(), kept, err)
	}
}

func TestRunFindsNewConfiguration(t *testing.T) {
	t.Parallel()
	r, req := newRunner(t, driver{args: []string{"shell", `
		mkdir -p .claude sub/.git/hooks .git/hooks &&
		: > .claude/old.json && : > .claude/settings.json && : > sub/.git/hooks/post-commit &&
		: > .git/hooks/x.sample && : > sub/evil.pth && : > .envrc && : > main.go`}}), request(t)
	for _, dir := range []string{".git", ".claude"} {
		if err := os.Mkdir(filepath.Join(req.Workspace.Dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(req.Workspace.Dir, ".claude", "old.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range run(t, r, req).Findings {
		got = append(got, f.Path)
	}
	want := []string{".claude/settings.json", ".envrc", "sub/.git", "sub/.git/hooks/post-commit", "sub/evil.pth"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

// skills prepares by looking up.
type skills map[string]string

func (s skills) Prepare(_ context.Context, names []string) (dirs []string, err error) {
	for _, name := range names {
		dir, ok := s[name]
		if !ok {
			return nil, fmt.Errorf("%w: skill %q", agent.ErrUnsupported, name)
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

func TestSkillsAndTitle(t *testing.T) {
	t.Parallel()
	prepared := t.TempDir()
	var l agent.Launch
	r := newRunner(t, driver{args: []string{"done"}, can: agent.Abilities{Skills: true, Shell: true}, launched: func(got agent.Launch) { l = got }})
	r.NamePrefix, r.Skills = "acme: ", skills{"greet": prepared, "gone": filepath.Join(prepared, "gone")}
	req := request(t)
	req.Profile.Skills, req.Profile.Shell = []string{"greet"}, "/bin/bash"
	run(t, r, req)
	if l.Title != "acme: try it" || !slices.Equal(l.Skills, []string{prepared}) || !slices.Contains(l.Turn.Env, "SHELL=/bin/bash") {
		t.Errorf("launched %q with %v and %v", l.Title, l.Skills, l.Turn.Env)
	}
	for name, want := range map[string]error{"unknown": agent.ErrUnsupported, "gone": agent.ErrUnready} {
		req.Profile.Skills = []string{name}
		if _, err := r.Run(t.Context(), req); !errors.Is(err, want) {
			t.Errorf("skill %s: %v, want %v", name, err, want)
		}
	}
}
