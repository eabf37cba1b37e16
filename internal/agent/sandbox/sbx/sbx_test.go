//go:build linux

package sbx_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/sandbox/sbx"
)

const (
	label = "turnpike.session=0123abcd/demo-1"
	name  = "turnpike-0123abcd-demo-1"
)

// room is a workspace with a stand-in for sbx beside it.
type room struct {
	t      *testing.T
	sbx    standIn
	engine *sbx.Engine
	ws, ro string
	box    agent.Box
	rec    *recorder
}

func newRoom(t *testing.T) *room {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &room{t: t, sbx: standIn{filepath.Join(dir, "sbx")}, ws: filepath.Join(dir, "ws"), ro: filepath.Join(dir, "ws", ".git"), rec: &recorder{}}
	for _, d := range []string{r.ws, r.ro, filepath.Join(r.sbx.dir, "sandbox")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "bin", "sbx")
	if err := os.MkdirAll(filepath.Dir(bin), 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' standin-sbx '%s' \"$@\"\n", self, r.sbx.dir)
	if err := os.WriteFile(bin, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r.engine = &sbx.Engine{Bin: bin}
	r.box = agent.Box{
		Name: "demo", Label: label, Agent: agent.AgentClaude, Workspace: r.ws, WorkDir: r.ws,
		Binds: []agent.Bind{
			{Source: r.ws, Destination: r.ws, Access: agent.ReadWrite},
			{Source: r.ro, Destination: r.ro, Access: agent.ReadOnly},
		},
	}
	t.Cleanup(func() {
		for _, knob := range []string{"do-ls", "do-rm"} {
			_ = os.Remove(r.sbx.file(knob))
		}
		if _, err := r.engine.Sweep(context.Background(), "turnpike.session=0123abcd/"); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *room) set(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(r.sbx.file(name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *room) calls() []call {
	r.t.Helper()
	text, err := os.ReadFile(r.sbx.file("calls"))
	if err != nil {
		r.t.Fatal(err)
	}
	var out []call
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var c call
		if err := d.Decode(&c); err != nil {
			r.t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// said are the calls of one command, as lines.
func (r *room) said(command string) []string {
	var out []string
	for _, c := range r.calls() {
		if line := strings.Join(c.Args, " "); strings.HasPrefix(line, command) {
			out = append(out, line)
		}
	}
	return out
}

func (r *room) there() []string {
	r.t.Helper()
	all, err := os.ReadDir(r.sbx.file("sandbox"))
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, e := range all {
		out = append(out, e.Name())
	}
	return out
}

// turn is an agent in a sandbox, and what it prints.
type turn struct {
	agent.Process
	t   *testing.T
	in  *os.File
	out *os.File
}

func (r *room) start(ctx context.Context, env []string, args ...string) (*turn, error) {
	r.t.Helper()
	inR, inW, err1 := os.Pipe()
	outR, outW, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		for _, f := range []*os.File{inR, inW, outR, outW} {
			_ = f.Close()
		}
	})
	cmd := &exec.Cmd{Path: args[0], Args: args, Env: env, Dir: r.ws, Stdin: inR, Stdout: outW, Stderr: outW}
	p, err := r.engine.Start(ctx, cmd, r.box, r.rec)
	_ = inR.Close()
	_ = outW.Close()
	return &turn{p, r.t, inW, outR}, err
}

func (r *room) run(env []string, args ...string) (string, agent.Exit) {
	r.t.Helper()
	p, err := r.start(context.Background(), env, args...)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = p.in.Close()
	return p.end()
}

func (p *turn) end() (string, agent.Exit) {
	p.t.Helper()
	out, err := io.ReadAll(p.out)
	if err != nil {
		p.t.Fatal(err)
	}
	exit, err := p.Wait()
	if err != nil {
		p.t.Error(err)
	}
	return string(out), exit
}

// line waits for the next line the agent prints.
func (p *turn) line() string {
	p.t.Helper()
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := p.out.Read(b); err != nil {
			p.t.Fatalf("after %q: %v", line, err)
		}
		if b[0] == '\n' {
			return string(line)
		}
		line = append(line, b[0])
	}
}

// recorder remembers what it was told.
type recorder struct {
	mu   sync.Mutex
	told []string
	fail string
}

func (r *recorder) tell(what string, id agent.Identity) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, fmt.Sprintf("%s %s %s %s", what, id.Kind, id.ID, id.Label))
	if r.fail == what {
		return errors.New("the store is away")
	}
	return nil
}

func (r *recorder) Creating(_ context.Context, id agent.Identity) error {
	return r.tell("creating", id)
}
func (r *recorder) Live(_ context.Context, id agent.Identity) error { return r.tell("live", id) }
func (r *recorder) Gone(_ context.Context, id agent.Identity) error { return r.tell("gone", id) }

func told(what ...string) []string {
	for i, w := range what {
		what[i] = w + " sandbox " + name + " " + label
	}
	return what
}

func TestRun(t *testing.T) {
	t.Setenv("ANTHROPIC_API_KEY", "sk-of-the-worker")
	t.Setenv("DATABASE_URL", "postgres://secret")
	r := newRoom(t)
	r.box.Image = "registry.example.com/agents:1"
	r.box.Limits = agent.Limits{MemoryBytes: 1<<30 + 1, CPUs: 2}
	script := `echo "$SECRET $TEMPLATE key=$ANTHROPIC_API_KEY gh=$GH_TOKEN ssh=$SSH_AUTH_SOCK db=$DATABASE_URL"; pwd
		touch new && echo made; touch .git/x 2>/dev/null || echo refused; cat; exit 7`
	p, err := r.start(context.Background(), []string{"SECRET=s3cret", "PATH=/usr/bin:/bin"}, "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(p.in, "over its input")
	_ = p.in.Close()
	out, exit := p.end()
	want := "s3cret yes key=proxy-managed gh= ssh= db=\n" + r.ws + "\nmade\nrefused\nover its input\n"
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("what the agent found (-want +got):\n%s", diff)
	}
	if exit != (agent.Exit{Code: 7}) {
		t.Errorf("it ended with %+v", exit)
	}
	if diff := cmp.Diff(told("creating", "live"), r.rec.told); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	if left := r.there(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		t.Fatal(err)
	}
	rest := []string{r.ro + ":ro", self + ":ro"}
	slices.Sort(rest)
	create := strings.Join(append([]string{
		"create", "--quiet", "--name", name, "--template", r.box.Image, "--deny-network", "**", "--memory", "1025m", "--cpus", "2",
		"claude", r.ws,
	}, rest...), " ")
	if diff := cmp.Diff([]string{create}, r.said("create")); diff != "" {
		t.Errorf("made as (-want +got):\n%s", diff)
	}
	for _, c := range r.calls() {
		if all := strings.Join(append(c.Args, c.Env...), "\n"); strings.Contains(all, "s3cret") || strings.Contains(all, "sk-of") ||
			strings.Contains(all, "postgres:") || strings.Contains(all, "exit 7") {
			t.Errorf("sbx is told: %s", all)
		}
	}
	if rm := r.said("rm"); len(rm) == 0 || rm[0] != "rm --force "+name {
		t.Errorf("removed by %q", rm)
	}
}

func TestRunCarriesSockets(t *testing.T) {
	r := newRoom(t)
	dir := filepath.Join(filepath.Dir(r.ws), "run")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	echo(t, "unix", socket)
	r.box.Binds = append(r.box.Binds, agent.Bind{Source: dir, Destination: dir, Access: agent.ReadOnly})
	r.box.Sockets = []agent.Bind{{Source: socket, Destination: "/tmp/turnpike/tools.sock", Access: agent.ReadOnly}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := `"$0" standin-dial /tmp/turnpike/tools.sock one & "$0" standin-dial /tmp/turnpike/tools.sock two; wait; test -e ` + dir + ` || echo hidden`
	out, exit := r.run(nil, "sh", "-c", script, self)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	if diff := cmp.Diff([]string{"heard one", "heard two", "hidden"}, lines); diff != "" || exit.Code != 0 {
		t.Errorf("%+v (-want +got):\n%s", exit, diff)
	}
}

// echo answers every connection with what it was told.
func echo(t *testing.T, network, address string) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				text, _ := io.ReadAll(c) // what came before an error is answered
				fmt.Fprintf(c, "heard %s", text)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return l.Addr().String()
}

func TestSteering(t *testing.T) {
	r := newRoom(t)
	script := `trap 'echo asked; exit 3' TERM; echo started; i=0; while :; do i=$((i+1)); echo $i > ticks; sleep 0.01; done`
	p, err := r.start(context.Background(), []string{"TURNPIKE_SESSION=a/b"}, "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	p.line()
	ticks := func() string {
		text, err := os.ReadFile(filepath.Join(r.ws, "ticks"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return string(text)
	}
	moves := func() bool {
		for before, bound := ticks(), time.Now().Add(10*time.Second); time.Now().Before(bound); runtime.Gosched() {
			if now := ticks(); now != before && now != "" {
				return true
			}
		}
		return false
	}
	if err := p.Freeze(); err != nil {
		t.Fatal(err)
	}
	still := ticks()
	if out, err := exec.Command("sleep", "0.2").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if now := ticks(); now != still {
		t.Errorf("frozen at %q, and then %q", still, now)
	}
	if err := p.Thaw(); err != nil {
		t.Fatal(err)
	}
	if !moves() {
		t.Error("thawed, it does not move")
	}
	if err := p.Terminate(); err != nil {
		t.Fatal(err)
	}
	if out, exit := p.end(); out != "asked\n" || exit != (agent.Exit{Code: 3}) {
		t.Errorf("asked to end: %q, %+v", out, exit)
	}
	if err := p.Terminate(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("asked to end once more: %v", err)
	}
}

// TestTerm: at the end of its term an agent stands still by itself.
func TestTerm(t *testing.T) {
	r := newRoom(t)
	start := func() (*turn, error) {
		return r.start(context.Background(), []string{"TURNPIKE_SESSION=a/b"}, "sh", "-c", `while :; do sleep 0.01; done & cat`)
	}
	until := func(p *turn, at time.Time) {
		t.Helper()
		if err := p.Process.(agent.Bounded).RunUntil(at); err != nil {
			t.Fatal(err)
		}
	}
	// becomes returns once the agent of this pid, and its child, stand still or do not.
	becomes := func(pid string, still bool) {
		t.Helper()
		for bound := time.Now().Add(time.Minute); (moving(t, pid) == 0) != still; runtime.Gosched() {
			if time.Now().After(bound) {
				t.Fatalf("it does not become still %t", still)
			}
		}
	}
	steer := func(do ...func() error) {
		t.Helper()
		for _, f := range do {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}
	}
	later := time.Now()
	more := func() time.Time { later = later.Add(time.Hour); return later }

	// It has an end before its first instruction.
	var p *turn
	err := agent.ErrUnready
	for term := time.Second; errors.Is(err, agent.ErrUnready); term *= 2 { // this machine may be slow
		r.box.Until = func() time.Time { return time.Now().Add(term) }
		p, err = start()
	}
	if err != nil {
		t.Fatal(err)
	}
	pid := r.agent() // it may have said nothing yet
	becomes(pid, true)
	until(p, time.Now().Add(10*time.Millisecond))
	becomes(pid, true)
	until(p, time.Now().Add(-time.Second)) // an earlier end is none
	becomes(pid, true)
	steer(p.Freeze, p.Thaw)
	if n := moving(t, pid); n != 0 {
		t.Errorf("%d processes run past their end, thawed", n)
	}
	until(p, more())
	becomes(pid, false)
	steer(p.Freeze)
	until(p, more())
	if n := moving(t, pid); n != 0 {
		t.Errorf("%d processes run though nobody thawed them", n)
	}
	steer(p.Thaw)
	becomes(pid, false)
	if err := p.Kill(context.Background()); err != nil {
		t.Fatal(err)
	}
	p.end()
	if err := p.Process.(agent.Bounded).RunUntil(more()); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("bounding what is gone: %v", err)
	}
}

// agent is the pid of the agent, which is a shell.
func (r *room) agent() string {
	r.t.Helper()
	for bound := time.Now().Add(time.Minute); time.Now().Before(bound); runtime.Gosched() {
		pids, err := os.ReadDir(r.sbx.file("sandbox", name, "pids"))
		if err != nil {
			r.t.Fatal(err)
		}
		for _, p := range pids {
			if args, err := os.ReadFile("/proc/" + p.Name() + "/cmdline"); err == nil && strings.HasPrefix(string(args), "sh\x00") {
				return p.Name()
			}
		}
	}
	r.t.Fatal("there is no agent")
	return ""
}

// moving counts the processes beneath and with pid that are not stopped.
func moving(t *testing.T, pid string) (n int) {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	children, err2 := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	if errors.Is(errors.Join(err, err2), os.ErrNotExist) || errors.Is(errors.Join(err, err2), syscall.ESRCH) {
		return 0 // it ended meanwhile
	}
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if state := stat[bytes.LastIndexByte(stat, ')')+2]; !strings.ContainsRune("TZX", rune(state)) {
		n++
	}
	for _, child := range strings.Fields(string(children)) {
		n += moving(t, child)
	}
	return n
}

func TestKill(t *testing.T) {
	r := newRoom(t)
	p, err := r.start(context.Background(), nil, "sh", "-c", `echo started; sleep 1000`)
	if err != nil {
		t.Fatal(err)
	}
	p.line()
	if err := p.Kill(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, exit := p.end(); exit.Code == 0 && exit.Signal == 0 {
		t.Errorf("killed, it ended with %+v", exit)
	}
	if left := r.there(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestKillOfWhatStays has sbx not remove the sandbox: nobody says then that it is gone.
func TestKillOfWhatStays(t *testing.T) {
	r := newRoom(t)
	p, err := r.start(context.Background(), nil, "sh", "-c", `echo started; sleep 1000`)
	if err != nil {
		t.Fatal(err)
	}
	p.line()
	r.set("do-rm", "fail")
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := p.Kill(ctx); err == nil || !strings.Contains(err.Error(), "there yet") {
		t.Errorf("%v", err)
	}
	if err := os.Remove(r.sbx.file("do-rm")); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(context.Background()); err != nil {
		t.Error(err)
	}
	p.end()
}

func TestStartRefuses(t *testing.T) {
	open := agent.Network{Open: true}
	listed := agent.Network{Proxied: true, Domains: []string{"api.example.com"}}
	for name, c := range map[string]struct {
		change func(r *room)
		want   error
	}{
		"an old sbx":                     {func(r *room) { r.set("version", "sbx version v0.37.9") }, agent.ErrUnsupported},
		"an sbx without a version":       {func(r *room) { r.set("version", "dev") }, agent.ErrUnsupported},
		"a missing sbx":                  {func(r *room) { r.box.Bin = "/nowhere/sbx" }, agent.ErrUnready},
		"a daemon that is down":          {func(r *room) { r.set("do-version", "fail") }, agent.ErrUnready},
		"a forwarded ssh agent":          {func(r *room) { r.set("ssh-agent", "true") }, agent.ErrUnsupported},
		"a workspace that is not shown":  {func(r *room) { r.box.Workspace, r.box.WorkDir = "/usr", "/usr" }, agent.ErrUnsupported},
		"another path inside":            {func(r *room) { r.box.Binds[0].Destination = "/workspace" }, agent.ErrUnsupported},
		"another working directory":      {func(r *room) { r.box.WorkDir = "/workspace" }, agent.ErrUnsupported},
		"another home":                   {func(r *room) { r.box.Home = "/home/x" }, agent.ErrUnsupported},
		"a limit of processes":           {func(r *room) { r.box.Limits.Processes = 5 }, agent.ErrUnsupported},
		"a limit of files":               {func(r *room) { r.box.Limits.OpenFiles = 5 }, agent.ErrUnsupported},
		"an access of no kind":           {func(r *room) { r.box.Binds[0].Access = "" }, agent.ErrUnsupported},
		"a path with a colon":            {func(r *room) { r.colon() }, agent.ErrUnsupported},
		"a label that is none":           {func(r *room) { r.box.Label = "x" }, agent.ErrUnsupported},
		"a label out of its letters":     {func(r *room) { r.box.Label = "k=a/b c" }, agent.ErrUnsupported},
		"a template that is a flag":      {func(r *room) { r.box.Image = "--all" }, agent.ErrUnsupported},
		"any public host":                {func(r *room) { r.box.Network = agent.Network{Proxied: true} }, agent.ErrUnsupported},
		"names led elsewhere":            {func(r *room) { r.box.Network = listed; r.box.Network.Hosts = map[string]string{"a:1": "b:2"} }, agent.ErrUnsupported},
		"host servers, the network open": {func(r *room) { r.box.Network, r.box.HostServers = open, []agent.HostServer{{Name: "s", Port: 9}} }, agent.ErrUnsupported},
		"a server beyond loopback": {func(r *room) {
			r.box.Servers = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:80")}
		}, agent.ErrUnsupported},
		"a machine that allows hosts":  {func(r *room) { r.box.Network = listed; r.set("allowed-by-local", "42") }, agent.ErrUnsupported},
		"a kit that allows hosts":      {func(r *room) { r.box.Network = listed; r.set("allowed-by-kit", "3") }, agent.ErrUnsupported},
		"an organization that decides": {func(r *room) { r.box.Network = listed; r.set("governed", "yes") }, agent.ErrUnsupported},
		"a policy that cannot be made": {func(r *room) { r.box.Network = open; r.set("do-policy-allow", "fail") }, agent.ErrUnready},
		"a workspace shown writable":   {func(r *room) { r.set("weaken", "yes") }, agent.ErrUnsupported},
		"a sandbox that is not made":   {func(r *room) { r.set("do-create", "fail") }, agent.ErrUnready},
		"an exec that fails":           {func(r *room) { r.set("do-exec", "fail") }, agent.ErrUnready},
		"a source that is gone":        {func(r *room) { r.remove(r.ro) }, agent.ErrPolicyChanged},
		"a source that is another": {func(r *room) {
			r.box.Pins = []agent.Pin{{Path: r.ws, Device: 1, Inode: 1}}
		}, agent.ErrPolicyChanged},
		"a time that is over":        {func(r *room) { r.box.Until = time.Now }, agent.ErrUnready},
		"a store that is away":       {func(r *room) { r.rec.fail = "creating" }, agent.ErrUnready},
		"a store that goes away":     {func(r *room) { r.rec.fail = "live" }, agent.ErrUnready},
		"a Dagger engine of no form": {func(r *room) { r.box.Dagger = &agent.Dagger{Engine: "ssh://x", Version: "0.20.5"} }, agent.ErrUnsupported},
		"a Dagger container's flag": {func(r *room) {
			r.box.Dagger = &agent.Dagger{Engine: "docker-container://--privileged", Version: "0.20.5"}
		}, agent.ErrUnsupported},
		"a Dagger release of no form": {func(r *room) {
			r.box.Network, r.box.Dagger = open, &agent.Dagger{Engine: "tcp://127.0.0.1:1", Version: "latest"}
		}, agent.ErrUnsupported},
		"a Dagger CLI without a network": {func(r *room) {
			r.box.Dagger = &agent.Dagger{Engine: "tcp://127.0.0.1:1", Version: "99.0.0"}
		}, agent.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRoom(t)
			c.change(r)
			if _, err := r.start(context.Background(), nil, "true"); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if left := r.there(); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
			if n := len(r.rec.told); n > 1 && !strings.HasPrefix(r.rec.told[n-1], "gone") {
				t.Errorf("recorded: %v", r.rec.told)
			}
		})
	}
	t.Run("an agent that is not there", func(t *testing.T) {
		r := newRoom(t)
		if _, err := r.start(context.Background(), nil, "no-such-agent"); !errors.Is(err, agent.ErrUnsupported) || !strings.Contains(err.Error(), "no-such-agent") {
			t.Errorf("%v", err)
		}
		if left := r.there(); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
	for _, command := range []string{"create", "exec"} {
		t.Run("a "+command+" that hangs", func(t *testing.T) {
			r := newRoom(t)
			r.set("do-"+command, "hang")
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if _, err := r.start(ctx, nil, "true"); !errors.Is(err, agent.ErrUnready) || !errors.Is(err, context.DeadlineExceeded) {
				if command == "exec" && errors.Is(err, agent.ErrUnready) {
					return
				}
				t.Errorf("%v", err)
			}
			if left := r.there(); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func (r *room) colon() {
	dir := r.ws + "/a:ro"
	if err := os.Mkdir(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	r.box.Binds = append(r.box.Binds, agent.Bind{Source: dir, Destination: dir, Access: agent.ReadWrite})
}

func (r *room) remove(path string) {
	if err := os.RemoveAll(path); err != nil {
		r.t.Fatal(err)
	}
}

func TestNetwork(t *testing.T) {
	for name, c := range map[string]struct {
		box  agent.Box
		want []string // rules, in order
	}{
		"none": {agent.Box{}, nil},
		"no domains": {
			agent.Box{Network: agent.Network{Proxied: true, Domains: []string{}}}, nil,
		},
		"open": {
			agent.Box{Network: agent.Network{Open: true}},
			[]string{"deny localhost,127.0.0.0/8,::1,host.docker.internal", "allow **"},
		},
		"domains": {
			agent.Box{Network: agent.Network{Proxied: true, Domains: []string{"api.example.com", "*.cdn.example.com"}}},
			[]string{"allow api.example.com:443,api.example.com:80,**.cdn.example.com:443,**.cdn.example.com:80"},
		},
		"domains and host servers": {
			agent.Box{
				Network:     agent.Network{Proxied: true, Domains: []string{"api.example.com"}},
				HostServers: []agent.HostServer{{Name: "db", Port: 9000}}, Servers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9100")},
			},
			[]string{"allow localhost:9000,localhost:9100,api.example.com:443,api.example.com:80"},
		},
		"host servers alone": {
			agent.Box{HostServers: []agent.HostServer{{Name: "db", Port: 9000}}},
			[]string{"allow localhost:9000"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRoom(t)
			r.box.Network, r.box.HostServers, r.box.Servers = c.box.Network, c.box.HostServers, c.box.Servers
			r.set("allowed-by-kit", "3")
			r.engine.KitNetwork = true
			if out, exit := r.run(nil, "echo", "ran"); out != "ran\n" || exit.Code != 0 {
				t.Fatalf("%q, %+v", out, exit)
			}
			var got []string
			for _, verb := range []string{"deny", "allow"} {
				for _, l := range r.said("policy " + verb) {
					got = append(got, verb+" "+strings.TrimPrefix(l, "policy "+verb+" network --sandbox turnpike-0123abcd-demo-1 "))
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			if denied := strings.Contains(r.said("create")[0], "--deny-network **"); denied != (c.want == nil) {
				t.Errorf("made without any network: %t", denied)
			}
			if len(r.said("policy check")) == 0 {
				t.Error("nobody looked whether the rules hold")
			}
		})
	}
}

func TestDagger(t *testing.T) {
	releases := daggerReleases(t)
	engines := map[string]func(t *testing.T, r *room) string{
		"unix": func(t *testing.T, r *room) string {
			socket := filepath.Join(filepath.Dir(r.ws), "engine.sock")
			echo(t, "unix", socket)
			return "unix://" + socket
		},
		"tcp": func(t *testing.T, _ *room) string { return "tcp://" + echo(t, "tcp", "127.0.0.1:0") },
		"docker-container": func(t *testing.T, r *room) string {
			// What the container engine is called with, and the engine's joining program.
			r.engine.DockerBin = filepath.Join(filepath.Dir(r.ws), "docker")
			script := "#!/bin/sh\n[ \"$1 $2 $3 $4\" = 'exec -i dagger-engine sh' ] || exit 1\nprintf 'heard '; exec cat\n"
			if err := os.WriteFile(r.engine.DockerBin, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			return "docker-container://dagger-engine"
		},
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for form, engine := range engines {
		for _, version := range []string{"v0.20.5", "0.20.5"} {
			t.Run(form+" "+version, func(t *testing.T) {
				t.Parallel()
				r := newRoom(t)
				r.engine.DaggerURL = releases
				r.box.Network = agent.Network{Proxied: true, Domains: []string{"api.example.com"}}
				r.box.Dagger = &agent.Dagger{Engine: engine(t, r), Version: version}
				script := `dagger version; echo "$_EXPERIMENTAL_DAGGER_RUNNER_HOST"; "$0" standin-dial "${_EXPERIMENTAL_DAGGER_RUNNER_HOST#unix://}" hello`
				out, exit := r.run([]string{"PATH=/usr/bin:/bin"}, "sh", "-c", script, self)
				want := "dagger v0.20.5\nunix:///tmp/turnpike/dagger\nheard hello\n"
				if diff := cmp.Diff(want, out); diff != "" || exit.Code != 0 {
					t.Errorf("%+v (-want +got):\n%s", exit, diff)
				}
				host := strings.TrimPrefix(releases, "http://")
				if allow := r.said("policy allow"); len(allow) != 2 || !strings.HasSuffix(allow[1], " "+host) {
					t.Errorf("allowed: %q", allow)
				}
				if rm := r.said("policy rm"); len(rm) != 1 || !strings.HasSuffix(rm[0], "--resource "+host) {
					t.Errorf("taken back: %q", rm)
				}
			})
		}
	}
	t.Run("another content than its checksum", func(t *testing.T) {
		r := newRoom(t)
		r.engine.DaggerURL = releases
		r.box.Network = agent.Network{Open: true}
		r.box.Dagger = &agent.Dagger{Engine: "tcp://127.0.0.1:1", Version: "0.20.6"}
		if _, err := r.start(context.Background(), nil, "true"); !errors.Is(err, agent.ErrUnready) || !strings.Contains(err.Error(), "install the Dagger CLI") {
			t.Errorf("%v", err)
		}
	})
}

// daggerReleases serves a release 0.20.5, and a 0.20.6 with another checksum.
func daggerReleases(t *testing.T) string {
	t.Helper()
	script := "#!/bin/sh\necho dagger v0.20.5\n"
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	err := w.WriteHeader(&tar.Header{Name: "dagger", Mode: 0o755, Size: int64(len(script))})
	if err == nil {
		_, err = io.WriteString(w, script)
	}
	if err = errors.Join(err, w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	file := func(version string) string { return fmt.Sprintf("dagger_v%s_linux_%s.tar.gz", version, runtime.GOARCH) }
	mux := http.NewServeMux()
	for version, sum := range map[string]string{"0.20.5": fmt.Sprintf("%x", sha256.Sum256(packed.Bytes())), "0.20.6": strings.Repeat("0", 64)} {
		mux.HandleFunc("/"+version+"/checksums.txt", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "%s  other.tar.gz\n%s  %s\n", strings.Repeat("1", 64), sum, file(version))
		})
		mux.HandleFunc("/"+version+"/"+file(version), func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(packed.Bytes()) })
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func TestOrphans(t *testing.T) {
	r := newRoom(t)
	ctx := context.Background()
	who := agent.Identity{Kind: agent.KindSandbox, ID: name, Label: label}
	keep := func(name string) {
		t.Helper()
		if err := r.sbx.create([]string{"--name", name, "claude", r.ws}); err != nil {
			t.Fatal(err)
		}
	}
	if there, err := r.engine.End(ctx, who); there || err != nil {
		t.Errorf("nothing to end: %t, %v", there, err)
	}
	for form, id := range map[string]agent.Identity{
		"both": who, "by label": {Kind: agent.KindSandbox, Label: label}, "by id": {Kind: agent.KindSandbox, ID: name},
	} {
		keep(name)
		keep(name + "0") // whose name begins alike
		if there, err := r.engine.Find(ctx, id); !there || err != nil {
			t.Errorf("%s: found %t, %v", form, there, err)
		}
		if there, err := r.engine.End(ctx, id); !there || err != nil {
			t.Errorf("%s: ended %t, %v", form, there, err)
		}
		if diff := cmp.Diff([]string{name + "0"}, r.there()); diff != "" {
			t.Errorf("%s: left (-want +got):\n%s", form, diff)
		}
	}
	for form, id := range map[string]agent.Identity{
		"another kind": {Kind: agent.KindContainer, Label: label}, "nothing": {Kind: agent.KindSandbox},
		"a person's": {Kind: agent.KindSandbox, ID: "my-sandbox"}, "two": {Kind: agent.KindSandbox, ID: name + "0", Label: label},
	} {
		if _, err := r.engine.End(ctx, id); err == nil {
			t.Errorf("%s: ended", form)
		}
	}
	keep("turnpike-ffff-other")
	keep("mine")
	if n, err := r.engine.Sweep(ctx, "turnpike.session=0123abcd/"); n != 1 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if diff := cmp.Diff([]string{"mine", "turnpike-ffff-other"}, r.there()); diff != "" {
		t.Errorf("left after the sweep (-want +got):\n%s", diff)
	}
	r.set("do-ls", "fail")
	if _, err := r.engine.Find(ctx, who); !errors.Is(err, agent.ErrUnready) {
		t.Errorf("an sbx that does not answer: %v", err)
	}
	r.remove(r.sbx.file("do-ls"))
}

func TestLook(t *testing.T) {
	r := newRoom(t)
	p, err := r.engine.Look(context.Background(), "", agent.Profile{Agent: agent.AgentCodex, Sandbox: agent.SandboxSbx})
	if err != nil {
		t.Fatal(err)
	}
	if p.Image != "" || p.Bin != "codex" || !p.Injects || p.HostName != sbx.HostName || p.Version != "sbx 0.43.1" || len(p.Private) == 0 {
		t.Errorf("premises: %+v", p)
	}
	if _, err := r.engine.Look(context.Background(), "", agent.Profile{Agent: agent.AgentPi}); !errors.Is(err, agent.ErrUnsupported) {
		t.Errorf("an agent sbx does not know, without a template: %v", err)
	}
	if p, err := r.engine.Look(context.Background(), "", agent.Profile{Agent: agent.AgentPi, SandboxImage: "own:1"}); err != nil || p.Image != "own:1" {
		t.Errorf("and with one: %+v, %v", p, err)
	}
	if rep := r.engine.Probe(context.Background()); !rep.OK || len(rep.Missing) != 0 {
		t.Errorf("probe: %+v", rep)
	}
	r.set("ssh-agent", "true")
	if rep := r.engine.Probe(context.Background()); !rep.OK || len(rep.Missing) != 1 {
		t.Errorf("probe of a machine that forwards its ssh agent: %+v", rep)
	}
	if rep := (&sbx.Engine{Bin: "/nowhere"}).Probe(context.Background()); rep.OK {
		t.Errorf("probe without sbx: %+v", rep)
	}
}
