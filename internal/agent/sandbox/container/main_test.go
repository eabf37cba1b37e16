//go:build linux

package container_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/mcphost"
	"turnpike/internal/agent/sandbox/container"
	"turnpike/internal/testenv"
)

func TestMain(m *testing.M) {
	confine.Entry()
	container.Entry()
	mcphost.Entry()
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case workerArg:
			worker(os.Args[2:])
		case ownerArg:
			ownerServer(os.Args[len(os.Args)-1])
		}
	}
	goleak.VerifyTestMain(m)
}

// limit bounds a test's waiting; a healthy container takes a second or two.
const limit = 3 * time.Minute

// label is what this test process' containers bear.
var label = "turnpike.testenv=container-test-" + strings.ReplaceAll(time.Now().Format("150405.000000"), ".", "-")

// bench runs programs in containers of one engine.
type bench struct {
	testing.TB
	engine *container.Engine
	ctx    context.Context
	dir    string // of the host, for whatever a test mounts
	run    string // the worker's own
	image  string // by digest
}

func newBench(t testing.TB) *bench {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	b := &bench{TB: t, ctx: ctx, dir: t.TempDir(), run: t.TempDir()}
	b.engine = &container.Engine{Dir: b.run, Label: label}
	b.image = docker(t, "image", "inspect", "--format", "{{.Id}}", testenv.AgentImage(t))
	t.Cleanup(func() {
		// Outside the test's own time, which may be over.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if left, err := b.engine.Find(ctx, agent.Identity{Kind: agent.KindContainer, Label: b.label()}); err != nil || left {
			t.Errorf("a container is left: %t, %v", left, err)
			_, _ = b.engine.End(ctx, agent.Identity{Kind: agent.KindContainer, Label: b.label()})
		}
	})
	return b
}

func (b *bench) label() string { return label + "-" + strings.ReplaceAll(b.Name(), "/", "-") }

// box is one that shows a workspace and nothing else.
func (b *bench) box() agent.Box {
	b.Helper()
	ws := filepath.Join(b.dir, "ws")
	if err := os.MkdirAll(ws, 0o755); err != nil {
		b.Fatal(err)
	}
	return agent.Box{
		Name: strings.ToLower("turnpike-test-" + filepath.Base(b.run) + "-" + time.Now().Format("150405.000000000")), Label: b.label(), Dir: b.run, Image: b.image,
		Binds:     []agent.Bind{{Source: ws, Destination: ws, Access: agent.ReadWrite}, {Source: ws, Destination: "/workspace", Access: agent.ReadWrite}},
		Workspace: ws, WorkDir: "/workspace",
	}
}

// started is a program that runs in a container.
type started struct {
	*bench
	agent.Process
	in       *os.File
	out, err *sink
}

// sink gathers what a stream carries.
type sink struct {
	line chan struct{} // closes once there is a line
	done chan struct{}
	buf  bytes.Buffer
}

func (s *sink) text() string { <-s.done; return s.buf.String() }

func gather(f *os.File) *sink {
	s := &sink{line: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer f.Close()
		r := bufio.NewReader(f)
		first, _ := r.ReadString('\n')
		s.buf.WriteString(first)
		close(s.line)
		_, _ = io.Copy(&s.buf, r)
	}()
	return s
}

// start starts a shell script in box.
func (b *bench) start(box agent.Box, rec agent.Recorder, script string) (*started, error) {
	b.Helper()
	var ours, theirs [3]*os.File
	for i := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		if ours[i], theirs[i] = r, w; i == 0 {
			ours[i], theirs[i] = w, r
		}
	}
	cmd := &exec.Cmd{
		Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"},
		Stdin: theirs[0], Stdout: theirs[1], Stderr: theirs[2],
	}
	p, err := b.engine.Start(b.ctx, cmd, box, rec)
	for _, f := range theirs {
		_ = f.Close()
	}
	if err != nil {
		for _, f := range ours {
			_ = f.Close()
		}
		return nil, err
	}
	return &started{bench: b, Process: p, in: ours[0], out: gather(ours[1]), err: gather(ours[2])}, nil
}

// end closes the program's input and gives what it printed and how it ended.
func (s *started) end() (out, errs string, exit agent.Exit) {
	s.Helper()
	_ = s.in.Close()
	exit, err := s.Wait()
	if err != nil {
		s.Fatal(err)
	}
	return s.out.text(), s.err.text(), exit
}

// sh runs a script to its end.
func (b *bench) sh(box agent.Box, script string) (out, errs string, exit agent.Exit) {
	b.Helper()
	s, err := b.start(box, nil, script)
	if err != nil {
		b.Fatal(err)
	}
	return s.end()
}

// recorder notes what it is told.
type recorder struct {
	mu     sync.Mutex // guards told
	told   []string
	last   agent.Identity
	box    agent.Identity // the last one of a container
	refuse string         // of "creating" and "live"
}

var errRecord = errors.New("the record is full")

func (r *recorder) note(what string, id agent.Identity) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told, r.last = append(r.told, what), id
	if id.Kind == agent.KindContainer {
		r.box = id
	}
	if r.refuse == what {
		return errRecord
	}
	return nil
}

func (r *recorder) Creating(_ context.Context, id agent.Identity) error {
	return r.note("creating", id)
}
func (r *recorder) Live(_ context.Context, id agent.Identity) error { return r.note("live", id) }
func (r *recorder) Gone(_ context.Context, id agent.Identity) error { return r.note("gone", id) }
