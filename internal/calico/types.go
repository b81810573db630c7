package calico

import (
	"bytes"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IPAMHandle is Calico's secondary index: which blocks hold IPs of one handle
// ID, and how many. A handle that no block references is an orphan.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ipamhandles,scope=Cluster
type IPAMHandle struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPAMHandleSpec `json:"spec,omitempty"`
}

// IPAMHandleSpec is the body of an IPAMHandle.
type IPAMHandleSpec struct {
	// HandleID is the ID with its case kept; the object's name is its lower case.
	HandleID string `json:"handleID"`
	// Block maps a block's CIDR to the number of IPs that the handle holds there.
	Block map[string]int `json:"block"`
	// Deleted marks the first step of Calico's two-step delete; readers treat
	// the handle as absent.
	Deleted bool `json:"deleted,omitempty"`
}

// IPAMHandleList is a list of IPAMHandles.
//
// +kubebuilder:object:root=true
type IPAMHandleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IPAMHandle `json:"items"`
}

// IPAMBlock is the truth about a slice of addresses (a /26 or a /122 unless
// the pool says otherwise).
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ipamblocks,scope=Cluster
type IPAMBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPAMBlockSpec `json:"spec,omitempty"`
}

// IPAMBlockSpec is the body of an IPAMBlock.
type IPAMBlockSpec struct {
	CIDR string `json:"cidr"`
	// Affinity is "host:<node>", "virtual:load-balancer", or absent.
	Affinity          *string      `json:"affinity,omitempty"`
	AffinityClaimTime *metav1.Time `json:"affinityClaimTime,omitempty"`
	// Allocations has one entry an address: null when free, else an index
	// into Attributes. An index out of range is damage, and is tolerated.
	//
	// +nullable
	Allocations []*int `json:"allocations"`
	// Attributes says who holds the addresses. One that no allocation points
	// to is garbage.
	Attributes                  []AllocationAttribute `json:"attributes"`
	Unallocated                 []int                 `json:"unallocated"`
	SequenceNumber              uint64                `json:"sequenceNumber,omitempty"`
	SequenceNumberForAllocation map[string]uint64     `json:"sequenceNumberForAllocation,omitempty"`
	Deleted                     bool                  `json:"deleted,omitempty"`
	StrictAffinity              bool                  `json:"strictAffinity,omitempty"`
}

// AllocationAttribute says who holds the addresses that point to it.
type AllocationAttribute struct {
	HandleID *string `json:"handle_id,omitempty"`
	// Secondary holds the owner: namespace, pod, node, type, timestamp.
	Secondary           map[string]string `json:"secondary,omitempty"`
	AlternateOwnerAttrs map[string]string `json:"alternateOwnerAttrs,omitempty"`
	// ReleasedAt is set while an address cools down after its release.
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty"`
}

// IPAMBlockList is a list of IPAMBlocks.
//
// +kubebuilder:object:root=true
type IPAMBlockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IPAMBlock `json:"items"`
}

// BlockAffinity is a node's claim on a block.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=blockaffinities,scope=Cluster
type BlockAffinity struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BlockAffinitySpec `json:"spec,omitempty"`
}

// BlockAffinitySpec is the body of a BlockAffinity.
type BlockAffinitySpec struct {
	// State is pending, confirmed or pendingDeletion.
	State string `json:"state"`
	Node  string `json:"node"`
	Type  string `json:"type,omitempty"`
	CIDR  string `json:"cidr"`
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Deleted LooseBool `json:"deleted,omitempty"`
}

// BlockAffinityList is a list of BlockAffinities.
//
// +kubebuilder:object:root=true
type BlockAffinityList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BlockAffinity `json:"items"`
}

// IPPool is a range that blocks are cut from.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ippools,scope=Cluster
type IPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPPoolSpec `json:"spec,omitempty"`
}

// IPPoolSpec is the part of an IPPool that IPAM Guard reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type IPPoolSpec struct {
	CIDR      string `json:"cidr"`
	BlockSize int    `json:"blockSize,omitempty"`
	Disabled  bool   `json:"disabled,omitempty"`
}

// IPPoolList is a list of IPPools.
//
// +kubebuilder:object:root=true
type IPPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IPPool `json:"items"`
}

// ClusterInformation named "default" tells whether the datastore is locked.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=clusterinformations,scope=Cluster
type ClusterInformation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterInformationSpec `json:"spec,omitempty"`
}

// ClusterInformationSpec is the part of a ClusterInformation that IPAM Guard reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
type ClusterInformationSpec struct {
	CalicoVersion string `json:"calicoVersion,omitempty"`
	// DatastoreReady is false while the datastore is locked: nobody may write
	// IPAM then.
	DatastoreReady *bool `json:"datastoreReady,omitempty"`
}

// ClusterInformationList is a list of ClusterInformations.
//
// +kubebuilder:object:root=true
type ClusterInformationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterInformation `json:"items"`
}

// LooseBool reads a JSON boolean or its string form: the two API groups differ.
// It writes the string form, which the older group wants.
type LooseBool bool

// UnmarshalJSON implements json.Unmarshaler.
func (b *LooseBool) UnmarshalJSON(data []byte) error {
	switch string(bytes.Trim(data, `"`)) {
	case "true":
		*b = true
	case "false", "", "null":
		*b = false
	default:
		return fmt.Errorf("want a boolean or its string form, got %s", data)
	}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (b LooseBool) MarshalJSON() ([]byte, error) {
	if b {
		return []byte(`"true"`), nil
	}
	return []byte(`"false"`), nil
}
