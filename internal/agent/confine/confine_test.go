//go:build linux && (amd64 || arm64)

package confine_test

import (
	"bufio"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/procs"
)

// each runs a test once by every means.
func each(t *testing.T, test func(t *testing.T, mode confine.Mode, h confine.Confiner, r *room, c agent.Confinement)) {
	t.Helper()
	for mode, h := range modes(t) {
		t.Run(string(mode), func(t *testing.T) {
			r := newRoom(t)
			c := r.confinement()
			if mode == confine.LandlockOnly {
				c = r.landlockOnly(c)
			}
			test(t, mode, h, r, c)
		})
	}
}

func listen(t *testing.T, network, address string) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// nested leaves three kinds of process behind, each a sleep of $1 seconds.
const nested = `
sleep $1 &
setsid sleep $1 &
(env -i setsid sh -c "sleep $1 & exit" >/dev/null 2>&1 </dev/null &)
while [ $(pgrep -cfx "sleep $1") -lt 3 ]; do :; done
echo ready
exec sleep $1`

var marks int

func mark() string {
	marks++
	return strconv.Itoa(200_000_000 + os.Getpid()*100 + marks)
}

// sleepers counts the living sleeps of secs seconds, whatever namespace they are in.
func sleepers(t *testing.T, secs string) (n int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if b, err := os.ReadFile(d + "/cmdline"); err == nil && string(b) == "sleep\x00"+secs+"\x00" {
			n++
		}
	}
	return n
}

func shell(script string, args ...string) *exec.Cmd {
	return &exec.Cmd{
		Path: "/bin/sh", Args: append([]string{"sh", "-c", script, "sh"}, args...),
		Env: []string{"PATH=/usr/bin:/bin"}, Stderr: os.Stderr,
	}
}

// begin starts a script and returns once it said "ready".
func begin(t *testing.T, h agent.Confiner, c agent.Confinement, cmd *exec.Cmd) (*procs.Tree, *bufio.Reader) {
	t.Helper()
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	cmd.Stdout = w
	tree, err := start(h, c, cmd)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Kill(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
		_, _ = tree.Wait()
	})
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); line != "ready\n" {
		t.Fatalf("said %q, %v", line, err)
	}
	return tree, r
}

