//go:build linux

package sbx_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
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

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"turnpike/internal/agent/sandbox/sbx"
)

// TestMain makes this program what the tests need of it: the stage inside a sandbox, the
// sbx that keeps them, what sbx executes inside, and an agent that dials a socket.
func TestMain(m *testing.M) {
	sbx.Entry()
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case "standin-sbx":
			os.Exit(standIn{os.Args[2]}.run(os.Args[3:]))
		case "standin-inside":
			fmt.Fprintln(os.Stderr, enter(os.Args[2], os.Args[3:]))
			os.Exit(125)
		case "standin-dial":
			os.Exit(dial(os.Args[2], os.Args[3]))
		}
	}
	goleak.VerifyTestMain(m)
}

// standIn behaves as the documentation of sbx says, keeps its sandboxes in a directory,
// and records how it was called. A file "do-COMMAND" there has it fail or hang instead.
type standIn struct{ dir string }

// sandbox is what the stand-in keeps of one.
type sandbox struct {
	Template   string
	Agent      string
	Workspaces []string
	Allow      []string
	Deny       []string
}

// call is one call of the stand-in.
type call struct {
	Args []string
	Env  []string
}

func (s standIn) file(names ...string) string {
	return filepath.Join(append([]string{s.dir}, names...)...)
}

func (s standIn) setting(name, otherwise string) string {
	text, err := os.ReadFile(s.file(name))
	if err != nil {
		return otherwise
	}
	return strings.TrimSpace(string(text))
}

func (s standIn) run(args []string) int {
	s.record(args)
	name := args[0]
	if name == "policy" {
		name += "-" + args[1]
	}
	switch s.setting("do-"+name, "") {
	case "fail":
		fmt.Fprintln(os.Stderr, "ERROR: the daemon does not answer")
		return 1
	case "hang":
		select {}
	}
	if err := s.do(args); err != nil {
		var code exitCode
		if errors.As(err, &code) {
			return int(code)
		}
		fmt.Fprintln(os.Stderr, "ERROR:", err)
		return 1
	}
	return 0
}

type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit %d", int(c)) }

