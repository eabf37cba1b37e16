package procs_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
)

func TestMain(m *testing.M) {
	procs.EntryFor(hang)
	if len(os.Args) == 4 && os.Args[0] == "worker" {
		worker(os.Args[1], os.Args[2], os.Args[3])
	}
	goleak.VerifyTestMain(m)
}

// hang leads to no program: who is forked to become one waits for ever.
func hang(int) ([]procs.Call, error) {
	return []procs.Call{{Step: "hang", Kind: agent.ErrUnready, Number: unix.SYS_PPOLL}, {Step: "execute", Kind: agent.ErrUnready}}, nil
}

// nested is a shell script that leaves three kinds of process behind, each a sleep of
// $1 seconds, says so, and then sleeps itself.
const nested = `
sleep $1 &
setsid sleep $1 &
(env -i setsid sh -c "sleep $1 & exit" >/dev/null 2>&1 </dev/null &)
while [ $(pgrep -cfx "sleep $1") -lt 3 ]; do :; done
echo ready
exec sleep $1`

// mark gives a number of seconds no other test sleeps.
func mark(t *testing.T) string {
	t.Helper()
	marks++
	return strconv.Itoa(100_000_000 + os.Getpid()*100 + marks)
}

var marks int

// sleepers counts the living sleeps of secs seconds.
func sleepers(t *testing.T, secs string) int {
	t.Helper()
	n := 0
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

// start starts a command whose first line of output it awaits.
func start(t *testing.T, cmd *exec.Cmd) (*procs.Tree, *bufio.Reader) {
	t.Helper()
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	tree, err := procs.Start(cmd, procs.Supervised)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Kill(context.Background()); err != nil {
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

func shell(script string, args ...string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	return cmd
}

func TestTree(t *testing.T) {
	t.Run("tells how the program ended", func(t *testing.T) {
		for script, want := range map[string]agent.Exit{
			"exit 0":        {},
			"exit 7":        {Code: 7},
			"exit 130":      {Code: 130},
			"kill -TERM $$": {Code: -1, Signal: 15},
			"kill -KILL $$": {Code: -1, Signal: 9},
		} {
			tree, err := procs.Start(shell(script), procs.Supervised)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := tree.Wait(); err != nil || got != want {
				t.Errorf("%s: %+v, %v; want %+v", script, got, err, want)
			}
		}
	})

	t.Run("asked for anything after its end says that it has ended", func(t *testing.T) {
		tree, err := procs.Start(shell("exit 0"), procs.Supervised)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tree.Wait(); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{
			"freeze": tree.Freeze(), "thaw": tree.Thaw(), "until": tree.RunUntil(time.Now().Add(time.Minute)),
		} {
			if !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("%s: %v, want %v", what, err, os.ErrProcessDone)
			}
		}
	})

	t.Run("gives the program its streams, environment and directory and nothing else", func(t *testing.T) {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("TURNPIKE_TEST_SECRET", "worker's own")
		cmd := shell(`cat; pwd; env; ls /proc/self/fd | wc -l; echo talk >&2`)
		cmd.Env = append(cmd.Env, "MINE=1")
		cmd.Dir = dir
		var out, talk bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("said\n"), &out, &talk
		tree, err := procs.Start(cmd, procs.Supervised)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tree.Wait(); err != nil {
			t.Fatal(err)
		}
		got := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(got) < 4 || got[0] != "said" || got[1] != dir || !slices.Contains(got, "MINE=1") ||
			strings.Contains(out.String(), "SECRET") || got[len(got)-1] != "4" || talk.String() != "talk\n" {
			t.Errorf("out %q, talk %q", got, talk.String())
		}
		if cmd.Path != "/bin/sh" || cmd.Dir != dir {
			t.Errorf("the command became %s in %s", cmd.Path, cmd.Dir)
		}
	})

	t.Run("says that the program cannot be executed", func(t *testing.T) {
		for _, cmd := range []*exec.Cmd{
			{Path: "/nonexistent/agent"}, exec.Command("no-such-agent-anywhere"),
		} {
			_, err := procs.Start(cmd, procs.Supervised)
			if !errors.Is(err, agent.ErrUnready) {
				t.Errorf("%s: %v", cmd.Path, err)
			}
		}
		_, err := procs.Start(&exec.Cmd{Path: "/nonexistent/agent"}, procs.Supervised)
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/nonexistent/agent") {
			t.Error(err)
		}
	})

	t.Run("refuses what it could not stop as a tree", func(t *testing.T) {
		if _, err := procs.Start(exec.CommandContext(t.Context(), "/bin/true"), procs.Supervised); err == nil {
			t.Error("a command with a context was started")
		}
		if err := procs.Supervised(exec.Command("/bin/true")); err == nil {
			t.Error("a command was started without a tree")
		}
	})

	t.Run("passes the request to end on", func(t *testing.T) {
		tree, _ := start(t, shell(`trap "exit 3" TERM; echo ready; while :; do sleep 0.01; done`))
		if err := tree.Terminate(); err != nil {
			t.Fatal(err)
		}
		if got, err := tree.Wait(); err != nil || got.Code != 3 {
			t.Errorf("%+v, %v", got, err)
		}
		if err := tree.Terminate(); err != nil {
			t.Errorf("a second time: %v", err)
		}
	})

	t.Run("leaves nothing when killed", func(t *testing.T) {
		secs := mark(t)
		tree, _ := start(t, shell(nested, secs))
		if n := sleepers(t, secs); n < 3 {
			t.Fatalf("%d processes started", n)
		}
		if err := tree.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := sleepers(t, secs); n != 0 {
			t.Errorf("%d survive", n)
		}
		if got, err := tree.Wait(); err != nil || got.Signal != 9 {
			t.Errorf("%+v, %v", got, err)
		}
	})

	t.Run("leaves nothing when the program ends", func(t *testing.T) {
		secs := mark(t)
		tree, _ := start(t, shell(strings.Replace(nested, "exec sleep $1", "exit 5", 1), secs))
		if got, err := tree.Wait(); err != nil || got.Code != 5 {
			t.Errorf("%+v, %v", got, err)
		}
		if n := sleepers(t, secs); n != 0 {
			t.Errorf("%d survive", n)
		}
	})

	t.Run("kills though its root was stopped", func(t *testing.T) {
		secs := mark(t)
		tree, _ := start(t, shell(nested, secs))
		if err := syscall.Kill(tree.Identity().PID, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if err := tree.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := sleepers(t, secs); n != 0 {
			t.Errorf("%d survive", n)
		}
	})

	t.Run("stands still while frozen and goes on thawed", func(t *testing.T) {
		tree, out := start(t, shell(`echo ready; i=0; while :; do i=$((i+1)); echo $i; done & wait`))
		if err := tree.Freeze(); err != nil {
			t.Fatal(err)
		}
		if n := moving(t, tree.Identity().PID); n != 0 {
			t.Errorf("%d processes still run", n)
		}
		if err := tree.Thaw(); err != nil {
			t.Fatal(err)
		}
		// More than a pipe holds: it cannot have been written before.
		if _, err := io.CopyN(io.Discard, out, 1<<20); err != nil {
			t.Error(err)
		}
	})

	t.Run("stands still in the middle of starting programs", func(t *testing.T) {
		// Where a shell's fork borrows its memory, it hears of no signal before that executes.
		tree, _ := start(t, shell(`for i in 1 2 3 4; do while :; do /bin/true; done & done; echo ready; wait`))
		for range 50 {
			if err := tree.Freeze(); err != nil {
				t.Fatal(err)
			}
			if n := moving(t, tree.Identity().PID); n != 0 {
				t.Errorf("%d processes still run", n)
			}
			if err := tree.Thaw(); err != nil {
				t.Fatal(err)
			}
		}
	})

	t.Run("stands still by itself at the end of its term", func(t *testing.T) {
		busy := func() *exec.Cmd { return shell(`echo ready; i=0; while :; do i=$((i+1)); echo $i; done & wait`) }
		still := func(tree *procs.Tree) {
			t.Helper()
			// The root gives no sign of it, for there may be nobody to hear.
			again := time.NewTicker(time.Millisecond)
			defer again.Stop()
			for moving(t, tree.Identity().PID) > 0 {
				<-again.C
			}
		}
		until := func(tree *procs.Tree, at time.Time) {
			t.Helper()
			if err := tree.RunUntil(at); err != nil {
				t.Fatal(err)
			}
		}
		runs := func(out io.Reader) {
			t.Helper()
			if _, err := io.CopyN(io.Discard, out, 1<<20); err != nil {
				t.Error(err)
			}
		}
		never := time.Now().Add(time.Hour)

		tree, out := start(t, busy())
		until(tree, time.Now().Add(10*time.Millisecond))
		still(tree)
		until(tree, time.Now().Add(-time.Second)) // an earlier end is none
		still(tree)
		until(tree, never)
		runs(out)
		until(tree, time.Now()) // the later one was given
		runs(out)

		// What was told to stand still goes on when it is told to.
		tree, out = start(t, busy())
		if err := tree.Freeze(); err != nil {
			t.Fatal(err)
		}
		until(tree, never)
		if n := moving(t, tree.Identity().PID); n != 0 {
			t.Errorf("%d processes run though nobody thawed them", n)
		}
		if err := tree.Thaw(); err != nil {
			t.Fatal(err)
		}
		runs(out)

		// But not past its end: whoever told it to may have been held up itself.
		tree, out = start(t, busy())
		until(tree, time.Now())
		if err := tree.Freeze(); err != nil {
			t.Fatal(err)
		}
		if err := tree.Thaw(); err != nil {
			t.Fatal(err)
		}
		if n := moving(t, tree.Identity().PID); n != 0 {
			t.Errorf("%d processes run past their end", n)
		}
		until(tree, never)
		runs(out)
	})

	t.Run("has its end before its first instruction", func(t *testing.T) {
		secs := mark(t)
		cmd := func() *exec.Cmd { return &exec.Cmd{Path: "/bin/sleep", Args: []string{"sleep", secs}} }
		_, err := procs.StartUntil(cmd(), procs.Supervised, time.Now())
		if !errors.Is(err, agent.ErrUnready) {
			t.Errorf("started though its time was over: %v", err)
		}
		// The same where whoever starts it stands still at first.
		before := func(cmd *exec.Cmd) error {
			again := time.NewTicker(time.Millisecond)
			defer again.Stop()
			for end := time.Now().Add(10 * time.Millisecond); time.Now().Before(end); {
				<-again.C
			}
			return procs.Supervised(cmd)
		}
		if _, err := procs.StartUntil(cmd(), before, time.Now().Add(10*time.Millisecond)); !errors.Is(err, agent.ErrUnready) {
			t.Errorf("started though its time was over by then: %v", err)
		}
		if n := sleepers(t, secs); n != 0 {
			t.Errorf("%d programs were executed", n)
		}

		// And where it stands still after it.
		out, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		var tree *procs.Tree
		err = agent.ErrUnready
		for term := 100 * time.Millisecond; errors.Is(err, agent.ErrUnready); term *= 2 { // this machine may be slow
			busy := shell(`i=0; while :; do i=$((i+1)); echo $i; done & wait`)
			busy.Stdout = w
			tree, err = procs.StartUntil(busy, procs.Supervised, time.Now().Add(term))
		}
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := tree.Kill(context.Background()); err != nil {
				t.Error(err)
			}
			_, _ = tree.Wait()
		}()
		again := time.NewTicker(time.Millisecond)
		defer again.Stop()
		for moving(t, tree.Identity().PID) > 0 {
			<-again.C
		}
		if err := tree.RunUntil(time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, out, 1<<20); err != nil {
			t.Error(err)
		}
	})

	t.Run("leaves nothing of a start that took too long, and does not say that there was none", func(t *testing.T) {
		defer procs.Patience(0, 0)
		state := t.TempDir()
		for patience := 100 * time.Millisecond; ; patience *= 2 { // this machine may be slow
			procs.Patience(patience, 0)
			cmd := &exec.Cmd{Path: "/never/reached", Env: []string{procs.Marker(state, "turn-1")}}
			tree, err := procs.Start(cmd, procs.Launch{Prepared: true}.Start)
			if err != nil && patience < time.Minute {
				if !errors.Is(err, agent.ErrUnready) {
					t.Fatal(err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if exit, err := tree.Wait(); err != nil || exit.Signal != int(syscall.SIGKILL) {
				t.Errorf("%+v, %v", exit, err)
			}
			break
		}
		if n, err := procs.Sweep(t.Context(), state); n != 0 || err != nil {
			t.Errorf("%d processes were left, %v", n, err)
		}
	})

	t.Run("can be steered again after its root was held up", func(t *testing.T) {
		defer procs.Patience(0, 0)
		tree, out := start(t, shell(`echo ready; i=0; while :; do i=$((i+1)); echo $i; done & wait`))
		if err := syscall.Kill(tree.Identity().PID, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		procs.Patience(0, 10*time.Millisecond)
		if err := tree.RunUntil(time.Now()); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a root that stands still answers: %v", err)
		}
		procs.Patience(0, 0)
		if err := syscall.Kill(tree.Identity().PID, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := tree.RunUntil(time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, out, 1<<20); err != nil {
			t.Error(err)
		}
		if err := tree.Freeze(); err != nil {
			t.Fatal(err)
		}
		if n := moving(t, tree.Identity().PID); n != 0 {
			t.Errorf("%d processes still run", n)
		}
	})

	t.Run("is not executed when nobody waits for it any more", func(t *testing.T) {
		// Whoever asked for it was killed, and its root goes on only then.
		secs := mark(t)
		alone := func(cmd *exec.Cmd) error {
			near, err := syscall.Dup(int(cmd.ExtraFiles[0].Fd()))
			if err != nil {
				return err
			}
			defer syscall.Close(near)
			if err := syscall.Shutdown(near, syscall.SHUT_RD); err != nil {
				return err
			}
			return procs.Supervised(cmd)
		}
		_, err := procs.Start(&exec.Cmd{Path: "/bin/sleep", Args: []string{"sleep", secs}}, alone)
		if !errors.Is(err, agent.ErrUnready) {
			t.Errorf("started: %v", err)
		}
		if n := sleepers(t, secs); n != 0 {
			t.Errorf("%d programs were executed", n)
		}
	})

	t.Run("kills while frozen", func(t *testing.T) {
		secs := mark(t)
		tree, _ := start(t, shell(nested, secs))
		if err := tree.Freeze(); err != nil {
			t.Fatal(err)
		}
		if err := tree.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := sleepers(t, secs); n != 0 {
			t.Errorf("%d survive", n)
		}
		if err := tree.Freeze(); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("freezing what is gone: %v", err)
		}
	})
}

// moving counts the descendants of pid that are not stopped.
func moving(t *testing.T, pid int) (n int) {
	t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range strings.Fields(string(children)) {
		b, err := os.ReadFile("/proc/" + c + "/stat")
		if err != nil {
			t.Fatal(err)
		}
		child, _, state, _, err := procs.ParseStat(b)
		if err != nil {
			t.Fatal(err)
		}
		if state != 'T' {
			n++
		}
		n += moving(t, child)
	}
	return n
}

// worker is a process that starts a tree and then waits to be killed.
func worker(state, secs, how string) {
	cmd := shell(nested, secs)
	cmd.Env = append(cmd.Env, procs.Marker(state, "turn-1"))
	cmd.Stdout = os.Stdout
	tree, err := procs.Start(cmd, procs.Supervised)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	id := tree.Identity()
	fmt.Println(id.PID, id.StartTime, id.BootID)
	if how == "stuck" {
		// Only a root that cannot act outlives its worker.
		_ = syscall.Kill(id.PID, syscall.SIGSTOP)
		fmt.Println("stuck")
	}
	_, _ = tree.Wait()
}

// killWorker starts a worker, kills it, and gives the identity of what it started.
func killWorker(t *testing.T, state, secs, how string) agent.Identity {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", state, secs, how)
	cmd.Args[0] = "worker"
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id := agent.Identity{Kind: agent.KindProcess}
	want := map[string]bool{"ready": true}
	if how == "stuck" {
		want["stuck"] = true
	}
	for lines := bufio.NewScanner(out); len(want) > 0 && lines.Scan(); {
		if want[lines.Text()] {
			delete(want, lines.Text())
		} else if _, err := fmt.Sscan(lines.Text(), &id.PID, &id.StartTime, &id.BootID); err != nil {
			t.Errorf("the worker said %q", lines.Text())
		}
	}
	if n := sleepers(t, secs); n < 3 {
		t.Errorf("%d processes started", n)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return id
}

// await polls until nothing sleeps any more.
func await(t *testing.T, secs string, within time.Duration) {
	t.Helper()
	begin := time.Now()
	for sleepers(t, secs) > 0 {
		if time.Since(begin) > within {
			t.Fatalf("%d survive after %v", sleepers(t, secs), within)
		}
	}
}

// A worker goes on with the launcher it began with, whatever is installed over it.
func TestLauncherIsHeld(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "launcher")
	if err := os.WriteFile(path, self, 0o755); err != nil {
		t.Fatal(err)
	}
	held, err := procs.HoldLauncher(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("#!/bin/sh\nexit 3\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	tree, err := procs.Start(&exec.Cmd{Path: "/bin/sh", Args: []string{"sh", "-c", "exit 7"}}, procs.Launch{Launcher: held}.Start)
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := tree.Wait(); err != nil || exit.Code != 7 {
		t.Errorf("%+v, %v", exit, err)
	}
	// Whatever number a descriptor has that is passed on: a start moves them about.
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for n := 94; n < 106; n++ {
		fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, n)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "null")
		tree, err := procs.Start(&exec.Cmd{Path: "/bin/true", Stdin: f}, procs.Launch{Launcher: held}.Start)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatalf("descriptor %d: %v", fd, err)
		}
		if exit, err := tree.Wait(); err != nil || exit.Code != 0 {
			t.Errorf("descriptor %d: %+v, %v", fd, exit, err)
		}
	}
	if _, err := procs.HoldLauncher(path + ".absent"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestOrphans(t *testing.T) {
	t.Run("there are none after a worker was killed", func(t *testing.T) {
		secs := mark(t)
		id := killWorker(t, t.TempDir(), secs, "")
		await(t, secs, time.Second)
		if ended, err := procs.End(t.Context(), id); err != nil {
			t.Error(ended, err)
		}
		if alive, err := procs.Find(t.Context(), id); alive || err != nil {
			t.Error(alive, err)
		}
	})

	t.Run("are found and ended by identity", func(t *testing.T) {
		secs := mark(t)
		id := killWorker(t, t.TempDir(), secs, "stuck")
		for name, other := range map[string]agent.Identity{
			"another start time": {PID: id.PID, StartTime: id.StartTime + 1, BootID: id.BootID},
			"another boot":       {PID: id.PID, StartTime: id.StartTime, BootID: "00000000-0000-0000-0000-000000000000"},
			"another pid":        {PID: os.Getpid(), StartTime: id.StartTime, BootID: id.BootID},
		} {
			if ended, err := procs.End(t.Context(), other); ended || err != nil {
				t.Errorf("%s: %v %v", name, ended, err)
			}
			if alive, err := procs.Find(t.Context(), other); alive || err != nil {
				t.Errorf("%s: %v %v", name, alive, err)
			}
		}
		if alive, err := procs.Find(t.Context(), id); !alive || err != nil {
			t.Fatal(alive, err)
		}
		if ended, err := procs.End(t.Context(), id); !ended || err != nil {
			t.Fatal(ended, err)
		}
		if n := sleepers(t, secs); n != 0 {
			t.Errorf("%d survive", n)
		}
		if ended, err := procs.End(t.Context(), id); ended || err != nil {
			t.Error("a second time:", ended, err)
		}
	})

	t.Run("are swept by the marker of their own state directory only", func(t *testing.T) {
		mine, other := t.TempDir(), t.TempDir()
		secs, others := mark(t), mark(t)
		id := killWorker(t, mine, secs, "stuck")
		otherID := killWorker(t, other, others, "stuck")
		if n, err := procs.Sweep(t.Context(), mine); n < 1 || err != nil {
			t.Error(n, err)
		}
		// The daemon that emptied its environment goes with the root, that of the
		// other state directory stays.
		if n := sleepers(t, others); n < 3 {
			t.Errorf("%d of the other worker's processes are left", n)
		}
		for _, id := range []agent.Identity{id, otherID} {
			if _, err := procs.End(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
		if n := sleepers(t, secs) + sleepers(t, others); n != 0 {
			t.Errorf("%d survive", n)
		}
	})

	t.Run("an incomplete identity names nothing", func(t *testing.T) {
		if _, err := procs.End(t.Context(), agent.Identity{PID: os.Getpid()}); err == nil {
			t.Error("ended by pid alone")
		}
	})
}

func TestSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.IntRange(1, 3)
		pid, start := small.Draw(t, "pid"), uint64(small.Draw(t, "start"))
		who := agent.Identity{PID: small.Draw(t, "named pid"), StartTime: uint64(small.Draw(t, "named start"))}
		if got, want := procs.Same(pid, start, who), pid == who.PID && start == who.StartTime; got != want {
			t.Fatalf("same: %v, want %v", got, want)
		}
	})
}

func TestBelow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// A table read while pids are reused may hold anything, cycles too.
		pid := rapid.IntRange(2, 12)
		rows := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) procs.Row {
			return procs.Row{PID: pid.Draw(t, "pid"), PPID: rapid.IntRange(1, 12).Draw(t, "ppid")}
		}), 0, 11, func(r procs.Row) int { return r.PID }).Draw(t, "rows")
		parent := map[int]int{}
		for _, r := range rows {
			parent[r.PID] = r.PPID
		}
		var want []int
		for child := range parent {
			up := child
			for range rows {
				if up = parent[up]; up == 1 {
					want = append(want, child)
					break
				}
			}
		}
		got := procs.Below(1, rows)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("below 1 in %v: %v, want %v", rows, got, want)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add([]byte("1 (a) b) (c) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 77 1 2"))
	f.Add([]byte("1 () S"))
	f.Fuzz(func(t *testing.T, b []byte) {
		pid, _, state, _, err := procs.ParseStat(b)
		if err == nil && (state == 0 || !bytes.HasPrefix(bytes.TrimSpace(b), []byte(strconv.Itoa(pid))) && pid != 0 && b[0] != '+' && b[0] != '-' && b[0] != '0') {
			t.Errorf("%q gave pid %d state %q", b, pid, state)
		}
	})
}