func TestTree(t *testing.T) {
	each(t, func(t *testing.T, mode confine.Mode, h confine.Confiner, r *room, c agent.Confinement) {
		t.Run("tells how the agent ended", func(t *testing.T) {
			for script, want := range map[string]agent.Exit{
				"exit 0": {}, "exit 7": {Code: 7}, "kill -TERM $$": {Code: -1, Signal: 15}, "kill -KILL $$": {Code: -1, Signal: 9},
			} {
				if out, got := run(t, h, c, nil, "/bin/sh", "-c", script); got != want {
					t.Errorf("%s: %+v %s", script, got, out)
				}
			}
		})
		t.Run("passes the request to end on", func(t *testing.T) {
			tree, _ := begin(t, h, c, shell(`trap "exit 3" TERM; echo ready; while :; do sleep 0.01; done`))
			if err := tree.Terminate(); err != nil {
				t.Fatal(err)
			}
			if got, err := tree.Wait(); err != nil || got.Code != 3 {
				t.Errorf("%+v, %v", got, err)
			}
		})
		t.Run("leaves nothing when killed", func(t *testing.T) {
			secs := mark()
			tree, _ := begin(t, h, c, shell(nested, secs))
			if n := sleepers(t, secs); n < 3 {
				t.Fatalf("%d processes started", n)
			}
			if err := tree.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := sleepers(t, secs); n != 0 {
				t.Errorf("%d survive", n)
			}
		})
		t.Run("leaves nothing when the agent ends", func(t *testing.T) {
			secs := mark()
			tree, _ := begin(t, h, c, shell(strings.Replace(nested, "exec sleep $1", "exit 5", 1), secs))
			if got, err := tree.Wait(); err != nil || got.Code != 5 {
				t.Errorf("%+v, %v", got, err)
			}
			if n := sleepers(t, secs); n != 0 {
				t.Errorf("%d survive", n)
			}
		})
		t.Run("leaves nothing when the worker is killed", func(t *testing.T) {
			secs, before := mark(), tree(t, r.Work)
			text, err := json.Marshal(task{Confinement: c, Mode: mode, Secs: secs})
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/proc/self/exe", string(text))
			cmd.Args[0], cmd.Stderr = workerName, os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
				t.Fatalf("said %q, %v", line, err)
			}
			if n := sleepers(t, secs); n < 3 {
				t.Errorf("%d processes started", n)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			for begun := time.Now(); sleepers(t, secs) > 0; {
				if time.Since(begun) > time.Second {
					t.Fatalf("%d survive", sleepers(t, secs))
				}
			}
			if after := tree(t, r.Work); !slices.Equal(before, after) {
				t.Errorf("%v became %v", before, after)
			}
		})
		t.Run("leaves nothing when the root is killed", func(t *testing.T) {
			if mode != confine.Full {
				return // what it leaves then is found by its marks
			}
			secs, before := mark(), tree(t, r.Work)
			turn, _ := begin(t, h, c, shell(nested, secs))
			if err := syscall.Kill(turn.Identity().PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if _, err := turn.Wait(); err != nil {
				t.Fatal(err)
			}
			if n := sleepers(t, secs); n != 0 {
				t.Errorf("%d survive", n)
			}
			if after := tree(t, r.Work); !slices.Equal(before, after) {
				t.Errorf("%v became %v", before, after)
			}
		})
		t.Run("stands still as a whole while frozen and goes on thawed", func(t *testing.T) {
			// The agent, a child, and a daemon that left its session and its environment.
			const writer = `i=0; while :; do i=$((i+1)); echo $i >$0; done`
			counts := []string{r.Work + "/agent", r.Work + "/child", r.Work + "/daemon"}
			tree, _ := begin(t, h, c, shell(`w=$1; shift
				sh -c "$w" $2 & (env -i setsid sh -c "$w" $3 >/dev/null 2>&1 </dev/null &)
				until [ -s $2 ] && [ -s $3 ]; do :; done
				i=0; while :; do i=$((i+1)); echo $i >$1; [ $i = 1 ] && echo ready; done`, append([]string{writer}, counts...)...))
			if err := tree.Freeze(); err != nil {
				t.Fatal(err)
			}
			read := func() []string {
				var out []string
				for _, path := range counts {
					text, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					out = append(out, string(text))
				}
				return out
			}
			before := read()
			// Another turn's whole life passes meanwhile.
			run(t, h, c, nil, "/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do /bin/true; done")
			after := read()
			if !slices.Equal(before, after) {
				t.Errorf("went on from %q to %q", before, after)
			}
			if err := tree.Thaw(); err != nil {
				t.Fatal(err)
			}
			for i := range counts {
				for now := after[i]; now == "" || now == after[i]; {
					now = read()[i]
				}
			}
		})
	})
}

const workerName = "turnpike-test-worker"

// task is what a worker process is to start before it is killed.
type task struct {
	Confinement agent.Confinement
	Mode        confine.Mode
	Secs        string
}

func worker() {
	var k task
	if err := json.Unmarshal([]byte(os.Args[1]), &k); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	h := confine.Platform(confine.Options{LandlockOnly: k.Mode == confine.LandlockOnly})
	cmd := shell(nested, k.Secs)
	cmd.Stdout = os.Stdout
	tree, err := start(h, k.Confinement, cmd)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_, _ = tree.Wait()
}

func TestStart(t *testing.T) {
	each(t, func(t *testing.T, mode confine.Mode, h confine.Confiner, r *room, c agent.Confinement) {
		t.Run("gives the agent its streams, environment and directory", func(t *testing.T) {
			var out, talk strings.Builder
			cmd := shell(`cat; pwd; echo $MINE; id -u; echo talk >&2; touch made`)
			cmd.Env = append(cmd.Env, "MINE=1")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("said\n"), &out, &talk
			tree, err := start(h, c, cmd)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tree.Wait(); err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("said\n%s\n1\n%d\n", c.WorkDir, os.Geteuid()); out.String() != want || talk.String() != "talk\n" {
				t.Errorf("%q %q, want %q", out.String(), talk.String(), want)
			}
			info, err := os.Stat(r.Work + "/made")
			if err != nil {
				t.Fatal(err)
			}
			if uid := info.Sys().(*syscall.Stat_t).Uid; int(uid) != os.Geteuid() {
				t.Errorf("what the agent made belongs to %d", uid)
			}
		})
		t.Run("says what cannot be executed", func(t *testing.T) {
			_, err := start(h, c, &exec.Cmd{Path: "/usr/bin/no-such-agent"})
			if !errors.Is(err, agent.ErrUnready) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "execute /usr/bin/no-such-agent") {
				t.Error(err)
			}
			if _, err = start(h, c, &exec.Cmd{Path: r.ReadOnly + "/file"}); !errors.Is(err, fs.ErrPermission) {
				t.Error(err)
			}
			if _, err = start(h, c, &exec.Cmd{Path: "/bin/true", Dir: "/nonexistent"}); !errors.Is(err, agent.ErrUnready) {
				t.Error(err)
			}
			if _, err = start(h, c, &exec.Cmd{Path: "true"}); !errors.Is(err, agent.ErrUnsupported) {
				t.Error(err)
			}
			if err = h.Start(exec.Command("/bin/true"), c); err == nil {
				t.Error("started without a tree")
			}
		})
		t.Run("leaves no placeholder behind", func(t *testing.T) {
			before := tree(t, r.Work)
			run(t, h, c, nil, "/bin/true")
			if after := tree(t, r.Work); !slices.Equal(before, after) {
				t.Errorf("%v became %v", before, after)
			}
		})
		t.Run("holds the limits it accepts", func(t *testing.T) {
			limited := c
			limited.Limits = agent.Limits{OpenFiles: 77, FileBytes: 5120}
			if out, _ := run(t, h, limited, nil, "/bin/sh", "-c", "ulimit -n; ulimit -f"); out != "77\n10\n" {
				t.Errorf("%q", out)
			}
		})
		t.Run("gives the open network where it is granted", func(t *testing.T) {
			open := c
			open.Network = agent.Network{Open: true}
			address := listen(t, "tcp", "127.0.0.1:0")
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				t.Fatal(err)
			}
			if out, exit := run(t, h, open, nil, "/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/"+port); exit.Code != 0 {
				t.Errorf("%+v %s", exit, out)
			}
		})
	})
}

