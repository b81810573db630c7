package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/controllers/sweeper"
	"github.com/ipam-guard/ipam-guard/internal/access"
	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/conditions"
	"github.com/ipam-guard/ipam-guard/internal/datastore"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/kubevirt"
	"github.com/ipam-guard/ipam-guard/internal/pace"
	"github.com/ipam-guard/ipam-guard/internal/pause"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// sweepOptions are the flags of sweep.
type sweepOptions struct {
	yes        bool
	audit      auditFile
	grace      time.Duration
	olderThan  time.Duration
	node, pool string
	selector   string
	max        int
	workers    int
	rate       float64
	output     *output
}

func (o *sweepOptions) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&o.yes, "yes", false, "delete; without it, only say what would be deleted")
	o.audit.addFlag(flags, "each deletion, for restore")
	flags.DurationVar(&o.grace, "grace", verdict.DefaultGrace, "how long a handle must be unchanged to count as an orphan")
	flags.DurationVar(&o.olderThan, "older-than", 0, "only handles last changed longer ago than this")
	flags.StringVar(&o.node, "node", "", "only handles of this node: by their ID, their stamp, or their block's affinity")
	flags.StringVar(&o.pool, "pool", "", "only handles that name a block of this IP pool")
	flags.StringVarP(&o.selector, "selector", "l", "", "only verdicts that match, such as reason=PodGone or reason!=NodeGone,kind=PodSandbox")
	flags.IntVar(&o.max, "max", 0, "most handles to delete; 0 for no bound")
	flags.IntVar(&o.workers, "workers", sweeper.DefaultWorkers, "deletes under way at once")
	flags.Float64Var(&o.rate, "rate", 100, "most deletes a second; 0 for as fast as the API server allows")
}

func (o *sweepOptions) validate() error {
	switch {
	case o.grace < verdict.MinGrace:
		return fmt.Errorf("--grace=%s: at least %s, for Calico may still be writing the block", o.grace, verdict.MinGrace)
	case o.max < 0:
		return fmt.Errorf("--max=%d: not below 0", o.max)
	case o.workers < 1:
		return fmt.Errorf("--workers=%d: at least 1", o.workers)
	case o.rate < 0:
		return fmt.Errorf("--rate=%v: not below 0", o.rate)
	}
	return nil
}

func newSweep(connection *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var o sweepOptions
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Delete orphaned handles; a dry run unless --yes",
		Example: `  # What would be deleted
  kubectl ipam-guard sweep
  # Delete orphans that nothing has changed for 30 days, and record them
  kubectl ipam-guard sweep --older-than=720h --audit-file=swept.jsonl --yes`,
		Args: cobra.NoArgs,
	}
	o.addFlags(cmd.Flags())
	o.output = newOutput(cmd, "table", "wide", "name")
	register(cmd, "node", completeNames(connection, nodes))
	register(cmd, "pool", completeNames(connection, pools))
	completeWith(cmd, "selector", selectorTerms()...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.validate(); err != nil {
			return err
		}
		matches, err := parseSelector(o.selector)
		if err != nil {
			return err
		}
		printer, err := o.output.printer()
		if err != nil {
			return err
		}
		cfg, api, err := cluster(cmd.Context(), connection, func(api calico.API, machines schema.GroupVersion) []access.Permission {
			wanted := access.Watching(api, machines)
			if o.yes {
				wanted = append(wanted, access.Sweeping(api)...)
			}
			return wanted
		})
		if err != nil {
			return err
		}
		return o.run(cmd.Context(), cfg, api, matches, newSweepView(streams, clock.RealClock{}, api, o.output.format(), printer))
	}
	return cmd
}

