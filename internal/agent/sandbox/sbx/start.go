package sbx

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"turnpike/internal/agent"
)

const (
	// setupTime bounds what happens between the making of a sandbox and the agent.
	setupTime = 10 * time.Minute
	// recordTime bounds what must be recorded although the caller's context ended.
	recordTime = 10 * time.Second
	// inside is where a sandbox has the worker's own sockets.
	inside = "/tmp/turnpike"
)

// start is a sandbox on its way to run an agent.
type start struct {
	engine   *Engine
	client   client
	box      agent.Box
	cmd      *exec.Cmd
	rec      agent.Recorder
	stage    string
	streams  [3]*os.File
	network  network
	sockets  []dialer
	plan     linePlan
	agent    agentPlan
	identity agent.Identity
}

// Start implements agent.Engine.
func (e *Engine) Start(ctx context.Context, cmd *exec.Cmd, box agent.Box, rec agent.Recorder) (agent.Process, error) {
	s := &start{engine: e, client: e.client(box.Bin), box: box, cmd: cmd, rec: rec}
	if err := s.prepare(ctx); err != nil {
		return nil, fmt.Errorf("start sandbox: %w", err)
	}
	if rec != nil {
		if err := rec.Creating(ctx, s.identity); err != nil {
			return nil, fmt.Errorf("record sandbox: %w: %w", agent.ErrUnready, err)
		}
	}
	p, err := s.run(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start sandbox: %w", err), s.undo(ctx))
	}
	return p, nil
}

// prepare refuses what cannot be held and makes the plans. It makes no sandbox.
func (s *start) prepare(ctx context.Context) error {
	b := s.box
	name, err := nameOf(b.Label)
	if err != nil {
		return err
	}
	s.identity = agent.Identity{Kind: agent.KindSandbox, ID: name, Label: b.Label}
	switch {
	case b.Limits.Processes != 0 || b.Limits.OpenFiles != 0 || b.Limits.FileBytes != 0:
		return unsupported("a sandbox is held to limits of memory and CPUs only")
	case b.WorkDir != b.Workspace || b.Home != "":
		return unsupported("a sandbox shows everything at its own path")
	case b.Agent == "" || strings.HasPrefix(b.Image, "-"):
		return unsupported("a sandbox is made for an agent, from a template")
	case b.Egress != nil:
		return unsupported("a sandbox has sbx's own way out")
	}
	for i, stream := range []any{s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr} {
		f, ok := stream.(*os.File)
		if !ok {
			return unsupported("the streams of an agent in a sandbox must be files")
		}
		s.streams[i] = f
	}
	if s.stage, err = s.engine.stage(); err != nil {
		return err
	}
	if _, err := s.engine.check(ctx, s.client); err != nil {
		return err
	}
	if !b.VCS {
		if err := s.client.sshAgent(ctx); err != nil {
			return err
		}
	}
	if s.network, err = networkOf(b); err != nil {
		return err
	}
	env := s.cmd.Env
	if b.Dagger != nil {
		dial, err := s.engine.engineDialer(b.Dagger.Engine, cmp.Or(s.engine.DockerBin, agent.ContainerEngine))
		if err != nil {
			return err
		}
		at := s.carry("dagger", dial)
		env = append(slices.Clone(env), EnvDaggerRunnerHost+"=unix://"+at, "PATH="+pathOf(env)+":"+daggerDir)
	}
	if err := s.places(); err != nil {
		return err
	}
	s.agent = agentPlan{
		Report: filepath.Join(inside, "line"), Path: s.cmd.Path, Args: slices.Clone(s.cmd.Args), Env: env,
		Dir: cmp.Or(s.cmd.Dir, b.WorkDir),
	}
	if len(s.agent.Args) == 0 {
		s.agent.Args = []string{s.cmd.Path}
	}
	if !b.VCS {
		s.agent.Without = agent.VCSVariables()
	}
	return nil
}

func pathOf(env []string) string {
	path := ""
	for _, pair := range env {
		if p, ok := strings.CutPrefix(pair, "PATH="); ok {
			path = p
		}
	}
	return path
}

// carry has the line listen on a socket of this name for connections that dial reaches.
func (s *start) carry(name string, dial dialer) string {
	at := filepath.Join(inside, name)
	s.plan.Sockets = append(s.plan.Sockets, at)
	s.sockets = append(s.sockets, dial)
	return at
}

