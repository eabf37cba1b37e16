//go:build linux || darwin

package procs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
)

const (
	// lineName is the name of the root's end of the line in a command's
	// ExtraFiles, by which a Launch knows that Start prepared the command.
	lineName = "turnpike-line"
	// endBound is how long a root may take to end its tree before it is done from here.
	endBound = 5 * time.Second
	// maxFailure is more than a Failure is long.
	maxFailure = 64 << 10
)

var (
	// setupBound is how long a root may take to execute its program. It is long
	// because a loaded machine is no failure, and there because a hung file system is.
	setupBound = time.Minute
	// answerBound is how long a root may take to answer.
	answerBound = 2 * stopBound
)

// Tree is a started program together with everything it starts.
type Tree struct {
	cmd      *exec.Cmd
	identity agent.Identity
	root     process

	mu      sync.Mutex // guards line and what it said
	line    *net.UnixConn
	answers *json.Decoder
	late    int // answers that nobody waits for any more
	exit    *agent.Exit

	wait func() (agent.Exit, error)
}

var (
	_ agent.Process = (*Tree)(nil)
	_ agent.Bounded = (*Tree)(nil)
)

// Start starts cmd through start, which is Supervised or a Confiner's Start bound
// to its confinement, and returns once the program was executed. cmd's standard
// streams, path, arguments, environment and directory are the program's; its
// ExtraFiles and SysProcAttr must be unset, and it must not have been made with
// a context: the tree is stopped, never the root alone. Wait must be called.
func Start(cmd *exec.Cmd, start func(*exec.Cmd) error) (*Tree, error) {
	return StartUntil(cmd, start, time.Time{})
}

// StartUntil is Start of a tree that has its end before its first instruction, as
// RunUntil gives it: whoever starts it may be held up at any moment until it could call
// that. A program whose time is over by then is not executed. The zero time is no end.
func StartUntil(cmd *exec.Cmd, start func(*exec.Cmd) error, until time.Time) (*Tree, error) {
	if cmd.ExtraFiles != nil || cmd.SysProcAttr != nil || cmd.Cancel != nil {
		return nil, fmt.Errorf("start %s: the command has extra files, process attributes or a context of its own", cmd.Path)
	}
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	line, far, err := newLine()
	if err != nil {
		return nil, fmt.Errorf("start %s: the line: %w", cmd.Path, err)
	}
	if err := begin(line, until); err != nil {
		line.Close()
		far.Close()
		return nil, fmt.Errorf("start %s: the line: %w", cmd.Path, err)
	}
	cmd.ExtraFiles = []*os.File{far}
	err = start(cmd)
	far.Close()
	cmd.ExtraFiles = nil
	if err != nil {
		line.Close()
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	t := &Tree{cmd: cmd, line: line, answers: json.NewDecoder(line)}
	t.wait = sync.OnceValues(t.waitOnce)
	// The root is this process's child and not waited for yet: its pid is its own.
	if t.root, err = stat(cmd.Process.Pid); err != nil {
		line.Close()
		_ = cmd.Wait() // the root ends with the line
		return nil, fmt.Errorf("start %s: identify the root: %w", cmd.Path, err)
	}
	t.identity = agent.Identity{
		Kind: agent.KindProcess, PID: t.root.pid, StartTime: t.root.start, BootID: boot,
	}
	return t, nil
}

// newLine makes the socket between worker and root; both ends close on exec.
func newLine() (*net.UnixConn, *os.File, error) {
	fds, err := socketpair()
	if err != nil {
		return nil, nil, err
	}
	near, far := os.NewFile(uintptr(fds[0]), lineName), os.NewFile(uintptr(fds[1]), lineName)
	defer near.Close()
	conn, err := net.FileConn(near)
	if err != nil {
		far.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), far, nil
}

// await returns nil once the set-up pipe of a root closed with no more than the word that
// the program was about to be executed. A root that was held up after that word may have
// executed it, for all anybody knows: it is ended with its tree, and counts as started.
func await(root int, r *os.File) error {
	if err := r.SetReadDeadline(time.Now().Add(setupBound)); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	text, late := io.ReadAll(io.LimitReader(r, maxFailure))
	if late != nil {
		if err := abort(root); err != nil {
			late = errors.Join(late, err)
		}
		_ = r.SetReadDeadline(time.Now().Add(time.Second)) // it is written, or never will be
		rest, _ := io.ReadAll(io.LimitReader(r, maxFailure))
		text = append(text, rest...)
	}
	text, ready := bytes.CutPrefix(text, []byte(readyWord))
	if len(text) == 0 && ready {
		return nil
	}
	if late != nil {
		return fmt.Errorf("start: the root did not get ready: %w: %w", agent.ErrUnready, late)
	}
	f := new(Failure)
	if err := json.Unmarshal(text, f); err != nil {
		return fmt.Errorf("start: %w: the root ended before the program was executed and said %q", agent.ErrUnready, text)
	}
	return f
}

// abort ends a root, which is not waited for yet, and what it may have executed.
func abort(root int) error {
	p, err := stat(root)
	if err != nil {
		return err
	}
	// It must not execute anything while that is looked for.
	if err := p.signal(unix.SIGSTOP); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), endBound)
	defer cancel()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for p.state = 0; !p.stopped(); {
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("process %d has not stopped: %w", root, context.Cause(ctx))
		}
		if p, err = stat(root); err != nil {
			return err
		}
	}
	return endTree(ctx, p)
}