func (s standIn) record(args []string) {
	text, err := json.Marshal(call{args, os.Environ()})
	if err != nil {
		panic(err)
	}
	f, err := os.OpenFile(s.file("calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.Write(append(text, '\n'))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		panic(err)
	}
}

func (s standIn) do(args []string) error {
	switch args[0] {
	case "version":
		fmt.Println(s.setting("version", "sbx version: v0.43.1 abcdef0"))
		return nil
	case "settings":
		fmt.Println(s.setting("ssh-agent", "false"))
		return nil
	case "create":
		return s.create(args[1:])
	case "ls":
		all, err := filepath.Glob(s.file("sandbox", "*"))
		for _, b := range all {
			fmt.Println(filepath.Base(b))
		}
		return err
	case "rm":
		return s.remove(args[len(args)-1])
	case "exec":
		return s.exec(args[1:])
	case "policy":
		return s.policy(args[1:])
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func (s standIn) load(name string) (b sandbox, err error) {
	text, err := os.ReadFile(s.file("sandbox", name, "config"))
	if err != nil {
		return b, fmt.Errorf("sandbox %q not found", name)
	}
	err = json.Unmarshal(text, &b)
	return b, err
}

func (s standIn) save(name string, b sandbox) error {
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return os.WriteFile(s.file("sandbox", name, "config"), text, 0o600)
}

func (s standIn) create(args []string) error {
	var b sandbox
	name := ""
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case "--quiet":
			args = args[1:]
			continue
		case "--name":
			name = args[1]
		case "--template":
			b.Template = args[1]
		case "--deny-network":
			b.Deny = append(b.Deny, args[1])
		case "--memory", "--cpus":
		default:
			return fmt.Errorf("unknown flag: %s", args[0])
		}
		args = args[2:]
	}
	if len(args) < 2 || name == "" {
		return errors.New("usage: sbx create [flags] AGENT PATH [PATH...]")
	}
	b.Agent, b.Workspaces = args[0], args[1:]
	for _, w := range b.Workspaces {
		if _, err := os.Stat(strings.TrimSuffix(w, ":ro")); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.file("sandbox", name, "tmp"), 0o700); err != nil {
		return err
	}
	if err := os.MkdirAll(s.file("sandbox", name, "pids"), 0o700); err != nil {
		return err
	}
	return s.save(name, b)
}

func (s standIn) remove(name string) error {
	if _, err := s.load(name); err != nil {
		return err
	}
	for {
		pids, err := os.ReadDir(s.file("sandbox", name, "pids"))
		if err != nil {
			return err
		}
		left := 0
		for _, p := range pids {
			pid, err := strconv.Atoi(p.Name())
			if err == nil && syscall.Kill(-pid, syscall.SIGKILL) == nil {
				left++
			}
		}
		if left == 0 {
			return os.RemoveAll(s.file("sandbox", name))
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // the stand-in's own, for the kernel to end them
	}
}

func (s standIn) exec(args []string) error {
	dir := ""
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case "-i":
			args = args[1:]
		case "--workdir":
			dir, args = args[1], args[2:]
		default:
			return fmt.Errorf("unknown flag: %s", args[0])
		}
	}
	name := args[0]
	b, err := s.load(name)
	if err != nil {
		return err
	}
	if s.setting("weaken", "") != "" {
		for i, w := range b.Workspaces {
			b.Workspaces[i] = strings.TrimSuffix(w, ":ro")
		}
	}
	plan, err := json.Marshal(map[string]any{"Tmp": s.file("sandbox", name, "tmp"), "Dir": dir, "Workspaces": b.Workspaces})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append([]string{"standin-inside", string(plan)}, args[1:]...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/home/agent", "ANTHROPIC_API_KEY=proxy-managed", "GH_TOKEN=proxy-managed",
		"SSH_AUTH_SOCK=/run/ssh", "TEMPLATE=yes",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := s.file("sandbox", name, "pids", strconv.Itoa(cmd.Process.Pid))
	if err := os.WriteFile(pid, nil, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = cmd.Wait()
	var exited *exec.ExitError
	if errors.As(err, &exited) {
		ws := exited.Sys().(syscall.WaitStatus)
		if ws.Signaled() {
			return exitCode(128 + int(ws.Signal()))
		}
		return exitCode(ws.ExitStatus())
	}
	return err
}

// enter arranges a sandbox's own view in this process's mount namespace: a private /tmp,
// and the workspaces at their paths, read-only where they are; and executes a command.
func enter(text string, args []string) error {
	var p struct {
		Tmp, Dir   string
		Workspaces []string
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private: %w", err)
	}
	var sources []int
	for _, w := range p.Workspaces {
		fd, err := unix.Open(strings.TrimSuffix(w, ":ro"), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		sources = append(sources, fd)
	}
	if err := unix.Mount(p.Tmp, "/tmp", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("/tmp: %w", err)
	}
	for i, w := range p.Workspaces {
		at, only := strings.CutSuffix(w, ":ro")
		var st unix.Stat_t
		if err := unix.Fstat(sources[i], &st); err != nil {
			return err
		}
		if _, err := os.Lstat(at); err != nil {
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				err = os.Mkdir(at, 0o755)
			} else {
				err = os.WriteFile(at, nil, 0o600)
			}
			if err != nil {
				return err
			}
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", sources[i]), at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		if only {
			if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
		}
	}
	if p.Dir != "" {
		if err := os.Chdir(p.Dir); err != nil {
			return err
		}
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	ownClock()
	return syscall.Exec(path, args, os.Environ())
}

// ownClock gives what this process executes a monotonic clock of its own, as a virtual
// machine has, where the kernel does that for this user.
func ownClock() {
	if unix.Unshare(unix.CLONE_NEWTIME) == nil {
		_ = os.WriteFile("/proc/self/timens_offsets", []byte("monotonic 1000000 0\n"), 0)
	}
}

func init() { //nolint:gochecknoinits // later this need not be the first thread any more
	if len(os.Args) > 1 && os.Args[1] == "standin-inside" {
		runtime.LockOSThread() // /proc/self is the first thread, whose clock it must be
	}
}

func (s standIn) policy(args []string) error {
	verb := args[0]
	if verb == "ls" {
		fmt.Println("POLICY                                 SOURCE   APPLIES TO          SUMMARY")
		for source, applies := range map[string]string{"local": "all", "kit": "sandbox:" + args[1]} {
			if n := s.setting("allowed-by-"+source, ""); n != "" {
				fmt.Printf("%-38s %-8s %-19s network: %s allow, 1 deny\n", source+"-policy", source, applies, n)
			}
		}
		return nil
	}
	if args[1] != "network" || args[2] != "--sandbox" {
		return fmt.Errorf("usage: sbx policy %s network --sandbox SANDBOX", verb)
	}
	name, rest := args[3], args[4:]
	b, err := s.load(name)
	if err != nil {
		return err
	}
	switch verb {
	case "allow":
		b.Allow = append(b.Allow, strings.Split(rest[0], ",")...)
	case "deny":
		b.Deny = append(b.Deny, strings.Split(rest[0], ",")...)
	case "rm":
		b.Allow = slices.DeleteFunc(b.Allow, func(r string) bool { return r == rest[1] })
	case "check":
		target := rest[0]
		if !strings.Contains(target, ":") {
			target += ":443"
		}
		if s.setting("governed", "") == "" && matches(b.Allow, target) && !matches(b.Deny, target) {
			fmt.Println("Allowed:", rest[0])
		} else {
			fmt.Println("Denied:", rest[0])
			return exitCode(1)
		}
		return nil
	}
	return s.save(name, b)
}

// matches says whether one of the rules is about a host and port.
func matches(rules []string, target string) bool {
	host, port, _ := net.SplitHostPort(target)
	return slices.ContainsFunc(rules, func(rule string) bool {
		of, only, err := net.SplitHostPort(rule)
		if err != nil {
			of, only = rule, port
		}
		suffix, wild := strings.CutPrefix(of, "**")
		return only == port && (of == host || wild && strings.HasSuffix(host, suffix))
	})
}

// dial says something on a socket and prints what comes back.
func dial(socket, text string) int {
	c, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println("dial:", err)
		return 1
	}
	fmt.Fprintln(c, text)
	if err := c.(*net.UnixConn).CloseWrite(); err != nil {
		return 1
	}
	buf := make([]byte, 1<<10)
	for {
		n, err := c.Read(buf)
		os.Stdout.Write(buf[:n])
		if err != nil {
			return 0
		}
	}
}
