package runner_test

import (
	"testing"
	"testing/synctest"
	"time"

	"turnpike/internal/agent/runner"
)

// pass lets time go by in a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

func TestClock(t *testing.T) {
	// fired waits for the clock and gives when it fired; zero when it did not
	// within an hour.
	fired := func(c *runner.Clock) time.Duration {
		began := time.Now()
		select {
		case <-runner.Fires(c):
			return time.Since(began)
		case <-time.After(time.Hour):
			return 0
		}
	}
	tests := map[string]struct {
		turn func(*runner.Clock)
		want time.Duration
	}{
		"never_fires_unset":   {func(*runner.Clock) {}, 0},
		"never_fires_at_zero": {func(c *runner.Clock) { runner.After(c, 0) }, 0},
		"fires":               {func(c *runner.Clock) { runner.After(c, time.Minute) }, time.Minute},
		"fires_when_last_set": {func(c *runner.Clock) {
			runner.After(c, time.Minute)
			pass(2 * time.Minute)
			runner.After(c, time.Second)
		}, time.Second},
		"never_fires_stopped": {func(c *runner.Clock) { runner.After(c, time.Minute); runner.Stop(c) }, 0},
		"stands_still":        {func(c *runner.Clock) { runner.After(c, time.Minute); runner.Freeze(c) }, 0},
		"goes_on_where_it_stood": {func(c *runner.Clock) {
			runner.After(c, time.Minute)
			pass(20 * time.Second)
			runner.Freeze(c)
			runner.Freeze(c)
			pass(time.Hour)
			runner.Thaw(c)
			runner.Thaw(c)
		}, 40 * time.Second},
		"set_while_it_stands_still": {func(c *runner.Clock) {
			runner.Freeze(c)
			runner.After(c, time.Minute)
			pass(time.Hour)
			runner.Thaw(c)
		}, time.Minute},
		"stopped_while_it_stands_still": {func(c *runner.Clock) {
			runner.After(c, time.Minute)
			runner.Freeze(c)
			runner.Stop(c)
			runner.Thaw(c)
		}, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c runner.Clock
				test.turn(&c)
				if got := fired(&c); got != test.want {
					t.Fatalf("fired after %v, want %v", got, test.want)
				}
			})
		})
	}
}
