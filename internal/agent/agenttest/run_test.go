package agenttest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/procs"
)

const cliPrompt = "Do what the script says."

// limit is how long one run of a CLI may take. The slowest of them needs some ten
// seconds of a processor that other tests want too.
const limit = 3 * time.Minute

// cli is how an agent CLI is started.
type cli struct {
	bin  string
	args []string
	env  []string
	// talk holds the conversation over the CLI's standard streams. Nil gives it the
	// prompt as its whole input.
	talk func(in io.Writer, out *lines)
}

// run is a started CLI, in a home and a working directory of its own.
type run struct {
	home, dir string

	tree   *procs.Tree
	out    lines
	stderr bytes.Buffer
	exit   agent.Exit
	ended  chan struct{}
}

// lines are what a CLI prints on its standard output.
type lines struct {
	in  *bufio.Scanner
	all [][]byte
}

func (l *lines) next() ([]byte, bool) {
	if !l.in.Scan() {
		return nil, false
	}
	l.all = append(l.all, bytes.Clone(l.in.Bytes()))
	return l.all[len(l.all)-1], true
}

// directories makes a home and a working directory, a git repository's like those
// that turns work in.
func directories(t *testing.T) *run {
	t.Helper()
	r := &run{home: t.TempDir(), dir: t.TempDir(), ended: make(chan struct{})}
	if err := os.Mkdir(filepath.Join(r.home, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	init := exec.CommandContext(t.Context(), "git", "init", "-q", r.dir)
	if out, err := init.CombinedOutput(); err != nil {
		t.Fatalf("git init: %v\n%s", err, out)
	}
	return r
}

// start starts the CLI beneath a root, so that the tools it runs in sessions of
// their own end with it, whether the test passes, fails or is killed.
func (r *run) start(t *testing.T, c cli) *run {
	t.Helper()
	cmd := exec.Command(c.bin, c.args...)
	cmd.Dir = r.dir
	cmd.Env = append([]string{
		"PATH=/usr/local/bin:/usr/bin:/bin",
		"HOME=" + r.home,
		"TMPDIR=" + filepath.Join(r.home, "tmp"),
	}, c.env...)
	cmd.Stderr = &r.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if r.tree, err = procs.Start(cmd, procs.Supervised); err != nil {
		t.Fatal(err)
	}
	r.out.in = bufio.NewScanner(out)
	r.out.in.Buffer(nil, 16<<20)
	overdue := time.AfterFunc(limit, func() {
		t.Errorf("still running after %s", limit)
		_ = r.tree.Kill(context.Background())
	})
	go func() {
		defer close(r.ended)
		defer overdue.Stop()
		talk := c.talk
		if talk == nil {
			talk = func(in io.Writer, _ *lines) { _, _ = io.WriteString(in, cliPrompt) }
		}
		talk(in, &r.out)
		in.Close()
		for more := true; more; {
			_, more = r.out.next()
		}
		r.exit, err = r.tree.Wait()
		if err != nil {
			t.Errorf("wait for the CLI: %v", err)
		}
	}()
	t.Cleanup(func() { r.kill(t) })
	return r
}

// wait waits until the CLI and all it started are gone.
func (r *run) wait(t *testing.T) {
	t.Helper()
	<-r.ended
	if t.Failed() {
		t.Logf("it said\n%s\n%s", bytes.Join(r.out.all, []byte("\n")), &r.stderr)
	}
}

// kill ends the CLI and all it started.
func (r *run) kill(t *testing.T) {
	t.Helper()
	if err := r.tree.Kill(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("kill the CLI: %v", err)
	}
	<-r.ended
}

// silent fails the test if the CLI ends or asks its provider again within d.
func (r *run) silent(t *testing.T, s *agenttest.Script, d time.Duration) {
	t.Helper()
	asked := len(s.Requests())
	select {
	case <-r.ended:
		t.Errorf("it ended (%+v) where it was to wait", r.exit)
	case <-time.After(d):
	}
	if again := len(s.Requests()) - asked; again > 0 {
		t.Errorf("it asked %d times again where it was to wait", again)
	}
}

// write puts a file beneath the run's home.
func (r *run) write(t *testing.T, name, content string) {
	t.Helper()
	full := filepath.Join(r.home, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// writeJSON is write of a value.
func (r *run) writeJSON(t *testing.T, name string, v any) {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	r.write(t, name, string(data))
}

// said decodes the lines that keep lets through.
func said[T any](t *testing.T, r *run, keep func(T) bool) []T {
	t.Helper()
	var out []T
	for _, line := range r.out.all {
		var v T
		decode(t, line, &v)
		if keep(v) {
			out = append(out, v)
		}
	}
	return out
}

// work is a script that makes a CLI use each kind of tool, and then say so.
func work() []agenttest.Step {
	return []agenttest.Step{
		agenttest.Together(agenttest.Text("Let me look first."), agenttest.Shell("echo shell-$((40+2))")).Thinking("Where am I?"),
		agenttest.Write("sub/out.txt", "it's written\nin two lines\n"),
		agenttest.Report("all done"),
		agenttest.Text("The work is done."),
	}
}

// worked checks what the tools of work did, and what the provider was told.
func (r *run) worked(t *testing.T, s *agenttest.Script, effort string) {
	t.Helper()
	written, err := os.ReadFile(filepath.Join(r.dir, "sub", "out.txt"))
	if err != nil || string(written) != "it's written\nin two lines\n" {
		t.Errorf("sub/out.txt: %q, %v", written, err)
	}
	requests := s.Requests()
	results := map[int]string{}
	for _, q := range requests {
		for _, got := range q.Results {
			results[q.Step] = got.Text // of the newest call
		}
		if strings.TrimSpace(q.Prompt) != cliPrompt || q.Credential() != "sk-test" || q.WorkDir != r.dir {
			t.Errorf("request %d: prompt %q, credential %q, directory %q; want %q, sk-test, %s", q.N, q.Prompt, q.Credential(), q.WorkDir, cliPrompt, r.dir)
		}
		if !strings.Contains(q.System, "an extra instruction") {
			t.Errorf("request %d: the extra instruction is not in the system prompt", q.N)
		}
		if q.Effort != effort {
			t.Errorf("request %d: effort %q, want %q", q.N, q.Effort, effort)
		}
	}
	for step, want := range map[int]string{1: "shell-42", 3: "merged: all done (by the CLI)"} {
		if !strings.Contains(results[step], want) {
			t.Errorf("result of step %d: %q, want %q in it", step-1, results[step], want)
		}
	}
}

func waitFor(t *testing.T, s *agenttest.Script, n int) *agenttest.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := s.Wait(ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
