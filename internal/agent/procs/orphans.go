//go:build linux || darwin

package procs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
)

// Find says whether the process who names is still there. One with the same pid
// that started at another time, or before the machine did, is another process.
func Find(_ context.Context, who agent.Identity) (bool, error) {
	_, alive, err := lookup(who)
	if err != nil {
		return false, fmt.Errorf("find process %d: %w", who.PID, err)
	}
	return alive, nil
}

func lookup(who agent.Identity) (process, bool, error) {
	if who.PID <= 0 || who.StartTime == 0 || who.BootID == "" {
		return process{}, false, errors.New("the identity is incomplete")
	}
	boot, err := bootID()
	if err != nil || boot != who.BootID {
		return process{}, false, err
	}
	p, err := stat(who.PID)
	if notFound(err) {
		return process{}, false, nil
	}
	return p, err == nil && same(p, who), err
}

// same says whether p is the process who names and not dead.
func same(p process, who agent.Identity) bool {
	return p.pid == who.PID && p.start == who.StartTime && !p.dead()
}

// End ends the tree whose root who names and returns once it is gone; false says
// that there was nothing to end.
func End(ctx context.Context, who agent.Identity) (bool, error) {
	p, alive, err := lookup(who)
	if err == nil && alive {
		err = endTree(ctx, p)
	}
	if err != nil {
		return false, fmt.Errorf("end process %d: %w", who.PID, err)
	}
	return alive, nil
}

// endTree kills what descends from root, till nothing does, and then root: in the
// other order a root without a namespace would leave its descendants to nobody.
func endTree(ctx context.Context, root process) error {
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for {
		left, err := root.descendants()
		if notFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(left) == 0 {
			break
		}
		for _, p := range left {
			err = errors.Join(err, p.signal(unix.SIGKILL))
		}
		if err != nil {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%d processes are left: %w", len(left), context.Cause(ctx))
		}
	}
	if err := root.signal(unix.SIGKILL); err != nil {
		return err
	}
	return root.dies(ctx)
}

// Sweep ends every process of this user that bears the marker of stateDir, and
// returns how many it ended. It is the last resort, for what no record names.
func Sweep(ctx context.Context, stateDir string) (int, error) {
	prefix := []byte(Marker(stateDir, ""))
	var mine []process
	all, err := table()
	if err != nil {
		return 0, fmt.Errorf("sweep: %w", err)
	}
	for _, p := range all {
		if p.pid != os.Getpid() && !p.dead() && bears(p.pid, prefix) {
			mine = append(mine, p)
		}
	}
	n := 0
	for _, p := range mine {
		// One that ended with another's tree is ended all the same.
		if err := endTree(ctx, p); err != nil {
			return n, fmt.Errorf("sweep: process %d: %w", p.pid, err)
		}
		n++
	}
	return n, nil
}
