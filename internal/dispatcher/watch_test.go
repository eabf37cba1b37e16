package dispatcher_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"turnpike/internal/dispatcher"
	"turnpike/internal/job"
)

func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := job.Budget{
			BudgetKey: job.BudgetKey{Scope: job.BudgetTenant, Name: "acme", Per: job.Duration(24 * time.Hour)},
			LimitUSD:  5_000_000, SpentUSD: 4_000_000, RunningUSD: 500_000, State: job.BudgetWarning,
		}
		s := newStore(0)
		s.set(func() {
			s.epoch = 1
			s.budgets, s.oldest = []job.Budget{b}, 90*time.Second
			s.crossings = []job.Crossing{{Budget: b, From: job.BudgetOK}}
		})
		reg := prometheus.NewRegistry()
		w := &dispatcher.Watch{Jobs: s, Bell: dispatcher.NewBell(), Health: &dispatcher.Health{}, Metrics: dispatcher.NewMetrics(reg), Log: quiet}
		running(t, func(ctx context.Context) { w.Run(ctx, 1) })
		shows := func(want ...string) {
			t.Helper()
			synctest.Wait()
			rec := httptest.NewRecorder()
			promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			got := slices.DeleteFunc(strings.Split(rec.Body.String(), "\n"), func(line string) bool {
				return !strings.HasPrefix(line, "turnpike_budget_") && !strings.HasPrefix(line, "turnpike_lease_")
			})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		}
		crossed := `turnpike_budget_crossings_total{name="acme",per="24h0m0s",scope="tenant",state="warning"} 1`
		shows(crossed,
			`turnpike_budget_limit_usd{name="acme",per="24h0m0s",scope="tenant"} 5`,
			`turnpike_budget_spent_usd{name="acme",per="24h0m0s",scope="tenant"} 4.5`,
			`turnpike_lease_lapsed_seconds 90`)
		// A budget that was removed is shown no more; the crossing is not told again.
		s.set(func() { s.budgets, s.oldest = nil, 0 })
		time.Sleep(3 * time.Second)
		shows(crossed, `turnpike_lease_lapsed_seconds 0`)
	})
}
