package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
)

// unchanged refuses a turn in its agent's own sandbox whose mounts are no longer what
// was verified. The sandbox knows them by their paths alone, so it is asked as late as
// it can be.
func (t *turn) unchanged() error {
	c := t.turn.OwnSandbox
	if c == nil {
		return nil
	}
	now, err := confine.Pins(*c)
	if err != nil {
		return err
	}
	if !slices.Equal(now, c.Pins) {
		return fmt.Errorf("%w: a mount is not what was verified", agent.ErrPolicyChanged)
	}
	return nil
}

// leavings are what the agent's CLI may leave in the workspace and was not there.
func (t *turn) leavings() []string {
	d, ok := t.driver.(agent.Leavings)
	if !ok {
		return nil
	}
	root, err := os.OpenRoot(t.workspace())
	if err != nil {
		return nil // the agent's start will tell
	}
	defer func() { _ = root.Close() }() // nothing was written
	return slices.DeleteFunc(d.Leavings(t.turn), func(name string) bool {
		_, err := root.Lstat(name)
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// clearAway takes away what the CLI left and nobody used. The tree is the agent's by now, so
// every name is taken from the workspace without leaving it.
func clearAway(workspace string, leavings []string) {
	if len(leavings) == 0 {
		return
	}
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return // the workspace is gone, and all of them with it
	}
	defer func() { _ = root.Close() }()
	for _, name := range leavings {
		info, err := root.Lstat(name)
		if err != nil || !info.IsDir() && (!info.Mode().IsRegular() || info.Size() > 0) {
			continue
		}
		_ = root.Remove(name) // one that is not empty stays
	}
}
