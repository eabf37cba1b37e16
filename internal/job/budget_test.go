package job_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"turnpike/internal/job"
)

func TestBudget(t *testing.T) {
	t.Parallel()
	key := func(scope job.BudgetScope, name string, per time.Duration) job.BudgetKey {
		return job.BudgetKey{Scope: scope, Name: name, Per: job.Duration(per)}
	}
	t.Run("is named as people read it", func(t *testing.T) {
		t.Parallel()
		for want, k := range map[string]job.BudgetKey{
			"tenant acme per 24h":   key(job.BudgetTenant, "acme", 24*time.Hour),
			"tag x per 1h30m":       key(job.BudgetTag, "x", 90*time.Minute),
			"profile small per 10m": key(job.BudgetProfile, "small", 10*time.Minute),
			"profile p per 1m30s":   key(job.BudgetProfile, "p", 90*time.Second),
		} {
			if got := k.String(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if err := k.Check(); err != nil {
				t.Errorf("%s: %v", k, err)
			}
		}
	})
	t.Run("has a scope, a name and a window", func(t *testing.T) {
		t.Parallel()
		for _, k := range []job.BudgetKey{
			key("worker", "x", time.Hour), key(job.BudgetTenant, "", time.Hour), key(job.BudgetTenant, "x", time.Second),
			key(job.BudgetTenant, "x", 745*time.Hour), key(job.BudgetTenant, "x", time.Minute+time.Millisecond),
		} {
			if err := k.Check(); !errors.Is(err, job.ErrInvalid) {
				t.Errorf("%s: %v", k, err)
			}
		}
	})
	t.Run("keeps its money through JSON", func(t *testing.T) {
		t.Parallel()
		b := job.Budget{BudgetKey: key(job.BudgetTenant, "acme", 24*time.Hour), LimitUSD: 5_250_000}
		raw, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		var back job.Budget
		if err := json.Unmarshal(raw, &back); err != nil || back.BudgetKey != b.BudgetKey || back.LimitUSD != b.LimitUSD {
			t.Errorf("%s came back as %+v, %v", raw, back, err)
		}
	})
}
