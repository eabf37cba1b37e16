package container

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
)

// check looks whether everything around this process is as planned, which the agent will
// then find as well. Its error wraps ErrPolicyChanged where a bind is another file than
// was verified, and ErrUnsupported where the engine, its runtime or the kernel hold less
// than they were asked to.
func (p plan) check() error {
	for _, look := range []func() error{
		p.checkSelf, p.checkResources, p.checkGroups, p.checkMounts, p.checkKernelFiles, p.checkDevices, p.checkInterfaces, p.enter,
	} {
		if err := look(); err != nil {
			return err
		}
	}
	return nil
}

func weaker(format string, args ...any) error {
	return fmt.Errorf("%w: inside the container %s", agent.ErrUnsupported, fmt.Sprintf(format, args...))
}

// checkSelf holds ids, capabilities and filters to what every turn has.
func (p plan) checkSelf() error {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	status := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		status[name] = strings.Fields(value)
	}
	same := func(name string, id int) bool {
		ids := status[name]
		return len(ids) == 4 && !slices.ContainsFunc(ids, func(s string) bool { return s != strconv.Itoa(id) })
	}
	if !same("Uid", p.UID) || !same("Gid", p.GID) {
		return weaker("the ids are %v and %v, not %d and %d", status["Uid"], status["Gid"], p.UID, p.GID)
	}
	for _, g := range status["Groups"] {
		if g != strconv.Itoa(p.GID) {
			return weaker("the process belongs to group %s, too", g)
		}
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if v := status[set]; len(v) != 1 || strings.Trim(v[0], "0") != "" {
			return weaker("there are capabilities: %s is %v", set, v)
		}
	}
	if !slices.Equal(status["NoNewPrivs"], []string{"1"}) {
		return weaker("privileges can be gained by executing a program")
	}
	if !slices.Equal(status["Seccomp"], []string{"2"}) {
		return weaker("there is no seccomp filter")
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err
	}
	if f := strings.Fields(string(ids)); len(f) < 3 || f[0] != "0" || f[1] != "0" {
		return weaker("user ids are other ones than on the host, whose files could not be used")
	}
	return nil
}

// checkResources compares the resource limits.
func (p plan) checkResources() error {
	at := func(name string, resource int, most uint64) error {
		var l unix.Rlimit
		if err := unix.Getrlimit(resource, &l); err != nil {
			return err
		}
		if l.Max > most {
			return weaker("the limit of %s is %d, not %d", name, l.Max, most)
		}
		return nil
	}
	err := at("core files", unix.RLIMIT_CORE, 0)
	if n := p.Limits.OpenFiles; n > 0 {
		err = errors.Join(err, at("open files", unix.RLIMIT_NOFILE, uint64(n)))
	}
	if n := p.Limits.FileBytes; n > 0 {
		err = errors.Join(err, at("a file's size", unix.RLIMIT_FSIZE, uint64(n)))
	}
	return err
}

// The control groups' files, by version: in the second, all are in one directory.
const groups = "/sys/fs/cgroup/"

// checkGroups compares the limits of the control group this process is in.
func (p plan) checkGroups() error {
	l := p.Limits
	if l.MemoryBytes > 0 {
		if n, err := number(groups+"memory.max", groups+"memory/memory.limit_in_bytes"); err != nil || n > l.MemoryBytes {
			return weaker("memory is limited to %d bytes, not %d (%v)", n, l.MemoryBytes, err)
		}
		if err := p.checkSwap(); err != nil {
			return err
		}
	}
	if l.Processes > 0 {
		if n, err := number(groups+"pids.max", groups+"pids/pids.max"); err != nil || n > int64(l.Processes) {
			return weaker("processes are limited to %d, not %d (%v)", n, l.Processes, err)
		}
	}
	if l.CPUs > 0 {
		if n, err := processors(); err != nil || n > l.CPUs+0.01 {
			return weaker("processors are limited to %.2f, not %.2f (%v)", n, l.CPUs, err)
		}
	}
	return nil
}

// checkSwap sees that what does not fit into memory finds no room elsewhere.
func (p plan) checkSwap() error {
	if n, err := number(groups+"memory.swap.max", ""); err == nil && n == 0 {
		return nil
	}
	if n, err := number("", groups+"memory/memory.memsw.limit_in_bytes"); err == nil && n <= p.Limits.MemoryBytes {
		return nil
	}
	text, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return err
	}
	if strings.Count(strings.TrimSpace(string(text)), "\n") > 0 {
		return weaker("swap is not limited")
	}
	return nil // there is none
}

// errUnlimited says that a control group has no such limit.
var errUnlimited = errors.New("unlimited")

// number reads the first of these files that is there.
func number(paths ...string) (int64, error) {
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil || n < 0 {
			return 0, errUnlimited
		}
		return n, nil
	}
	return 0, fs.ErrNotExist
}

