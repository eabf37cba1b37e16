// Command benchstart measures what it costs to start something confined, beside what
// others take: the same program that does nothing, by every means in turn, in one run,
// so that what else the machine does meanwhile is everybody's. It judges nothing.
//
// Wall time is from the call to the program's end. CPU time is user and system of this
// process and of every child waited for, down the tree, launchers included; of a
// container it lacks what the engine spends, which is said apart.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/egress"
	"turnpike/internal/agent/procs"
)

func main() {
	confine.Entry()
	n := flag.Int("n", 200, "starts of each; of a container, a tenth of it")
	only := flag.String("run", ".", "the means whose name matches this `expression`")
	launcher := flag.String("launcher", "", "the `program` that launches confined turns; empty is this one")
	image := flag.String("image", "", "the container `image` that holds /true; empty leaves the engine out")
	write := flag.String("write", "", "write the program to this `file` and do nothing else")
	flag.Parse()
	if *write != "" {
		if err := os.WriteFile(*write, static(), 0o755); err != nil {
			fmt.Fprintln(os.Stderr, "benchstart:", err)
			os.Exit(1)
		}
		return
	}
	if err := bench(*n, *only, *launcher, *image); err != nil {
		fmt.Fprintln(os.Stderr, "benchstart:", err)
		os.Exit(1)
	}
}

// means is one way to start the program.
type means struct {
	name  string
	start func() error
	// one in every so many rounds, because it takes so much longer
	every int
	costs []cost
}

type cost struct{ wall, cpu time.Duration }

func bench(n int, only, launcher, image string) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "benchstart-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	program := filepath.Join(dir, "true")
	if err := os.WriteFile(program, static(), 0o755); err != nil {
		return err
	}
	all := host(dir, program, launcher)
	all = append(all, bubblewrap(dir, program)...)
	if image != "" {
		all = append(all, container(image))
	}
	all = slices.DeleteFunc(all, func(m means) bool { return !pattern.MatchString(m.name) })
	for _, m := range all {
		// The first finds caches cold, and tries out what the machine can do.
		if err := m.start(); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	engine := engineTime()
	for round := range n {
		for i := range all {
			m := &all[i]
			if round%max(m.every, 1) != 0 {
				continue
			}
			c, err := measure(m.start)
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			m.costs = append(m.costs, c)
		}
	}
	engine = engineTime() - engine
	return report(all, engine)
}

func measure(start func() error) (cost, error) {
	cpu, begun := spent(), time.Now()
	err := start()
	return cost{time.Since(begun), spent() - cpu}, err
}

// spent is the CPU time of this process and of all it waited for.
func spent() time.Duration {
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			panic(err) // it has no other error than a bad argument
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

// host gives the means of this project that this machine has.
func host(dir, program, launcher string) []means {
	plain := func() error { return exec.Command(program).Run() }
	out := []means{
		{name: "plain exec", start: plain},
		{name: "turnpike none", start: func() error { return wait(program, procs.Launch{Launcher: launcher}.Start) }},
	}
	for _, k := range []struct {
		name    string
		options confine.Options
		network agent.Network
	}{
		{"turnpike landlock-only, no network", confine.Options{LandlockOnly: true}, agent.Network{}},
		{"turnpike full, no network", confine.Options{}, agent.Network{}},
		{"turnpike full, open network", confine.Options{}, agent.Network{Open: true}},
		{"turnpike full, proxied network", confine.Options{}, agent.Network{Proxied: true}},
	} {
		k.options.Launcher = launcher
		c := agent.Confinement{
			System: confine.DefaultSystemPaths(), Mounts: []agent.Mount{{Path: dir, Access: agent.ReadWrite}},
			Workspace: dir, WorkDir: dir, Network: k.network,
		}
		h := confine.Platform(k.options)
		c.WorkDir = h.Mode().WorkDir(dir)
		if err := h.Check(c); err != nil {
			fmt.Fprintf(os.Stderr, "benchstart: left out: %s: %v\n", k.name, err)
			continue
		}
		out = append(out, means{name: k.name, start: func() (err error) {
			c := c
			if c.Network.Proxied {
				way, err := egress.New(egress.Limited(nil, nil), nil)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, way.Close()) }()
				c.Egress = way
			}
			return wait(program, func(cmd *exec.Cmd) error { return h.Start(cmd, c) })
		}})
	}
	return out
}

