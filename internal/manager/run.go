package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/tracing"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/ipam-guard/ipam-guard/controllers/guard"
	"github.com/ipam-guard/ipam-guard/controllers/leaks"
	"github.com/ipam-guard/ipam-guard/controllers/repairer"
	"github.com/ipam-guard/ipam-guard/controllers/sweeper"
	"github.com/ipam-guard/ipam-guard/internal/access"
	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/conditions"
	"github.com/ipam-guard/ipam-guard/internal/config"
	"github.com/ipam-guard/ipam-guard/internal/datastore"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/kubevirt"
	"github.com/ipam-guard/ipam-guard/internal/metrics"
	"github.com/ipam-guard/ipam-guard/internal/pace"
	"github.com/ipam-guard/ipam-guard/internal/pause"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
	"github.com/ipam-guard/ipam-guard/internal/version"
)

const (
	// leaseName elects the replica that sweeps.
	leaseName = "ipam-guard-manager"
	// startTimeout bounds what is asked of the API server before the start.
	startTimeout = 30 * time.Second
)

// Run runs the manager until ctx ends, and lingers then.
func Run(ctx context.Context, restConfig *rest.Config, cfg config.Config, log logr.Logger) error {
	told := ctx.Done()
	ctx = lingering(ctx, cfg)
	ctrl.SetLogger(log)
	klog.SetLogger(log.WithName("client-go"))
	restConfig.QPS = -1 // Effects have a pace of their own.

	spans, err := newTracing(ctx, cfg.Tracing)
	if err != nil {
		return err
	}
	if cfg.Tracing.Endpoint != "" {
		restConfig.Wrap(tracing.WrapperFor(spans))
	}
	found, err := preflight(ctx, restConfig, cfg, log)
	if err != nil {
		return err
	}
	mgr, err := newManager(restConfig, cfg, log)
	if err != nil {
		return err
	}
	p, err := newParts(mgr, restConfig, cfg, found, spans, log)
	if err != nil {
		return err
	}
	p.told = told
	for _, add := range []func() error{p.addCaches, p.addControllers, p.addAdmission, p.addHealth} {
		if err := add(); err != nil {
			return err
		}
	}
	log.Info("starting", "version", version.String(), "apiGroup", found.calico.API.String(),
		"sweep", cfg.Sweep.Enabled, "dryRun", cfg.Sweep.DryRun, "grace", cfg.Sweep.Grace.Duration.String(),
		"rate", cfg.Sweep.Rate, "guard", cfg.Guard.Mode, "webhook", cfg.Webhook.Enabled)
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return errors.Join(p.closeAudit(), flush(context.WithoutCancel(ctx), spans))
}

// found is what of the cluster decides what to follow.
type found struct {
	calico calico.Detection
	// machines is KubeVirt's API, empty where that is not installed.
	machines schema.GroupVersion
}

// preflight finds Calico and checks permissions, for one clear line each.
func preflight(ctx context.Context, restConfig *rest.Config, cfg config.Config, log logr.Logger) (found, error) {
	var none found
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	detection, err := calico.Detect(ctx, restConfig)
	if err != nil {
		return none, err
	}
	log.Info("found Calico", "apiGroup", detection.API.String(), "detail", detection.Detail)
	machines, err := kubevirt.Find(ctx, restConfig)
	if err != nil {
		return none, err
	}
	if !machines.Empty() {
		log.Info("found KubeVirt", "apiVersion", machines.String())
	}
	wanted := access.Watching(detection.API, machines)
	if cfg.Sweep.Enabled && !cfg.Sweep.DryRun {
		wanted = append(wanted, access.Sweeping(detection.API)...)
	}
	if len(cfg.Repair) > 0 && !cfg.Sweep.DryRun {
		wanted = append(wanted, access.Repairing(detection.API)...)
	}
	if err := access.Require(ctx, restConfig, wanted...); err != nil {
		return none, err
	}
	return found{detection, machines}, nil
}

func newManager(restConfig *rest.Config, cfg config.Config, log logr.Logger) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register types: %w", err)
	}
	server := metricsserver.Options{
		BindAddress:   cfg.Metrics.Address,
		SecureServing: cfg.Metrics.Secure,
		TLSOpts:       []func(*tls.Config){minTLS(cfg)},
	}
	if cfg.Metrics.Secure {
		server.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	options := ctrl.Options{
		Scheme:                        scheme,
		Logger:                        log,
		Metrics:                       server,
		HealthProbeBindAddress:        cfg.HealthAddress,
		LeaderElection:                cfg.LeaderElection.Enabled,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       cfg.LeaderElection.Namespace,
		LeaderElectionReleaseOnCancel: true,
	}
	mgr, err := ctrlmanager.New(restConfig, options)
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	return mgr, nil
}

