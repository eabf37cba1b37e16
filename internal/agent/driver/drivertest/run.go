package drivertest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
)

// secret is the credential of every run.
const secret = "sk-test-secret"

const (
	// patience bounds one run of a CLI, on a machine that is busy with others.
	patience = 5 * time.Minute
	// grace is how long a CLI may take to end once it is asked to.
	grace = 20 * time.Second
	// maxLine is the runner's part: a longer line is cut.
	maxLine = 1 << 20
)

// bench is where the runs of one conversation take place.
type bench struct {
	s      Subject
	launch agent.Launch
}

// run is what one run of the CLI came to.
type run struct {
	agent.Conversation
	told   []agent.Progress
	said   []string // the output's last lines, or what they begin with
	exit   int
	stderr string
}

// newBench gives the CLI a workspace, a configuration directory and a script.
func newBench(t *testing.T, s Subject, script *agenttest.Script) *bench {
	t.Helper()
	return newBenchWith(t, s, script, s.Driver.Descriptor().Credentials[0])
}

// newBenchWith is newBench with the credential in a variable of choice.
func newBenchWith(t *testing.T, s Subject, script *agenttest.Script, variable string) *bench {
	t.Helper()
	home, dir := t.TempDir(), t.TempDir()
	if s.At != nil {
		s.Driver = s.At(script.URL())
	}
	return &bench{s: s, launch: agent.Launch{
		Request: agent.Request{
			Profile: agent.Profile{Agent: s.Driver.Descriptor().Name, Model: s.Model},
			Prompt:  "Say hello.",
		},
		Turn: &agent.Turn{
			// HOME is a directory of its own, so that nothing of this machine's user
			// has a part in the test.
			Env: append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir()},
				s.Provider(script.URL(), variable+"="+secret)...),
		},
		Bin: s.Bin, Home: home, HomeInside: home, WorkDir: dir, Root: os.Geteuid() == 0,
	}}
}

// Run runs the CLI once, on a script, for a test of what only this one does. Change may
// change the turn.
func Run(t *testing.T, s Subject, script *agenttest.Script, change func(*agent.Launch)) agent.Conversation {
	t.Helper()
	b := newBench(t, s, script)
	if change != nil {
		change(&b.launch)
	}
	return b.run(t).Conversation
}

// start runs the CLI as the driver says and gives how it will have ended.
func (b *bench) start(ctx context.Context, t *testing.T) (wait func() run) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	command, err := b.s.Driver.Command(b.launch)
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(b.launch.Bin, command.Args...)
	cmd.Dir = b.launch.WorkDir
	cmd.Env = slices.Concat(b.launch.Turn.Env, command.Env)
	cmd.Stdin, cmd.Stderr = command.Stdin, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A descendant that keeps the pipes open must not keep the test.
	cmd.WaitDelay = grace
	var pipes agent.Pipes
	if command.Stdin == nil {
		if pipes.In, err = cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan agent.Line)
	pipes.Lines = lines

	var (
		owned  sync.WaitGroup
		r      run
		ended  = make(chan struct{})
		killed = time.AfterFunc(2*patience, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	)
	owned.Go(func() {
		read(out, func(line agent.Line) {
			r.said = append(r.said[max(0, len(r.said)-20):], string(line.Text[:min(300, len(line.Text))]))
			lines <- line
		})
		close(lines)
	})
	owned.Go(func() {
		r.Conversation = b.s.Driver.Converse(ctx, b.launch, pipes, func(p agent.Progress) { r.told = append(r.told, p) })
		close(ended)
		for range lines { // so that the CLI is never kept from writing
		}
	})
	var once sync.Once
	wait = func() run {
		once.Do(func() {
			<-ended
			if ctx.Err() != nil {
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
			}
			lingering := time.AfterFunc(grace, func() {
				t.Errorf("the CLI is still there %s after its conversation", grace)
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			})
			owned.Wait() // the output's end, which Wait must not come before
			err := cmd.Wait()
			lingering.Stop()
			killed.Stop()
			cancel()
			// What is left of the group is nobody's any more.
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Errorf("wait for the CLI: %v", err)
			}
			r.exit, r.stderr = cmd.ProcessState.ExitCode(), stderr.String()
		})
		return r
	}
	t.Cleanup(func() {
		cancel()
		wait()
	})
	return wait
}

// run runs the CLI to its end.
func (b *bench) run(t *testing.T) run {
	t.Helper()
	return b.start(t.Context(), t)()
}

// read gives the output line by line, as the runner would.
func read(out io.Reader, give func(agent.Line)) {
	r := bufio.NewReaderSize(out, 64<<10)
	for {
		var line agent.Line
		for {
			part, err := r.ReadSlice('\n')
			room := min(len(part), maxLine-len(line.Text))
			line.Text = append(line.Text, part[:room]...)
			line.Cut = line.Cut || room < len(part)
			if err == nil {
				break
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				if len(line.Text) > 0 {
					give(line)
				}
				return
			}
		}
		line.Text = bytes.TrimSuffix(line.Text, []byte("\n"))
		give(line)
	}
}

// script makes a provider with one script.
func script(t *testing.T, steps ...agenttest.Step) *agenttest.Script {
	t.Helper()
	return agenttest.NewProvider(t).Script("turn", steps...)
}

// wantSuccess fails the test unless the turn ended well with that text.
func (r run) wantSuccess(t *testing.T, text string) {
	t.Helper()
	if !r.Ended || r.IsError || r.ErrorSubtype != "" || r.Failure != "" || r.ResultText != text || r.exit != 0 {
		t.Fatalf("ended %t, error %t %q %q, exit code %d, text %q; want a success with %q\ndiagnostics: %q\nsaid: %s\nstderr: %s",
			r.Ended, r.IsError, r.ErrorSubtype, r.Failure, r.exit, r.ResultText, text, r.Diagnostics, strings.Join(r.said, "\n"), r.stderr)
	}
}

// wantFailure fails the test unless the turn failed in that way.
func (r run) wantFailure(t *testing.T, want agent.Failure) {
	t.Helper()
	if !r.IsError || r.ErrorSubtype == "" || r.Failure != want {
		t.Errorf("error %t %q %q, want failure %q\ntext: %s\ndiagnostics: %q\nstderr: %s",
			r.IsError, r.ErrorSubtype, r.Failure, want, r.ResultText, r.Diagnostics, r.stderr)
	}
}
