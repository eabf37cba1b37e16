//go:build linux || darwin

package procs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
)

// Term is until when processes may run. Who keeps it goes on when its worker stands
// still: stopped, swapped out, or starved. It has no end before RunUntil gave it one,
// and its methods are called one at a time.
type Term struct {
	// Stop returns when the processes stand still, Go lets them go on.
	Stop, Go func() error

	end   time.Duration // by Monotonic
	timer *time.Timer   // nil: no end was given
	over  bool          // they stand still because of the end
	told  bool          // they stand still because the worker said so
}

// Monotonic is the time that no clock's adjustment moves (CLOCK_MONOTONIC), the same for
// every process of a kernel.
func Monotonic() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano()), err
}

// TermEnd is a time as a term has it. Whoever is held up in here makes it earlier.
func TermEnd(at time.Time) (time.Duration, error) {
	now, err := Monotonic()
	return now + time.Until(at), err
}

// begin takes the first word of a line, which is the end of the tree that is about to be
// started.
func (t *Term) begin(line *json.Decoder) error {
	var q request
	if err := line.Decode(&q); err != nil || q.Do != doUntil {
		return NewFailure("read the line", cmp.Or(err, fmt.Errorf("it begins with %q", q.Do)), agent.ErrUnsupported)
	}
	if err := t.RunUntil(q.At); err != nil {
		return NewFailure("read the clock", err, agent.ErrUnsupported)
	}
	return nil
}

// Unasked says why nothing must be started, any more; nil where it may. Whoever asked for
// it is at the other end of the socket line.
func (t *Term) Unasked(line int) error {
	now, err := Monotonic()
	if err != nil {
		return NewFailure("read the clock", err, agent.ErrUnsupported)
	}
	if t.timer != nil && t.end <= now {
		return NewFailure("start in time", errOver, agent.ErrUnready)
	}
	if n, _, err := unix.Recvfrom(line, make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT); n == 0 && err == nil {
		return NewFailure("start in time", errors.New("nobody waits for it any more"), agent.ErrUnready)
	}
	return nil
}

// errOver says that a tree's time was over before it was started.
var errOver = errors.New("the time it may run for is over")

// Fires is when End is to be called.
func (t *Term) Fires() <-chan time.Time {
	if t.timer == nil {
		return nil
	}
	return t.timer.C
}

// End has the processes stand still, for their term is over. If it cannot, they must be
// killed: what cannot be held still must not outlive its term.
func (t *Term) End() error {
	if t.told {
		return nil
	}
	err := t.Stop()
	t.over = err == nil
	return err
}

// Freeze is the worker's word that they stand still.
func (t *Term) Freeze() error {
	err := t.Stop()
	if err == nil {
		t.told, t.over = true, false
	}
	return err
}

// Thaw is the worker's word that they may go on. Past their end they stand still until
// they are given a later one: the worker may have been stopped since it decided to.
func (t *Term) Thaw() error {
	now, err := Monotonic()
	if err != nil {
		return err
	}
	t.told, t.over = false, t.timer != nil && t.end <= now
	if t.over {
		return nil
	}
	return t.Go()
}

// RunUntil moves the end to a later time. What stood still because of the end before
// goes on.
func (t *Term) RunUntil(end time.Duration) error {
	if end <= t.end {
		return nil
	}
	now, err := Monotonic()
	if err != nil {
		return err
	}
	t.end = end
	if t.timer == nil {
		t.timer = time.NewTimer(end - now)
	} else {
		t.timer.Reset(end - now)
	}
	if !t.over || end <= now {
		return nil
	}
	t.over = false
	return t.Go()
}
