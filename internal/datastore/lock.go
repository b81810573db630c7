// Package datastore watches whether Calico's datastore is locked: while it is,
// nobody may write IPAM objects.
package datastore

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// clusterInformation is the one object that holds the lock.
const clusterInformation = "default"

// Lock follows the datastore's lock. Until it has been read, and where the
// object does not exist, the datastore counts as locked.
type Lock struct {
	informer cache.SharedInformer
	// told is true once the first list has reached observe.
	told cache.InformerSynced

	mu     sync.RWMutex
	locked bool
	detail string
	// observed is true once the object was seen.
	observed bool
}

// NewLock returns a Lock; Start makes it follow.
func NewLock(cfg *rest.Config, api calico.API, log logr.Logger) (*Lock, error) {
	client, err := api.NewRESTClient(cfg)
	if err != nil {
		return nil, err
	}
	l := &Lock{locked: true, detail: "not read yet"}
	resource := api.ClusterInformations().Resource
	source := cache.NewListWatchFromClient(client, resource, "", fields.OneTermEqualSelector("metadata.name", clusterInformation))
	l.informer = cache.NewSharedInformer(source, &calico.ClusterInformation{}, 0)
	handler, err := l.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    l.observe,
		UpdateFunc: func(_, obj any) { l.observe(obj) },
		DeleteFunc: func(any) { l.set(true, "ClusterInformation default was deleted") },
	})
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", resource, err)
	}
	if err := l.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		log.V(1).Info("watch of the datastore lock broke", "error", err.Error())
		if !l.informer.HasSynced() {
			l.explain(fmt.Sprintf("cannot read %s: %v", resource, err))
		}
	}); err != nil {
		return nil, fmt.Errorf("follow %s: %w", resource, err)
	}
	l.told = handler.HasSynced
	return l, nil
}

// NeedLeaderElection lets every replica follow the lock.
func (l *Lock) NeedLeaderElection() bool { return false }

// Start follows the lock until ctx ends.
func (l *Lock) Start(ctx context.Context) error {
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), l.informer.HasSynced) {
			l.explain("ClusterInformation default does not exist")
		}
	}()
	l.informer.RunWithContext(ctx)
	return nil
}

// WaitForSync returns once the lock was read, or ctx ended.
func (l *Lock) WaitForSync(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), l.told) {
		return fmt.Errorf("read whether the datastore is locked: %w", ctx.Err())
	}
	return nil
}

// State tells whether the datastore is locked, and why it counts as locked.
func (l *Lock) State() (locked bool, detail string) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.locked, l.detail
}

func (l *Lock) observe(obj any) {
	info, ok := obj.(*calico.ClusterInformation)
	if !ok || info.Name != clusterInformation {
		return
	}
	if ready := info.Spec.DatastoreReady; ready != nil && !*ready {
		l.set(true, "ClusterInformation default has datastoreReady false")
		return
	}
	l.set(false, "")
}

func (l *Lock) set(locked bool, detail string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locked, l.detail, l.observed = locked, detail, true
}

// explain says why the object was not observed, as long as it was not: it may
// be on its way.
func (l *Lock) explain(detail string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.observed {
		l.detail = detail
	}
}
