package procs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
)

// Self stands for the running program, whose copies are the roots.
const Self = ""

// Launch starts a command beneath a root. The zero Launch runs it as it is, which
// is what a turn that nothing confines gets.
type Launch struct {
	// Launcher is the program whose main begins with Entry; empty is the running one.
	Launcher string
	// Stage, when set, is the argument by which the launcher's copy that the root
	// starts instead of the command is known, and Through the command line in front of
	// it: what confines the stage executes it. The stage executes the command itself;
	// until then it reports through descriptor 3.
	Stage   string
	Through []string
	// Files are passed on to Stage, from descriptor 4.
	Files []*os.File
}

// HoldLauncher gives the program at path its full name. A file that is replaced has no
// other name here, so a launcher is only as long of the worker's build as nobody
// installs another; its stage refuses a policy it does not know every word of.
func HoldLauncher(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", fmt.Errorf("launcher: %w", err)
	}
	return path, nil
}

// Supervised starts cmd under a root that nothing confines.
func Supervised(cmd *exec.Cmd) error { return Launch{}.Start(cmd) }

// Path is the launcher with its links resolved.
func (l Launch) Path() (string, error) {
	if l.Launcher != Self {
		return HoldLauncher(l.Launcher)
	}
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("launcher: %w", err)
	}
	return HoldLauncher(path)
}

// Start starts cmd beneath a root and returns once the command was executed. See
// Launch.Start of Linux, which promises the same.
func (l Launch) Start(cmd *exec.Cmd) error {
	if cmd.Err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, cmd.Err)
	}
	if len(cmd.ExtraFiles) != 1 || cmd.ExtraFiles[0].Name() != lineName {
		return errors.New("start: a tree is started through procs.Start")
	}
	if os.Args[0] == rootName || l.Stage != "" && len(os.Args) == 2 && os.Args[1] == l.Stage {
		// Or a main that misses Entry would start itself without end.
		return fmt.Errorf("start: %w: this process was started as a launcher, so main does not begin with Entry", agent.ErrUnsupported)
	}
	launcher, err := l.Path()
	if err != nil {
		return fmt.Errorf("start: %w: %w", agent.ErrUnready, err)
	}
	p := plan{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Passed: len(l.Files)}
	if len(p.Args) == 0 {
		p.Args = []string{p.Path}
	}
	if l.Stage != "" {
		p.Args = append(slices.Clone(l.Through), launcher, l.Stage)
		p.Path, p.Env, p.Dir, p.Stage = p.Args[0], nil, "/", true
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

	defer func(path string, args, env []string, dir string) {
		cmd.Path, cmd.Args, cmd.Env, cmd.Dir = path, args, env, dir
	}(cmd.Path, cmd.Args, cmd.Env, cmd.Dir)
	cmd.Path, cmd.Args, cmd.Dir = launcher, []string{rootName}, "/"
	// The marker makes the root itself findable, and tells it what to look for.
	cmd.Env = slices.DeleteFunc(append([]string{}, cmd.Env...), func(v string) bool {
		return !strings.HasPrefix(v, markerName+"=")
	})
	cmd.ExtraFiles = append(slices.Clone(cmd.ExtraFiles), w, sealed)
	cmd.ExtraFiles = append(cmd.ExtraFiles, l.Files...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return NewFailure("start the root", err, agent.ErrUnready)
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

// Seal makes a file of text that has no name by the time it is returned.
func Seal(name string, text []byte) (*os.File, error) {
	f, err := os.CreateTemp("", name)
	if err != nil {
		return nil, fmt.Errorf("file without a name: %w", err)
	}
	err = os.Remove(f.Name())
	if err == nil {
		_, err = f.Write(text)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("file without a name: %w", err)
	}
	return f, nil
}

// Unseal decodes the sealed file fd into v, from its start whoever read it before.
func Unseal(fd int, v any) error {
	// Without asking for its size: a profile judges that question by the file's path.
	var text []byte
	for buf := make([]byte, 64<<10); ; {
		n, err := unix.Pread(fd, buf, int64(len(text)))
		if err != nil {
			return fmt.Errorf("file without a name: %w", err)
		}
		if n == 0 {
			break
		}
		text = append(text, buf[:n]...)
	}
	// What this build does not know it could not hold a turn to.
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(v)
}