// tree lists every path beneath dir.
func tree(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		out = append(out, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPrograms(t *testing.T) {
	cache, err := filepath.EvalSymlinks(t.TempDir()) // what one mode compiles, the other finds
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, _ confine.Mode, h confine.Confiner, r *room, c agent.Confinement) {
		writeFile(t, r.Work+"/go.mod", "module hello\n\ngo 1.24\n", 0o644)
		writeFile(t, r.Work+"/main.go", "package main\n\nfunc main() { println(\"hello\") }\n", 0o644)
		if err := os.Mkdir(r.Work+"/tmp", 0o755); err != nil {
			t.Fatal(err)
		}
		c.Mounts = append(c.Mounts, agent.Mount{Path: cache, Access: agent.ReadWrite})
		env := []string{
			"HOME=" + c.WorkDir, "TMPDIR=" + c.WorkDir + "/tmp", "GOCACHE=" + cache, "GOTOOLCHAIN=local",
			"GOFLAGS=-mod=mod", "GOPROXY=off", "CGO_ENABLED=0", "GOTELEMETRY=off",
		}
		for _, program := range [][]string{
			{"/usr/local/go/bin/go", "run", "."},
			{"/usr/bin/python3", "-c", "import ssl, json, tempfile, subprocess, multiprocessing\ntempfile.TemporaryFile()\nassert subprocess.run(['true']).returncode == 0\nassert ssl.create_default_context().get_ca_certs() is not None\nprint('hello')"},
			{"/usr/bin/node", "-e", "const {execSync}=require('child_process'); require('fs').writeFileSync('n','x'); execSync('true'); setTimeout(()=>console.log('hello'),1)"},
			{"/usr/bin/perl", "-e", "print qq(hello\n)"},
			{"/bin/bash", "-c", "cat <(echo hello) | tee out | sed s/x/y/"},
		} {
			if _, err := os.Stat(program[0]); err != nil {
				continue // nothing is claimed of programs that are not here
			}
			if out, exit := run(t, h, c, env, program...); exit.Code != 0 || !strings.HasPrefix(out, "hello") {
				t.Errorf("%s: %+v %s", program[0], exit, out)
			}
		}
	})
}

