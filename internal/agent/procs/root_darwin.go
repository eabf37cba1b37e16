package procs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
)

// lookAgain is how often the root looks who is there. What leaves its parent, its
// group and its environment between two looks is not found.
const lookAgain = 25 * time.Millisecond

// Entry is the first line of main in every program that starts trees. In a root it
// does the root's work and exits; everywhere else it returns at once.
func Entry() {
	if len(os.Args) == 1 && os.Args[0] == rootName {
		os.Exit(runRoot())
	}
}

// root is the process between a worker and a program. This system has neither process
// namespaces nor subreapers, so it keeps account of who belongs to the program.
type root struct {
	line    *os.File
	asked   *json.Decoder
	answers *json.Encoder
	pid     int
	program process
	reaped  chan syscall.WaitStatus // has room for one
	family  family
	term    Term
}

func runRoot() int {
	for fd := range FirstPassed + 8 {
		if fd >= fdLine {
			unix.CloseOnExec(fd)
		}
	}
	setup := os.NewFile(fdSetup, "setup")
	r := &root{reaped: make(chan syscall.WaitStatus, 1)}
	r.term = Term{
		Stop: func() error { return freeze(r.signalAll, r.members) },
		Go:   func() error { return r.signalAll(unix.SIGCONT) },
	}
	signals := make(chan os.Signal, 16)
	// The last are caught only so that they do nothing: ignoring them would be
	// inherited by the program.
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP,
		unix.SIGPIPE, unix.SIGQUIT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
	if err := r.start(setup); err != nil {
		Report(setup, err)
		return 126
	}
	setup.Close()
	exit := r.run(signals)
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

// start executes the program, or what confines the stage that will.
func (r *root) start(setup *os.File) error {
	var p plan
	if err := Unseal(fdPlan, &p); err != nil {
		return NewFailure("read the plan", err, agent.ErrUnsupported)
	}
	if err := unix.SetNonblock(fdLine, true); err != nil {
		return NewFailure("open the line", err, agent.ErrUnsupported)
	}
	r.line = os.NewFile(fdLine, "line")
	r.asked, r.answers = json.NewDecoder(r.line), json.NewEncoder(r.line)
	if err := r.term.begin(r.asked); err != nil {
		return err
	}
	files := []uintptr{0, 1, 2}
	if p.Stage {
		files = append(files, setup.Fd())
		for i := range p.Passed {
			files = append(files, uintptr(FirstPassed+i))
		}
	}
	if err := r.term.Unasked(fdLine); err != nil {
		return err
	}
	// Before, not after: what this process then comes to, nobody takes for unstarted.
	if !p.Stage {
		if err := Ready(setup); err != nil {
			return err // nobody is left to be told
		}
	}
	pid, err := syscall.ForkExec(p.Path, p.Args, &syscall.ProcAttr{
		Dir: p.Dir, Env: p.Env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return NewFailure("execute "+p.Path, err, agent.ErrUnready)
	}
	for i := range p.Passed {
		unix.Close(FirstPassed + i)
	}
	r.pid = pid
	// Not waited for yet, so the pid is its own.
	if r.program, err = stat(pid); err == nil {
		err = letGo()
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		return NewFailure("hold the program", err, agent.ErrUnsupported)
	}
	r.family = newFamily(r.program, os.Environ())
	go r.reap()
	return nil
}

// letGo gives up the program's standard streams, so that their other ends see
// the program's own end and not the root's.
func letGo() error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/dev/null: %w", err)
	}
	defer unix.Close(null)
	for fd := range 3 {
		if err := unix.Dup2(null, fd); err != nil {
			return err
		}
	}
	return nil
}

func (r *root) reap() {
	for {
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(r.pid, &ws, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		r.reaped <- ws
		return
	}
}

func (r *root) run(signals <-chan os.Signal) agent.Exit {
	requests := make(chan request)
	go r.listen(requests)
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	// Without a word from the worker or the program, the end was not the program's.
	killed := agent.Exit{Code: -1, Signal: int(unix.SIGKILL)}
	for {
		select {
		case s := <-signals:
			if s == unix.SIGTERM || s == unix.SIGINT || s == unix.SIGHUP {
				_ = r.program.signal(s.(unix.Signal))
			}
		case q, open := <-requests:
			if !open {
				return r.end(killed)
			}
			a := answer{Did: q.Do}
			if err := r.do(q); err != nil {
				a.Error = err.Error()
			}
			_ = r.answers.Encode(a)
		case <-r.term.Fires():
			if r.term.End() != nil {
				return r.end(killed)
			}
		case <-look.C:
			_, _ = r.members() // a table that could not be read is read again
		case ws := <-r.reaped:
			return r.end(exitOf(ws))
		}
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
func (r *root) end(exit agent.Exit) agent.Exit {
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for {
		left, err := r.members()
		for _, p := range left {
			_ = p.signal(unix.SIGKILL) // what is gone is gone; the loop looks again
		}
		if err == nil && len(left) == 0 {
			break
		}
		<-again.C
	}
	select {
	case ws := <-r.reaped:
		return exitOf(ws)
	default:
		return exit
	}
}

// members lists everything alive of the program.
func (r *root) members() ([]process, error) {
	all, err := table()
	if err != nil {
		return nil, err
	}
	return r.family.among(all, bears), nil
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

func (r *root) signalAll(sig unix.Signal) error {
	all, err := r.members()
	for _, p := range all {
		err = errors.Join(err, p.signal(sig))
	}
	return err
}

func exitOf(ws syscall.WaitStatus) agent.Exit {
	if ws.Signaled() {
		return agent.Exit{Code: -1, Signal: int(ws.Signal())}
	}
	return agent.Exit{Code: ws.ExitStatus()}
}

// newFamily is the family of program, whose members bear the root's own marker.
func newFamily(program process, environ []string) family {
	f := family{known: map[int]uint64{program.pid: program.start}, groups: map[int]bool{}}
	for _, v := range environ {
		if strings.HasPrefix(v, markerName+"=") {
			f.marker = []byte(v)
		}
	}
	return f
}
