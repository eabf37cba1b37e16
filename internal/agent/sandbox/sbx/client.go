package sbx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"turnpike/internal/agent"
)

const (
	// askTime bounds one question to sbx, makeTime making a sandbox, whose template may
	// have to be fetched, and endTime ending one.
	askTime  = 30 * time.Second
	makeTime = 10 * time.Minute
	endTime  = time.Minute
)

// client talks to sbx through its program.
type client struct{ bin string }

// ownEnv are the variables sbx finds its daemon, its store and its servers by. A
// credential is none of them: it would be taken for one to inject.
var ownEnv = []string{
	"HOME", "USER", "LOGNAME", "PATH", "TMPDIR", "LANG", "LC_*", "XDG_*", "DBUS_SESSION_BUS_ADDRESS",
	"SBX_*", "DOCKER_CONFIG", "DOCKER_SANDBOXES_*", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR",
}

// command is sbx with args, in a process group of its own, with no more of this
// process's environment than it needs.
func (c client) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.bin, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return !agent.NameGranted(ownEnv, name)
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return killGroup(cmd) }
	cmd.WaitDelay = time.Second
	return cmd
}

// killGroup ends a started client with whatever it started.
func killGroup(cmd *exec.Cmd) error {
	err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// run runs one command of sbx and gives what it printed, even if it failed.
func (c client) run(ctx context.Context, bound time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	cmd := c.command(ctx, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err == nil {
		return strings.TrimSpace(string(out)), nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return strings.TrimSpace(string(out)), fmt.Errorf("%w: %s %s: %w: %s", agent.ErrUnready, c.bin, args[0], err, oneLine(said.String()))
}

// oneLine is what a program said, short enough for an error.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' }), "; ")
	if len(s) > 1000 {
		s = s[:1000]
	}
	return s
}

// list gives the names of all sandboxes, running or not.
func (c client) list(ctx context.Context) ([]string, error) {
	text, err := c.run(ctx, askTime, "ls", "--quiet")
	if err != nil {
		return nil, err
	}
	return strings.Fields(text), nil
}

// remove ends a sandbox and returns once sbx lists it no more.
func (c client) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		// One that is being removed already is told as an error: whether it is there is
		// what counts.
		_, removing := c.run(ctx, endTime, "rm", "--force", name)
		all, err := c.list(ctx)
		if err == nil && !slices.Contains(all, name) {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("it is there yet: %w", errors.Join(context.Cause(ctx), removing, err))
		}
	}
}