func (o *sweepOptions) run(ctx context.Context, cfg *rest.Config, api calico.API, matches matcher, show *sweepView) error {
	c := clock.RealClock{}
	klog.SetLogger(logr.Discard()) // Broken watches show as a pause.
	record := audit.ToLogger(logr.Discard())
	if o.yes {
		file, err := o.audit.open(c)
		if err != nil {
			return err
		}
		defer file.Close()
		record = file
	}
	limit, err := pace.New(o.rate, c)
	if err != nil {
		return err
	}
	caches, err := follow(ctx, cfg, api, c, o.grace)
	if err != nil {
		return err
	}
	defer caches.stop()
	handles, err := effect.NewAPI(cfg, api)
	if err != nil {
		return err
	}
	var pool *calico.IPPool
	if o.pool != "" {
		if pool, err = getPool(ctx, cfg, api, o.pool); err != nil {
			return err
		}
	}
	narrow := selection{olderThan: o.olderThan, node: o.node, pool: pool, matches: matches, blockNode: caches.inventory.BlockNode}
	report := sweeper.New(sweeper.Options{
		Inventory: caches.inventory, API: handles, Freshness: caches.feed, Observer: show, Clock: c,
		Effector: effect.New(effect.Options{
			API: handles, Evidence: caches.inventory, Audit: record, Pace: limit, Clock: c,
			Gate: caches.monitor.Gate, Grace: o.grace, DryRun: !o.yes,
		}),
		Gate: caches.monitor.Gate, Grace: o.grace, Workers: o.workers, Rate: limit.Rate,
		Select: narrow.selects, Max: o.max,
	}).Pass(ctx)
	return o.conclude(report, show)
}

// conclude tells what was done; a sweep that did not end well is an error.
func (o *sweepOptions) conclude(r sweeper.Report, show *sweepView) error {
	if r.Err == nil || r.Swept+r.WouldSweep > 0 {
		if err := show.conclude(r, o.yes, o.audit.path); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(r.Err, context.Canceled):
		return errors.New("interrupted; what is left is swept by running this again")
	case r.Err != nil:
		return r.Err
	case r.Failed > 0:
		return fmt.Errorf("%d deletes failed; the first: %w", r.Failed, show.firstErr)
	}
	return nil
}

// caches follow the cluster while a command runs.
type caches struct {
	inventory *inventory.Inventory
	feed      *feed.Feed
	monitor   *pause.Monitor
	stop      func()
}

// syncTimeout bounds the wait for the first lists.
const syncTimeout = 2 * time.Minute

func follow(ctx context.Context, cfg *rest.Config, api calico.API, c clock.WithTicker, grace time.Duration) (*caches, error) {
	inv := inventory.New(c)
	machines, err := kubevirt.Find(ctx, cfg)
	if err != nil {
		return nil, err
	}
	f, err := feed.New(cfg, api, inv, feed.Options{KubeVirt: machines})
	if err != nil {
		return nil, err
	}
	lock, err := datastore.NewLock(cfg, api, logr.Discard())
	if err != nil {
		return nil, err
	}
	group := conditions.NewGroup(calico.Detection{API: api, Certain: true},
		func(ctx context.Context) (calico.Detection, error) { return calico.Detect(ctx, cfg) }, c, logr.Discard())
	running, cancel := context.WithCancel(ctx)
	var followers sync.WaitGroup
	for _, start := range []func(context.Context) error{f.Start, lock.Start, group.Start} {
		// An error of one of them shows as a pause.
		followers.Go(func() { _ = start(running) })
	}
	stop := func() {
		cancel()
		followers.Wait()
	}
	waiting, done := context.WithTimeout(ctx, syncTimeout)
	defer done()
	for _, wait := range []func(context.Context) error{f.WaitForSync, lock.WaitForSync} {
		if err := wait(waiting); err != nil {
			stop()
			return nil, err
		}
	}
	return &caches{
		inventory: inv, feed: f, stop: stop,
		monitor: pause.NewMonitor(c, grace, func() pause.Facts { return conditions.Facts(inv, f, lock, group) }, func(pause.Pause, bool) {}),
	}, nil
}