// Identity names the root.
func (t *Tree) Identity() agent.Identity { return t.identity }

// Terminate asks the program to end. It is no error that it already did.
func (t *Tree) Terminate() error {
	if err := t.root.signal(unix.SIGTERM); err != nil {
		return fmt.Errorf("terminate: %w", err)
	}
	return nil
}

// Freeze stops the whole tree and returns when it stands still.
func (t *Tree) Freeze() error { return t.ask(request{Do: doFreeze}) }

// Thaw lets a frozen tree go on, what the program itself had stopped included.
func (t *Tree) Thaw() error { return t.ask(request{Do: doThaw}) }

// RunUntil has the tree stand still at a time, unless it was given a later one by then.
// Its root sees to that, whatever becomes of this process.
func (t *Tree) RunUntil(at time.Time) error {
	end, err := TermEnd(at)
	if err != nil {
		return fmt.Errorf("until: %w", err)
	}
	return t.ask(request{Do: doUntil, At: end})
}

// begin says the first word of a line, which its root reads before it executes anything.
func begin(line *net.UnixConn, until time.Time) error {
	q := request{Do: doUntil}
	if !until.IsZero() {
		var err error
		if q.At, err = TermEnd(until); err != nil {
			return err
		}
	}
	return json.NewEncoder(line).Encode(q)
}

func (t *Tree) ask(q request) error {
	do := q.Do
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.line.SetDeadline(time.Now().Add(answerBound)); err != nil {
		return fmt.Errorf("%s: %w", do, t.gone(err))
	}
	if err := json.NewEncoder(t.line).Encode(q); err != nil {
		return fmt.Errorf("%s: %w", do, t.gone(err))
	}
	for {
		a, err := t.hearLocked()
		if err != nil {
			t.late++
			return fmt.Errorf("%s: %w", do, t.gone(err))
		}
		switch {
		case a.Did == "":
		case t.late > 0:
			t.late--
		case a.Error != "":
			return fmt.Errorf("%s: %s", do, a.Error)
		default:
			return nil
		}
	}
}

// gone turns the end of the line into what it means.
func (*Tree) gone(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) {
		return os.ErrProcessDone
	}
	return err
}

// hearLocked gives the next thing the root says and remembers how the program ended.
func (t *Tree) hearLocked() (answer, error) {
	var a answer
	err := t.answers.Decode(&a)
	if a.Exit != nil {
		t.exit = a.Exit
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// A decoder that failed reads no more, and a root that was held up will answer yet.
		t.answers = json.NewDecoder(io.MultiReader(t.answers.Buffered(), t.line))
	}
	return a, err
}

// Kill ends the whole tree and returns once it is gone. It works however little
// the root still does.
func (t *Tree) Kill(ctx context.Context) error {
	// Only this half is closed: how the program ended is still to be heard.
	// A line that cannot be closed is closed already.
	_ = t.line.CloseWrite()
	// A root that somebody stopped cannot see the end of its line.
	if err := t.root.signal(unix.SIGCONT); err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	soon, cancel := context.WithTimeout(ctx, endBound)
	defer cancel()
	if t.root.dies(soon) == nil {
		return nil
	}
	if err := endTree(ctx, t.root); err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	return nil
}

// Wait returns how the program ended, after the whole tree is gone and what it
// wrote was read. Standard streams that the caller reads itself must be read to
// their end before, as exec.Cmd.Wait demands.
func (t *Tree) Wait() (agent.Exit, error) { return t.wait() }

func (t *Tree) waitOnce() (agent.Exit, error) {
	err := t.cmd.Wait()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = nil // the status is the program's, and told below
	}
	if err != nil {
		err = fmt.Errorf("wait: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.line.Close()
	if err := t.line.SetReadDeadline(time.Now().Add(answerBound)); err != nil {
		return agent.Exit{}, fmt.Errorf("wait: %w", err)
	}
	for {
		if _, err := t.hearLocked(); err != nil {
			break
		}
	}
	if t.exit != nil {
		return *t.exit, err
	}
	// The root was killed before it could tell.
	if t.cmd.ProcessState == nil {
		return agent.Exit{Code: -1, Signal: int(unix.SIGKILL)}, err
	}
	return exitOf(t.cmd.ProcessState.Sys().(syscall.WaitStatus)), err
}
