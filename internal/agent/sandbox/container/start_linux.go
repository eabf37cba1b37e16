package container

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/egress/door"
	"turnpike/internal/agent/procs"
)

const (
	// openNetwork is the engine's network of a turn with the open network.
	openNetwork = "bridge"
	// setupTime bounds everything from the start of a container to that of the agent. It
	// is long because a loaded machine is no failure.
	setupTime = 2 * time.Minute
	// recordTime bounds what must be recorded although the caller's context ended.
	recordTime = 10 * time.Second
	// tmpBytes is the size of the private /tmp, which counts as memory.
	tmpBytes = 1 << 30
)

// Start implements agent.Engine.
func (e *Engine) Start(ctx context.Context, cmd *exec.Cmd, box agent.Box, rec agent.Recorder) (_ agent.Process, err error) {
	s := &start{engine: e, client: e.client(box.Bin), box: box, cmd: cmd, rec: rec}
	s.identity = agent.Identity{Kind: agent.KindContainer, Label: box.Label}
	if s.stage, err = e.stage(); err != nil {
		return nil, fmt.Errorf("start container: %w", err)
	}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start container: %w", err), s.tidy())
	}
	if rec != nil {
		if err := rec.Creating(ctx, s.identity); err != nil {
			return nil, errors.Join(fmt.Errorf("record container: %w: %w", agent.ErrUnready, err), s.tidy())
		}
	}
	p, err := s.run(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start container: %w", err), s.undo(ctx), s.tidy())
	}
	return p, nil
}

// start is a container on its way to run an agent.
type start struct {
	engine   *Engine
	client   client
	box      agent.Box
	cmd      *exec.Cmd
	rec      agent.Recorder
	stage    string
	streams  []*os.File
	dir      string // of the worker's, for this container; its "line" is bound
	listener *net.UnixListener
	plan     plan
	identity agent.Identity
}

func (s *start) line() string { return filepath.Join(s.dir, "line") }

// prepare refuses what cannot be held, compares the sources with their pins and makes
// the line. It makes no container.
func (s *start) prepare(ctx context.Context) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", agent.ErrUnsupported, fmt.Sprintf(format, args...))
	}
	b, n := s.box, s.box.Network
	switch {
	case b.Dagger != nil || len(b.HostServers) > 0:
		return refuse("a container is given no Dagger engine and no servers on the host's loopback")
	case !strings.HasPrefix(b.Image, "sha256:"):
		return refuse("image %q is no digest", b.Image)
	case b.Name == "" || !strings.Contains(b.Label, "="):
		return refuse("a container needs a name and a label")
	case !filepath.IsAbs(s.cmd.Path) || !filepath.IsAbs(b.WorkDir):
		return refuse("the program %q and its directory %q are no absolute paths", s.cmd.Path, b.WorkDir)
	case (n.Proxied || len(b.Servers) > 0) && !n.Open && b.Egress == nil:
		return refuse("a network limited to domains needs the egress proxy")
	}
	for _, stream := range []any{s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr} {
		f, ok := stream.(*os.File)
		if !ok {
			return refuse("the streams of an agent in a container must be files")
		}
		s.streams = append(s.streams, f)
	}
	f, err := s.engine.facts(ctx, s.client)
	if err != nil {
		return err
	}
	if err := errors.Join(f.check(), f.keeps(b.Limits)); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp(b.Dir, "box-"); err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	if err := os.Mkdir(s.line(), 0o700); err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	if s.listener, err = listen(s.line()); err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	if err := s.addOwn(); err != nil {
		return err
	}
	s.plan = plan{
		Path: s.cmd.Path, Args: s.cmd.Args, Env: s.cmd.Env, Dir: cmp.Or(s.cmd.Dir, b.WorkDir),
		UID: os.Getuid(), GID: os.Getgid(), Limits: b.Limits,
		Alone: !n.Open, Doors: s.doors(),
	}
	if len(s.plan.Args) == 0 {
		s.plan.Args = []string{s.cmd.Path}
	}
	return s.pin()
}

// doors says whether ways out are opened inside, for the worker to serve.
func (s *start) doors() bool { return !s.box.Network.Open && s.box.Egress != nil }

