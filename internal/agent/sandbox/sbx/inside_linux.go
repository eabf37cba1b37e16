package sbx

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
)

// The arguments by which this program is known inside a sandbox.
const (
	lineArg  = "turnpike-sbx-line"
	agentArg = "turnpike-sbx-agent"
)

// Entry belongs at the beginning of main in every program that starts sandboxes. Inside
// one it does its work there and exits; everywhere else it returns at once.
func Entry() {
	if len(os.Args) != 2 {
		return
	}
	switch os.Args[1] {
	case lineArg:
		os.Exit(runLine(os.Stdin, os.Stdout))
	case agentArg:
		fmt.Fprintln(os.Stderr, becomeAgent())
		os.Exit(126)
	}
}

// line is this program inside a sandbox, at the worker's other end.
type line struct {
	*lines
	mu   sync.Mutex // guards pid
	pid  int        // the agent's; zero before its stage reported
	next uint32
}

func runLine(in io.Reader, out io.Writer) int {
	l := &line{lines: newLines(in, out)}
	var p linePlan
	if err := readPlan(in, &p); err != nil {
		return 126
	}
	if err := l.ready(p); err != nil {
		text := err.Error()
		_ = l.tell(news{Failed: &text, Changed: errors.Is(err, agent.ErrPolicyChanged)})
		return 126
	}
	if l.tell(news{Ready: true}) != nil {
		return 126
	}
	orders := make(chan order)
	go func() {
		defer close(orders)
		_ = l.read(func(text []byte) error {
			var o order
			if err := json.Unmarshal(text, &o); err != nil {
				return err
			}
			orders <- o
			return nil
		}, nil)
	}()
	l.obey(orders)
	// The worker is gone, or wants the end, or the agent cannot be held still. The sandbox
	// itself is not this program's to remove.
	_ = l.signalOthers(unix.SIGKILL)
	return 0
}

// ready looks whether the sandbox is as planned and listens.
func (l *line) ready(p linePlan) error {
	for _, at := range p.Places {
		var fs unix.Statfs_t
		if err := unix.Statfs(at.Path, &fs); err != nil {
			return fmt.Errorf("the sandbox does not show %s: %w", at.Path, err)
		}
		if write := fs.Flags&unix.ST_RDONLY == 0; write != at.Write {
			return fmt.Errorf("the sandbox shows %s writable %t, not %t", at.Path, write, at.Write)
		}
	}
	if err := os.MkdirAll(inside, 0o700); err != nil {
		return err
	}
	for n, path := range p.Sockets {
		s, err := net.Listen("unix", path)
		if err != nil {
			return err
		}
		go l.accept(s, byte(n))
	}
	report, err := net.Listen("unix", filepath.Join(inside, "line"))
	if err != nil {
		return err
	}
	go l.report(report)
	return nil
}

func (l *line) accept(s net.Listener, n byte) {
	for {
		c, err := s.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		l.next++
		id := l.next
		l.mu.Unlock()
		go l.open(id, n, c.(*net.UnixConn))
	}
}

// report hears from the agent's stage: its pid, and then the end of file, if it was
// executed, or why it was not. Whoever else dials the socket later is not heard.
func (l *line) report(s net.Listener) {
	c, err := s.Accept()
	_ = s.Close()
	if err != nil {
		return
	}
	defer c.Close()
	said := bufio.NewReader(io.LimitReader(c, 64<<10))
	first, err := said.ReadString('\n')
	pid, bad := strconv.Atoi(strings.TrimSuffix(first, "\n"))
	var failed string
	if err != nil || bad != nil || pid <= 1 {
		failed = "the agent's stage did not report"
	} else {
		// Before it is the agent: its term may be over in between.
		l.mu.Lock()
		l.pid = pid
		l.mu.Unlock()
		why, err := io.ReadAll(said)
		if err == nil && len(why) == 0 {
			_ = l.tell(news{Running: true})
			return
		}
		failed = string(why)
	}
	_ = l.tell(news{Failed: &failed})
}

// tell says news, and what time it is here.
func (l *line) tell(n news) (err error) {
	if n.Clock, err = procs.Monotonic(); err != nil {
		return err
	}
	return l.say(n)
}