// swap is what happens to the host's files at a bad moment.
type swap []struct {
	Symlink  bool
	From, To string
}

func (s swap) do() error {
	for _, op := range s {
		f := os.Rename
		if op.Symlink {
			f = os.Symlink
		}
		if err := f(op.From, op.To); err != nil {
			return err
		}
	}
	return nil
}

// swapFile makes the program beside it do a swap before anything else, once.
func swapFile(program string) string { return program + ".swap" }

// swapFirst plays a launcher that loses the race between what Start resolves and
// what the stages find.
func swapFirst() {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	text, err := os.ReadFile(swapFile(self))
	if err != nil {
		return
	}
	var s swap
	if err := errors.Join(os.Remove(swapFile(self)), json.Unmarshal(text, &s), s.do()); err != nil {
		fmt.Fprintln(os.Stderr, "swap:", err)
	}
}

func TestPolicyChanged(t *testing.T) {
	const link = true
	swaps := map[string]func(r *room) swap{
		"a mount for a link": func(r *room) swap {
			return swap{{false, r.ReadOnly, r.ReadOnly + ".old"}, {link, r.Outside, r.ReadOnly}}
		},
		"a mount for another directory": func(r *room) swap {
			return swap{{false, r.ReadOnly, r.ReadOnly + ".old"}, {false, r.Outside, r.ReadOnly}}
		},
		"a parent for a link": func(r *room) swap {
			base := filepath.Dir(r.Work)
			return swap{{false, base, base + ".old"}, {link, base + ".old", base}}
		},
		"the workspace away": func(r *room) swap { return swap{{false, r.Work, r.Work + ".old"}} },
		"metadata for a link": func(r *room) swap {
			return swap{{false, r.Work + "/.git", r.Work + "/.old"}, {link, r.Outside, r.Work + "/.git"}}
		},
		"metadata for another directory": func(r *room) swap {
			return swap{{false, r.Work + "/.git", r.Work + "/.old"}, {false, r.Outside, r.Work + "/.git"}}
		},
	}
	for mode := range modes(t) {
		for name, of := range swaps {
			if mode == confine.LandlockOnly && strings.HasPrefix(name, "metadata") {
				continue // it keeps none
			}
			prepare := func(t *testing.T, launcher bool) (*room, agent.Confinement, confine.Confiner) {
				r := newRoom(t)
				o := confine.Options{LandlockOnly: mode == confine.LandlockOnly}
				if launcher {
					o.Launcher = r.Bin + "/probe"
				}
				c := r.confinement()
				if mode == confine.LandlockOnly {
					c = r.landlockOnly(c)
				}
				h := confine.Platform(o)
				if err := h.Check(c); err != nil {
					t.Fatal(err)
				}
				return r, c, h
			}
			refuses := func(t *testing.T, h confine.Confiner, c agent.Confinement) {
				t.Helper()
				tree, err := start(h, c, &exec.Cmd{Path: "/bin/true"})
				if err == nil {
					_, _ = tree.Wait()
				}
				if !errors.Is(err, agent.ErrPolicyChanged) {
					t.Error(err)
				}
			}
			t.Run(string(mode)+"/"+name+" after it was verified", func(t *testing.T) {
				r, c, h := prepare(t, false)
				var err error
				if c.Pins, err = confine.Pins(c); err != nil {
					t.Fatal(err)
				}
				if err := of(r).do(); err != nil {
					t.Fatal(err)
				}
				refuses(t, h, c)
			})
			t.Run(string(mode)+"/"+name+" while it starts", func(t *testing.T) {
				r, c, h := prepare(t, true)
				text, err := json.Marshal(of(r))
				if err != nil {
					t.Fatal(err)
				}
				writeFile(t, swapFile(r.Bin+"/probe"), string(text), 0o644)
				refuses(t, h, c)
			})
		}
	}
}

