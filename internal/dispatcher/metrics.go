package dispatcher

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"turnpike/internal/job"
)

// Metrics counts what the loops do. A nil *Metrics counts nothing.
type Metrics struct {
	accepted  prometheus.Counter
	published prometheus.Counter
	repeated  prometheus.Counter
	lapsed    prometheus.Counter
	reports   *prometheus.CounterVec
	window    *prometheus.GaugeVec
	leads     prometheus.Gauge
	oldest    prometheus.Gauge
	spent     *prometheus.GaugeVec
	limit     *prometheus.GaugeVec
	crossings *prometheus.CounterVec
	schedules *prometheus.CounterVec
	abandoned prometheus.Counter
}

// NewMetrics registers the loops' metrics.
func NewMetrics(to prometheus.Registerer) *Metrics {
	m := &Metrics{
		accepted:  prometheus.NewCounter(prometheus.CounterOpts{Name: "turnpike_jobs_accepted_total", Help: "Jobs this dispatcher enqueued."}),
		published: prometheus.NewCounter(prometheus.CounterOpts{Name: "turnpike_jobs_published_total", Help: "Deliveries the stream took."}),
		repeated:  prometheus.NewCounter(prometheus.CounterOpts{Name: "turnpike_jobs_redispatched_total", Help: "Jobs dispatched again because nobody claimed them or their stream was lost."}),
		lapsed:    prometheus.NewCounter(prometheus.CounterOpts{Name: "turnpike_attempts_lost_total", Help: "Attempts closed because their lease lapsed."}),
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "turnpike_reports_drained_total", Help: "Reports that came by the results stream, by how they were settled."},
			[]string{"case"}),
		window: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "turnpike_lane_dispatched", Help: "Jobs on offer and not yet claimed, by lane, as the leader saw it last."},
			[]string{"placement", "pool"}),
		leads:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "turnpike_leader", Help: "1 while this dispatcher leads."}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{Name: "turnpike_lease_lapsed_seconds", Help: "How long the oldest lapsed lease of a running attempt is over; 0 when none is."}),
		spent: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "turnpike_budget_spent_usd", Help: "What a budget was spent on in its window, with what running attempts told."},
			[]string{"scope", "name", "per"}),
		limit: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "turnpike_budget_limit_usd", Help: "What a budget allows in its window."}, []string{"scope", "name", "per"}),
		crossings: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "turnpike_budget_crossings_total", Help: "Budgets that came to a state, by that state."},
			[]string{"scope", "name", "per", "state"}),
		schedules: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "turnpike_schedule_times_total", Help: "Times of schedules that came, by what became of them: job, skipped or deferred."},
			[]string{"case"}),
		abandoned: prometheus.NewCounter(prometheus.CounterOpts{Name: "turnpike_orphans_unreachable_total", Help: "Orphans given up because their host was not seen for long."}),
	}
	to.MustRegister(m.accepted, m.published, m.repeated, m.lapsed, m.reports, m.window, m.leads, m.oldest, m.spent, m.limit, m.crossings, m.schedules, m.abandoned)
	return m
}

func (m *Metrics) enqueued(n int) {
	if m != nil {
		m.accepted.Add(float64(n))
	}
}

func (m *Metrics) relayed(n int) {
	if m != nil {
		m.published.Add(float64(n))
	}
}

func (m *Metrics) redispatched(n int) {
	if m != nil {
		m.repeated.Add(float64(n))
	}
}

func (m *Metrics) reaped(n int) {
	if m != nil {
		m.lapsed.Add(float64(n))
	}
}

func (m *Metrics) settled(how job.SettleCase) {
	if m != nil {
		m.reports.WithLabelValues(string(how)).Inc()
	}
}

func (m *Metrics) load(l job.LaneLoad) {
	if m != nil {
		m.window.WithLabelValues(l.Lane.Placement, l.Lane.Pool).Set(float64(l.Dispatched))
	}
}

func (m *Metrics) leader(yes bool) {
	switch {
	case m == nil:
	case yes:
		m.leads.Set(1)
	default:
		m.leads.Set(0)
		m.window.Reset()
		m.spent.Reset()
		m.limit.Reset()
		m.oldest.Set(0)
	}
}

// Abandoned counts orphans that a sweep gave up.
func (m *Metrics) Abandoned(n int) {
	if m != nil {
		m.abandoned.Add(float64(n))
	}
}

func (m *Metrics) crossed(c job.Crossing) {
	if m != nil {
		m.crossings.WithLabelValues(string(c.Scope), c.Name, c.Per.String(), string(c.State)).Inc()
	}
}

func (m *Metrics) fired(how string, n int) {
	if m != nil {
		m.schedules.WithLabelValues(how).Add(float64(n))
	}
}

// budgets shows every budget there is, and none that was removed.
func (m *Metrics) budgets(all []job.Budget) {
	if m == nil {
		return
	}
	m.spent.Reset()
	m.limit.Reset()
	for _, b := range all {
		labels := []string{string(b.Scope), b.Name, b.Per.String()}
		m.spent.WithLabelValues(labels...).Set((b.SpentUSD + b.RunningUSD).Float())
		m.limit.WithLabelValues(labels...).Set(b.LimitUSD.Float())
	}
}

func (m *Metrics) overdue(d time.Duration) {
	if m != nil {
		m.oldest.Set(d.Seconds())
	}
}
