package mcphost

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
)

// What holds where a Launch says nothing, and what nothing can change.
const (
	DefaultAnnounce = 30 * time.Second
	DefaultGrace    = 5 * time.Second

	probeTime   = 10 * time.Second
	recordTime  = 10 * time.Second
	killTime    = 20 * time.Second
	maxAnnounce = 4 << 10 // bytes of a line that is looked at
	// hostPath is the PATH of a server whose environment has none.
	hostPath = "/usr/local/bin:/usr/bin:/bin"
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Launch is how the server that a request names is started on the host.
type Launch struct {
	Request agent.Request
	// Turn is the verified turn. Its environment is the server's, without what the
	// request set: a producer does not choose the variables of a process that
	// nothing confines.
	Turn *agent.Turn
	// Listen is the address of this host that the server listens on, and Reach what
	// the turn reaches it by; empty is Listen.
	Listen netip.Addr
	Reach  string
	// Dir is the server's working directory: the turn's own, and not its workspace,
	// whose files a server might take for its settings.
	Dir string
	// Label is what it is recorded and swept by, and Marker the environment entry
	// that marks it (procs.Marker).
	Label, Marker string
	// Recorder is told of it; nil records nothing.
	Recorder agent.Recorder
	// Log takes what the server prints; nil drops it. It is written by one
	// goroutine at a time.
	Log io.Writer
	// Announce is how long the server may take to say where it listens, and Grace
	// how long to end once it is asked to; zero is the default.
	Announce, Grace time.Duration
}

// Server is a server of the worker's owner that runs on the host for one turn.
type Server struct {
	launch   Launch
	token    string
	url      string
	addr     netip.AddrPort
	tree     *procs.Tree
	identity agent.Identity
	pipes    sync.WaitGroup // who reads what it prints
	ours     []*os.File
	exited   chan struct{} // closes when the tree is gone
	exit     agent.Exit
	waitErr  error
	killed   bool // by Kill
	close    func() error
}

// StartServer starts the server of l.Request and returns once it answers, and refuses
// whoever has no token. It is refused for a turn that runs on the host itself, which
// starts its servers over stdio. ctx bounds the start alone; the server runs until
// Close, which must be called.
func StartServer(ctx context.Context, l Launch) (*Server, error) {
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("host MCP server: %w", err)
	}
	s := &Server{launch: l, token: rand.Text(), exited: make(chan struct{})}
	s.close = sync.OnceValue(s.stop)
	name := l.Request.HostMCP.Name
	s.identity = agent.Identity{Kind: agent.KindServer, Label: l.Label}
	if l.Recorder != nil {
		if err := l.Recorder.Creating(ctx, s.identity); err != nil {
			return nil, fmt.Errorf("record host MCP server %s: %w: %w", name, agent.ErrUnready, err)
		}
	}
	announced, err := s.start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start host MCP server %s: %w: %w", name, agent.ErrUnready, err), s.tellGone())
	}
	if err := s.ready(ctx, announced); err != nil {
		return nil, errors.Join(fmt.Errorf("start host MCP server %s: %w", name, err), s.close())
	}
	return s, nil
}

// check refuses what cannot be started as it is asked. It starts nothing.
func (l Launch) check() error {
	refuse := func(kind error, format string, args ...any) error {
		return fmt.Errorf("%w: %s", kind, fmt.Sprintf(format, args...))
	}
	h, p := l.Request.HostMCP, l.Request.Profile
	if h == nil {
		return refuse(agent.ErrUnsupported, "the request names none")
	}
	_, taken := p.MCP[h.Name]
	e := h.Entry
	switch {
	case p.Placement().Host():
		return refuse(agent.ErrUnsupported, "it needs a container or a sandbox, not placement %q", p.Placement())
	case h.Name == "" || taken || h.Name == ServerName || h.Name == ReadServerName:
		return refuse(agent.ErrNotGranted, "the name %q is taken or empty", h.Name)
	case e.Type != "" && e.Type != "stdio" || e.URL != "" || len(e.Headers) > 0 || e.BearerTokenEnv != "":
		return refuse(agent.ErrUnsupported, "%s is not a command", h.Name)
	case !filepath.IsAbs(e.Command):
		return refuse(agent.ErrUnsupported, "%s: its command %q is not absolute", h.Name, e.Command)
	case !variableName.MatchString(h.TokenEnv):
		return refuse(agent.ErrUnsupported, "%s: without a variable for its token it would answer anybody", h.Name)
	case h.ListeningPrefix == "":
		return refuse(agent.ErrUnsupported, "%s: without a prefix its announcement cannot be told", h.Name)
	case h.Path != "" && !strings.HasPrefix(h.Path, "/"):
		return refuse(agent.ErrUnsupported, "%s: its path %q does not begin with a slash", h.Name, h.Path)
	case !l.Listen.IsValid() || l.Listen.IsUnspecified() || l.Listen.IsMulticast():
		return refuse(agent.ErrUnsupported, "%s: %s is not one address to listen on", h.Name, l.Listen)
	case !filepath.IsAbs(l.Dir):
		return refuse(agent.ErrUnready, "%s: directory %q is not absolute", h.Name, l.Dir)
	}
	return nil
}