// processors is how many of them the control group may use.
func processors() (float64, error) {
	if text, err := os.ReadFile(groups + "cpu.max"); err == nil {
		var quota, period float64
		if _, err := fmt.Sscan(string(text), &quota, &period); err != nil || period <= 0 {
			return 0, errUnlimited
		}
		return quota / period, nil
	}
	quota, err := number(groups+"cpu/cpu.cfs_quota_us", groups+"cpu,cpuacct/cpu.cfs_quota_us")
	if err != nil {
		return 0, err
	}
	period, err := number(groups+"cpu/cpu.cfs_period_us", groups+"cpu,cpuacct/cpu.cfs_period_us")
	if err != nil || period == 0 {
		return 0, err
	}
	return float64(quota) / float64(period), nil
}

// mounted is one mount as the kernel tells it.
type mounted struct {
	path, kind string
	write      bool
}

// mounts reads what is mounted, in order. The last one at a path covers the others.
func mounts() (map[string]mounted, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]mounted{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		dash := slices.Index(fields, "-")
		if len(fields) < 6 || dash < 0 || dash+1 >= len(fields) {
			return nil, fmt.Errorf("mountinfo: %q", lines.Text())
		}
		m := mounted{path: unescaped(fields[4]), kind: fields[dash+1], write: !slices.Contains(strings.Split(fields[5], ","), "ro")}
		out[m.path] = m
	}
	return out, lines.Err()
}

// unescaped undoes the kernel's octal escapes of a path.
func unescaped(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// checkMounts compares every mount: the planned ones by access and file, those that every
// container has by name, and there may be no other.
func (p plan) checkMounts() error {
	have, err := mounts()
	if err != nil {
		return err
	}
	if m := have["/"]; m.write {
		return weaker("the root can be written")
	}
	for _, want := range p.Places {
		at, err := filepath.EvalSymlinks(want.Path)
		if err != nil {
			return weaker("%s is missing: %v", want.Path, err)
		}
		m, ok := have[at]
		if !ok {
			return weaker("nothing is mounted at %s", want.Path)
		}
		if m.write != want.Write {
			return weaker("%s is mounted with other access than asked", want.Path)
		}
		var st unix.Stat_t
		if err := unix.Stat(at, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: at, Err: err}
		}
		if st.Dev != want.Device || st.Ino != want.Inode {
			return fmt.Errorf("%w: what is mounted at %s is not what was verified", agent.ErrPolicyChanged, want.Path)
		}
		delete(have, at)
	}
	for _, m := range have {
		if !m.standard() {
			return weaker("%s is mounted at %s, which nobody asked for", m.kind, m.path)
		}
	}
	return nil
}

// standard says whether a mount is one that every container has.
func (m mounted) standard() bool {
	switch m.path {
	case "/", "/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/console", "/sys", "/tmp":
		return m.path == "/" || slices.Contains([]string{"proc", "tmpfs", "devpts", "mqueue", "sysfs"}, m.kind)
	case "/etc/resolv.conf", "/etc/hostname", "/etc/hosts", "/sbin/docker-init", "/usr/sbin/docker-init", "/dev/init":
		return !m.write
	}
	// Parts of them that are masked or read-only.
	return agent.Inside(m.path, "/proc") || agent.Inside(m.path, "/sys") && (!m.write || m.kind == "tmpfs")
}

// Parts of /proc that tell about the machine, and parts that control it.
var (
	masked   = []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug"}
	readOnly = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/bus", "/proc/fs", "/proc/irq", "/sys"}
)

// checkKernelFiles sees that those are masked and read-only, whatever way the runtime
// was misled (CVE-2025-31133).
func (p plan) checkKernelFiles() error {
	null := unix.Mkdev(1, 3)
	for _, path := range masked {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err == nil && (st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != null) {
			return weaker("%s is not masked", path)
		}
	}
	for _, path := range readOnly {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err == nil && st.Flags&unix.ST_RDONLY == 0 {
			return weaker("%s can be written", path)
		}
	}
	return nil
}

var devices = []string{
	"console", "core", "fd", "full", "init", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero",
}

func (p plan) checkDevices() error {
	entries, err := os.ReadDir("/dev")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !slices.Contains(devices, e.Name()) {
			return weaker("there is a device %s", e.Name())
		}
	}
	return nil
}

func (p plan) checkInterfaces() error {
	if !p.Alone {
		return nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			return weaker("there is a network interface %s", i.Name)
		}
	}
	return nil
}

// enter looks at the working directory, which must be the verified one and inside
// (CVE-2024-21626).
func (p plan) enter() error {
	if !filepath.IsAbs(p.Dir) || agent.Inside(p.Dir, "/proc") {
		return weaker("the working directory %q is none", p.Dir)
	}
	if p.Workspace == (agent.Pin{}) {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(p.Dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: p.Dir, Err: err}
	}
	if st.Dev != p.Workspace.Device || st.Ino != p.Workspace.Inode {
		return fmt.Errorf("%w: the working directory is not what was verified", agent.ErrPolicyChanged)
	}
	return nil
}