// addOwn adds the stage, the line and what names are resolved by to the binds.
func (s *start) addOwn() error {
	binds := slices.Clone(s.box.Binds)
	own := []agent.Bind{{Source: s.stage, Destination: s.stage}, {Source: s.line(), Destination: s.line()}}
	if s.doors() {
		for path, text := range door.Files {
			source := filepath.Join(s.dir, filepath.Base(path))
			if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
				return fmt.Errorf("%w: %w", agent.ErrUnready, err)
			}
			own = append(own, agent.Bind{Source: source, Destination: path})
		}
	}
	for _, b := range own {
		b.Access = agent.ReadOnly
		if slices.Contains(binds, b) {
			continue // the bridge to the turn's tools is the same program
		}
		if slices.ContainsFunc(binds, func(o agent.Bind) bool { return o.Destination == b.Destination }) {
			return fmt.Errorf("%w: something is mounted at %s, where the worker's own file must be", agent.ErrUnsupported, b.Destination)
		}
		binds = append(binds, b)
	}
	s.box.Binds = binds
	return nil
}

// pin says what each bind must be inside: what was verified, and what is there now.
func (s *start) pin() error {
	for _, b := range s.box.Binds {
		if b.Access != agent.ReadOnly && b.Access != agent.ReadWrite {
			return fmt.Errorf("%w: bind %s has access %q", agent.ErrUnsupported, b.Destination, b.Access)
		}
		now, err := pinOf(b.Source)
		if err != nil {
			return fmt.Errorf("%w: %w", agent.ErrPolicyChanged, err)
		}
		for _, was := range s.box.Pins {
			if was.Path == b.Source && was != now {
				return fmt.Errorf("%w: %s is not what was verified", agent.ErrPolicyChanged, b.Source)
			}
		}
		s.plan.Places = append(s.plan.Places, place{b.Destination, b.Access == agent.ReadWrite, now.Device, now.Inode})
	}
	if s.box.Workspace == "" {
		return nil
	}
	var err error
	if s.plan.Workspace, err = pinOf(s.box.Workspace); err != nil {
		return fmt.Errorf("%w: %w", agent.ErrPolicyChanged, err)
	}
	return nil
}

