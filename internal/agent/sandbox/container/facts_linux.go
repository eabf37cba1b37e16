package container

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"turnpike/internal/agent"
)

// facts are what the engine says of itself.
type facts struct {
	Server struct {
		Version    string
		APIVersion string `json:"ApiVersion"`
		Arch       string
		Components []struct{ Name, Version string }
	}
	Info struct {
		DockerRootDir   string
		OSType          string
		SecurityOptions []string
		CgroupVersion   string
		MemoryLimit     bool
		SwapLimit       bool
		PidsLimit       bool
		CPUCfsQuota     bool `json:"CpuCfsQuota"`
	}
	gateway netip.Addr
	socket  string
}

// oldestAPI is the engine's API from which on its mounts can be held to what they are.
var oldestAPI = []int{1, 41}

func (c client) facts(ctx context.Context) (facts, error) {
	var f facts
	if err := c.ask(ctx, &f, "version", "--format", "{{json .}}"); err != nil {
		return f, fmt.Errorf("the container engine does not answer: %w", err)
	}
	if err := c.ask(ctx, &f.Info, "info", "--format", "{{json .}}"); err != nil {
		return f, fmt.Errorf("the container engine does not answer: %w", err)
	}
	f.gateway, f.socket = c.gateway(ctx), c.socket(ctx)
	return f, nil
}

// private are the engine's own paths on the host, which no mount may reach.
func (f facts) private() []string {
	paths := []string{"/var/lib/containerd"}
	for _, p := range []string{f.Info.DockerRootDir, f.socket} {
		if p != "" {
			paths = append(paths, p)
		}
	}
	return paths
}

// check refuses an engine that cannot hold a turn.
func (f facts) check() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: the container engine %s", agent.ErrUnsupported, fmt.Sprintf(format, args...))
	}
	has := func(option string) bool {
		return slices.ContainsFunc(f.Info.SecurityOptions, func(s string) bool { return s == "name="+option || strings.HasPrefix(s, "name="+option+",") })
	}
	switch {
	case f.Info.OSType != "linux":
		return refuse("runs %q containers", f.Info.OSType)
	case before(f.Server.APIVersion, oldestAPI):
		return refuse("speaks API %s, older than 1.41 (release 20.10)", f.Server.APIVersion)
	case !has("seccomp"):
		return refuse("has no seccomp filter")
	case has("rootless"), has("userns"):
		return refuse("gives containers other user ids than the worker's, whose files they could not use; run it without user namespaces")
	}
	return nil
}

// limits says which limits it cannot keep.
func (f facts) limits() []string {
	var out []string
	for what, can := range map[string]bool{
		"limit of memory": f.Info.MemoryLimit, "limit of swap": f.Info.SwapLimit,
		"limit of processes": f.Info.PidsLimit, "limit of CPUs": f.Info.CPUCfsQuota,
	} {
		if !can {
			out = append(out, what)
		}
	}
	slices.Sort(out)
	return out
}

// keeps refuses limits that the engine says it cannot keep.
func (f facts) keeps(l agent.Limits) error {
	for what, missing := range map[string]bool{
		"memory":    l.MemoryBytes > 0 && !(f.Info.MemoryLimit && f.Info.SwapLimit),
		"processes": l.Processes > 0 && !f.Info.PidsLimit,
		"CPUs":      l.CPUs > 0 && !f.Info.CPUCfsQuota,
	} {
		if missing {
			return fmt.Errorf("%w: this machine's control groups cannot limit %s", agent.ErrUnsupported, what)
		}
	}
	return nil
}

func (f facts) component(name string) string {
	for _, c := range f.Server.Components {
		if strings.EqualFold(c.Name, name) {
			return c.Version
		}
	}
	return ""
}

func (f facts) version() string {
	out := "engine " + f.Server.Version
	for _, name := range []string{"containerd", "runc"} {
		if v := f.component(name); v != "" {
			out += ", " + name + " " + v
		}
	}
	return out
}

// flaw is a published weakness of the runtime, by the releases that have it.
type flaw struct {
	name  string
	what  string
	fixed [][]int // the first release of each series without it
}

var flaws = []flaw{
	{"CVE-2019-5736", "a container could replace the runtime", [][]int{{1, 0, 0}}},
	{"CVE-2024-21626", "a descriptor of the host could leak into a container; every turn's working directory and descriptors are looked at inside", [][]int{{1, 1, 12}}},
	{"CVE-2025-31133", "masked paths could be left open; every turn's are looked at inside", [][]int{{1, 2, 8}, {1, 3, 3}, {1, 4, 0}}},
	{"CVE-2025-52565", "the console's mount could be misled; no turn has a console", [][]int{{1, 2, 8}, {1, 3, 3}, {1, 4, 0}}},
	{"CVE-2025-52881", "labels and sysctls could be written elsewhere", [][]int{{1, 2, 8}, {1, 3, 3}, {1, 4, 0}}},
}

// weaknesses are known ones of the versions the engine tells. A distribution may have
// mended them without changing the number, and says so in what follows it.
func (f facts) weaknesses() []string {
	runc := f.component("runc")
	have := numbers(runc)
	if runc == "" || have == nil {
		return []string{"the engine does not tell its runtime's version"}
	}
	var out []string
	for _, w := range flaws {
		if w.has(have) {
			out = append(out, fmt.Sprintf("%s by the number of runc %s: %s", w.name, runc, w.what))
		}
	}
	return out
}

// has says whether a release has the flaw: it is older than the first one of its series
// without, or older than all such series.
func (w flaw) has(release []int) bool {
	for _, fixed := range w.fixed {
		if slices.Equal(release[:2], fixed[:2]) {
			return slices.Compare(release, fixed) < 0
		}
	}
	return slices.Compare(release, w.fixed[len(w.fixed)-1]) < 0
}

var leading = regexp.MustCompile(`^(\d+)\.(\d+)(?:\.(\d+))?`)

// numbers reads the three numbers a version begins with; nil where it does not.
func numbers(version string) []int {
	m := leading.FindStringSubmatch(version)
	if m == nil {
		return nil
	}
	out := make([]int, 3)
	for i := range out {
		out[i], _ = strconv.Atoi(m[i+1]) // digits, or nothing, which is zero
	}
	return out
}

func before(version string, oldest []int) bool {
	n := numbers(version)
	return n == nil || slices.Compare(n[:2], oldest) < 0
}
