//go:build linux || darwin

package procs

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// stopBound is how long a freeze waits for what it stops to stand still.
	stopBound = 5 * time.Second
	// startTime is how long a process is let go on at most to become a program.
	startTime = 64 * time.Millisecond
)

// those looks at processes, but for those that are gone.
func those(pids []int) ([]process, error) {
	all := make([]process, 0, len(pids))
	for _, pid := range pids {
		p, err := stat(pid)
		if notFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", pid, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// Freeze stops what pids lists, whatever is added meanwhile, and returns when everything
// it lists stands still.
func Freeze(pids func() ([]int, error)) error {
	others := func() ([]process, error) {
		listed, err := pids()
		if err != nil {
			return nil, err
		}
		return those(listed)
	}
	return freeze(func(sig unix.Signal) error {
		all, err := others()
		for _, p := range all {
			err = errors.Join(err, p.signal(sig))
		}
		return err
	}, others)
}

// freeze stops what signal reaches and returns when everything of others stands still: a
// process that was just forked may be missed by one walk, never by the walk that finds
// all others stopped.
func freeze(signal func(unix.Signal) error, others func() ([]process, error)) error {
	wait := time.Millisecond
	for bound := time.Now().Add(stopBound); ; <-time.After(wait) {
		if err := signal(unix.SIGSTOP); err != nil {
			return err
		}
		all, err := others()
		if err != nil {
			return err
		}
		moving := 0
		for _, p := range all {
			if !p.stopped() {
				moving++
			}
		}
		if moving == 0 {
			return nil
		}
		if time.Now().After(bound) {
			return fmt.Errorf("%d processes did not stop", moving)
		}
		held := unborn(all)
		for _, p := range held {
			if err := p.signal(unix.SIGCONT); err != nil {
				return err
			}
		}
		if len(held) > 0 {
			wait = min(2*wait, startTime)
		}
	}
}

// unborn are the stopped processes for which another may wait that does not hear of a
// signal before they have executed a program: they have borrowed its memory (vfork). It
// stops as soon as they have gone on for a moment.
func unborn(all []process) (out []process) {
	waits := map[int]bool{}
	for _, p := range all {
		if p.state == 'D' {
			waits[p.pid] = true
		}
	}
	for _, p := range all {
		if waits[p.ppid] && p.stopped() && !p.dead() {
			out = append(out, p)
		}
	}
	return out
}
