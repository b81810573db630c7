// Package metrics holds the metrics of sweeping and guarding. Admission and
// certificates have their own, beside their code.
package metrics

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/controllers/sweeper"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/pause"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

const namespace = "ipam_guard"

// Metrics are registered with one registry.
type Metrics struct {
	clock clock.PassiveClock

	handles      *prometheus.GaugeVec
	swept        *prometheus.CounterVec
	conflicts    prometheus.Counter
	failures     prometheus.Counter
	divergences  *prometheus.GaugeVec
	repaired     *prometheus.CounterVec
	paused       *prometheus.GaugeVec
	duration     prometheus.Histogram
	held         prometheus.Gauge
	oldestOrphan prometheus.Gauge
}

// Sources are read when the metrics are scraped.
type Sources struct {
	// Rate is the present limit in effects a second.
	Rate func() float64
	// CacheLag is, by resource, how long its cache has been without news while
	// its watch is broken; zero while it is connected.
	CacheLag func() map[string]time.Duration
}

// New registers the metrics.
func New(r prometheus.Registerer, c clock.PassiveClock, s Sources) (*Metrics, error) {
	m := &Metrics{
		clock: c,
		handles: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "handles",
			Help: "Handles by verdict and reason, as of the last pass.",
		}, []string{"verdict", "reason"}),
		swept: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "swept_total",
			Help: "Handles swept, by the kind of their owner.",
		}, []string{"kind"}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "sweep_conflicts_total",
			Help: "Deletes and repairs that were not done because somebody had changed the handle.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "sweep_failures_total",
			Help: "Deletes and repairs that failed for another reason than a conflict.",
		}),
		divergences: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "divergences",
			Help: "Handles that disagree with the blocks other than as orphans, as of the last look; only while they are repaired.",
		}, []string{"divergence"}),
		repaired: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "repaired_total",
			Help: "Handles repaired, by divergence.",
		}, []string{"divergence"}),
		paused: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "sweep_paused",
			Help: "1 while the reason keeps anything from being swept, else 0.",
		}, []string{"reason"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "sweep_duration_seconds",
			Help:    "How long a pass took.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 9),
		}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "finalizers_held",
			Help: "Terminating handles that the finalizer holds because a block references them.",
		}),
		oldestOrphan: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "oldest_orphan_age_seconds",
			Help: "Age of the oldest orphan's last write as of the last pass, 0 when there is none.",
		}),
	}
	for _, reason := range pause.Reasons() {
		m.paused.WithLabelValues(string(reason)).Set(0)
	}
	for _, c := range []prometheus.Collector{
		m.handles, m.divergences, m.repaired, m.swept, m.conflicts, m.failures, m.paused, m.duration, m.held, m.oldestOrphan,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "sweep_rate",
			Help: "Present limit of effects a second.",
		}, s.Rate),
		newLag(s.CacheLag),
	} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// Judged shows a pass's tally.
func (m *Metrics) Judged(t sweeper.Tally) {
	m.handles.Reset()
	for class, n := range t.Counts {
		m.handles.WithLabelValues(class.Outcome.String(), string(class.Reason)).Set(float64(n))
	}
	m.oldestOrphan.Set(0)
	if !t.OldestOrphan.IsZero() {
		m.oldestOrphan.Set(m.clock.Since(t.OldestOrphan).Seconds())
	}
}

// Effect counts what came of one candidate; kind is its owner's.
func (m *Metrics) Effect(kind string, r effect.Result, err error) {
	switch {
	case err != nil:
		m.failures.Inc()
	case r.Outcome == effect.Done:
		m.swept.WithLabelValues(kind).Inc()
	case r.Outcome == effect.Conflict:
		m.conflicts.Inc()
	}
}

// Diverged shows what disagrees.
func (m *Metrics) Diverged(counts map[verdict.Divergence]int) {
	m.divergences.Reset()
	for kind, n := range counts {
		m.divergences.WithLabelValues(string(kind)).Set(float64(n))
	}
}

// Repaired counts what came of one repair.
func (m *Metrics) Repaired(kind verdict.Divergence, r effect.Result, err error) {
	switch {
	case err != nil:
		m.failures.Inc()
	case r.Outcome == effect.Done:
		m.repaired.WithLabelValues(string(kind)).Inc()
	case r.Outcome == effect.Conflict:
		m.conflicts.Inc()
	}
}

// Passed counts a pass.
func (m *Metrics) Passed(r sweeper.Report) { m.duration.Observe(r.Ended.Sub(r.Started).Seconds()) }

// Paused shows whether a reason pauses.
func (m *Metrics) Paused(r pause.Reason, active bool) {
	value := 0.0
	if active {
		value = 1
	}
	m.paused.WithLabelValues(string(r)).Set(value)
}

// Holding shows how many handles the finalizer holds.
func (m *Metrics) Holding(n int) { m.held.Set(float64(n)) }

// lag collects the caches' lag when scraped.
type lag struct {
	desc *prometheus.Desc
	lag  func() map[string]time.Duration
}

func newLag(source func() map[string]time.Duration) *lag {
	return &lag{
		desc: prometheus.NewDesc(namespace+"_cache_lag_seconds",
			"How long a cache's watch has been broken, 0 while it is connected.", []string{"resource"}, nil),
		lag: source,
	}
}

// Describe implements prometheus.Collector.
func (l *lag) Describe(ch chan<- *prometheus.Desc) { ch <- l.desc }

// Collect implements prometheus.Collector.
func (l *lag) Collect(ch chan<- prometheus.Metric) {
	for resource, d := range l.lag() {
		ch <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, d.Seconds(), resource)
	}
}
