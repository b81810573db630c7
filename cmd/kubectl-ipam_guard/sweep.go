package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/controllers/sweeper"
	"github.com/ipam-guard/ipam-guard/internal/access"
	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/datastore"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/pace"
	"github.com/ipam-guard/ipam-guard/internal/pause"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// sweepOptions are the flags of sweep.
type sweepOptions struct {
	yes        bool
	auditFile  string
	grace      time.Duration
	olderThan  time.Duration
	node, pool string
	selector   string
	max        int
	workers    int
	rate       float64
	names      bool
}

func (o *sweepOptions) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&o.yes, "yes", false, "delete; without it, only say what would be deleted")
	flags.StringVar(&o.auditFile, "audit-file", "", "where to record each deletion, for restore (default ipam-guard-audit-<time>.jsonl)")
	flags.DurationVar(&o.grace, "grace", verdict.DefaultGrace, "how long a handle must be unchanged to count as an orphan")
	flags.DurationVar(&o.olderThan, "older-than", 0, "only handles last changed longer ago than this")
	flags.StringVar(&o.node, "node", "", "only handles of this node: by their ID, their stamp, or their block's affinity")
	flags.StringVar(&o.pool, "pool", "", "only handles that name a block of this IP pool")
	flags.StringVarP(&o.selector, "selector", "l", "", "only verdicts that match, such as reason=PodGone or reason!=NodeGone,kind=PodSandbox")
	flags.IntVar(&o.max, "max", 0, "most handles to delete; 0 for no bound")
	flags.IntVar(&o.workers, "workers", sweeper.DefaultWorkers, "deletes under way at once")
	flags.Float64Var(&o.rate, "rate", 100, "most deletes a second; 0 for as fast as the API server allows")
	flags.BoolVar(&o.names, "names", false, "print the name of each handle and its verdict")
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			matches, err := parseSelector(o.selector)
			if err != nil {
				return err
			}
			cfg, api, err := cluster(cmd.Context(), connection, func(api calico.API) []access.Permission {
				wanted := access.Watching(api)
				if o.yes {
					wanted = append(wanted, access.Sweeping(api)...)
				}
				return wanted
			})
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), cfg, api, matches, streams)
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func (o *sweepOptions) run(ctx context.Context, cfg *rest.Config, api calico.API, matches matcher, streams genericiooptions.IOStreams) error {
	c := clock.RealClock{}
	klog.SetLogger(logr.Discard()) // Broken watches show as a pause.
	record := audit.ToLogger(logr.Discard())
	if o.yes {
		if o.auditFile == "" {
			o.auditFile = "ipam-guard-audit-" + c.Now().UTC().Format("20060102T150405Z") + ".jsonl"
		}
		file, err := audit.OpenFile(o.auditFile)
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
	show := newSweepView(streams, c, o.names)
	report := sweeper.New(sweeper.Options{
		Inventory: caches.inventory, API: handles, Freshness: caches.feed, Observer: show, Clock: c,
		Effector: effect.New(effect.Options{
			API: handles, Evidence: caches.inventory, Audit: record, Pace: limit, Clock: c,
			Gate: caches.monitor.Gate, Grace: o.grace, DryRun: !o.yes,
		}),
		Gate: caches.monitor.Gate, Grace: o.grace, Workers: o.workers, Rate: limit.Rate,
		Select: narrow.selects, Max: o.max,
	}).Pass(ctx)
	return o.conclude(report, show, streams.Out)
}

// conclude prints the summary; a sweep that did not end well is an error.
func (o *sweepOptions) conclude(r sweeper.Report, show *sweepView, out io.Writer) error {
	show.end()
	if r.Err == nil || r.Swept+r.WouldSweep > 0 {
		show.summary(out)
		if o.yes {
			fmt.Fprintf(out, "Deleted %d handles in %s; %d kept, %d changed meanwhile, %d gone already, %d held by a finalizer, %d failed.\n",
				r.Swept, r.Ended.Sub(r.Started).Round(time.Millisecond), r.Kept, r.Conflicts, r.Vanished, r.Held, r.Failed)
			fmt.Fprintf(out, "Undo with: kubectl ipam-guard restore -f %s\n", o.auditFile)
		} else {
			fmt.Fprintf(out, "Would delete %d handles; nothing was changed. Add --yes to delete them.\n", r.WouldSweep)
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

func follow(ctx context.Context, cfg *rest.Config, api calico.API, c clock.Clock, grace time.Duration) (*caches, error) {
	inv := inventory.New(c)
	f, err := feed.New(cfg, api, inv, feed.Options{})
	if err != nil {
		return nil, err
	}
	lock, err := datastore.NewLock(cfg, api, logr.Discard())
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	for _, start := range []func(context.Context) error{f.Start, lock.Start} {
		group.Go(func() { _ = start(running) }) // Both end by the context alone.
	}
	stop := func() {
		cancel()
		group.Wait()
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
		monitor: pause.NewMonitor(c, grace, func() pause.Facts { return facts(inv, f, lock) }, func(pause.Pause, bool) {}),
	}, nil
}

func facts(inv *inventory.Inventory, f *feed.Feed, lock *datastore.Lock) pause.Facts {
	s := inv.Summary()
	p := pause.Facts{Nodes: s.Nodes, Blocks: s.Blocks, CalicoPods: s.CalicoPods, InUse: s.ReferencedHandles}
	p.Locked, p.LockDetail = lock.State()
	for _, c := range f.Conditions() {
		cache := pause.Cache{Resource: c.Resource, Synced: c.Synced, Connected: c.Connected}
		if c.Err != nil {
			cache.Detail = c.Err.Error()
		}
		p.Caches = append(p.Caches, cache)
	}
	return p
}

// sweepView shows a sweep on the terminal; it is a sweeper.Observer.
type sweepView struct {
	out      io.Writer
	names    bool
	progress *progress

	mu       sync.Mutex
	verdicts map[sweeper.Class]int
	firstErr error
}

func newSweepView(streams genericiooptions.IOStreams, c clock.PassiveClock, names bool) *sweepView {
	v := &sweepView{out: streams.Out, names: names, verdicts: map[sweeper.Class]int{}}
	v.progress = newProgress(streams.ErrOut, c, "handles")
	return v
}

// Judged implements sweeper.Observer.
func (v *sweepView) Judged(t sweeper.Tally) { v.progress.begin(t.Candidates) }

// Effect implements sweeper.Observer.
func (v *sweepView) Effect(h *calico.IPAMHandle, r effect.Result, err error) {
	v.progress.step()
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case err != nil && v.firstErr == nil:
		v.firstErr = err
	case r.Outcome == effect.Done || r.Outcome == effect.WouldDo:
		v.verdicts[sweeper.Class{Outcome: r.Verdict.Outcome, Reason: r.Verdict.Reason}]++
	}
	if v.names && err == nil {
		fmt.Fprintf(v.out, "%s\t%s\t%s/%s\n", h.Name, r.Outcome, r.Verdict.Outcome, r.Verdict.Reason)
	}
}

// Passed implements sweeper.Observer.
func (v *sweepView) Passed(sweeper.Report) {}

func (v *sweepView) end() { v.progress.end() }

func (v *sweepView) summary(out io.Writer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	classes := make([]sweeper.Class, 0, len(v.verdicts))
	for class := range v.verdicts {
		classes = append(classes, class)
	}
	slices.SortFunc(classes, func(a, b sweeper.Class) int {
		return cmp.Or(cmp.Compare(v.verdicts[b], v.verdicts[a]), strings.Compare(string(a.Reason), string(b.Reason)))
	})
	for _, class := range classes {
		fmt.Fprintf(out, "%8d  %s/%s\n", v.verdicts[class], class.Outcome, class.Reason)
	}
}
