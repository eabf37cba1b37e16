package dispatcher_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"turnpike/internal/dispatcher"
	"turnpike/internal/job"
)

// TestCaution holds the rule against a model that only looks back: the reaper may act
// when the last lease's worth of time holds nothing that breaks.
func TestCaution(t *testing.T) {
	t.Parallel()
	const lease = time.Minute
	rapid.Check(t, func(t *rapid.T) {
		c := dispatcher.NewCaution(lease)
		now, skew := time.Unix(1e9, 0), time.Duration(0)
		broken := now.Add(-time.Hour) // when the unbroken ticks began
		first, last := true, now
		for range rapid.IntRange(1, 200).Draw(t, "ticks") {
			now = now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			jump := time.Duration(rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, -1, 20, -20, 3600}).Draw(t, "jump")) * time.Second
			if rapid.IntRange(0, 9).Draw(t, "fails") == 0 {
				c.Broke()
				first = true
				continue
			}
			skew += jump
			if first || now.Sub(last) > lease/2 || jump.Abs() > lease/4 {
				broken = now
			}
			first, last = false, now
			if got, want := c.Tick(now, now.Add(skew)), now.Sub(broken) >= lease; got != want {
				t.Fatalf("may act: %v, want %v, %v after the ticks began", got, want, now.Sub(broken))
			}
		}
	})
}

func TestReaper(t *testing.T) {
	t.Parallel()
	const lease = time.Minute

	start := func(t *testing.T, s *store) {
		r := &dispatcher.Reaper{Attempts: s, Lease: lease, Bell: dispatcher.NewBell(), Health: &dispatcher.Health{}, Log: quiet}
		s.epoch = 1
		running(t, func(ctx context.Context) { r.Run(ctx, 1) })
	}
	reaped := func(s *store) (n int) {
		s.set(func() {
			n = len(s.reaps)
			s.reaps = nil
		})
		return n
	}

	for name, c := range map[string]func(s *store){
		"an outage": func(s *store) {
			s.set(func() { s.down = job.ErrUnavailable })
			passes(2 * lease)
			s.set(func() { s.down = nil })
			passes(6 * time.Second) // until the backed-off loop tries again
		},
		"one failed tick": func(s *store) {
			s.set(func() { s.down = job.ErrUnavailable })
			passes(6 * time.Second)
			s.set(func() { s.down = nil })
			passes(6 * time.Second)
		},
		"a jump of the database's clock": func(s *store) {
			s.set(func() { s.skew = time.Hour })
			passes(6 * time.Second)
		},
	} {
		t.Run("waits a lease from the start and again after "+name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore(0)
				start(t, s)
				passes(lease - time.Second)
				if n := reaped(s); n != 0 {
					t.Errorf("reaped %d times before one lease", n)
				}
				passes(20 * time.Second)
				if n := reaped(s); n == 0 {
					t.Error("never reaped")
				}
				c(s)
				reaped(s)
				passes(lease - 15*time.Second)
				if n := reaped(s); n != 0 {
					t.Errorf("reaped %d times too early", n)
				}
				passes(lease)
				if n := reaped(s); n == 0 {
					t.Error("never reaped again")
				}
			})
		})
	}
}
