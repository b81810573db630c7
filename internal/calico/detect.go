package calico

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Why a cluster's Calico cannot be worked on.
var (
	// ErrNoCalico: there are no IPAM definitions.
	ErrNoCalico = errors.New("no IPAMHandle definition in this cluster (neither crd.projectcalico.org/v1 nor projectcalico.org/v3): Calico is not installed, or keeps its data in an etcd of its own, which IPAM Guard does not support")
	// ErrAggregatedOnly: the IPAM objects are served by Calico's own API
	// server, from a datastore that is not this cluster's.
	ErrAggregatedOnly = errors.New("projectcalico.org/v3 is served by an aggregated API server and there is no crd.projectcalico.org/v1: Calico keeps its data in an etcd of its own, which IPAM Guard does not support")
)

// Detection is the API group in use.
//
// +kubebuilder:object:generate=false
type Detection struct {
	API API
	// Certain is false when both groups hold blocks, and which is in use
	// cannot be told; Detail says so, or how the group was found.
	Certain bool
	Detail  string
}

// Cluster is what detection asks of a cluster.
//
// +kubebuilder:object:generate=false
type Cluster interface {
	// Serves tells whether the group serves IPAMHandles.
	Serves(ctx context.Context, gv schema.GroupVersion) (bool, error)
	// Aggregated tells whether another server than the API server itself
	// serves the group.
	Aggregated(ctx context.Context, gv schema.GroupVersion) (bool, error)
	// HasBlocks tells whether the group holds any IPAMBlock.
	HasBlocks(ctx context.Context, api API) (bool, error)
}

// Detect finds the API group that a cluster's Calico uses.
func Detect(ctx context.Context, cfg *rest.Config) (Detection, error) {
	c, err := newCluster(cfg)
	if err != nil {
		return Detection{}, err
	}
	return DetectIn(ctx, c)
}

// DetectIn is Detect on any Cluster.
func DetectIn(ctx context.Context, c Cluster) (Detection, error) {
	crd, err := c.Serves(ctx, GroupCRD)
	if err != nil {
		return Detection{}, err
	}
	v3, err := c.Serves(ctx, GroupV3)
	if err != nil {
		return Detection{}, err
	}
	aggregated := false
	if v3 {
		if aggregated, err = c.Aggregated(ctx, GroupV3); err != nil {
			return Detection{}, err
		}
	} else if !crd {
		// Calico's API server need not serve handles to prove where they are.
		if aggregated, err = c.Aggregated(ctx, GroupV3); err != nil {
			return Detection{}, err
		}
	}
	switch {
	case crd && (!v3 || aggregated):
		return Detection{API: API{GroupCRD}, Certain: true, Detail: "only crd.projectcalico.org/v1 holds IPAM objects"}, nil
	case aggregated:
		return Detection{}, ErrAggregatedOnly
	case !crd && !v3:
		return Detection{}, ErrNoCalico
	case !crd:
		return Detection{API: API{GroupV3}, Certain: true, Detail: "only projectcalico.org/v3 holds IPAM objects"}, nil
	}
	both, err := c.HasBlocks(ctx, API{GroupCRD})
	if err != nil {
		return Detection{}, err
	}
	d := Detection{API: API{GroupV3}, Certain: !both, Detail: "both groups are defined, and only projectcalico.org/v3 is in use"}
	if both {
		d.Detail = "both groups are defined and crd.projectcalico.org/v1 still holds blocks: finish Calico's migration, or delete the group that is not in use"
	}
	return d, nil
}

// cluster is a Cluster over HTTP.
//
// +kubebuilder:object:generate=false
type cluster struct {
	discovery discovery.DiscoveryInterface
	metadata  metadata.Interface
}

func newCluster(cfg *rest.Config) (*cluster, error) {
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("discovery client: %w", err)
	}
	m, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("metadata client: %w", err)
	}
	return &cluster{d, m}, nil
}

// Serves implements Cluster.
func (c *cluster) Serves(_ context.Context, gv schema.GroupVersion) (bool, error) {
	list, err := c.discovery.ServerResourcesForGroupVersion(gv.String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if apierrors.IsServiceUnavailable(err) && gv == GroupV3 {
		// An aggregated API server that is away: Aggregated tells it apart.
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask the API server for %s: %w", gv, err)
	}
	for _, r := range list.APIResources {
		if r.Name == "ipamhandles" {
			return true, nil
		}
	}
	return false, nil
}

// Aggregated implements Cluster. What the API server serves itself it serves
// from a definition; a group without one comes from elsewhere.
func (c *cluster) Aggregated(ctx context.Context, gv schema.GroupVersion) (bool, error) {
	groups, err := c.discovery.ServerGroups()
	if err != nil {
		return false, fmt.Errorf("ask the API server for its groups: %w", err)
	}
	known := false
	for _, g := range groups.Groups {
		known = known || g.Name == gv.Group
	}
	if !known {
		return false, nil
	}
	definitions := c.metadata.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	})
	name := "ipamhandles." + gv.Group
	_, err = definitions.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsForbidden(err):
		return false, fmt.Errorf("cannot tell whether %s is aggregated; grant this account {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], resourceNames: [%s], verbs: [get]}", gv, name)
	case err != nil:
		return false, fmt.Errorf("read the definition %s: %w", name, err)
	}
	return false, nil
}

// HasBlocks implements Cluster.
func (c *cluster) HasBlocks(ctx context.Context, api API) (bool, error) {
	list, err := c.metadata.Resource(api.Blocks()).List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsForbidden(err) {
		return false, fmt.Errorf("cannot tell which Calico API group is in use; grant this account {apiGroups: [%s], resources: [ipamblocks], verbs: [list]}", api.Group)
	}
	if err != nil {
		return false, fmt.Errorf("list blocks of %s: %w", api.GroupVersion, err)
	}
	return len(list.Items) > 0, nil
}