func TestRefusals(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, mode confine.Mode, h confine.Confiner, r *room, c agent.Confinement) {
		base := filepath.Dir(r.Work)
		sockets := base + "/sockets"
		writeFile(t, sockets+"/deep/file", "", 0o644)
		listen(t, "unix", sockets+"/deep/s")
		if err := errors.Join(syscall.Mkfifo(base+"/fifo", 0o644), os.Symlink(r.ReadOnly, base+"/link")); err != nil {
			t.Fatal(err)
		}
		type row struct {
			name string
			full bool // refused in Full mode as well
			why  error
			edit func(c *agent.Confinement)
		}
		mount := func(path string) row {
			return row{"mount " + path, true, agent.ErrUnsupported, func(c *agent.Confinement) {
				c.Mounts = append(c.Mounts, agent.Mount{Path: path, Access: agent.ReadOnly})
			}}
		}
		rows := []row{
			mount("/"), mount("/proc"), mount("/proc/1"), mount("/sys"), mount("/sys/kernel"), mount("/dev"),
			mount("/dev/shm"), mount("/dev/null"), mount("/run"), mount("/var/lib/docker"), mount(sockets), mount(sockets + "/deep/s"),
			mount(base + "/fifo"), mount("relative"), mount(r.ReadOnly + "/../ro"), mount(r.ReadOnly + "/"), mount(""),
			{"a link as a mount", true, agent.ErrPolicyChanged, mount(base + "/link").edit},
			{"a mount that is not there", true, agent.ErrPolicyChanged, mount(base + "/absent").edit},
			{"unknown access", true, agent.ErrUnsupported, func(c *agent.Confinement) { c.Mounts[0].Access = "rwx" }},
			{"both kinds of access", true, agent.ErrUnsupported, func(c *agent.Confinement) {
				c.Mounts = append(c.Mounts, agent.Mount{Path: r.Work, Access: agent.ReadOnly})
			}},
			{"the worker's own", true, agent.ErrUnsupported, mount(r.Outside).edit},
			{"what holds the worker's own", true, agent.ErrUnsupported, mount(base).edit},
			{"Claude's sandbox", true, agent.ErrUnsupported, func(c *agent.Confinement) { c.Sandbox = agent.SandboxClaude }},
			{"a container", true, agent.ErrUnsupported, func(c *agent.Confinement) { c.Sandbox = agent.SandboxContainer }},
			{"domains", false, agent.ErrUnsupported, func(c *agent.Confinement) { c.Network = agent.Network{Proxied: true} }},
			{"a negative share of the processors", true, agent.ErrUnsupported, func(c *agent.Confinement) { c.Limits.CPUs = -1 }},
			{"no share of the processors to speak of", true, agent.ErrUnsupported, func(c *agent.Confinement) { c.Limits.CPUs = 0.001 }},
			{"a negative limit", true, agent.ErrUnsupported, func(c *agent.Confinement) { c.Limits.OpenFiles = -1 }},
			{"a workspace outside", true, agent.ErrUnsupported, func(c *agent.Confinement) { c.Workspace, c.WorkDir = r.Outside, r.Outside }},
			{"a working directory in a mount", true, agent.ErrUnsupported, func(c *agent.Confinement) { c.WorkDir = r.ReadOnly + "/w" }},
			{"a working directory in /proc", true, agent.ErrUnsupported, func(c *agent.Confinement) { c.WorkDir = "/proc/w" }},
			{"a working directory over the system", true, agent.ErrUnsupported, func(c *agent.Confinement) { c.WorkDir = "/usr/w" }},
			{"a system path in /dev", true, agent.ErrUnsupported, func(c *agent.Confinement) {
				c.System = append(c.System, agent.Mount{Path: "/dev/mem", Access: agent.ReadOnly})
			}},
			{"a moved workspace", false, agent.ErrUnsupported, func(c *agent.Confinement) { c.WorkDir = confine.WorkDir }},
			{"metadata", false, agent.ErrUnsupported, func(c *agent.Confinement) { c.ReadOnlyMetadata = []string{r.Work + "/.git"} }},
			{"read-only inside read-write", false, agent.ErrUnsupported, mount(r.Work + "/.git").edit},
			{"denied inside read-write", false, agent.ErrUnsupported, func(c *agent.Confinement) { c.Denied = append(c.Denied, r.Work+"/file") }},
		}
		if agent.Inside(os.TempDir(), "/tmp") && me.HomeDir != "/" {
			if real, err := filepath.EvalSymlinks(me.HomeDir); err == nil {
				rows = append(rows, mount(real))
			}
		}
		own := confine.Platform(confine.Options{LandlockOnly: mode == confine.LandlockOnly, Private: []string{r.Outside + "/secret"}})
		if err := own.Check(c); err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			c := c
			c.Mounts, c.System, c.Denied = slices.Clone(c.Mounts), slices.Clone(c.System), slices.Clone(c.Denied)
			row.edit(&c)
			err := own.Check(c)
			if mode == confine.Full && !row.full {
				if err != nil {
					t.Errorf("%s: %v", row.name, err)
				}
				continue
			}
			if !errors.Is(err, row.why) {
				t.Errorf("%s: %v", row.name, err)
			}
			if tree, started := start(own, c, &exec.Cmd{Path: "/bin/true"}); started == nil {
				_, _ = tree.Wait()
				t.Errorf("%s: started", row.name)
			} else if err != nil && !strings.Contains(started.Error(), err.Error()) {
				t.Errorf("%s: %v, but checked %v", row.name, started, err)
			}
		}
		// A denied socket is masked, so the directory that holds it may be granted.
		c.Mounts = append(slices.Clone(c.Mounts), agent.Mount{Path: sockets, Access: agent.ReadOnly})
		c.Denied = append(slices.Clone(c.Denied), sockets+"/deep/s")
		if err := own.Check(c); err != nil {
			t.Error(err)
		}
		if mode == confine.Full {
			if out, exit := run(t, h, c, nil, "/bin/sh", "-c", "test ! -S "+sockets+"/deep/s"); exit.Code != 0 {
				t.Error("the socket is there", out)
			}
		}
	})
}

