package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"turnpike/internal/agent"
)

// ownSandbox tries out whether Claude Code's own sandbox can hold turns on this machine:
// its programs are there, and the namespaces it makes can be made. It starts them with
// nothing to do.
func ownSandbox(ctx context.Context) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("%w: Claude Code's own sandbox is driven on Linux only", agent.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, command := range [][]string{
		{"bwrap", "--new-session", "--die-with-parent", "--unshare-net", "--unshare-pid", "--unshare-user", "--cap-drop", "ALL",
			"--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--", "true"},
		{"socat", "-V"},
	} {
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
		if err != nil {
			what := strings.TrimSpace(string(out))
			if what == "" {
				what = err.Error()
			}
			return fmt.Errorf("%w: %s, of which Claude Code's own sandbox is made, does not run: %s; install the packages bubblewrap and socat, and let the worker make user namespaces", agent.ErrUnsupported, command[0], what)
		}
	}
	return nil
}
