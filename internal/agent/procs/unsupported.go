//go:build !linux && !darwin

package procs

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"

	"turnpike/internal/agent"
)

func errHere() error {
	return fmt.Errorf("%w: trees of processes are not kept on %s yet", agent.ErrUnsupported, runtime.GOOS)
}

// Tree is a started program together with everything it starts.
type Tree struct{ agent.Process }

// Self names nothing here.
const Self = ""

// HoldLauncher refuses.
func HoldLauncher(string) (string, error) { return "", errHere() }

// Entry returns at once: this system has no roots.
func Entry() {}

// Start refuses.
func Start(*exec.Cmd, func(*exec.Cmd) error) (*Tree, error) { return nil, errHere() }

// Supervised refuses.
func Supervised(*exec.Cmd) error { return errHere() }

// Find refuses.
func Find(context.Context, agent.Identity) (bool, error) { return false, errHere() }

// End refuses.
func End(context.Context, agent.Identity) (bool, error) { return false, errHere() }

// Sweep refuses.
func Sweep(context.Context, string) (int, error) { return 0, errHere() }
