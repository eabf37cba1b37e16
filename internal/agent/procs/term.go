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

// term is until when a tree may run. Its root keeps it, which goes on when its worker
// stands still: stopped, swapped out, or starved. The zero term has no end.
type term struct {
	end   time.Duration // by CLOCK_MONOTONIC, which both have
	timer *time.Timer   // nil: no end was given
	over  bool          // the tree stands still because of its end
	told  bool          // it stands still because the worker said so
}

// monotonic is the time that no clock's adjustment moves, the same for every process.
func monotonic() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano()), err
}

// termEnd is a time as a term has it. Whoever is held up in here makes it earlier.
func termEnd(at time.Time) (time.Duration, error) {
	now, err := monotonic()
	return now + time.Until(at), err
}

// begin takes the first word of a line, which is the end of the tree that is about to be
// started.
func (t *term) begin(line *json.Decoder) error {
	var q request
	if err := line.Decode(&q); err != nil || q.Do != doUntil {
		return NewFailure("read the line", cmp.Or(err, fmt.Errorf("it begins with %q", q.Do)), agent.ErrUnsupported)
	}
	if _, err := t.extend(q.At); err != nil {
		return NewFailure("read the clock", err, agent.ErrUnsupported)
	}
	return nil
}

// unasked says why the tree must not be started, any more; nil where it may.
func (t *term) unasked() error {
	now, err := monotonic()
	if err != nil {
		return NewFailure("read the clock", err, agent.ErrUnsupported)
	}
	if t.timer != nil && t.end <= now {
		return NewFailure("start in time", errOver, agent.ErrUnready)
	}
	if n, _, err := unix.Recvfrom(fdLine, make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT); n == 0 && err == nil {
		return NewFailure("start in time", errors.New("nobody waits for it any more"), agent.ErrUnready)
	}
	return nil
}

// errOver says that a tree's time was over before it was started.
var errOver = errors.New("the time it may run for is over")

// fires is when the term ends.
func (t *term) fires() <-chan time.Time {
	if t.timer == nil {
		return nil
	}
	return t.timer.C
}

// thaw is told that the tree may go on. It says whether it does: past its end it stands
// still until it is given a later one.
func (t *term) thaw() (goesOn bool, err error) {
	now, err := monotonic()
	if err != nil {
		return false, err
	}
	t.told, t.over = false, t.timer != nil && t.end <= now
	return !t.over, nil
}

// extend moves the end to a later time. It says whether a tree that stood still
// because of the end before goes on.
func (t *term) extend(end time.Duration) (goesOn bool, err error) {
	if end <= t.end {
		return false, nil
	}
	now, err := monotonic()
	if err != nil {
		return false, err
	}
	t.end = end
	if t.timer == nil {
		t.timer = time.NewTimer(end - now)
	} else {
		t.timer.Reset(end - now)
	}
	goesOn = t.over && end > now
	t.over = t.over && !goesOn
	return goesOn, nil
}