// environment is the server's: the turn's without what the request set, the owner's over
// it, and last what only this process knows.
func (s *Server) environment() []string {
	l, h := s.launch, s.launch.Request.HostMCP
	env := map[string]string{"PATH": hostPath}
	set := func(pair string) {
		if name, value, ok := strings.Cut(pair, "="); ok && name != "" {
			env[name] = value
		}
	}
	r := l.Request
	for _, pair := range l.Turn.Env {
		name, _, _ := strings.Cut(pair, "=")
		asked := false
		for _, vars := range []map[string]string{r.Profile.Env, r.Env, r.ContainerEnv, r.VCSEnv, r.VCSContainerEnv} {
			_, there := vars[name]
			asked = asked || there
		}
		if !asked {
			set(pair)
		}
	}
	maps.Copy(env, h.Entry.Env)
	maps.Copy(env, h.Env)
	set(l.Marker)
	env[h.TokenEnv] = s.token
	pairs := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		pairs = append(pairs, name+"="+env[name])
	}
	return pairs
}

// start starts the tree and those who read what it prints. The channel gives the port
// that is announced, and closes at the end of the output.
func (s *Server) start() (<-chan uint16, error) {
	h := s.launch.Request.HostMCP
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close() // the server has its own
		}
	}()
	for range 2 {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, errors.Join(err, s.closePipes())
		}
		s.ours, theirs = append(s.ours, r), append(theirs, w)
	}
	cmd := &exec.Cmd{
		Path: h.Entry.Command,
		Args: slices.Concat([]string{h.Entry.Command}, h.Entry.Args, h.ListenArgs, []string{netip.AddrPortFrom(s.launch.Listen, 0).String()}),
		Env:  s.environment(), Dir: s.launch.Dir,
		Stdout: theirs[0], Stderr: theirs[1],
	}
	tree, err := procs.Start(cmd, procs.Supervised)
	if err != nil {
		return nil, errors.Join(err, s.closePipes())
	}
	s.tree, s.identity = tree, tree.Identity()
	s.identity.Kind, s.identity.Label = agent.KindServer, s.launch.Label
	log := &shared{to: s.launch.Log}
	announced := make(chan uint16, 1)
	s.pipes.Go(func() {
		defer close(announced)
		s.listen(s.ours[0], log, announced)
	})
	s.pipes.Go(func() { _, _ = io.Copy(log, s.ours[1]) }) // what cannot be logged is dropped
	go func() {                                           // not waited for where the tree cannot be ended; stop says so
		defer close(s.exited)
		s.exit, s.waitErr = tree.Wait()
	}()
	return announced, nil
}

// shared lets two goroutines write to one writer, which may be none.
type shared struct {
	mu sync.Mutex // guards to
	to io.Writer
}

func (w *shared) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.to != nil {
		_, _ = w.to.Write(p) // a log that fails must not stop the server
	}
	return len(p), nil
}

// listen reads the server's output to its end, or it would block, and gives the port of
// the first line that announces one.
func (s *Server) listen(out io.Reader, log io.Writer, announced chan<- uint16) {
	r := bufio.NewReaderSize(io.TeeReader(out, log), maxAnnounce)
	for told := false; ; {
		line, more, err := r.ReadLine()
		if err != nil {
			return
		}
		if port, ok := announcement(string(line), s.launch.Request.HostMCP.ListeningPrefix); ok && !told && !more {
			announced <- port // has room for the one
			told = true
		}
		for more && err == nil {
			_, more, err = r.ReadLine()
		}
	}
}

// announcement reads the port that a line tells behind the prefix: alone, behind an
// address, or in a URL. The address it names is nobody's business: it is told where
// to listen.
func announcement(line, prefix string) (port uint16, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), strings.TrimSpace(prefix))
	if !ok {
		return 0, false
	}
	rest = strings.TrimSpace(rest)
	if _, after, found := strings.Cut(rest, "://"); found {
		rest = after
	}
	rest, _, _ = strings.Cut(rest, "/")
	if _, p, err := net.SplitHostPort(rest); err == nil {
		rest = p
	}
	n, err := strconv.ParseUint(rest, 10, 16)
	return uint16(n), err == nil && n > 0
}