// wait starts the program in a tree and waits until nothing is left of it.
func wait(program string, start func(*exec.Cmd) error) error {
	tree, err := procs.Start(&exec.Cmd{Path: program, Dir: filepath.Dir(program)}, start)
	if err != nil {
		return err
	}
	exit, err := tree.Wait()
	if err == nil && exit != (agent.Exit{}) {
		err = fmt.Errorf("ended with %+v", exit)
	}
	return err
}

// bubblewrap builds the same view of the files and the same namespaces. It stacks
// neither Landlock nor a filter of system calls on them, watches over nothing and
// compares no mount with what was verified.
func bubblewrap(dir, program string) []means {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchstart: left out: bubblewrap:", err)
		return nil
	}
	args := []string{
		"--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup", "--die-with-parent", "--new-session",
		"--clearenv", "--cap-drop", "ALL", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
		"--ro-bind", "/sys/devices/system/cpu", "/sys/devices/system/cpu",
	}
	if os.Geteuid() != 0 {
		args = append(args, "--unshare-user")
	}
	for _, m := range confine.DefaultSystemPaths() {
		if target, err := os.Readlink(m.Path); err == nil {
			args = append(args, "--symlink", target, m.Path)
		} else {
			args = append(args, "--ro-bind", m.Path, m.Path)
		}
	}
	args = append(args, "--bind", dir, dir, "--bind", dir, confine.WorkDir, "--remount-ro", "/", "--chdir", confine.WorkDir)
	with := func(more ...string) func() error {
		full := append(append(slices.Clone(args), more...), program)
		return func() error { return exec.Command(path, full...).Run() }
	}
	return []means{
		{name: "bubblewrap, no network", start: with("--unshare-net")},
		{name: "bubblewrap, open network", start: with()},
	}
}

// container runs the program as a container that may do as little.
func container(image string) means {
	args := []string{
		"run", "--rm", "--init", "--pull", "never", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",
		"--security-opt", "no-new-privileges", "--user", "65534:65534", "--pids-limit", "64", "--memory", "256m",
		"--memory-swap", "256m", "--cpus", "1", "--ulimit", "core=0", "--ipc", "private", "--network", "none", image, "/true",
	}
	return means{name: "docker run, no network", every: 10, start: func() error {
		if out, err := exec.Command("docker", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}}
}

// engineTime is the CPU time of the container engine's lasting processes, and of those
// they waited for. Shims come and go, and are missing.
func engineTime() time.Duration {
	var ticks int64
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		name, rest, _ := strings.Cut(string(text), ") ")
		_, name, _ = strings.Cut(name, "(")
		if name != "dockerd" && name != "containerd" {
			continue
		}
		if f := strings.Fields(rest); len(f) > 14 {
			for _, v := range f[11:15] { // utime, stime, cutime, cstime
				n, err := strconv.ParseInt(v, 10, 64)
				if err == nil {
					ticks += n
				}
			}
		}
	}
	const perSecond = 100 // what /proc counts in, whatever the kernel does
	return time.Duration(ticks) * time.Second / perSecond
}

func report(all []means, engine time.Duration) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "ms\twall median\tp90\tCPU median\tp90\tstarts\t")
	for _, m := range all {
		wall := func(c cost) time.Duration { return c.wall }
		cpu := func(c cost) time.Duration { return c.cpu }
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t\n", m.name,
			quantile(m.costs, wall, 50), quantile(m.costs, wall, 90), quantile(m.costs, cpu, 50), quantile(m.costs, cpu, 90), len(m.costs))
	}
	err := w.Flush()
	i := slices.IndexFunc(all, func(m means) bool { return m.every > 0 })
	if i >= 0 && len(all[i].costs) > 0 {
		fmt.Printf("\nThe engine's own processes spent %.1f ms of CPU on each %s, and on whatever else they did meanwhile.\n",
			float64(engine.Microseconds())/1000/float64(len(all[i].costs)), all[i].name)
	}
	return err
}

func quantile(costs []cost, of func(cost) time.Duration, percent int) string {
	if len(costs) == 0 {
		return "-"
	}
	var all []time.Duration
	for _, c := range costs {
		all = append(all, of(c))
	}
	slices.Sort(all)
	return fmt.Sprintf("%.1f", float64(all[(len(all)-1)*percent/100].Microseconds())/1000)
}
