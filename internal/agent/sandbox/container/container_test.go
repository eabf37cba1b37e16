//go:build linux

package container_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/sandbox/container"
	"turnpike/internal/testenv"
)

// docker asks the engine itself.
func docker(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(agent.ContainerEngine, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestWhatAnAgentFinds(t *testing.T) {
	b := newBench(t)
	box := b.box()
	ro := filepath.Join(b.dir, "ro")
	if err := errors.Join(os.Mkdir(ro, 0o755), os.WriteFile(filepath.Join(ro, "f"), []byte("kept"), 0o644)); err != nil {
		t.Fatal(err)
	}
	box.Binds = append(box.Binds, agent.Bind{Source: ro, Destination: ro, Access: agent.ReadOnly})
	s, err := b.start(box, nil, `
		tell() { echo "$1=$2"; }
		tell ids "$(id -u):$(id -g)"
		tell caps "$(sed -n 's/^CapBnd:\t//p' /proc/self/status)"
		tell privileges "$(sed -n 's/^NoNewPrivs:\t//p' /proc/self/status)"
		tell filter "$(sed -n 's/^Seccomp:\t//p' /proc/self/status)"
		tell dir "$(pwd)"
		tell core "$(ulimit -Hc)"
		tell interfaces "$(sed -n 's/^ *\([a-z0-9]*\):.*/\1/p' /proc/net/dev | tr '\n' ' ')"
		tell descriptors "$(ls /proc/self/fd | wc -l)"
		tell env "$(env | sort | tr '\n' ' ')"
		for where in / /etc /usr/bin `+ro+`; do
			if touch $where/new 2>/dev/null; then tell "write $where" yes; fi
		done
		for how in 'chmod 777' 'chown 1' 'touch -d 2001-01-01' 'truncate -s 0'; do
			if $how `+ro+`/f 2>/dev/null; then tell "change by $how" yes; fi
		done
		echo made >/workspace/made
		printf '#!/bin/sh\nexit 5\n' >/tmp/run && chmod +x /tmp/run; /tmp/run; tell tmp $?
		for fd in /proc/[0-9]*/fd/*; do
			case $(readlink $fd) in socket:*) tell "a socket can be seen" $fd ;; esac
		done
		exit 7`)
	if err != nil {
		t.Fatal(err)
	}
	inspected := docker(t, "inspect", s.Identity().ID)
	if strings.Contains(inspected, "tell()") {
		t.Error("the engine's records hold the agent's arguments")
	}
	out, errs, exit := s.end()
	want := []string{
		fmt.Sprintf("ids=%d:%d", os.Getuid(), os.Getgid()),
		"caps=0000000000000000", "privileges=1", "filter=2", "dir=/workspace", "core=0", "interfaces=lo ",
		"descriptors=4", // the streams, and the one that lists them
		"env=LC_ALL=C PATH=/usr/local/bin:/usr/bin:/bin PWD=/workspace ",
		"tmp=5",
	}
	if got := strings.Split(strings.TrimSpace(out), "\n"); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"), errs)
	}
	if exit != (agent.Exit{Code: 7}) {
		t.Errorf("it ended with %+v", exit)
	}
	made, err := os.ReadFile(filepath.Join(b.dir, "ws", "made"))
	if err != nil || string(made) != "made\n" {
		t.Errorf("the workspace has %q, %v", made, err)
	}
	if kept, err := os.ReadFile(filepath.Join(ro, "f")); err != nil || string(kept) != "kept" {
		t.Errorf("what was read-only is %q, %v", kept, err)
	}
	if left, err := filepath.Glob(filepath.Join(b.run, "box-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestStreams sends more through a program than any pipe or buffer holds, both ways.
func TestStreams(t *testing.T) {
	b := newBench(t)
	s, err := b.start(b.box(), nil, "cat; echo end >&2")
	if err != nil {
		t.Fatal(err)
	}
	sent := sha256.New()
	text := strings.Repeat("0123456789abcdef\n", 64<<10)
	for range 20 {
		if _, err := io.WriteString(io.MultiWriter(s.in, sent), text); err != nil {
			t.Fatal(err)
		}
	}
	out, errs, exit := s.end()
	got := sha256.Sum256([]byte(out))
	if hex.EncodeToString(got[:]) != hex.EncodeToString(sent.Sum(nil)) || errs != "end\n" || exit != (agent.Exit{}) {
		t.Errorf("%d bytes came back, stderr %q, %+v", len(out), errs, exit)
	}
}

func TestLimits(t *testing.T) {
	b := newBench(t)
	box := b.box()
	box.Limits = agent.Limits{MemoryBytes: 128 << 20, Processes: 40, OpenFiles: 64, FileBytes: 1 << 20, CPUs: 0.5}
	out, _, exit := b.sh(box, `
		tell() { echo "$1=$2"; }
		head -c 400m /dev/zero | tail >/dev/null 2>&1; tell memory $?
		ulimit -Hn
		head -c 2000000 /dev/zero >/workspace/big 2>/dev/null; tell size $(stat -c %s /workspace/big)
		i=0; while [ $i -lt 60 ]; do sleep 60 & i=$((i+1)); done 2>/dev/null
		tell unreachable yes`)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if want := []string{"memory=137", "64", "size=1048576"}; !slices.Equal(lines, want) {
		t.Errorf("got %q, want %q: a shell that cannot fork ends", lines, want)
	}
	if exit.Code == 0 {
		t.Errorf("it ended with %+v", exit)
	}
}

func TestEndings(t *testing.T) {
	b := newBench(t)
	start := func(script string) *started {
		t.Helper()
		s, err := b.start(b.box(), nil, script)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	t.Run("a code that looks like a signal", func(t *testing.T) {
		if _, _, exit := start("exit 143").end(); exit != (agent.Exit{Code: 143}) {
			t.Errorf("got %+v", exit)
		}
	})
	t.Run("a signal", func(t *testing.T) {
		if _, _, exit := start("kill -HUP $$").end(); exit != (agent.Exit{Code: -1, Signal: 1}) {
			t.Errorf("got %+v", exit)
		}
	})
	t.Run("asked to end", func(t *testing.T) {
		s := start("trap 'exit 9' TERM; echo ready; while :; do read -r line || sleep 0.1; done")
		<-s.out.line
		if err := s.Terminate(); err != nil {
			t.Fatal(err)
		}
		if _, _, exit := s.end(); exit != (agent.Exit{Code: 9}) {
			t.Errorf("got %+v", exit)
		}
	})
	t.Run("killed, with what it left in the background", func(t *testing.T) {
		s := start("trap '' TERM; (setsid env -i sh -c 'trap \"\" TERM HUP; while :; do echo more; sleep 0.1; done' &); cat")
		<-s.out.line
		if err := s.Terminate(); err != nil {
			t.Fatal(err)
		}
		if err := s.Kill(b.ctx); err != nil {
			t.Fatal(err)
		}
		if found, err := b.engine.Find(b.ctx, s.Identity()); found || err != nil {
			t.Errorf("it is there yet: %t, %v", found, err)
		}
		if _, _, exit := s.end(); exit != (agent.Exit{Code: -1, Signal: 9}) {
			t.Errorf("got %+v", exit)
		}
	})
	t.Run("frozen, thawed and killed while frozen", func(t *testing.T) {
		s := start("while read -r line; do echo $line; done")
		if err := s.Freeze(); err != nil {
			t.Fatal(err)
		}
		if state := docker(t, "inspect", "-f", "{{.State.Status}}", s.Identity().ID); state != "paused" {
			t.Errorf("a frozen container is %s", state)
		}
		if err := s.Thaw(); err != nil {
			t.Fatal(err)
		}
		if state := docker(t, "inspect", "-f", "{{.State.Status}}", s.Identity().ID); state != "running" {
			t.Errorf("a thawed container is %s", state)
		}
		if err := s.Freeze(); err != nil {
			t.Fatal(err)
		}
		if err := s.Kill(b.ctx); err != nil {
			t.Fatal(err)
		}
		if _, _, exit := s.end(); exit.Signal == 0 {
			t.Errorf("got %+v", exit)
		}
	})
	t.Run("still by itself at the end of its term", func(t *testing.T) {
		const script = "while :; do sleep 0.01; done & echo ready; cat"
		s := start(script)
		<-s.out.line
		until := func(at time.Time) {
			t.Helper()
			if err := s.Process.(agent.Bounded).RunUntil(at); err != nil {
				t.Fatal(err)
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
		// The stage gives no sign of it, for there may be nobody to hear.
		becomes := func(still bool) {
			t.Helper()
			for (moving(t, s.Identity().ID) == 0) != still {
				if err := b.ctx.Err(); err != nil {
					t.Fatalf("it does not become still %t: %v", still, err)
				}
			}
		}
		isStill := func(why string) {
			t.Helper()
			if n := moving(t, s.Identity().ID); n != 0 {
				t.Errorf("%d processes run %s", n, why)
			}
		}
		later := time.Now()
		more := func() time.Time { later = later.Add(time.Hour); return later }

		until(time.Now().Add(10 * time.Millisecond))
		becomes(true)
		if state := docker(t, "inspect", "-f", "{{.State.Status}}", s.Identity().ID); state != "running" {
			t.Errorf("somebody else did it: it is %s", state)
		}
		until(time.Now().Add(-time.Second)) // an earlier end is none
		isStill("past their end")
		steer(s.Freeze, s.Thaw)
		isStill("past their end, thawed")
		until(more())
		becomes(false)
		steer(s.Freeze, s.Thaw)
		becomes(false)
		if err := s.Kill(b.ctx); err != nil {
			t.Fatal(err)
		}
		s.end()

		// It has an end before its first instruction.
		box, err := b.box(), agent.ErrUnready
		for term := time.Second; errors.Is(err, agent.ErrUnready); term *= 2 { // this machine may be slow
			box.Until = func() time.Time { return time.Now().Add(term) }
			s, err = b.start(box, nil, script)
		}
		if err != nil {
			t.Fatal(err)
		}
		becomes(true)

		// Whoever thaws it may have been held up itself. A later end may come while the
		// stage hears nothing.
		steer(s.Freeze, s.Thaw)
		isStill("past their end, thawed for the first time")
		steer(s.Freeze)
		until(more())
		steer(s.Thaw)
		becomes(false)
		if err := s.Kill(b.ctx); err != nil {
			t.Fatal(err)
		}
		s.end()
		if err := s.Process.(agent.Bounded).RunUntil(more()); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("bounding what is gone: %v", err)
		}
	})
}

// moving counts what runs in a container beside its init and its stage.
func moving(t *testing.T, id string) (n int) {
	t.Helper()
	for _, row := range strings.Split(docker(t, "top", id, "-eo", "pid,stat,args"), "\n")[1:] {
		if f := strings.Fields(row); !strings.ContainsAny(f[1][:1], "TZX") && !strings.Contains(row, " box-stage ") {
			n++
		}
	}
	return n
}

// TestRecords: what is made is on record before, and nothing is made that cannot be.
func TestRecords(t *testing.T) {
	b := newBench(t)
	t.Run("of a turn", func(t *testing.T) {
		rec := &recorder{}
		s, err := b.start(b.box(), rec, "true")
		if err != nil {
			t.Fatal(err)
		}
		s.end()
		// That it is gone is for whoever started it to tell.
		if !slices.Equal(rec.told, []string{"creating", "live"}) || rec.last != s.Identity() || rec.last.ID == "" || rec.last.Label != b.label() {
			t.Errorf("told %v, last %+v", rec.told, rec.last)
		}
	})
	for refuse, want := range map[string][]string{"creating": {"creating"}, "live": {"creating", "live", "gone"}} {
		t.Run("that cannot be made: "+refuse, func(t *testing.T) {
			rec := &recorder{refuse: refuse}
			_, err := b.start(b.box(), rec, "touch /workspace/ran")
			if !errors.Is(err, errRecord) || !errors.Is(err, agent.ErrUnready) || !slices.Equal(rec.told, want) {
				t.Errorf("told %v, %v", rec.told, err)
			}
			if _, err := os.Lstat(filepath.Join(b.dir, "ws", "ran")); err == nil {
				t.Error("the agent ran")
			}
		})
	}
}

// TestRefusals are turns that must not run, and leave nothing.
func TestRefusals(t *testing.T) {
	b := newBench(t)
	b.box() // makes the workspace
	ws := filepath.Join(b.dir, "ws")
	other := t.TempDir()
	for name, c := range map[string]struct {
		change func(*agent.Box)
		want   error
	}{
		"an image by name":                    {func(x *agent.Box) { x.Image = testenv.AgentImage(t) }, agent.ErrUnsupported},
		"an image that is gone":               {func(x *agent.Box) { x.Image = "sha256:" + strings.Repeat("0", 64) }, agent.ErrUnready},
		"servers of the caller":               {func(x *agent.Box) { x.HostServers = []agent.HostServer{{Name: "s", Port: 1}} }, agent.ErrUnsupported},
		"Dagger":                              {func(x *agent.Box) { x.Dagger = &agent.Dagger{} }, agent.ErrUnsupported},
		"domains that nobody serves":          {func(x *agent.Box) { x.Network = agent.Network{Proxied: true} }, agent.ErrUnsupported},
		"a directory of a descriptor":         {func(x *agent.Box) { x.WorkDir = "/proc/self/fd/7" }, agent.ErrUnsupported}, // CVE-2024-21626
		"a directory out of one":              {func(x *agent.Box) { x.WorkDir = "/proc/self/cwd/../../../.." }, agent.ErrUnsupported},
		"a directory that is not there":       {func(x *agent.Box) { x.WorkDir = "/nowhere" }, agent.ErrUnsupported},
		"another directory than the verified": {func(x *agent.Box) { x.Workspace = other }, agent.ErrPolicyChanged},
		"a source that is another":            {func(x *agent.Box) { x.Pins = []agent.Pin{{Path: ws, Device: 1, Inode: 1}} }, agent.ErrPolicyChanged},
		"a source that is gone": {func(x *agent.Box) {
			x.Binds = append(x.Binds, agent.Bind{Source: ws + "/gone", Destination: "/gone", Access: agent.ReadOnly})
		}, agent.ErrPolicyChanged},
		"a source behind a link": {func(x *agent.Box) {
			link := filepath.Join(b.dir, "link")
			if err := os.Symlink(other, link); err != nil && !errors.Is(err, os.ErrExist) {
				t.Fatal(err)
			}
			x.Binds = append(x.Binds, agent.Bind{Source: link, Destination: link, Access: agent.ReadOnly})
		}, agent.ErrPolicyChanged},
		"a time that is over": {func(x *agent.Box) { x.Until = time.Now }, agent.ErrUnready},
		"access that is none": {func(x *agent.Box) { x.Binds[0].Access = "rwx" }, agent.ErrUnsupported},
		"a mount over /proc": {func(x *agent.Box) {
			x.Binds = append(x.Binds, agent.Bind{Source: other, Destination: "/proc/sys", Access: agent.ReadWrite})
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			box := b.box()
			c.change(&box)
			_, err := b.start(box, nil, "touch "+ws+"/ran /workspace/ran")
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if _, err := os.Lstat(filepath.Join(ws, "ran")); err == nil {
				t.Error("the agent ran")
			}
		})
	}
	t.Run("a program that is not there", func(t *testing.T) {
		_, err := b.engine.Start(b.ctx, &exec.Cmd{Path: "/no/such", Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}, b.box(), nil)
		if !errors.Is(err, agent.ErrUnready) || !strings.Contains(err.Error(), "/no/such") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a stage that does not run", func(t *testing.T) {
		deaf := *b
		deaf.engine = &container.Engine{Dir: b.run, Label: label, Stage: filepath.Join(other, "stage")}
		if err := os.WriteFile(deaf.engine.Stage, []byte("#!/bin/true\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := deaf.start(deaf.box(), nil, "true"); !errors.Is(err, agent.ErrUnsupported) {
			t.Errorf("got %v", err)
		}
	})
}

// TestWeakerEngines puts a program between worker and engine that drops what was asked,
// says nothing, and in the end even lies about it.
func TestWeakerEngines(t *testing.T) {
	b := newBench(t)
	for name, c := range map[string]struct {
		drop string // a pattern of arguments, each with as many behind it as it takes
		take int
		lie  string // a sed script over what the engine tells
	}{
		"writable root":                    {drop: "--read-only"},
		"writable root, and lies":          {drop: "--read-only", lie: `s/"ReadonlyRootfs": false/"ReadonlyRootfs": true/`},
		"capabilities":                     {drop: "--cap-drop", take: 1},
		"capabilities, and lies":           {drop: "--cap-drop", take: 1, lie: `s/"CapDrop": null/"CapDrop": ["ALL"]/`},
		"new privileges":                   {drop: "--security-opt", take: 1},
		"new privileges, and lies":         {drop: "--security-opt", take: 1, lie: `s/"SecurityOpt": null/"SecurityOpt": ["no-new-privileges"]/`},
		"another user":                     {drop: "--user", take: 1},
		"the engine's network":             {drop: "--network", take: 1},
		"the engine's network, and lies":   {drop: "--network", take: 1, lie: `s/"NetworkMode": "default"/"NetworkMode": "none"/`},
		"no limit of memory":               {drop: "--memory*", take: 1},
		"no limit of memory, and lies":     {drop: "--memory*", take: 1, lie: `s/"Memory": 0/"Memory": 268435456/; s/"MemorySwap": 0/"MemorySwap": 268435456/`},
		"no limit of processes":            {drop: "--pids-limit", take: 1},
		"no limit of processes, and lies":  {drop: "--pids-limit", take: 1, lie: `s/"PidsLimit": null/"PidsLimit": 100/`},
		"no limit of processors, and lies": {drop: "--cpus", take: 1, lie: `s/"NanoCpus": 0/"NanoCpus": 1000000000/`},
		"no init":                          {drop: "--init"},
	} {
		t.Run(name, func(t *testing.T) {
			weak := *b
			dir := t.TempDir()
			weak.engine = &container.Engine{Bin: filepath.Join(dir, "docker"), Dir: b.run, Label: label}
			script := fmt.Sprintf(`#!/bin/bash
if [ "$1" = container ] && [ "$2" = inspect ]; then docker "$@" | sed '%s'; exit; fi
[ "$1" = create ] || exec docker "$@"
args=()
while [ $# -gt 0 ]; do
	case $1 in %s) shift %d ;; *) args+=("$1"); shift ;; esac
done
exec docker "${args[@]}"
`, c.lie, c.drop, c.take+1)
			if err := os.WriteFile(weak.engine.Bin, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			box := weak.box()
			box.Limits = agent.Limits{MemoryBytes: 256 << 20, Processes: 100, CPUs: 1}
			_, err := weak.start(box, nil, "touch /workspace/ran")
			if !errors.Is(err, agent.ErrUnsupported) {
				t.Errorf("got %v", err)
			}
			if c.lie != "" && err != nil && !strings.Contains(err.Error(), "inside the container") {
				t.Errorf("it was not found out inside: %v", err)
			}
			if _, err := os.Lstat(filepath.Join(b.dir, "ws", "ran")); err == nil {
				t.Error("the agent ran")
			}
		})
	}
}

// TestSwap replaces a source between the engine's word and its deed: the container then
// shows something that was never verified, and the agent does not run.
func TestSwap(t *testing.T) {
	b := newBench(t)
	box := b.box()
	ws, secret := filepath.Join(b.dir, "ws"), filepath.Join(b.dir, "secret")
	if err := os.Mkdir(secret, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b.engine = &container.Engine{Bin: filepath.Join(dir, "docker"), Dir: b.run, Label: label}
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" != start ] || { mv %[1]s %[1]s.old && ln -s %[2]s %[1]s; }\nexec docker \"$@\"\n", ws, secret)
	if err := os.WriteFile(b.engine.Bin, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := b.start(box, nil, "touch /workspace/ran"); !errors.Is(err, agent.ErrPolicyChanged) {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(secret); err != nil || len(left) > 0 {
		t.Errorf("the agent ran: %v, %v", left, err)
	}
}

func TestLook(t *testing.T) {
	b := newBench(t)
	profile := agent.Profile{Agent: agent.AgentPi, Sandbox: agent.SandboxContainer, SandboxImage: testenv.AgentImage(t)}
	p, err := b.engine.Look(b.ctx, "", profile)
	if err != nil {
		t.Fatal(err)
	}
	if p.Bin != "/opt/agents/bin/pi" || !strings.HasPrefix(p.Image, "sha256:") || p.WorkDir != "/workspace" || !p.Host.IsValid() || !strings.Contains(p.Version, "runc") {
		t.Errorf("got %+v", p)
	}
	if !slices.ContainsFunc(p.Env, func(v string) bool { return strings.HasPrefix(v, "PATH=/opt/agents/bin:") }) {
		t.Errorf("the image's environment is %q", p.Env)
	}
	masks := map[string]string{}
	for _, m := range p.Masks {
		masks[m.Destination] = filepath.Base(m.Source)
	}
	if masks["/usr/bin/git"] != "denied" || masks["/usr/lib/git-core"] != "denied.d" {
		t.Errorf("the masks are %v", masks)
	}
	root := docker(t, "info", "-f", "{{.DockerRootDir}}")
	if !slices.Contains(p.Private, root) || !slices.Contains(p.Private, "/var/run/docker.sock") {
		t.Errorf("private is %q", p.Private)
	}
	t.Run("masks deny", func(t *testing.T) {
		box := b.box()
		box.Binds = append(box.Binds, p.Masks...)
		out, errs, _ := b.sh(box, "git --version; echo $?; /usr/lib/git-core/git --version; echo $?; ls /usr/lib/git-core")
		if out != "126\n127\n" || !strings.Contains(errs, "git: not granted to this turn") {
			t.Errorf("got %q, %q", out, errs)
		}
	})
	for name, c := range map[string]struct {
		change func(*agent.Profile, *container.Engine)
		want   error
	}{
		"no image of this name": {func(p *agent.Profile, _ *container.Engine) { p.SandboxImage = "turnpike-no-such:latest" }, agent.ErrUnready},
		"an option for a name":  {func(p *agent.Profile, _ *container.Engine) { p.SandboxImage = "--help" }, agent.ErrUnsupported},
		"volumes":               {func(p *agent.Profile, _ *container.Engine) { p.SandboxImage = "postgres:15" }, agent.ErrUnsupported},
		"no engine":             {func(_ *agent.Profile, e *container.Engine) { e.Bin = "/no/such/docker" }, agent.ErrUnready},
	} {
		t.Run(name, func(t *testing.T) {
			profile, engine := profile, &container.Engine{Dir: b.run, Label: label}
			c.change(&profile, engine)
			if _, err := engine.Look(b.ctx, "", profile); !errors.Is(err, c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

const workerArg = "container-test-worker"

// worker is a worker that starts a container and is killed: it tells the container's
// identity and waits for its end.
func worker(args []string) {
	var spec struct {
		Box   agent.Box
		Dir   string
		Still bool
	}
	if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
		panic(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		panic(err)
	}
	e := &container.Engine{Dir: spec.Dir, Label: label}
	cmd := &exec.Cmd{Path: "/bin/sleep", Args: []string{"sleep", "600"}, Stdin: null, Stdout: null, Stderr: null}
	p, err := e.Start(context.Background(), cmd, spec.Box, nil)
	if err == nil && spec.Still {
		err = p.Freeze()
	}
	if err != nil {
		panic(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(p.Identity()); err != nil {
		panic(err)
	}
	_, _ = p.Wait()
	os.Exit(0)
}

// TestDeadWorker: a container ends with its worker, and one that stands still is ended by
// the next.
func TestDeadWorker(t *testing.T) {
	for name, still := range map[string]bool{"running": false, "standing still": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			spec, err := json.Marshal(map[string]any{"Box": b.box(), "Dir": b.run, "Still": still})
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(b.ctx, "/proc/self/exe", workerArg, string(spec))
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var id agent.Identity
			err = json.NewDecoder(out).Decode(&id)
			if killErr := cmd.Process.Kill(); err != nil || killErr != nil {
				t.Fatal(err, killErr)
			}
			_ = cmd.Wait() // it was killed
			if still {
				if found, err := b.engine.Find(b.ctx, id); !found || err != nil {
					t.Fatalf("a paused container is gone: %t, %v", found, err)
				}
			} else {
				for { // the engine says when it is gone, and the test's own time bounds it
					found, err := b.engine.Find(b.ctx, id)
					if err != nil {
						t.Fatal(err)
					}
					if !found {
						break
					}
				}
			}
			ended, err := b.engine.End(b.ctx, id)
			if err != nil || ended != still {
				t.Errorf("ended %t, %v", ended, err)
			}
			if again, err := b.engine.End(b.ctx, id); again || err != nil {
				t.Errorf("ended again: %t, %v", again, err)
			}
		})
	}
}

// TestSweep ends what bears a label of the worker's and nothing else.
func TestSweep(t *testing.T) {
	b := newBench(t)
	make := func(value string) string {
		return docker(t, "create", "--label", "turnpike.test-sweep="+value, "--label", b.label(), "--network", "none", b.image, "true")
	}
	mine, created, others := make(b.label()+"/a"), make(b.label()+"/b"), make(b.label()+"-other/a")
	n, err := b.engine.Sweep(b.ctx, "turnpike.test-sweep="+b.label()+"/")
	if n != 2 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	for id, want := range map[string]bool{mine: false, created: false, others: true} {
		if found, err := b.engine.Find(b.ctx, agent.Identity{Kind: agent.KindContainer, ID: id}); found != want || err != nil {
			t.Errorf("container %.12s: found %t, %v", id, found, err)
		}
	}
	// One that was never started is found by its label alone.
	if ended, err := b.engine.End(b.ctx, agent.Identity{Kind: agent.KindContainer, Label: b.label()}); !ended || err != nil {
		t.Errorf("ended %t, %v", ended, err)
	}
	for _, bad := range []string{"", "key", "key=", "=value"} {
		if _, err := b.engine.Sweep(b.ctx, bad); err == nil {
			t.Errorf("%q was swept", bad)
		}
	}
	for _, bad := range []agent.Identity{{}, {Kind: agent.KindContainer}, {Kind: agent.KindProcess, ID: others}} {
		if _, err := b.engine.End(b.ctx, bad); err == nil {
			t.Errorf("%+v was ended", bad)
		}
	}
}

// TestCancelled: a start that is given up leaves nothing.
func TestCancelled(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond) // in the middle of it
	defer cancel()
	given := *b
	given.ctx = ctx
	if _, err := given.start(given.box(), nil, "true"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
