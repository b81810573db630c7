package manager

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/ipam-guard/ipam-guard/controllers/sweeper"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/config"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/metrics"
	"github.com/ipam-guard/ipam-guard/internal/pause"
	"github.com/ipam-guard/ipam-guard/internal/status"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
	"github.com/ipam-guard/ipam-guard/internal/version"
)

// deploymentName is what events about the manager itself regard.
const deploymentName = "ipam-guard-manager"

// teller tells people and machines what happens: log, metrics, events, status.
type teller struct {
	log      logr.Logger
	clock    clock.WithTicker
	metrics  *metrics.Metrics
	recorder events.EventRecorder
	// configMaps is nil where the manager has no namespace of its own.
	configMaps corev1client.ConfigMapInterface
	namespace  string

	mu     sync.Mutex
	status status.Status
	dirty  bool
	// held are the handles whose hold was told.
	held map[string]bool
}

func newTeller(mgr ctrl.Manager, restConfig *rest.Config, cfg config.Config, api calico.API, c clock.WithTicker, m *metrics.Metrics, log logr.Logger) (*teller, error) {
	t := &teller{
		log: log, clock: c, metrics: m,
		recorder: mgr.GetEventRecorder(deploymentName),
		held:     map[string]bool{},
		status: status.Status{
			Version: version.String(), Identity: identity(), APIGroup: api.String(),
			Sweep: sweepMode(cfg), Guard: cfg.Guard.Mode,
		},
		dirty: true,
	}
	t.namespace = ownNamespace(cfg)
	if t.namespace != "" {
		clients, err := kubernetes.NewForConfig(restConfig)
		if err != nil {
			return nil, fmt.Errorf("client for the status: %w", err)
		}
		t.configMaps = clients.CoreV1().ConfigMaps(t.namespace)
	}
	return t, nil
}

func sweepMode(cfg config.Config) string {
	switch {
	case !cfg.Sweep.Enabled:
		return "off"
	case cfg.Sweep.DryRun:
		return "dry-run"
	default:
		return "on"
	}
}

