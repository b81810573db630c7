package feed

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/kubevirt"
)

// Visitor is shown each object once, in passing; it must not keep what it is
// shown. Nil functions are passed over.
type Visitor struct {
	// Handle brings of managed fields the times alone.
	Handle func(*calico.IPAMHandle)
	Block  func(*calico.IPAMBlock)
	// Node and Service bring metadata alone.
	Node    func(metav1.Object)
	Service func(metav1.Object)
	Pod     func(*corev1.Pod)
}

// Once fills the inventory with one look at the cluster, page by page. It
// reads handles first, then blocks, then owners: an assignment that goes on
// meanwhile shows as a handle with an owner, never as an orphan of age. For the
// same reason the end of a long list may be as of a later moment than its
// beginning.
func Once(ctx context.Context, cfg *rest.Config, api calico.API, inv *inventory.Inventory, v Visitor) error {
	machines, err := kubevirt.Find(ctx, cfg)
	if err != nil {
		return err
	}
	s, err := newSources(cfg, api, machines, inv)
	if err != nil {
		return err
	}
	if v.Handle != nil {
		client, err := api.NewRESTClient(cfg)
		if err != nil {
			return err
		}
		s.handles.list = listHandles(client, api.Handles().Resource)
	}
	type look struct {
		source source
		visit  func(runtime.Object)
	}
	looks := []look{
		{s.handles, shown(v.Handle)},
		{s.blocks, shown(v.Block)},
		{s.nodes, shown(v.Node)},
		{s.services, shown(v.Service)},
		{s.pods, shown(v.Pod)},
	}
	for _, machine := range s.machines {
		looks = append(looks, look{machine, func(runtime.Object) {}})
	}
	for _, look := range looks {
		inv.Begin(look.source.resource)
		if _, err := look.source.pages(ctx, true, func(o runtime.Object) {
			look.source.apply(o)
			look.visit(o)
		}); err != nil {
			return err
		}
		inv.Commit(look.source.resource)
	}
	return nil
}

func shown[T any](visit func(T)) func(runtime.Object) {
	return func(o runtime.Object) {
		if visit == nil {
			return
		}
		if typed, ok := o.(T); ok {
			visit(typed)
		}
	}
}
