package calico

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The two API groups that may hold Calico's IPAM objects. The JSON of a spec
// is the same in both.
var (
	GroupCRD = schema.GroupVersion{Group: "crd.projectcalico.org", Version: "v1"}
	GroupV3  = schema.GroupVersion{Group: "projectcalico.org", Version: "v3"}
)

// API is the Calico API group that a cluster uses.
type API struct{ schema.GroupVersion }

// Handles is the IPAMHandle resource.
func (a API) Handles() schema.GroupVersionResource { return a.WithResource("ipamhandles") }

// Blocks is the IPAMBlock resource.
func (a API) Blocks() schema.GroupVersionResource { return a.WithResource("ipamblocks") }

// Affinities is the BlockAffinity resource.
func (a API) Affinities() schema.GroupVersionResource { return a.WithResource("blockaffinities") }

// Pools is the IPPool resource.
func (a API) Pools() schema.GroupVersionResource { return a.WithResource("ippools") }

// ClusterInformations is the ClusterInformation resource.
func (a API) ClusterInformations() schema.GroupVersionResource {
	return a.WithResource("clusterinformations")
}

// AddToScheme registers Calico's kinds under this group.
func (a API) AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(a.GroupVersion,
		&IPAMHandle{}, &IPAMHandleList{},
		&IPAMBlock{}, &IPAMBlockList{},
		&BlockAffinity{}, &BlockAffinityList{},
		&IPPool{}, &IPPoolList{},
		&ClusterInformation{}, &ClusterInformationList{},
	)
	metav1.AddToGroupVersion(scheme, a.GroupVersion)
	return nil
}
