package webhook

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// operation is a metric's label: what was asked.
type operation string

const (
	opCreate         operation = "create"
	opUpdate         operation = "update"
	opValidateUpdate operation = "validate_update"
	opDelete         operation = "delete"
)

// outcome is a metric's label: what came of it.
type outcome string

const (
	// outcomeStamped: the handle got a stamp of its own.
	outcomeStamped outcome = "stamped"
	// outcomeRestored: the writer had dropped the stamp, and it was put back.
	outcomeRestored outcome = "restored"
	// outcomeUnchanged: nothing was to be done.
	outcomeUnchanged outcome = "unchanged"
	outcomeAllowed   outcome = "allowed"
	// outcomeWarned: a delete of a handle in use passed with a warning.
	outcomeWarned outcome = "warned"
	outcomeDenied outcome = "denied"
	// outcomeError: allowed, because it could not be decided.
	outcomeError outcome = "error"
)

// outcomesOf are the outcomes that each operation can have.
var outcomesOf = map[operation][]outcome{
	opCreate:         {outcomeStamped, outcomeError},
	opUpdate:         {outcomeStamped, outcomeRestored, outcomeUnchanged, outcomeError},
	opValidateUpdate: {outcomeAllowed, outcomeDenied, outcomeError},
	opDelete:         {outcomeAllowed, outcomeWarned, outcomeDenied, outcomeError},
}

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	restored prometheus.Counter
	denied   prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "ipam_guard", Name: "admission_requests_total",
			Help: "Admission requests by operation and outcome; error means allowed because it could not be decided.",
		}, []string{"op", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "ipam_guard", Name: "admission_duration_seconds",
			Help:    "How long a decision took, without transport.",
			Buckets: []float64{10e-6, 20e-6, 50e-6, 100e-6, 250e-6, 1e-3, 5e-3, 25e-3, 100e-3, 500e-3, 1, 2},
		}, []string{"op"}),
		restored: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "ipam_guard", Name: "stamps_restored_total",
			Help: "Updates that had dropped the creation-owner stamp and got it back.",
		}),
		denied: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "ipam_guard", Name: "deletes_denied_total",
			Help: "Deletes that were refused because a block references the handle.",
		}),
	}
	for op, outcomes := range outcomesOf {
		m.duration.WithLabelValues(string(op))
		for _, o := range outcomes {
			m.requests.WithLabelValues(string(op), string(o))
		}
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.restored, m.denied} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register admission metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) observe(op operation, o outcome, took time.Duration) {
	m.requests.WithLabelValues(string(op), string(o)).Inc()
	m.duration.WithLabelValues(string(op)).Observe(took.Seconds())
	switch {
	case o == outcomeRestored:
		m.restored.Inc()
	case op == opDelete && o == outcomeDenied:
		m.denied.Inc()
	}
}
