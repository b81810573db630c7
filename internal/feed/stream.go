package feed

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/inventory"
)

const (
	// pageSize bounds what one list request holds in memory.
	pageSize = 500
	// restarts is how often a list begins anew when its pages expire midway.
	restarts = 3
	// brokenAfter is how long a watch may be away before it counts as broken;
	// the API server ends each one now and then.
	brokenAfter = 2 * time.Second
	// lookAgain is how often a wait for a resource version looks.
	lookAgain = 5 * time.Millisecond
)

// stream is one resource on its way into the inventory. To a reflector it is
// both source and store. Pages go into the inventory as they come, so that no
// list is ever held whole.
type stream struct {
	source source
	inv    *inventory.Inventory
	clock  clock.Clock
	log    logr.Logger

	// large is true while the resource has more objects than one read brings.
	large atomic.Bool
	// unprobed is true once probes have fallen short: this API server does not
	// come to the newest revision by itself.
	unprobed atomic.Bool

	mu sync.Mutex
	// reached is the resource version up to which the inventory has seen
	// everything; 0 before the first list.
	reached  uint64
	watching bool
	// since is when watching last changed.
	since time.Time
	err   error
	// current is the last watch, which may have ended.
	current watch.Interface
	// expired makes the next watch fail, so that the reflector lists anew.
	expired bool
	// listed is true from a list until the watch from there.
	listed bool

	// setBack is called when the datastore proves to have been set back.
	setBack func()
}

func newStream(s source, inv *inventory.Inventory, c clock.Clock, log logr.Logger) *stream {
	return &stream{source: s, inv: inv, clock: c, log: log, since: c.Now(), setBack: func() {}}
}

func (s *stream) condition() Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := Condition{Resource: s.source.resource.String(), Synced: s.reached > 0, Connected: true}
	if s.watching {
		return c
	}
	c.Lag = s.clock.Since(s.since)
	c.Connected = c.Lag < brokenAfter
	c.Err = s.err
	return c
}

func (s *stream) setWatching(watching bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watching != watching {
		s.watching, s.since = watching, s.clock.Now()
	}
	if watching || err != nil {
		s.err = err
	}
}

func (s *stream) reachedVersion() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reached
}

// waitFor returns once the inventory has seen everything up to rv.
func (s *stream) waitFor(ctx context.Context, rv uint64) error {
	return s.wait(ctx, func() bool { return s.reachedVersion() >= rv })
}

// waitFollowing is waitFor of a stream that goes on from there: one that is
// about to list anew may learn that what it has seen no longer is.
func (s *stream) waitFollowing(ctx context.Context, rv uint64) error {
	return s.wait(ctx, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.reached >= rv && s.watching && !s.expired
	})
}

func (s *stream) wait(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.clock.After(lookAgain):
		}
	}
	return nil
}

// IsWatchListSemanticsUnSupported keeps the reflector from streaming the list
// into a store of its own.
func (s *stream) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.ListerWatcher.
func (s *stream) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// Watch implements cache.ListerWatcher.
func (s *stream) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

// ListWithContext lists into the inventory and returns an empty list of the
// same resource version: Replace then ends the relist.
func (s *stream) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	s.expired = false
	s.mu.Unlock()
	rv, err := s.list(ctx, s.inv.Begin)
	// Where a backup is restored, revisions begin below those that were known,
	// or far above them; its objects are older than known ones all the same.
	if err == nil && (version(rv) < s.reachedVersion() || s.inv.SetBack(s.source.resource)) {
		s.log.Info("The datastore was set back to an earlier state: listing anew", "resource", s.source.resource.String(), "revision", rv)
		s.mu.Lock()
		s.reached = 0
		s.mu.Unlock()
		s.setBack()
		rv, err = s.list(ctx, s.inv.BeginAnew)
	}
	if err != nil {
		s.setWatching(false, err)
		return nil, err
	}
	s.mu.Lock()
	s.listed = true
	s.mu.Unlock()
	return &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: rv}}, nil
}

func (s *stream) list(ctx context.Context, begin func(inventory.Resource)) (string, error) {
	for attempt := 0; ; attempt++ {
		begin(s.source.resource)
		rv, err := s.source.pages(ctx, false, s.source.apply)
		if apierrors.IsResourceExpired(err) && attempt < restarts {
			continue
		}
		return rv, err
	}
}

// relist ends the watch that goes on, and has the reflector list anew.
func (s *stream) relist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expired = true
	if s.current != nil {
		s.current.Stop()
	}
}

// WatchWithContext implements cache.ListerWatcherWithContext.
func (s *stream) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := s.follow(ctx, o)
	if err != nil {
		s.setWatching(false, err)
		return nil, fmt.Errorf("watch %s: %w", s.source.resource, err)
	}
	s.setWatching(true, nil)
	return &watched{Interface: w, stopped: func() { s.setWatching(false, nil) }}, nil
}

func (s *stream) follow(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if s.interrupted() {
		if _, _, err := s.newestRevision(ctx, 1); errors.Is(err, errSetBack) {
			s.setBack()
			return nil, apierrors.NewResourceExpired(errSetBack.Error())
		} else if err != nil {
			return nil, err
		}
	}
	w, err := s.source.watch(ctx, o)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expired {
		s.expired = false
		w.Stop()
		return nil, apierrors.NewResourceExpired(errSetBack.Error())
	}
	s.current, s.listed = w, false
	return w, nil
}

// interrupted tells whether the watch is to go on after the API server was
// away. A watch from a revision that is yet to come stays silent: had a backup
// been restored meanwhile, it would pass over what was written since.
func (s *stream) interrupted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.listed && !s.expired && !s.watching && (s.err != nil || s.clock.Since(s.since) > brokenAfter/2)
}

// watched tells when a watch ends: the reflector always stops what it read.
type watched struct {
	watch.Interface
	once    sync.Once
	stopped func()
}

// Stop implements watch.Interface.
func (w *watched) Stop() {
	w.once.Do(w.stopped)
	w.Interface.Stop()
}

// Add implements cache.ReflectorStore.
func (s *stream) Add(obj any) error { return s.applyAny(obj) }

// Update implements cache.ReflectorStore.
func (s *stream) Update(obj any) error { return s.applyAny(obj) }

func (s *stream) applyAny(obj any) error {
	o, ok := obj.(runtime.Object)
	if !ok {
		return fmt.Errorf("%T is no object of the API server", obj)
	}
	s.source.apply(o)
	return nil
}

// Delete implements cache.ReflectorStore. The object's resource version is
// that of the deletion.
func (s *stream) Delete(obj any) error {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	o, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("deleted %s: %w", s.source.resource, err)
	}
	s.source.remove(o.GetNamespace(), o.GetName(), version(o.GetResourceVersion()))
	return nil
}

// Replace implements cache.ReflectorStore: it ends the relist that
// ListWithContext did.
func (s *stream) Replace(_ []any, resourceVersion string) error {
	s.inv.Commit(s.source.resource)
	s.UpdateResourceVersion(resourceVersion)
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *stream) Resync() error { return nil }

// UpdateResourceVersion implements cache.ResourceVersionUpdater: the reflector
// calls it after the store took the event.
func (s *stream) UpdateResourceVersion(resourceVersion string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reached = max(s.reached, version(resourceVersion))
}

// version reads a resource version; they are comparable numbers.
func version(s string) uint64 {
	rv, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return rv
}