// obey does what the worker says and keeps the agent's term. It returns when the worker is
// gone, and when the agent cannot be held still at the end of its term.
func (l *line) obey(orders <-chan order) {
	term := procs.Term{
		Stop: func() error { return procs.Freeze(l.others) },
		Go:   func() error { return l.signalOthers(unix.SIGCONT) },
	}
	for {
		select {
		case o, open := <-orders:
			if !open {
				return
			}
			n := news{Did: o.Do}
			if err := l.carryOut(o, &term); err != nil {
				n.Error = err.Error()
			}
			if l.tell(n) != nil {
				return
			}
		case <-term.Fires():
			if term.End() != nil {
				return
			}
		}
	}
}

func (l *line) carryOut(o order, term *procs.Term) error {
	switch o.Do {
	case doTerminate:
		l.mu.Lock()
		pid := l.pid
		l.mu.Unlock()
		if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		return nil
	case doFreeze:
		return term.Freeze()
	case doThaw:
		return term.Thaw()
	case doUntil:
		return term.RunUntil(o.At)
	}
	return fmt.Errorf("unknown order %q", o.Do)
}

func (l *line) signalOthers(sig unix.Signal) error {
	all, err := l.others()
	for _, pid := range all {
		if e := unix.Kill(pid, sig); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// others are the processes of the agent: what descends from it, and what bears its
// session's marker, which a daemon keeps that left its parent.
func (l *line) others() ([]int, error) {
	l.mu.Lock()
	agentPID := l.pid
	l.mu.Unlock()
	if agentPID == 0 {
		return nil, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	marked := markerOf(agentPID)
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		parent, err := parentOf(pid)
		if err != nil {
			continue // it is gone
		}
		children[parent] = append(children[parent], pid)
		if marked != "" && markerOf(pid) == marked {
			out = append(out, pid)
		}
	}
	for queue := []int{agentPID}; len(queue) > 0; queue = queue[1:] {
		if _, err := parentOf(queue[0]); err == nil && !slices.Contains(out, queue[0]) {
			out = append(out, queue[0])
		}
		queue = append(queue, children[queue[0]]...)
	}
	return out, nil
}

// parentOf reads a process's parent. What counts follows the last parenthesis.
func parentOf(pid int) (int, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(f) < 2 {
		return 0, errors.New("stat: too short")
	}
	return strconv.Atoi(string(f[1]))
}

// markerOf is the variable that marks the processes of a session.
func markerOf(pid int) string {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return ""
	}
	for pair := range strings.SplitSeq(string(env), "\x00") {
		if strings.HasPrefix(pair, "TURNPIKE_SESSION=") {
			return pair
		}
	}
	return ""
}

// becomeAgent reads its plan, reports, and becomes the agent. It returns only if it fails.
func becomeAgent() error {
	var p agentPlan
	if err := readPlan(os.Stdin, &p); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: p.Report})
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if _, err := fmt.Fprintf(c, "%d\n", os.Getpid()); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	err = p.execute() // which closes c, if it comes to that
	_, _ = fmt.Fprint(c, err)
	return err
}

func (p agentPlan) execute() error {
	if err := os.Chdir(p.Dir); err != nil {
		return err
	}
	env := map[string]string{}
	var names []string
	set := func(pair string) {
		name, value, _ := strings.Cut(pair, "=")
		if _, ok := env[name]; !ok {
			names = append(names, name)
		}
		env[name] = value
	}
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		if !agent.NameGranted(p.Without, strings.ToUpper(name)) {
			set(pair)
		}
	}
	own := env["PATH"]
	for _, pair := range p.Env {
		set(pair)
	}
	if own != "" && env["PATH"] != own {
		env["PATH"] = strings.TrimPrefix(env["PATH"]+":"+own, ":") // where the template has its programs
	}
	if err := os.Setenv("PATH", env["PATH"]); err != nil {
		return err
	}
	path, err := exec.LookPath(p.Path)
	if err != nil {
		return err
	}
	var pairs []string
	for _, n := range names {
		pairs = append(pairs, n+"="+env[n])
	}
	if now, err := procs.Monotonic(); err != nil || p.Until != 0 && p.Until <= now {
		return cmp.Or(err, errOver)
	}
	return os.NewSyscallError("execve", syscall.Exec(path, p.Args, pairs))
}