func minTLS(cfg config.Config) func(*tls.Config) {
	return func(c *tls.Config) {
		c.MinVersion = tls.VersionTLS13
		if cfg.Webhook.TLSMinVersion == "1.2" {
			c.MinVersion = tls.VersionTLS12
		}
	}
}

// parts are the manager's parts, each made once.
type parts struct {
	// told is closed when the process is told to end.
	told <-chan struct{}

	mgr        ctrl.Manager
	restConfig *rest.Config
	cfg        config.Config
	api        calico.API
	log        logr.Logger
	clock      clock.WithTicker

	inventory *inventory.Inventory
	feed      *feed.Feed
	lock      *datastore.Lock
	effects   effect.API
	pace      *pace.Pace
	effector  *effect.Effector
	monitor   *pause.Monitor
	teller    *teller
	audit     *audit.File
	record    audit.Log
	spans     tracing.TracerProvider
	group     *conditions.Group
	machines  schema.GroupVersion
}

func newParts(mgr ctrl.Manager, restConfig *rest.Config, cfg config.Config, found found, spans tracing.TracerProvider, log logr.Logger) (*parts, error) {
	api := found.calico.API
	p := &parts{mgr: mgr, restConfig: restConfig, cfg: cfg, api: api, machines: found.machines, spans: spans, log: log, clock: clock.RealClock{}}
	p.inventory = inventory.New(p.clock)
	var err error
	if p.feed, err = feed.New(restConfig, api, p.inventory, feed.Options{Log: log.WithName("feed"), KubeVirt: found.machines}); err != nil {
		return nil, fmt.Errorf("caches: %w", err)
	}
	if p.lock, err = datastore.NewLock(restConfig, api, log.WithName("datastore")); err != nil {
		return nil, fmt.Errorf("datastore lock: %w", err)
	}
	if p.effects, err = effect.NewAPI(restConfig, api); err != nil {
		return nil, err
	}
	if p.pace, err = pace.New(cfg.Sweep.Rate, p.clock); err != nil {
		return nil, err
	}
	collectors, err := metrics.New(ctrlmetrics.Registry, p.clock, metrics.Sources{Rate: p.pace.Rate, CacheLag: p.cacheLag})
	if err != nil {
		return nil, err
	}
	if p.teller, err = newTeller(mgr, restConfig, cfg, api, p.clock, collectors, log); err != nil {
		return nil, err
	}
	p.group = conditions.NewGroup(found.calico, func(ctx context.Context) (calico.Detection, error) { return calico.Detect(ctx, restConfig) }, p.clock, log)
	p.monitor = pause.NewMonitor(p.clock, cfg.Sweep.Grace.Duration,
		func() pause.Facts { return conditions.Facts(p.inventory, p.feed, p.lock, p.group) }, p.teller.paused)
	if cfg.AuditFile != "" {
		if p.audit, err = audit.OpenFile(cfg.AuditFile); err != nil {
			return nil, err
		}
		p.record = p.audit
	} else {
		records, err := newAuditLogger()
		if err != nil {
			return nil, err
		}
		p.record = audit.ToLogger(records)
	}
	p.effector = p.newEffector(cfg.Sweep.DryRun || !cfg.Sweep.Enabled)
	return p, nil
}

func (p *parts) newEffector(dryRun bool) *effect.Effector {
	return effect.New(effect.Options{
		API:          p.effects,
		Evidence:     p.inventory,
		Audit:        p.record,
		Pace:         p.pace,
		Clock:        p.clock,
		Gate:         p.monitor.Gate,
		Grace:        p.cfg.Sweep.Grace.Duration,
		DryRun:       dryRun,
		SweepUnknown: p.cfg.Sweep.Unknown,
		Hold:         p.holds(),
	})
}

// holds tells whether our admission gives handles the finalizer.
func (p *parts) holds() bool {
	return p.cfg.Webhook.Enabled && p.cfg.Guard.Mode != config.GuardOff
}

func (p *parts) closeAudit() error {
	if p.audit == nil {
		return nil
	}
	return p.audit.Close()
}