// pinOf is the file that path names without a symbolic link on the way.
func pinOf(path string) (agent.Pin, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return agent.Pin{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return agent.Pin{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return agent.Pin{Path: path, Device: st.Dev, Inode: st.Ino}, nil
}

// arguments are those of the engine's "create". No value of the turn's environment, and
// none of the agent's arguments, is among them.
func (s *start) arguments() ([]string, error) {
	b := s.box
	args := []string{
		"create", "--cidfile", filepath.Join(s.dir, "cid"), "--name", b.Name, "--label", b.Label,
		"--rm", "--init", "--pull", "never", "--read-only",
		"--tmpfs", fmt.Sprintf("/tmp:rw,exec,nosuid,nodev,mode=1777,size=%d", tmpBytes),
		"--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--user", fmt.Sprintf("%d:%d", s.plan.UID, s.plan.GID),
		"--ipc", "private", "--workdir", "/", "--log-driver", "none", "--no-healthcheck",
		"--hostname", "turnpike", "--ulimit", "core=0:0",
	}
	if l := b.Limits; l != (agent.Limits{}) {
		if l.MemoryBytes > 0 {
			memory := strconv.FormatInt(l.MemoryBytes, 10)
			args = append(args, "--memory", memory, "--memory-swap", memory)
		}
		if l.Processes > 0 {
			args = append(args, "--pids-limit", strconv.Itoa(l.Processes))
		}
		if l.CPUs > 0 {
			args = append(args, "--cpus", strconv.FormatFloat(l.CPUs, 'f', 3, 64))
		}
		if l.OpenFiles > 0 {
			args = append(args, "--ulimit", fmt.Sprintf("nofile=%d:%d", l.OpenFiles, l.OpenFiles))
		}
		if l.FileBytes > 0 {
			args = append(args, "--ulimit", fmt.Sprintf("fsize=%d:%d", l.FileBytes, l.FileBytes))
		}
	}
	if s.plan.Alone {
		args = append(args, "--network", "none")
	} else {
		args = append(args, "--network", openNetwork)
	}
	for _, bind := range b.Binds {
		m, err := mount(bind)
		if err != nil {
			return nil, err
		}
		args = append(args, "--mount", m)
	}
	return append(args, "--entrypoint", s.stage, b.Image, stageArg, filepath.Join(s.line(), lineSocket)), nil
}

// mount writes a bind as the engine's program reads it, which is one record of
// comma-separated values. What is mounted beneath the source on the host stays there.
func mount(b agent.Bind) (string, error) {
	fields := []string{"type=bind", "source=" + b.Source, "target=" + b.Destination, "bind-propagation=rprivate", "bind-nonrecursive=true"}
	if b.Access == agent.ReadOnly {
		fields = append(fields, "readonly")
	}
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	err := w.Write(fields)
	w.Flush()
	if err = errors.Join(err, w.Error()); err != nil {
		return "", fmt.Errorf("%w: bind %q: %w", agent.ErrUnsupported, b.Source, err)
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// run makes the container and has the agent run in it.
func (s *start) run(ctx context.Context) (*box, error) {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	args, err := s.arguments()
	if err != nil {
		return nil, err
	}
	if s.identity.ID, err = s.client.run(ctx, args...); err != nil {
		return nil, err
	}
	if err := s.inspect(ctx); err != nil {
		return nil, err
	}
	if s.rec != nil {
		if err := s.rec.Live(ctx, s.identity); err != nil {
			return nil, fmt.Errorf("record container: %w: %w", agent.ErrUnready, err)
		}
	}
	if _, err := s.client.run(ctx, "start", s.identity.ID); err != nil {
		return nil, err
	}
	conn, err := s.accept(ctx)
	if err != nil {
		return nil, err
	}
	p := &box{client: s.client, identity: s.identity, dir: s.dir, line: conn, news: json.NewDecoder(conn)}
	if err := s.talk(ctx, p); err != nil {
		_ = conn.Close() // ends the stage, which undo would, too
		return nil, err
	}
	p.follow()
	return p, nil
}

// accept waits for the stage to dial the line, and looks whether it still can.
func (s *start) accept(ctx context.Context) (*net.UnixConn, error) {
	for {
		if err := s.listener.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return nil, fmt.Errorf("%w: %w", agent.ErrUnready, err)
		}
		conn, err := s.listener.AcceptUnix()
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, fmt.Errorf("%w: %w", agent.ErrUnready, err)
		}
		running, err := s.client.list(ctx, "id="+s.identity.ID)
		switch {
		case err != nil:
			return nil, err
		case len(running) == 0:
			return nil, fmt.Errorf("%w: the container ended before it reported to the worker: either its image does not run programs of this machine, or the engine does not share its kernel and files", agent.ErrUnsupported)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: the container did not report to the worker: %w", agent.ErrUnready, context.Cause(ctx))
		}
	}
}

// talk hands over to the stage and returns once the agent runs.
func (s *start) talk(ctx context.Context, p *box) error {
	stop := context.AfterFunc(ctx, func() { _ = p.line.SetDeadline(time.Now()) })
	defer stop()
	if err := s.bound(); err != nil {
		return err
	}
	text, err := json.Marshal(s.plan)
	if err != nil {
		return err
	}
	if err := handOver(p.line, text, s.streams...); err != nil {
		return fmt.Errorf("%w: hand over: %w", agent.ErrUnready, err)
	}
	if s.plan.Doors {
		conn, err := s.accept(ctx)
		if err != nil {
			return err
		}
		err = s.box.Egress.Attach(conn)
		_ = conn.Close() // all was said
		if err != nil {
			return fmt.Errorf("%w: %w", agent.ErrUnsupported, err)
		}
	}
	var first news
	if err := p.news.Decode(&first); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("%w: the container did not say that the agent runs: %w", agent.ErrUnready, err)
	}
	switch {
	case first.Failed != nil:
		return first.Failed
	case !first.Running:
		return fmt.Errorf("%w: the container said something else than that the agent runs", agent.ErrUnsupported)
	}
	// Nobody dials it any more; whatever the agent finds there is nobody's.
	_ = s.listener.Close()
	_ = os.Remove(filepath.Join(s.line(), lineSocket))
	return nil
}

// bound gives the agent its end before its first instruction: this process may be stopped
// until it could give one to what runs.
func (s *start) bound() (err error) {
	if s.box.Until == nil {
		return nil
	}
	if until := s.box.Until(); !until.IsZero() {
		s.plan.Until, err = procs.TermEnd(until)
	}
	return err
}

// undo removes what was made, and records that nothing is left.
func (s *start) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	// By label, too: a client that was ended may have been obeyed all the same.
	ids, err := s.client.list(ctx, "label="+s.box.Label)
	if err == nil && s.identity.ID != "" && !slices.Contains(ids, s.identity.ID) {
		ids = append(ids, s.identity.ID)
	}
	for _, id := range ids {
		err = errors.Join(err, s.client.remove(ctx, id))
	}
	if err != nil {
		return fmt.Errorf("the container may be there yet: %w", err)
	}
	if s.rec == nil {
		return nil
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	return s.rec.Gone(ctx, s.identity)
}

// tidy removes the worker's own directory of the container.
func (s *start) tidy() error {
	if s.listener != nil {
		_ = s.listener.Close() // closed already once the agent ran
	}
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}