// TestNested compares random trees of nested grants with what the kernel allows.
func TestNested(t *testing.T) {
	h := modes(t)[confine.Full]
	r := newRoom(t)
	// Not in /tmp, where what leads to a grant lies in the turn's own and may be written.
	base, err := os.MkdirTemp("/var/tmp", "turnpike-nest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	dirs := []string{base}
	for range 3 {
		for _, d := range slices.Clone(dirs) {
			for _, name := range []string{"a", "b"} {
				if d = d + "/" + name; !slices.Contains(dirs, d) {
					dirs = append(dirs, d)
				}
				d = filepath.Dir(d)
			}
		}
	}
	slices.Sort(dirs)
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return strings.Count(d, "/") > strings.Count(base, "/")+3 })
	for _, d := range dirs {
		writeFile(t, d+"/f", "text", 0o644)
	}
	// For every directory: may its file be read, and may one be made in it.
	script := `for d in "$@"; do r=-; w=-; cat $d/f >/dev/null 2>&1 && r=r; (: >$d/new) 2>/dev/null && [ -e $d/new ] && w=w; echo $r$w; done`
	fewer(t, "25")
	rapid.Check(t, func(rt *rapid.T) {
		c := r.confinement()
		c.Denied, c.ReadOnlyMetadata = nil, nil
		for _, d := range rapid.SliceOfNDistinct(rapid.SampledFrom(dirs), 0, 5, rapid.ID[string]).Draw(rt, "grants") {
			access := rapid.SampledFrom([]agent.Access{agent.ReadOnly, agent.ReadWrite}).Draw(rt, "access")
			c.Mounts = append(c.Mounts, agent.Mount{Path: d, Access: access})
		}
		out, exit := run(t, h, c, nil, append([]string{"/bin/sh", "-c", script, "sh"}, dirs...)...)
		got := strings.Fields(out)
		if exit.Code != 0 || len(got) != len(dirs) {
			rt.Fatalf("%+v %s", exit, out)
		}
		for i, d := range dirs {
			_ = os.Remove(d + "/new")
			want := "--"
			if m, ok := agent.Deciding(c.Mounts, d); ok {
				if want = "r-"; m.Access == agent.ReadWrite {
					want = "rw"
				}
			} else if slices.ContainsFunc(c.Mounts, func(m agent.Mount) bool { return agent.Inside(m.Path, d) }) {
				want = "--" // on the way to a grant, and empty but for it
			}
			if got[i] != want {
				rt.Fatalf("%s: %s, want %s of %+v", d, got[i], want, c.Mounts)
			}
		}
	})
}