func (p *parts) addCaches() error {
	return errors.Join(p.mgr.Add(p.feed), p.mgr.Add(p.lock))
}

func (p *parts) addControllers() error {
	sweep := sweeper.New(sweeper.Options{
		Inventory: p.inventory,
		API:       p.effects,
		Effector:  p.effector,
		Freshness: p.feed,
		Observer:  p.teller,
		Clock:     p.clock,
		Log:       p.log.WithName("sweeper"),
		Gate:      p.monitor.Gate,
		Grace:     p.cfg.Sweep.Grace.Duration,
		Workers:   p.cfg.Sweep.Workers,
		Interval:  p.cfg.Sweep.Interval.Duration,
		Rate:      p.pace.Rate,
		Tracer:    p.spans.Tracer(tracerName),
	})
	// Whoever gives finalizers takes them off, or deleted handles would never
	// go while sweeping is off or only tried.
	release := guard.New(guard.Options{
		Inventory: p.inventory, Effector: p.newEffector(p.cfg.Sweep.DryRun && !p.holds()), Observer: p.teller, Clock: p.clock,
	})
	complete := leaks.New(leaks.Options{
		Inventory: p.inventory, Effector: p.effector, Clock: p.clock, Log: p.log.WithName("leaks"),
	})
	if len(p.cfg.Repair) > 0 {
		if err := p.addRepairer(); err != nil {
			return err
		}
	}
	return errors.Join(
		p.mgr.Add(leading{p.synced(sweep.Start)}),
		p.mgr.Add(leading{p.synced(release.Start)}),
		p.mgr.Add(leading{p.synced(complete.Start)}),
		p.mgr.Add(leading{p.teller.run}),
		p.mgr.Add(leading{p.tellPauses}),
		p.mgr.Add(leading{p.group.Start}),
		p.mgr.Add(leading{p.watchKubeVirt}),
	)
}

func (p *parts) addRepairer() error {
	repair := repairer.New(repairer.Options{
		Inventory: p.inventory, Handles: p.effects, Freshness: p.feed, Observer: p.teller, Clock: p.clock,
		// Of its own: repairing and sweeping are switched on separately.
		Effector: p.newEffector(p.cfg.Sweep.DryRun),
		Log:      p.log.WithName("repairer"), Gate: p.monitor.Gate, Grace: p.cfg.Sweep.Grace.Duration,
		Kinds: slices.DeleteFunc(verdict.Divergences(), func(d verdict.Divergence) bool {
			return !slices.Contains(p.cfg.Repair, string(d))
		}),
	})
	return p.mgr.Add(leading{p.synced(repair.Start)})
}

// leading runs only while this replica leads.
type leading struct {
	start func(context.Context) error
}

// Start implements manager.Runnable.
func (l leading) Start(ctx context.Context) error { return l.start(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (l leading) NeedLeaderElection() bool { return true }

// synced starts run once the caches are.
func (p *parts) synced(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		// Only the end of ctx ends the wait early, and then run ends too.
		if err := p.feed.WaitForSync(ctx); ctx.Err() == nil && err != nil {
			return err
		}
		return run(ctx)
	}
}

func (p *parts) watchKubeVirt(ctx context.Context) error {
	return kubevirt.Watch(ctx, p.machines, func(ctx context.Context) (schema.GroupVersion, error) {
		return kubevirt.Find(ctx, p.restConfig)
	}, p.clock)
}

// pauseInterval is how often the pause conditions are told while nothing asks
// for them.
const pauseInterval = 2 * time.Second

// tellPauses keeps metric, event and status true while nothing is swept.
func (p *parts) tellPauses(ctx context.Context) error {
	ticker := p.clock.NewTicker(pauseInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			p.monitor.Active()
		}
	}
}

func (p *parts) cacheLag() map[string]time.Duration {
	lag := map[string]time.Duration{}
	for _, c := range p.feed.Conditions() {
		lag[c.Resource] = c.Lag
	}
	return lag
}

func (p *parts) addHealth() error {
	return errors.Join(
		p.mgr.AddHealthzCheck("ping", healthz.Ping),
		p.mgr.AddReadyzCheck("caches", func(*http.Request) error {
			for _, c := range p.feed.Conditions() {
				if !c.Synced {
					return fmt.Errorf("%s are not listed yet", c.Resource)
				}
			}
			return nil
		}),
	)
}

// identity names this replica.
func identity() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}
