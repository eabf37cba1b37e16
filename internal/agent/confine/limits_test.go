//go:build linux && (amd64 || arm64)

package confine_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
)

// hogName is argv[0] of a process that takes all it can get of one thing, and prints
// how much that was.
const hogName = "turnpike-hog"

func hog(what string) {
	var got int
	var err error
	switch what {
	case "processes":
		for got = 0; got < 400 && err == nil; got++ {
			err = exec.Command("/bin/sleep", "100").Start()
		}
	case "memory":
		var kept [][]byte
		for got = 0; got < 400; got++ {
			kept = append(kept, make([]byte, 1<<20))
			for page := range slices.Chunk(kept[got], 4096) {
				page[0] = 1
			}
		}
		runtime.KeepAlive(kept)
	case "descriptors":
		for got = 0; got < 4000 && err == nil; got++ {
			_, err = unix.Open("/dev/null", unix.O_RDONLY, 0)
		}
	case "disk", "file":
		path := map[string]string{"disk": "/tmp/file", "file": "file"}[what]
		f, open := os.Create(path)
		for err = open; got < 64 && err == nil; got++ {
			_, err = f.Write(make([]byte, 1<<20))
		}
	case "processor":
		fmt.Println("ready")
		for {
			got++
		}
	}
	fmt.Println(got, err)
	os.Exit(0)
}

func (r *room) hog(what string) *exec.Cmd {
	return &exec.Cmd{Path: r.Bin + "/probe", Args: []string{hogName, what}, Env: []string{"PATH=/usr/bin:/bin", "GOMAXPROCS=1"}, Stderr: os.Stderr}
}

// take has a hog take what it gets and gives how much, why no more, and how it ended.
func (r *room) take(t *testing.T, h agent.Confiner, c agent.Confinement, what string) (int, string, agent.Exit) {
	t.Helper()
	var out bytes.Buffer
	cmd := r.hog(what)
	cmd.Stdout = &out
	tree, err := start(h, c, cmd)
	if err != nil {
		t.Fatal(err)
	}
	exit, err := tree.Wait()
	if err != nil {
		t.Fatal(err)
	}
	n, why, _ := strings.Cut(strings.TrimSpace(out.String()), " ")
	got, _ := strconv.Atoi(n)
	return got, why, exit
}

func TestLimits(t *testing.T) {
	each(t, func(t *testing.T, mode confine.Mode, h confine.Confiner, r *room, c agent.Confinement) {
		held := make(map[string]bool)
		for _, f := range h.Probe(t.Context()).Facts {
			held[f.Name] = f.OK
		}
		// claimed says whether a limit is claimed to be held here. One that is not must
		// be refused, and say what would hold it.
		claimed := func(t *testing.T, what string, l agent.Limits) (agent.Confinement, bool) {
			t.Helper()
			limited := c
			limited.Limits = l
			err := h.Check(limited)
			if !held[what] && (!errors.Is(err, agent.ErrUnsupported) || !strings.Contains(err.Error(), "Delegate=yes")) {
				t.Errorf("%s is not held, but: %v", what, err)
			}
			if held[what] && err != nil {
				t.Errorf("%s is held, but: %v", what, err)
			}
			return limited, held[what]
		}
		t.Run("a fork bomb", func(t *testing.T) {
			limited, ok := claimed(t, "limit of processes", agent.Limits{Processes: 40})
			if !ok {
				return
			}
			if got, why, _ := r.take(t, h, limited, "processes"); got == 0 || got > 40 || !strings.Contains(why, "temporarily unavailable") {
				t.Errorf("%d processes, %s", got, why)
			}
		})
		t.Run("a memory hog", func(t *testing.T) {
			limited, ok := claimed(t, "limit of memory", agent.Limits{MemoryBytes: 128 << 20})
			if !ok {
				return
			}
			if got, _, exit := r.take(t, h, limited, "memory"); exit.Signal != int(unix.SIGKILL) {
				t.Errorf("%d MiB, ended by %+v", got, exit)
			}
		})
		t.Run("a processor hog", func(t *testing.T) {
			limited, ok := claimed(t, "limit of CPUs", agent.Limits{CPUs: 0.1})
			if !ok {
				return
			}
			begin(t, h, limited, r.hog("processor"))
			for begun := time.Now(); !throttled(t); {
				if time.Since(begun) > 30*time.Second {
					t.Fatal("it was never throttled")
				}
			}
		})
		t.Run("a disk filler", func(t *testing.T) {
			if mode != confine.Full {
				return // there is no /tmp of its own
			}
			small := confine.Platform(confine.Options{TmpBytes: 8 << 20})
			if got, why, _ := r.take(t, small, c, "disk"); got == 0 || got > 9 || !strings.Contains(why, "no space left") {
				t.Errorf("%d MiB, %s", got, why)
			}
		})
		t.Run("a file that grows", func(t *testing.T) {
			limited := c
			limited.Limits.FileBytes = 4 << 20
			if got, why, _ := r.take(t, h, limited, "file"); got == 0 || got > 5 || !strings.Contains(why, "file too large") {
				t.Errorf("%d MiB, %s", got, why)
			}
		})
		t.Run("a descriptor hog", func(t *testing.T) {
			limited := c
			limited.Limits.OpenFiles = 77
			if got, why, _ := r.take(t, h, limited, "descriptors"); got == 0 || got > 77 || !strings.Contains(why, "too many open files") {
				t.Errorf("%d descriptors, %s", got, why)
			}
		})
		t.Run("a core dump", func(t *testing.T) {
			before := tree(t, r.Work)
			if _, exit := run(t, h, c, nil, "/bin/sh", "-c", "kill -SEGV $$"); exit.Signal != int(unix.SIGSEGV) {
				t.Errorf("%+v", exit)
			}
			if after := tree(t, r.Work); !slices.Equal(before, after) {
				t.Errorf("%v became %v", before, after)
			}
		})
		t.Run("a group that its root left behind", func(t *testing.T) {
			limited, ok := claimed(t, "limit of CPUs", agent.Limits{CPUs: 1})
			if !ok {
				return
			}
			tree, _ := begin(t, h, limited, r.hog("processor"))
			if err := unix.Kill(tree.Identity().PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := tree.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := tree.Wait(); err != nil {
				t.Fatal(err)
			}
			if mode == confine.LandlockOnly {
				// Killed so, it leaves what it started to the sweep by their marks.
				for begun := time.Now(); len(hogs(t)) > 0; {
					for _, pid := range hogs(t) {
						_ = unix.Kill(pid, unix.SIGKILL)
					}
					if time.Since(begun) > 10*time.Second {
						t.Fatal("it lives on")
					}
				}
			}
			if len(groups(t)) == 0 {
				t.Error("it left none") // and the next line would show nothing
			}
			run(t, h, limited, nil, "/bin/true")
		})
		if left := groups(t); len(left) > 0 {
			t.Errorf("groups are left: %v", left)
		}
	})
}

// groups are the control groups that this process made and nobody removed.
func groups(t *testing.T) (out []string) {
	t.Helper()
	for _, dir := range slices.Compact(slices.Sorted(maps.Values(confine.Places()))) {
		found, err := filepath.Glob(dir + "/turnpike/" + strconv.Itoa(os.Getpid()) + "-*")
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}

// throttled says whether the kernel ever made a group of this process wait.
func throttled(t *testing.T) bool {
	t.Helper()
	for _, g := range groups(t) {
		text, err := os.ReadFile(g + "/cpu.stat")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if n, ok := strings.CutPrefix(line, "nr_throttled "); ok && strings.TrimSpace(n) != "0" {
				return true
			}
		}
	}
	return false
}

// hogs are the living hogs of this user.
func hogs(t *testing.T) (out []int) {
	t.Helper()
	for _, g := range groups(t) {
		text, err := os.ReadFile(g + "/cgroup.procs")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, pid)
		}
	}
	return out
}

