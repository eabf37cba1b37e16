package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/egress/door"
	"turnpike/internal/agent/procs"
)

// The arguments by which the worker's program is told what it is for in a container.
const (
	stageArg = "box-stage"
	lookArg  = "box-look"
)

const killed = unix.SIGKILL

// Entry belongs first in the main of every program that is an Engine's stage, and first
// in TestMain where a test's is. In a container it does the stage's work and exits;
// everywhere else it returns at once.
func Entry() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == stageArg:
		os.Exit(stage(os.Args[2]))
	case len(os.Args) == 2 && os.Args[1] == lookArg:
		if err := look(os.Getenv("PATH"), os.Stdout); err != nil { //nolint:forbidigo // this is main, of the look
			fmt.Fprintf(os.Stderr, "%s: %v\n", lookArg, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// stage runs the agent that the line's other end has planned, once all is as planned.
func stage(path string) int {
	// Not readable through /proc by the agent, although both are one user.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	if err := keepDescriptors(); err != nil {
		return refuse(nil, "close what was inherited", err)
	}
	line, err := dial(path)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", stageArg, err)
		return 126
	}
	streams, p, err := takeOver(line)
	if err != nil {
		return refuse(line, "take over", err)
	}
	if err := p.check(); err != nil {
		return refuse(line, "look around", err)
	}
	if p.Doors {
		if err := giveDoors(path); err != nil {
			return refuse(line, "open the ways out", err)
		}
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	cmd := &exec.Cmd{
		Path: p.Path, Args: p.Args, Env: p.Env, Dir: p.Dir,
		Stdin: streams[0], Stdout: streams[1], Stderr: streams[2],
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	term := &procs.Term{Stop: procs.FreezeOthers, Go: procs.ThawOthers}
	if err := p.asked(term, line); err != nil {
		return refuse(line, "start in time", err)
	}
	if err := cmd.Start(); err != nil {
		return refuse(line, "execute "+p.Path, fmt.Errorf("%w: %w", agent.ErrUnready, err))
	}
	for _, f := range streams {
		_ = f.Close() // or the end of the agent's output would never be seen
	}
	told := json.NewEncoder(line)
	if err := told.Encode(news{Running: true}); err != nil {
		return 126
	}
	go obey(line, cmd.Process, term)
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may have ended
		}
	}()
	_ = cmd.Wait() // the state says how it ended
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	exit := agent.Exit{Code: status.ExitStatus()}
	if status.Signaled() {
		exit = agent.Exit{Code: -1, Signal: int(status.Signal())}
	}
	_ = told.Encode(news{Exit: &exit}) // the worker may be gone
	return 0
}

// asked says why the agent must not be executed, any more; nil where it may. Its term begins.
func (p plan) asked(term *procs.Term, line *net.UnixConn) error {
	if err := term.RunUntil(p.Until); err != nil {
		return err
	}
	raw, err := line.SyscallConn()
	if err != nil {
		return err
	}
	var unasked error
	err = raw.Control(func(fd uintptr) { unasked = term.Unasked(int(fd)) })
	return errors.Join(err, unasked)
}

// obey does what the worker says and keeps the agent's term. When the worker is gone so
// is this container, and when the agent cannot be held still at the end of its term.
func obey(line *net.UnixConn, agent *os.Process, term *procs.Term) {
	orders := make(chan order)
	go func() {
		for d := json.NewDecoder(line); ; {
			var o order
			if d.Decode(&o) != nil {
				os.Exit(126)
			}
			orders <- o
		}
	}()
	told := json.NewEncoder(line)
	for {
		select {
		case o := <-orders:
			n := news{Did: o.Do}
			if err := o.carryOut(agent, term); err != nil {
				n.Error = err.Error()
			}
			_ = told.Encode(n) // the worker may be gone
		case <-term.Fires():
			if term.End() != nil {
				os.Exit(126)
			}
		}
	}
}

func (o order) carryOut(agent *os.Process, term *procs.Term) error {
	switch o.Do {
	case doTerminate:
		_ = agent.Signal(unix.SIGTERM) // it may have ended
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

// refuse tells the worker that the agent will not run.
func refuse(line io.Writer, step string, err error) int {
	var f *procs.Failure
	if !errors.As(err, &f) {
		f = procs.NewFailure(step, err, agent.ErrUnsupported)
	}
	if line == nil || json.NewEncoder(line).Encode(news{Failed: f}) != nil {
		fmt.Fprintln(os.Stderr, f)
	}
	return 126
}

// giveDoors opens the ways out and passes them to the worker, which dials the same line
// a second time.
func giveDoors(path string) error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: filepath.Base(path)})
	if err != nil {
		return err
	}
	defer conn.Close()
	return door.Give(conn)
}

// keepDescriptors has no descriptor but the three streams reach the agent, whatever a
// runtime left open (CVE-2024-21626).
func keepDescriptors() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