// places compares the sources of binds with their pins and says how each is asked for.
// The directory of a socket is not shown: the socket is carried.
func (s *start) places() error {
	binds := s.box.Binds
	for _, socket := range s.box.Sockets {
		if filepath.Dir(socket.Destination) != inside {
			return unsupported("a socket is carried to %s only, not to %s", inside, socket.Destination)
		}
		s.carry(filepath.Base(socket.Destination), dialTo("unix", socket.Source))
		dir := filepath.Dir(socket.Source)
		binds = slices.DeleteFunc(slices.Clone(binds), func(b agent.Bind) bool { return b.Source == dir })
	}
	// Every exec is this program, which the sandbox must have.
	if !slices.ContainsFunc(binds, func(b agent.Bind) bool { return b.Source == s.stage }) {
		binds = append(slices.Clone(binds), agent.Bind{Source: s.stage, Destination: s.stage, Access: agent.ReadOnly})
	}
	s.box.Binds = binds
	if !slices.ContainsFunc(binds, func(b agent.Bind) bool { return b.Source == s.box.Workspace }) {
		return unsupported("the workspace %s is not shown by itself", s.box.Workspace)
	}
	for _, b := range binds {
		switch {
		case b.Source != b.Destination:
			return unsupported("a sandbox shows %s at its own path, not at %s", b.Source, b.Destination)
		case b.Access != agent.ReadOnly && b.Access != agent.ReadWrite:
			return unsupported("bind %s has access %q", b.Source, b.Access)
		case strings.ContainsAny(b.Source, ":\n"):
			return unsupported("the path %q cannot be told to sbx, to which a colon begins how it is shown", b.Source)
		}
		info, err := os.Lstat(b.Source)
		if err != nil {
			return fmt.Errorf("%w: %w", agent.ErrPolicyChanged, err)
		}
		if !info.IsDir() && (b.Access == agent.ReadWrite || !info.Mode().IsRegular()) {
			return unsupported("%s is no directory; a sandbox is shown files read-only at most", b.Source)
		}
		st := info.Sys().(*syscall.Stat_t)
		for _, was := range s.box.Pins {
			if was.Path == b.Source && (was.Device != uint64(st.Dev) || was.Inode != st.Ino) { //nolint:unconvert // not uint64 on every system
				return fmt.Errorf("%w: %s is not what was verified", agent.ErrPolicyChanged, b.Source)
			}
		}
		s.plan.Places = append(s.plan.Places, place{b.Source, b.Access == agent.ReadWrite})
	}
	return nil
}

// arguments are those of sbx create.
func (s *start) arguments() []string {
	args := []string{"create", "--quiet", "--name", s.identity.ID}
	if s.box.Image != "" {
		args = append(args, "--template", s.box.Image)
	}
	if s.network.nothing {
		args = append(args, "--deny-network", everything)
	}
	if n := s.box.Limits.MemoryBytes; n > 0 {
		args = append(args, "--memory", strconv.FormatInt((n+1<<20-1)>>20, 10)+"m")
	}
	if n := s.box.Limits.CPUs; n > 0 {
		args = append(args, "--cpus", strconv.Itoa(max(1, int(n))))
	}
	kind := s.box.Agent
	if agent.SbxTemplates[kind] == "" {
		kind = "shell" // of an agent sbx does not know, which the template has
	}
	args = append(args, kind)
	// The first is where the agent works; the rest outer before inner.
	binds := slices.Clone(s.box.Binds)
	slices.SortStableFunc(binds, func(a, b agent.Bind) int {
		return cmp.Or(cmp.Compare(s.rank(a), s.rank(b)), strings.Compare(a.Source, b.Source))
	})
	for _, b := range binds {
		args = append(args, argument(b))
	}
	return args
}

func (s *start) rank(b agent.Bind) int {
	if b.Source == s.box.Workspace {
		return 0
	}
	return 1
}

func argument(b agent.Bind) string {
	if b.Access == agent.ReadOnly {
		return b.Source + ":ro"
	}
	return b.Source
}

// run makes the sandbox and has the agent run in it.
func (s *start) run(ctx context.Context) (_ *box, err error) {
	if _, err := s.client.run(ctx, makeTime, s.arguments()...); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	if s.rec != nil {
		if err := s.rec.Live(ctx, s.identity); err != nil {
			return nil, fmt.Errorf("record sandbox: %w: %w", agent.ErrUnready, err)
		}
	}
	if err := s.applyNetwork(ctx); err != nil {
		return nil, err
	}
	if err := s.installDagger(ctx); err != nil {
		return nil, err
	}
	p := &box{client: s.client, identity: s.identity, answers: make(chan news), gone: make(chan struct{}), over: make(chan struct{})}
	defer func() {
		if err != nil {
			p.hangUp()
		}
	}()
	if err := s.openLine(ctx, p); err != nil {
		return nil, err
	}
	until, err := s.bound(p)
	if err != nil {
		return nil, err
	}
	if !until.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	if err := s.startAgent(ctx, p); err != nil {
		if !until.IsZero() && ctx.Err() != nil {
			return nil, fmt.Errorf("%w: %w: %v", agent.ErrUnready, errOver, err) //nolint:errorlint // it may say that the agent can never run
		}
		return nil, err
	}
	p.follow()
	return p, nil
}