// awaited is the variable that has this test wait for a byte before it does anything.
const awaited = "TURNPIKE_TEST_AWAITED"

// delegated runs cmd where uid may make control groups, as far as this process may.
func delegated(t *testing.T, cmd *exec.Cmd, uid int) ([]byte, error) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(cmd.Env, awaited+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range slices.Compact(slices.Sorted(maps.Values(confine.Places()))) {
		own := dir + "/test-turnpike-" + strconv.Itoa(os.Getpid())
		leaf := own
		err := os.Mkdir(own, 0o755)
		if _, version1 := os.Stat(own + "/cgroup.controllers"); version1 == nil {
			leaf = own + "/worker"
			err = errors.Join(err, os.WriteFile(own+"/cgroup.subtree_control", []byte("+memory +pids +cpu"), 0), os.Mkdir(leaf, 0o755))
			t.Cleanup(func() { _ = os.Remove(own) })
		}
		err = errors.Join(err, os.Chown(own, uid, uid), os.Chown(own+"/cgroup.procs", uid, uid),
			os.WriteFile(leaf+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = os.Remove(own + "/turnpike") // if that run came so far
			if err := os.Remove(leaf); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := in.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	in.Close()
	err = cmd.Wait()
	return out.Bytes(), err
}

func TestPlaces(t *testing.T) {
	const hybrid = "1 0 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"2 0 0:2 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"3 0 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	const unified = "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	for name, c := range map[string]struct {
		own, table string
		usable     []string
		want       map[string]string
	}{
		"version 1": {
			"4:memory:/a/b\n3:cpu,cpuacct:/\n0::/\n", hybrid, []string{"/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/cpu,cpuacct"},
			map[string]string{"memory": "/sys/fs/cgroup/memory/a/b", "cpu": "/sys/fs/cgroup/cpu,cpuacct"},
		},
		"version 2, beside its own leaf": {
			"0::/service/worker\n", unified, []string{"/sys/fs/cgroup/service"},
			map[string]string{"memory": "/sys/fs/cgroup/service", "pids": "/sys/fs/cgroup/service", "cpu": "/sys/fs/cgroup/service"},
		},
		"version 2, in its own": {
			"0::/\n", unified, []string{"/sys/fs/cgroup"},
			map[string]string{"memory": "/sys/fs/cgroup", "pids": "/sys/fs/cgroup", "cpu": "/sys/fs/cgroup"},
		},
		"a group that is not to be seen": {"0::/../other\n", unified, []string{"/sys/fs/cgroup", "/sys/fs"}, map[string]string{}},
		"nothing that can be written":    {"0::/service/worker\n", unified, nil, map[string]string{}},
		"nothing mounted":                {"4:memory:/\n0::/\n", "", []string{"/", ""}, map[string]string{}},
		"no text at all":                 {"", "", nil, map[string]string{}},
	} {
		got := confine.FindPlaces(c.own, c.table, func(dir, _ string, _ bool) bool { return slices.Contains(c.usable, dir) })
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
