// Package check looks at a cluster once and counts what it finds, in the words
// of calicoctl's check and beyond.
package check

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// poolPage is how many pools one request lists.
const poolPage = 500

// Run looks at the cluster. Lists are read in pages and never held whole.
// Each, unless nil, is shown every handle as it was judged.
func Run(ctx context.Context, cfg *rest.Config, api calico.API, c clock.PassiveClock, grace time.Duration,
	each func(verdict.Evidence, verdict.Verdict),
) (*Report, error) {
	r := &Report{APIVersion: APIVersion, Kind: Kind, Time: c.Now(), Group: api.String()}
	inv := inventory.New(c)
	handles := newHandles()
	addresses := newAddresses()
	err := feed.Once(ctx, cfg, api, inv, feed.Visitor{
		Handle: handles.declare,
		Block: func(b *calico.IPAMBlock) {
			if b.Spec.Deleted {
				r.BlocksMarkedDeleted++
				return
			}
			handles.mention(&b.Spec)
			r.BlockList = append(r.BlockList, addresses.allocate(&b.Spec))
		},
		Node: addresses.useByNode,
		Pod:  addresses.useByPod,
	})
	if err != nil {
		return nil, err
	}
	if r.Pools, err = listPools(ctx, cfg, api); err != nil {
		return nil, err
	}
	addresses.report(r, inv)
	handles.report(r, inv, grace, each)
	r.sum()
	return r, nil
}

func listPools(ctx context.Context, cfg *rest.Config, api calico.API) ([]Pool, error) {
	client, err := api.NewRESTClient(cfg)
	if err != nil {
		return nil, err
	}
	var pools []Pool
	o := metav1.ListOptions{Limit: poolPage}
	for {
		page := &calico.IPPoolList{}
		if err := client.Get().Resource(api.Pools().Resource).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(page); err != nil {
			return nil, fmt.Errorf("list %s: %w", api.Pools().Resource, err)
		}
		for _, p := range page.Items {
			pools = append(pools, Pool{Name: p.Name, CIDR: p.Spec.CIDR, Disabled: p.Spec.Disabled})
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return pools, nil
		}
	}
}