// openLine starts the line and waits until it has looked around.
func (s *start) openLine(ctx context.Context, p *box) error {
	// Not of ctx, which ends with the start: the line lives as long as the agent.
	p.lineCmd = s.client.command(context.Background(), "exec", "-i", s.identity.ID, s.stage, lineArg)
	in, err := p.lineCmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	out, err := p.lineCmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	said := &tail{}
	p.lineCmd.Stderr = said
	if err := p.lineCmd.Start(); err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	p.lineIn = in
	p.line = newLines(out, in)
	go func() {
		defer close(p.gone)
		_ = p.line.read(p.hear, func(n byte) (io.ReadWriteCloser, error) {
			if int(n) >= len(s.sockets) {
				return nil, errors.New("no such socket")
			}
			return s.sockets[n](context.Background())
		})
	}()
	if err := writePlan(in, s.plan); err != nil {
		return fmt.Errorf("%w: hand over: %w", agent.ErrUnready, err)
	}
	first, err := p.answer(ctx)
	if err != nil {
		return fmt.Errorf("%w: %s", err, oneLine(said.String()))
	}
	return first.wants(func(n news) bool { return n.Ready })
}

// bound gives the agent its end before its first instruction, for this process may be
// stopped until it could give one to what runs: the line keeps it, and the agent's stage
// executes nothing after it.
func (s *start) bound(p *box) (until time.Time, err error) {
	if s.box.Until == nil {
		return until, nil
	}
	if until = s.box.Until(); until.IsZero() {
		return until, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.agent.Until = p.insideLocked(until)
	return until, p.orderLocked(order{Do: doUntil, At: s.agent.Until})
}

// startAgent starts the agent's exec and returns once it was executed.
func (s *start) startAgent(ctx context.Context, p *box) error {
	cmd := s.client.command(context.Background(), "exec", "-i", "--workdir", s.agent.Dir, s.identity.ID, s.stage, agentArg)
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	// The streams are the runner's: it closes its own ends once Start returned.
	input, err := again(s.streams[0])
	if err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	cmd.Stdout, cmd.Stderr = s.streams[1], s.streams[2]
	if err := cmd.Start(); err != nil {
		_ = input.Close()
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	p.agentCmd, p.ended = cmd, make(chan error, 1)
	go func() { p.ended <- cmd.Wait() }()
	if err := writePlan(in, s.agent); err != nil {
		_ = input.Close()
		return fmt.Errorf("%w: hand over: %w", agent.ErrUnready, err)
	}
	p.input = input
	go func() {
		_, _ = io.Copy(in, input) // an agent that does not read says so itself
		_ = in.Close()
	}()
	select {
	case n := <-p.answers:
		return n.wants(func(n news) bool { return n.Running })
	case err := <-p.ended:
		p.ended <- err
		// What the line heard before that is the better answer.
		select {
		case n := <-p.answers:
			return n.wants(func(n news) bool { return n.Running })
		case <-time.After(time.Second):
		}
		return fmt.Errorf("%w: sbx exec ended before the agent was executed: %w", agent.ErrUnready, err)
	case <-p.gone:
		return fmt.Errorf("%w: the line ended before the agent was executed", agent.ErrUnready)
	case <-ctx.Done():
		return fmt.Errorf("%w: the agent was not executed: %w", agent.ErrUnready, context.Cause(ctx))
	}
}

// again opens f a second time, so that its closing elsewhere ends nothing here.
func again(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var dup error
	err = raw.Control(func(old uintptr) {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if fd, dup = syscall.Dup(int(old)); dup == nil {
			syscall.CloseOnExec(fd)
		}
	})
	if err := errors.Join(err, dup); err != nil {
		return nil, err
	}
	// Reading must end when the file is closed here.
	if err := syscall.SetNonblock(fd, true); err != nil {
		_ = syscall.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// wants turns news into an error unless they are the ones waited for.
func (n news) wants(these func(news) bool) error {
	switch {
	case n.Failed != nil && n.Changed:
		return fmt.Errorf("%w: %s", agent.ErrPolicyChanged, *n.Failed)
	case n.Failed != nil:
		return unsupported("%s", *n.Failed)
	case !these(n):
		return unsupported("the sandbox says something else than was waited for")
	}
	return nil
}

// undo removes what was made, and records that nothing is left.
func (s *start) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime+recordTime)
	defer cancel()
	if err := s.client.remove(ctx, s.identity.ID); err != nil {
		return fmt.Errorf("the sandbox may be there yet: %w", err)
	}
	if s.rec == nil {
		return nil
	}
	return s.rec.Gone(ctx, s.identity)
}

// stage is the program that every exec runs inside.
func (e *Engine) stage() (string, error) {
	path := e.Stage
	if path == "" {
		own, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("%w: find the stage: %w", agent.ErrUnready, err)
		}
		path = own
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("%w: find the stage: %w", agent.ErrUnready, err)
	}
	return path, nil
}

// hear takes one piece of news from the line.
func (b *box) hear(text []byte) error {
	n := news{heard: time.Now()}
	if err := json.Unmarshal(text, &n); err != nil {
		return err
	}
	select {
	case b.answers <- n:
	case <-b.over:
	}
	return nil
}

// tail keeps the end of what was written to it.
type tail struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.b.Len() > 8<<10 {
		t.b.Reset()
	}
	return t.b.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}