func TestSystemPaths(t *testing.T) {
	each(t, func(t *testing.T, _ confine.Mode, h confine.Confiner, r *room, c agent.Confinement) {
		base := filepath.Dir(r.Work)
		writeFile(t, base+"/runtime/v1/bin/tool", "#!/bin/sh\necho tool ran\n", 0o755)
		writeFile(t, base+"/home/config", "text", 0o644)
		if err := errors.Join(os.Symlink("v1", base+"/runtime/current"), os.Symlink("../runtime/current/bin/tool", base+"/bin/tool")); err != nil {
			t.Fatal(err)
		}
		c.System = append(slices.Clone(c.System),
			agent.Mount{Path: base + "/runtime/current/bin", Access: agent.ReadOnly},
			agent.Mount{Path: base + "/home", Access: agent.ReadWrite},
			agent.Mount{Path: base + "/absent", Access: agent.ReadOnly},
			agent.Mount{Path: r.Work + "/file", Access: agent.ReadOnly}, // narrows nothing
		)
		for name, script := range map[string]string{
			"by its link":    base + "/runtime/current/bin/tool",
			"by its path":    base + "/runtime/v1/bin/tool",
			"by two links":   base + "/bin/tool",
			"writable":       "echo more >>" + base + "/home/config && echo tool ran",
			"of a mount too": "echo more >>" + r.Work + "/file && echo tool ran",
		} {
			if out, exit := run(t, h, c, nil, "/bin/sh", "-c", script); out != "tool ran\n" || exit.Code != 0 {
				t.Errorf("%s: %+v %s", name, exit, out)
			}
		}
		for _, m := range confine.DefaultSystemPaths() {
			if m.Access != agent.ReadOnly || slices.Contains([]string{"/", "/etc", "/var", "/run", "/home"}, m.Path) {
				t.Errorf("system path %+v", m)
			}
		}
	})
}

