// Package feed fills an inventory from the API server: by reflectors that
// follow the cluster, or once for a command that only looks.
package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
)

// Options of a Feed; all have a useful zero value.
type Options struct {
	Log logr.Logger
	// Clock is the real one when nil.
	Clock clock.Clock
	// KubeVirt is the version of its API to follow, empty where it is not
	// installed; what virtual machines live is not known then.
	KubeVirt schema.GroupVersion
}

// Feed keeps an inventory in step with the cluster.
type Feed struct {
	streams []*stream
	clock   clock.Clock
}

// New returns a feed; Start makes it follow the cluster.
func New(cfg *rest.Config, api calico.API, inv *inventory.Inventory, o Options) (*Feed, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	sources, err := newSources(cfg, api, o.KubeVirt, inv)
	if err != nil {
		return nil, err
	}
	f := &Feed{clock: o.Clock}
	for _, s := range sources.all() {
		f.streams = append(f.streams, newStream(s, inv, o.Clock, o.Log))
	}
	f.join()
	return f, nil
}

// join has all resources listed anew when one finds the datastore set back.
func (f *Feed) join() {
	for _, s := range f.streams {
		s.setBack = func() { f.relist(s) }
	}
}

// relist has all resources but one listed anew.
func (f *Feed) relist(but *stream) {
	for _, s := range f.streams {
		if s != but {
			s.relist()
		}
	}
}

// NeedLeaderElection lets every replica follow the cluster: all serve admission.
func (f *Feed) NeedLeaderElection() bool { return false }

// Start follows the cluster until ctx ends.
func (f *Feed) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range f.streams {
		group.Go(func() error {
			s.run(ctx)
			return nil
		})
	}
	return group.Wait()
}

// WaitForSync returns once every resource was listed, or ctx ended.
func (f *Feed) WaitForSync(ctx context.Context) error {
	for _, s := range f.streams {
		if err := s.waitFor(ctx, 1); err != nil {
			return fmt.Errorf("wait for the list of %s: %w", s.source.resource, err)
		}
	}
	return nil
}

// Condition is the state of one resource's cache.
type Condition struct {
	Resource string
	// Synced is true once the resource was listed.
	Synced bool
	// Connected is false while no watch has been established for a moment.
	Connected bool
	// Err is the last error since the watch was established, if any.
	Err error
	// Lag is how long the watch has been broken; 0 while it is established.
	Lag time.Duration
}

// Conditions tell the state of each resource's cache.
func (f *Feed) Conditions() []Condition {
	conditions := make([]Condition, 0, len(f.streams))
	for _, s := range f.streams {
		conditions = append(conditions, s.condition())
	}
	return conditions
}

// ProveFresh returns nil once the caches of blocks and of owners have seen all
// that was written before the call.
func (f *Feed) ProveFresh(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range f.streams {
		// A handle is compared with what it was by the delete itself.
		if s.source.resource == inventory.Handles {
			continue
		}
		group.Go(func() error { return s.proveFresh(ctx) })
	}
	err := group.Wait()
	if errors.Is(err, errSetBack) {
		f.relist(nil)
	}
	return err
}

// run is one reflector, until ctx ends.
func (s *stream) run(ctx context.Context) {
	reflector := cache.NewReflectorWithOptions(s, s.source.example, s, cache.ReflectorOptions{
		Name:            "ipam-guard/" + s.source.resource.String(),
		TypeDescription: s.source.resource.String(),
	})
	reflector.RunWithContext(klog.NewContext(ctx, s.log))
}
