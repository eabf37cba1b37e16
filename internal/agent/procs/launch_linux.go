package procs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
)

// Self is the running program, whose copies are the roots.
const Self = "/proc/self/exe"

// Launch starts a command beneath a root. The zero Launch runs it as it is, which
// is what a turn that nothing confines gets.
type Launch struct {
	// Launcher is the program whose main begins with Entry; empty is Self.
	Launcher string
	// Before, when set, is argv[0] of a process that stands in the root's place at
	// first, prepares what the root and all beneath it live in, and then calls
	// Become.
	Before string
	// Prepared says that the function given to Entry leads to the program, which the
	// root does not execute as it is then.
	Prepared bool
	// Files, and then Members, are passed on to Before and that function.
	Files, Members []*os.File
	// Groups are control groups that the program is put into. The root kills what
	// is in them when it kills the rest, and removes them when nothing is left.
	Groups []Group
	// Attr are the attributes the root is started with; Setsid is always set.
	Attr syscall.SysProcAttr
}

// farOut is a descriptor out of the way of every start: before it executes, one moves what
// it passes to the numbers after the highest of those. Busy workers have some hundreds
// open; each start copies a table up to this one, which is 64 KiB.
const farOut = 1 << 13

// HoldLauncher gives a name of the program at path for Launch.Launcher that goes on
// naming the same file, whatever is installed at path later: a worker and its launcher
// are of one build. It is held for as long as this process lives.
func HoldLauncher(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("launcher: %w", err)
	}
	defer f.Close()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return "", fmt.Errorf("launcher: %w", err)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, int(min(farOut, limit.Cur-1)))
	if err != nil {
		return "", fmt.Errorf("launcher: %w", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), nil
}

// Supervised starts cmd under a root that nothing confines. It is the start
// function of a turn that is not confined.
func Supervised(cmd *exec.Cmd) error { return Launch{}.Start(cmd) }

// Start starts cmd beneath a root and returns once the command was executed. cmd
// must come through the function Start, which has put the root's end of the line
// into cmd.ExtraFiles. A nil cmd.Env is an empty environment: nothing is inherited.
func (l Launch) Start(cmd *exec.Cmd) error {
	if cmd.Err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, cmd.Err)
	}
	if len(cmd.ExtraFiles) != 1 || cmd.ExtraFiles[0].Name() != lineName {
		return errors.New("start: a tree is started through procs.Start")
	}
	if name := os.Args[0]; name == rootName || name == l.Before {
		// Or a main that misses Entry would start itself without end.
		return fmt.Errorf("start: %w: this process was started as %s, so main does not begin with Entry", agent.ErrUnsupported, name)
	}
	passed := slices.Concat(l.Files, l.Members)
	p := plan{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Passed: len(passed)}
	for _, g := range l.Groups {
		p.Groups = append(p.Groups, g.Name)
		passed = append(passed, g.Parent, g.Dir)
	}
	if len(p.Args) == 0 {
		p.Args = []string{p.Path}
	}
	if l.Prepared {
		// Where it is executed from is for the function to say.
		p = plan{Prepared: true, Passed: p.Passed, Groups: p.Groups}
	}
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	sealed, err := Seal("turnpike-plan", text)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer sealed.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer r.Close()

	// The command stays what its caller made it, whatever was started in its place.
	defer func(path string, args, env []string, dir string) {
		cmd.Path, cmd.Args, cmd.Env, cmd.Dir = path, args, env, dir
	}(cmd.Path, cmd.Args, cmd.Env, cmd.Dir)
	cmd.Path, cmd.Args, cmd.Dir = l.Launcher, []string{rootName}, "/"
	if cmd.Path == "" {
		cmd.Path = Self
	}
	if l.Before != "" {
		cmd.Args = []string{l.Before}
	}
	// The marker makes the root itself findable; everything else is in the plan.
	cmd.Env = slices.DeleteFunc(append([]string{}, cmd.Env...), func(v string) bool {
		return !strings.HasPrefix(v, markerName+"=")
	})
	cmd.ExtraFiles = append(slices.Clone(cmd.ExtraFiles), w, sealed)
	cmd.ExtraFiles = append(cmd.ExtraFiles, passed...)
	attr := l.Attr
	attr.Setsid = true
	cmd.SysProcAttr = &attr
	err = cmd.Start()
	w.Close()
	if err != nil {
		// Cloning into namespaces is refused here where the machine has none.
		return NewFailure("start the root", err, agent.ErrUnsupported)
	}
	if err := await(cmd.Process.Pid, r); err != nil {
		_ = cmd.Process.Kill()
		// An input that never ends must not keep a failed start from returning.
		cmd.WaitDelay = time.Second
		_ = cmd.Wait()
		return err
	}
	return nil
}

// Seal makes a memory file of text that nobody can change.
func Seal(name string, text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(text)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS,
			unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("memory file: %w", err)
	}
	return f, nil
}

// Unseal decodes the memory file fd into v, from its start whoever read it before.
func Unseal(fd int, v any) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("memory file: %w", err)
	}
	text := make([]byte, st.Size)
	for n := 0; n < len(text); {
		m, err := unix.Pread(fd, text[n:], int64(n))
		if err != nil {
			return fmt.Errorf("memory file: %w", err)
		}
		if m == 0 {
			return io.ErrUnexpectedEOF
		}
		n += m
	}
	// What this build does not know it could not hold a turn to.
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(v)
}
