package procs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
)

// Entry is the first line of main in every program that starts trees, and of
// TestMain in every test that does (package confine's Entry calls it). In a
// root it does the root's work and exits; everywhere else it returns at once.
func Entry() { EntryFor(nil) }

// EntryFor is Entry in a program whose trees may be prepared by prepare.
func EntryFor(prepare Prepare) {
	if len(os.Args) == 1 && os.Args[0] == rootName {
		os.Exit(runRoot(prepare))
	}
}

// Become turns this process, which Launch.Before named, into the root it stood in
// for. It returns only if it fails. As it is says that whatever this thread gave up
// every thread did; otherwise the process is executed anew, which leaves this one.
func Become(asItIs bool, prepare Prepare) error {
	if asItIs {
		os.Exit(runRoot(prepare))
	}
	return os.NewSyscallError("execve", syscall.Exec(Self, []string{rootName}, os.Environ()))
}

// root is the process between a worker and a program.
type root struct {
	// namespace says that this is pid 1 of its own PID namespace.
	namespace bool
	self      process
	line      *os.File
	asked     *json.Decoder
	answers   *json.Encoder
	child     int // pidfd of the program
	groups    []Group
	term      Term
	// reaped carries every child that ended, and closes when there is none left.
	reaped chan ended
}

type ended struct {
	pid    int
	status syscall.WaitStatus
}

func runRoot(prepare Prepare) int {
	// Not readable through /proc by the program, whatever user both are.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	if err := unix.CloseRange(fdLine, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 126
	}
	setup := os.NewFile(fdSetup, "setup")
	r := &root{namespace: os.Getpid() == 1, reaped: make(chan ended, 16)}
	r.term = Term{
		Stop: func() error { return freeze(r.signalAll, r.others) },
		Go:   func() error { return r.signalAll(unix.SIGCONT) },
	}
	signals := make(chan os.Signal, 16)
	// SIGPIPE, SIGQUIT and the terminal's stops are caught only so that they do
	// nothing: ignoring them would be inherited by the program.
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP,
		unix.SIGPIPE, unix.SIGQUIT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
	pid, err := r.start(setup, prepare)
	if err != nil {
		Report(setup, err)
		return 126
	}
	setup.Close()
	exit := r.run(pid, signals)
	for _, g := range r.groups {
		g.remove()
	}
	_ = r.answers.Encode(answer{Exit: &exit}) // the worker may be gone
	if exit.Signal != 0 {
		return 128 + exit.Signal
	}
	return exit.Code
}

// Report tells the worker, through the set-up pipe, that the program will not run.
func Report(setup *os.File, err error) {
	var f *Failure
	if !errors.As(err, &f) {
		f = NewFailure("set up", err, agent.ErrUnsupported)
	}
	text, err := json.Marshal(f)
	if err == nil {
		_, err = setup.Write(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, f)
	}
}

// Ready tells the worker, through the set-up pipe, that the program is executed next.
func Ready(setup *os.File) error {
	_, err := setup.WriteString(readyWord)
	return err
}

// start executes the program.
func (r *root) start(setup *os.File, prepare Prepare) (int, error) {
	var p plan
	if err := Unseal(fdPlan, &p); err != nil {
		return 0, NewFailure("read the plan", err, agent.ErrUnsupported)
	}
	if err := unix.SetNonblock(fdLine, true); err != nil {
		return 0, NewFailure("open the line", err, agent.ErrUnsupported)
	}
	r.line = os.NewFile(fdLine, "line")
	r.asked, r.answers = json.NewDecoder(r.line), json.NewEncoder(r.line)
	if err := r.term.begin(r.asked); err != nil {
		return 0, err
	}
	self, err := stat(os.Getpid())
	if err != nil {
		return 0, NewFailure("read /proc", err, agent.ErrUnsupported)
	}
	r.self = self
	if !r.namespace {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return 0, NewFailure("become a subreaper", err, agent.ErrUnsupported)
		}
	}
	for i, name := range p.Groups {
		at := uintptr(FirstPassed + p.Passed + 2*i)
		r.groups = append(r.groups, Group{Name: name, Parent: os.NewFile(at, name), Dir: os.NewFile(at+1, name)})
	}
	if err := r.term.Unasked(fdLine); err != nil {
		return 0, err
	}
	// Before, not after: what this process then comes to, nobody takes for unstarted.
	if err := Ready(setup); err != nil {
		return 0, err // nobody is left to be told
	}
	pid, err := execute(p, prepare)
	if err != nil {
		return 0, err
	}
	for i := range p.Passed {
		unix.Close(FirstPassed + i)
	}
	if r.child, err = unix.PidfdOpen(pid, 0); err == nil {
		err = r.letGo()
	}
	if err != nil {
		r.killAll()
		return 0, NewFailure("hold the program", err, agent.ErrUnsupported)
	}
	return pid, nil
}