// ownNamespace is the configured one, else that of the pod, else "".
func ownNamespace(cfg config.Config) string {
	if cfg.LeaderElection.Namespace != "" {
		return cfg.LeaderElection.Namespace
	}
	data, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// Judged implements sweeper.Observer.
func (t *teller) Judged(tally sweeper.Tally) {
	t.metrics.Judged(tally)
	if tally.Candidates > 0 {
		t.log.Info("orphaned handles found", "candidates", tally.Candidates, "handles", tally.Handles)
	}
}

// Effect implements sweeper.Observer.
func (t *teller) Effect(h *calico.IPAMHandle, r effect.Result, err error) {
	t.metrics.Effect(calico.ParseHandleID(h.Spec.HandleID).Kind.String(), r, err)
	switch {
	case err != nil:
		t.log.Error(err, "sweep of a handle failed", "handle", h.Name)
	case r.Outcome == effect.WouldDo:
		t.log.Info("would sweep", "handle", h.Name, "reason", r.Verdict.Reason)
	case r.Outcome != effect.Done:
		t.log.V(1).Info("not swept", "handle", h.Name, "outcome", r.Outcome,
			"verdict", r.Verdict.Outcome.String(), "reason", r.Verdict.Reason)
	}
}

// Passed implements sweeper.Observer.
func (t *teller) Passed(r sweeper.Report) {
	t.metrics.Passed(r)
	pass := &status.Pass{
		Started: r.Started, Ended: r.Ended, Handles: r.Tally.Handles, Verdicts: map[string]int{},
		Swept: r.Swept, WouldSweep: r.WouldSweep, Conflicts: r.Conflicts, Failed: r.Failed,
	}
	for class, n := range r.Tally.Counts {
		pass.Verdicts[class.Outcome.String()+"/"+string(class.Reason)] = n
	}
	if r.Err != nil {
		pass.Error = r.Err.Error()
	}
	if r.Err != nil || r.Tally.Candidates > 0 {
		t.log.Info("pass ended", "handles", r.Tally.Handles, "candidates", r.Tally.Candidates,
			"swept", r.Swept, "wouldSweep", r.WouldSweep, "kept", r.Kept, "conflicts", r.Conflicts,
			"vanished", r.Vanished, "held", r.Held, "failed", r.Failed,
			"took", r.Ended.Sub(r.Started).String(), "error", pass.Error)
	}
	t.change(func(s *status.Status) { s.LastPass = pass })
}

// paused is told by the pause monitor.
func (t *teller) paused(p pause.Pause, active bool) {
	t.metrics.Paused(p.Reason, active)
	if active {
		t.log.Info("sweeping is paused", "reason", p.Reason, "message", p.Message)
		t.event(corev1.EventTypeWarning, "SweepPaused", "Pause", "%s: %s", p.Reason, p.Message)
	} else {
		t.log.Info("sweeping may go on", "reason", p.Reason)
		t.event(corev1.EventTypeNormal, "SweepResumed", "Resume", "%s has cleared", p.Reason)
	}
	t.change(func(s *status.Status) {
		kept := s.Paused[:0:0]
		for _, was := range s.Paused {
			if was.Reason != string(p.Reason) {
				kept = append(kept, was)
			}
		}
		if active {
			kept = append(kept, status.Pause{Reason: string(p.Reason), Message: p.Message, Since: t.clock.Now()})
		}
		s.Paused = kept
	})
}

// Diverged implements repairer.Observer.
func (t *teller) Diverged(counts map[verdict.Divergence]int) { t.metrics.Diverged(counts) }

// Repaired implements repairer.Observer.
func (t *teller) Repaired(d effect.Diverged, r effect.Result, err error) {
	t.metrics.Repaired(d.Kind, r, err)
	switch {
	case err != nil:
		t.log.Error(err, "repair of a handle failed", "handle", d.Name, "divergence", d.Kind)
	case r.Outcome == effect.Done:
		t.log.Info("repaired a handle", "handle", d.Name, "divergence", d.Kind, "detail", r.Detail)
	case r.Outcome == effect.WouldDo:
		t.log.Info("would repair a handle", "handle", d.Name, "divergence", d.Kind, "detail", r.Detail)
	default:
		t.log.V(1).Info("not repaired", "handle", d.Name, "divergence", d.Kind, "outcome", r.Outcome, "detail", r.Detail)
	}
}

// Holding implements guard.Observer.
func (t *teller) Holding(n int) { t.metrics.Holding(n) }

// Released implements guard.Observer. A hold is told once a handle.
func (t *teller) Released(name string, r effect.Result, err error) {
	t.mu.Lock()
	told := t.held[name]
	if r.Outcome == effect.Kept {
		t.held[name] = true
	} else if err == nil {
		delete(t.held, name)
	}
	t.mu.Unlock()
	switch {
	case err != nil:
		t.log.Error(err, "release of a handle failed", "handle", name)
	case r.Outcome == effect.Done:
		t.log.Info("let go of a deleted handle", "handle", name)
	case r.Outcome == effect.Kept && !told:
		t.log.Info("holding a deleted handle", "handle", name, "verdict", r.Verdict.Outcome.String(), "detail", r.Detail)
		if r.Verdict.Outcome == verdict.InUse {
			t.event(corev1.EventTypeWarning, "HandleHeld", "Hold", "handle %s was deleted while in use: %s", name, r.Detail)
		}
	}
}

// event tells of the manager's Deployment, where there is one.
func (t *teller) event(kind, reason, action, format string, args ...any) {
	if t.namespace == "" {
		return
	}
	t.recorder.Eventf(&corev1.ObjectReference{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: t.namespace, Name: deploymentName,
	}, nil, kind, reason, action, format, args...)
}

func (t *teller) change(edit func(*status.Status)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	edit(&t.status)
	t.dirty = true
}

// statusInterval is the least time between two writes of the status.
const statusInterval = 5 * time.Second

// run writes the status when it changed, while this replica leads.
func (t *teller) run(ctx context.Context) error {
	if t.configMaps == nil {
		<-ctx.Done()
		return nil
	}
	ticker := t.clock.NewTicker(statusInterval)
	defer ticker.Stop()
	for {
		t.publish(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

func (t *teller) publish(ctx context.Context) {
	t.mu.Lock()
	dirty := t.dirty
	t.dirty = false
	t.status.Updated = t.clock.Now()
	now := t.status
	t.mu.Unlock()
	if !dirty {
		return
	}
	if err := status.Write(ctx, t.configMaps, now); err != nil && ctx.Err() == nil {
		t.log.Error(err, "status is not written")
		t.change(func(*status.Status) {})
	}
}