// ready records the server, waits for its announcement, and makes sure that it keeps
// out whoever has no token.
func (s *Server) ready(ctx context.Context, announced <-chan uint16) error {
	l := s.launch
	if l.Recorder != nil {
		if err := l.Recorder.Live(ctx, s.identity); err != nil {
			return fmt.Errorf("record it: %w: %w", agent.ErrUnready, err)
		}
	}
	limit := l.Announce
	if limit <= 0 {
		limit = DefaultAnnounce
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case port, ok := <-announced:
		if !ok {
			return fmt.Errorf("%w: it ended before it said where it listens", agent.ErrUnready)
		}
		s.url = "http://" + net.JoinHostPort(reach(l), strconv.Itoa(int(port))) + l.Request.HostMCP.Path
		s.addr = netip.AddrPortFrom(l.Listen, port)
		return s.keepsOut(ctx, port)
	case <-late.C:
		return fmt.Errorf("%w: it did not say within %s where it listens", agent.ErrUnready, limit)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func reach(l Launch) string {
	if l.Reach != "" {
		return l.Reach
	}
	return l.Listen.String()
}

// keepsOut asks the server something without the token, which it must refuse: its
// address may be reached by more than the turn.
func (s *Server) keepsOut(ctx context.Context, port uint16) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"turnpike","version":"1"}}}`
	at := "http://" + netip.AddrPortFrom(s.launch.Listen, port).String() + s.launch.Request.HostMCP.Path
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at, strings.NewReader(hello))
	if err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	// Its own connections: no proxy of the worker's, and none that stays open.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%w: it does not answer where it was told to listen: %w", agent.ErrUnready, err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized && res.StatusCode != http.StatusForbidden {
		return fmt.Errorf("%w: it answers without its token (status %d)", agent.ErrUnsupported, res.StatusCode)
	}
	return nil
}

// Name is the server's name in the turn's MCP configuration.
func (s *Server) Name() string { return s.launch.Request.HostMCP.Name }

// Entry is how the turn reaches the server. The token is in the variable it names,
// which Env gives; the variable must be the turn's own.
func (s *Server) Entry() agent.MCPEntry {
	return agent.MCPEntry{Type: "http", URL: s.url, BearerTokenEnv: s.launch.Request.HostMCP.TokenEnv}
}

// Env is what the turn's environment needs for Entry, as NAME=value pairs.
func (s *Server) Env() []string { return []string{s.launch.Request.HostMCP.TokenEnv + "=" + s.token} }

// Addr is where the server listens on the host.
func (s *Server) Addr() netip.AddrPort { return s.addr }

// Freeze stops the server and all it started where they are; Thaw lets them go on.
func (s *Server) Freeze() error { return s.tree.Freeze() }

// Thaw lets the server go on.
func (s *Server) Thaw() error { return s.tree.Thaw() }

// RunUntil bounds how long the server may run unseen, as agent.Bounded says.
func (s *Server) RunUntil(at time.Time) error { return s.tree.RunUntil(at) }

// Kill ends the server as it stands, of a turn that another may run in the stead of. Close
// follows, by the same goroutine.
func (s *Server) Kill() error {
	s.killed = true
	if err := s.kill(); err != nil {
		return fmt.Errorf("end host MCP server %s: %w", s.Name(), err)
	}
	return nil
}

// Exited closes when the server and all it started are gone.
func (s *Server) Exited() <-chan struct{} { return s.exited }

// Close ends the server and returns once its absence is verified and recorded. That it
// had ended before it was asked to is an error too: the turn was without it.
func (s *Server) Close() error { return s.close() }

func (s *Server) stop() error {
	var early error
	select {
	case <-s.exited:
		if s.killed {
			break
		}
		early = fmt.Errorf("host MCP server %s ended by itself (exit code %d, signal %d)", s.Name(), s.exit.Code, s.exit.Signal)
	default:
		if err := s.end(); err != nil {
			return fmt.Errorf("end host MCP server %s: %w", s.Name(), err)
		}
	}
	// Nothing is left that could write.
	s.pipes.Wait()
	return errors.Join(early, s.waitErr, s.closePipes(), s.tellGone())
}

// end asks the tree to end and, when it does not, ends it.
func (s *Server) end() error {
	limit := s.launch.Grace
	if limit <= 0 {
		limit = DefaultGrace
	}
	_ = s.tree.Terminate() // fails on a tree that is gone
	grace := time.NewTimer(limit)
	defer grace.Stop()
	select {
	case <-s.exited:
		return nil
	case <-grace.C:
	}
	return s.kill()
}

func (s *Server) kill() error {
	// Whoever asks has no time left of its own, and the server must end anyway.
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	if err := s.tree.Kill(ctx); err != nil {
		return err
	}
	select {
	case <-s.exited:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Server) closePipes() error {
	var errs []error
	for _, f := range s.ours {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// tellGone records that nothing of it is left.
func (s *Server) tellGone() error {
	if s.launch.Recorder == nil {
		return nil
	}
	// The record must be made even when the turn's context has ended.
	ctx, cancel := context.WithTimeout(context.Background(), recordTime)
	defer cancel()
	if err := s.launch.Recorder.Gone(ctx, s.identity); err != nil {
		return fmt.Errorf("record the end of host MCP server %s: %w", s.launch.Request.HostMCP.Name, err)
	}
	return nil
}
