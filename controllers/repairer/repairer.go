// Package repairer makes handles agree with the blocks, where they have
// disagreed for the grace period and nothing changed.
package repairer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// Inventory is what the repairer asks of the caches.
type Inventory interface {
	// References are the blocks that reference the handle.
	References(name string) []verdict.Reference
	// Missing are handles that blocks reference and that do not exist.
	Missing() []string
}

// Handles reads handles in full.
type Handles interface {
	ListHandles(ctx context.Context, limit int64, cont string) (page []calico.IPAMHandle, next string, err error)
}

// Freshness proves that the caches have seen all that was written before.
type Freshness interface {
	ProveFresh(ctx context.Context) error
}

// Observer is told what happens.
type Observer interface {
	// Diverged is told how many handles disagree now, settled or not.
	Diverged(counts map[verdict.Divergence]int)
	// Repaired is told what came of one handle.
	Repaired(d effect.Diverged, r effect.Result, err error)
}

// Options make a Repairer. All but Log are required.
type Options struct {
	Inventory Inventory
	Handles   Handles
	Effector  *effect.Effector
	Freshness Freshness
	Observer  Observer
	Clock     clock.WithTicker
	Log       logr.Logger
	// Kinds are what is repaired.
	Kinds []verdict.Divergence
	// Gate says whether effects are allowed now; nil allows.
	Gate effect.Gate
	// Grace is how long a divergence must be unchanged.
	Grace time.Duration
}

// looks is how many looks the grace period has at least: each must have found
// the same.
const looks = 3

// pageSize is how many handles one request reads.
const pageSize = 500

// seen is a divergence and since when it has been observed as it is.
type seen struct {
	effect.Diverged
	since time.Time
	looks int
}

// Repairer repairs divergences.
type Repairer struct {
	o    Options
	seen map[string]seen
}

// New returns a Repairer.
func New(o Options) *Repairer { return &Repairer{o: o, seen: map[string]seen{}} }

// NeedLeaderElection makes one replica repair.
func (r *Repairer) NeedLeaderElection() bool { return true }

// Start looks and repairs until ctx ends.
func (r *Repairer) Start(ctx context.Context) error {
	ticker := r.o.Clock.NewTicker(r.o.Grace / looks)
	defer ticker.Stop()
	for {
		if err := r.Pass(ctx); err != nil && ctx.Err() == nil {
			r.o.Log.Error(err, "repair ended early")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// Pass looks at all handles once, and repairs what has been as it is for the
// grace period.
func (r *Repairer) Pass(ctx context.Context) error {
	if r.o.Gate != nil {
		if err := r.o.Gate(); err != nil {
			clear(r.seen) // What the caches tell counts for nothing now.
			return fmt.Errorf("%w: %w", effect.ErrClosed, err)
		}
	}
	now, err := r.look(ctx)
	if err != nil {
		return err
	}
	var settled []seen
	counts := map[verdict.Divergence]int{}
	for name, d := range now {
		counts[d.Kind]++
		if was, ok := r.seen[name]; ok && same(was.Diverged, d.Diverged) {
			d.since, d.looks = was.since, was.looks+1
			now[name] = d
		}
		if d.looks > looks && r.o.Clock.Since(d.since) >= r.o.Grace {
			settled = append(settled, d)
		}
	}
	r.seen = now
	r.o.Observer.Diverged(counts)
	if len(settled) == 0 {
		return nil
	}
	return r.repair(ctx, settled)
}

func same(a, b effect.Diverged) bool {
	return a.Kind == b.Kind && a.ResourceVersion == b.ResourceVersion && maps.Equal(a.Counts, b.Counts)
}

// look finds what disagrees now and shall be repaired.
func (r *Repairer) look(ctx context.Context) (map[string]seen, error) {
	found := map[string]seen{}
	note := func(name, resourceVersion string, h *calico.IPAMHandle) {
		counts := verdict.Counts(r.o.Inventory.References(name))
		kind := verdict.Compare(h, counts)
		if !slices.Contains(r.o.Kinds, kind) {
			return
		}
		found[name] = seen{effect.Diverged{Kind: kind, Name: name, ResourceVersion: resourceVersion, Counts: counts}, r.o.Clock.Now(), 1}
	}
	if slices.Contains(r.o.Kinds, verdict.Missing) {
		for _, name := range r.o.Inventory.Missing() {
			note(name, "", nil)
		}
	}
	if !slices.Contains(r.o.Kinds, verdict.Skewed) && !slices.Contains(r.o.Kinds, verdict.Stuck) {
		return found, nil
	}
	for cont := ""; ; {
		page, next, err := r.o.Handles.ListHandles(ctx, pageSize, cont)
		if err != nil {
			return nil, fmt.Errorf("list handles: %w", err)
		}
		for i := range page {
			// A missing one that is there by now is none.
			delete(found, page[i].Name)
			note(page[i].Name, page[i].ResourceVersion, &page[i])
		}
		if cont = next; cont == "" {
			return found, nil
		}
	}
}

// repair proves the caches fresh, asks them once more, and repairs.
func (r *Repairer) repair(ctx context.Context, settled []seen) error {
	if err := r.o.Freshness.ProveFresh(ctx); err != nil {
		return fmt.Errorf("prove caches fresh: %w", err)
	}
	slices.SortFunc(settled, func(a, b seen) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.Name, b.Name)) })
	for _, d := range settled {
		delete(r.seen, d.Name) // Whatever comes of it, it is looked at anew.
		if !maps.Equal(verdict.Counts(r.o.Inventory.References(d.Name)), d.Counts) {
			continue
		}
		result, err := r.o.Effector.Repair(ctx, d.Diverged)
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		r.o.Observer.Repaired(d.Diverged, result, err)
		if errors.Is(err, effect.ErrClosed) {
			return err
		}
	}
	return nil
}