func TestStandIn(t *testing.T) {
	path := t.TempDir() + "/stand-in"
	text := "something to say\n"
	program := confine.StandIn(text)
	writeFile(t, path, string(program), 0o755)
	f, err := elf.NewFile(strings.NewReader(string(program)))
	if err != nil || f.Type != elf.ET_EXEC || len(f.Progs) != 1 {
		t.Fatal(f, err)
	}
	out, err := exec.Command(path).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 126 || string(out) != text {
		t.Errorf("%q, %v", out, err)
	}
}

func TestProbe(t *testing.T) {
	report := confine.Probe(t.Context())
	if report.Mode != confine.Full || report.Reason != "" {
		t.Errorf("%+v", report)
	}
	alone := confine.Platform(confine.Options{LandlockOnly: true}).Probe(t.Context())
	if alone.Mode != confine.LandlockOnly || alone.Reason == "" {
		t.Errorf("%+v", alone)
	}
	for _, r := range []confine.Report{report, alone} {
		for _, f := range r.Facts {
			if f.Name == "" || f.Detail == "" {
				t.Errorf("%+v", f)
			}
		}
	}
	if h := confine.Platform(confine.Options{Launcher: "/bin/true"}); h.Mode() != confine.None {
		t.Errorf("a launcher that is none confines by %s", h.Mode())
	} else if err := h.Check(agent.Confinement{}); !errors.Is(err, agent.ErrUnsupported) {
		t.Error(err)
	}
}

func FuzzHostTables(f *testing.F) {
	for _, file := range []string{"/proc/self/mountinfo", "/proc/net/unix"} {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("1 2 3:4 / /with\040space rw - proc proc rw\nffff: 00000002 00000000 00010000 0001 01 1234 /a b\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := confine.ParseMounts(b); n > strings.Count(string(b), "\n")+1 {
			t.Errorf("%d mounts", n)
		}
		for _, s := range confine.ParseSockets(b) {
			if !filepath.IsAbs(s) || filepath.Clean(s) != s {
				t.Errorf("socket %q", s)
			}
		}
		if s := string(b); len(confine.Unescape(s)) > len(s) {
			t.Errorf("%q grew", s)
		}
	})
}

func TestTrace(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, base+"/a/b/file", "", 0o644)
	for from, to := range map[string]string{"rel": "a/b", "abs": base + "/a", "up": "a/b/../../rel/file", "loop": "loop", "gone": "absent"} {
		if err := os.Symlink(to, base+"/"+from); err != nil {
			t.Fatal(err)
		}
	}
	for path, links := range map[string]int{"/a/b/file": 0, "/rel/file": 1, "/abs/b/file": 1, "/up": 2} {
		if real, n, err := confine.Trace(base + path); err != nil || real != base+"/a/b/file" || n != links {
			t.Errorf("%s: %s over %d links, %v", path, real, n, err)
		}
	}
	for path, want := range map[string]error{"/loop": syscall.ELOOP, "/gone": fs.ErrNotExist, "/a/b/file/x": syscall.ENOTDIR} {
		if _, _, err := confine.Trace(base + path); !errors.Is(err, want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func BenchmarkStart(b *testing.B) {
	for name, o := range map[string]confine.Options{"full": {}, "landlock-only": {LandlockOnly: true}} {
		b.Run(name, func(b *testing.B) {
			h := confine.Platform(o)
			dir := b.TempDir()
			c := agent.Confinement{
				System: confine.DefaultSystemPaths(), Workspace: dir, WorkDir: dir,
				Mounts: []agent.Mount{{Path: dir, Access: agent.ReadWrite}},
			}
			for b.Loop() {
				tree, err := start(h, c, &exec.Cmd{Path: "/bin/true"})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := tree.Wait(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