// execute executes the program of a plan, in a session of its own: kill(0) by the
// program must not reach the root.
func execute(p plan, prepare Prepare) (int, error) {
	if p.Prepared {
		if prepare == nil {
			return 0, NewFailure("prepare the program", errors.New("this launcher does not know how"), agent.ErrUnsupported)
		}
		calls, err := prepare(FirstPassed)
		if err != nil {
			return 0, err
		}
		return forkCalls(calls)
	}
	pid, err := syscall.ForkExec(p.Path, p.Args, &syscall.ProcAttr{
		Dir: p.Dir, Env: p.Env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, NewFailure("execute "+p.Path, err, agent.ErrUnready)
	}
	return pid, nil
}

// letGo gives up the program's standard streams, so that their other ends see
// the program's own end and not the root's.
func (*root) letGo() error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/dev/null: %w", err)
	}
	defer unix.Close(null)
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return err
		}
	}
	return nil
}

func (r *root) run(pid int, signals <-chan os.Signal) agent.Exit {
	go r.reap()
	requests := make(chan request)
	go r.listen(requests)
	// Without a word from the worker or the program, the end was not the program's.
	killed := agent.Exit{Code: -1, Signal: int(unix.SIGKILL)}
	for {
		select {
		case s := <-signals:
			if s == unix.SIGTERM || s == unix.SIGINT || s == unix.SIGHUP {
				_ = unix.PidfdSendSignal(r.child, s.(unix.Signal), nil, 0)
			}
		case q, open := <-requests:
			if !open {
				return r.end(pid, killed)
			}
			a := answer{Did: q.Do}
			if err := r.do(q); err != nil {
				a.Error = err.Error()
			}
			_ = r.answers.Encode(a)
		case <-r.term.Fires():
			if r.term.End() != nil {
				return r.end(pid, killed)
			}
		case e, open := <-r.reaped:
			if !open {
				return killed
			}
			if e.pid == pid {
				return r.end(pid, exitOf(e.status))
			}
		}
	}
}

// reap waits for every child: those of the program that lost their parent too.
func (r *root) reap() {
	defer close(r.reaped)
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, unix.WALL, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return // ECHILD: nothing is left
		}
		r.reaped <- ended{pid, ws}
	}
}

// listen hands on what the worker says, and closes requests when it is gone.
func (r *root) listen(requests chan<- request) {
	defer close(requests)
	for {
		var q request
		if r.asked.Decode(&q) != nil {
			return
		}
		requests <- q
	}
}

// end kills what is left and returns how the program ended: exit, unless the
// program's own end was on its way.
func (r *root) end(pid int, exit agent.Exit) agent.Exit {
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for {
		// Looking for others takes reading the whole process table.
		if r.hasChildren() {
			r.killAll()
		}
		select {
		case e, open := <-r.reaped:
			if !open {
				return exit
			}
			if e.pid == pid {
				exit = exitOf(e.status)
			}
		case <-again.C:
		}
	}
}

// hasChildren says whether there is a process to end, or to reap. Everything of the
// tree descends from the root, and what loses its parent is the root's own child.
func (*root) hasChildren() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	return err != unix.ECHILD
}

func (r *root) killAll() {
	// Every error here means that something is gone already; the loop that calls
	// it ends only when there is no child left.
	for _, g := range r.groups {
		KillGroup(g.Dir)
	}
	_ = r.signalAll(unix.SIGKILL)
}

// signalAll signals everything but the root.
func (r *root) signalAll(sig unix.Signal) error {
	if r.namespace {
		return signalOthers(sig)
	}
	others, err := r.others()
	for _, p := range others {
		err = errors.Join(err, p.signal(sig))
	}
	return err
}

// others lists everything alive but the root.
func (r *root) others() ([]process, error) {
	if r.namespace {
		return others()
	}
	return r.self.descendants()
}

func (r *root) do(q request) error {
	switch q.Do {
	case doFreeze:
		return r.term.Freeze()
	case doThaw:
		return r.term.Thaw()
	case doUntil:
		return r.term.RunUntil(q.At)
	}
	return fmt.Errorf("unknown request %q", q.Do)
}

func exitOf(ws syscall.WaitStatus) agent.Exit {
	if ws.Signaled() {
		return agent.Exit{Code: -1, Signal: int(ws.Signal())}
	}
	return agent.Exit{Code: ws.ExitStatus()}
}
