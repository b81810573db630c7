package explain

import (
	"time"

	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// The explanation's type, as JSON and YAML tell it.
const (
	APIVersion = "ipam-guard.io/v1"
	Kind       = "Explanation"
)

// Explanation answers what was asked.
type Explanation struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Time       time.Time `json:"time"`
	// Answers are in the order of what was asked.
	Answers []Answer `json:"answers"`
}

// Answer is about one subject. Of IP, Pod and Node at most one is set; none is
// when a handle was asked for.
type Answer struct {
	Subject string `json:"subject"`
	IP      *IP    `json:"ip,omitempty"`
	Pod     *Pod   `json:"pod,omitempty"`
	Node    *Node  `json:"node,omitempty"`
	// Handles are those that belong to the subject.
	Handles []Handle `json:"handles"`
}

// IP is an address, as blocks and pods have it.
type IP struct {
	Address string `json:"address"`
	// Allocation is absent where no block records the address.
	Allocation *Allocation `json:"allocation,omitempty"`
	// Pod is the running pod that has the address.
	Pod string `json:"pod,omitempty"`
	// Disagrees says what does not fit together.
	Disagrees []string `json:"disagrees,omitempty"`
}

// Allocation is one address that a block records.
type Allocation struct {
	IP    string `json:"ip"`
	Block string `json:"block"`
	// Affinity is the block's.
	Affinity string `json:"affinity,omitempty"`
	// Ordinal is the address's place in the block, Attribute the index that
	// stands there.
	Ordinal   int `json:"ordinal"`
	Attribute int `json:"attribute"`
	// Damaged is set where the index has no attribute.
	Damaged bool   `json:"damaged,omitempty"`
	Handle  string `json:"handle,omitempty"`
	// Attributes are what Calico noted of the owner.
	Attributes map[string]string `json:"attributes,omitempty"`
	// ReleasedAt is set while the address cools down.
	ReleasedAt *time.Time `json:"releasedAt,omitempty"`
}

// Pod is a pod on the pod network.
type Pod struct {
	Namespace   string   `json:"namespace"`
	Name        string   `json:"name"`
	Node        string   `json:"node,omitempty"`
	Phase       string   `json:"phase,omitempty"`
	ContainerID string   `json:"containerID,omitempty"`
	IPs         []string `json:"ips,omitempty"`
	// Disagrees says what does not fit together.
	Disagrees []string `json:"disagrees,omitempty"`
}

// Node is a node and the blocks that are affine to it.
type Node struct {
	Name   string  `json:"name"`
	Exists bool    `json:"exists"`
	Blocks []Block `json:"blocks"`
	// Borrowed counts its addresses in other nodes' blocks.
	Borrowed int `json:"borrowed"`
	// StampedOrphans counts the orphans whose stamp names it.
	StampedOrphans int `json:"stampedOrphans"`
}

// Block is a block and how many addresses it records.
type Block struct {
	CIDR        string `json:"cidr"`
	Allocations int    `json:"allocations"`
}

// Declared is a block that a handle names, and the number of addresses that it
// says to have there.
type Declared struct {
	Block string `json:"block"`
	Count int    `json:"count"`
}

// Handle is the evidence on a handle, and the verdict.
type Handle struct {
	ID string `json:"id"`
	// Missing is set when blocks mention it but it does not exist; then only
	// References are known.
	Missing bool `json:"missing,omitempty"`
	// OwnerKind is what its ID says it is for.
	OwnerKind  string       `json:"ownerKind,omitempty"`
	Declared   []Declared   `json:"declared,omitempty"`
	References []Allocation `json:"references,omitempty"`
	LastWrite  *time.Time   `json:"lastWrite,omitempty"`
	// Settled is when an unreferenced handle may first count as an orphan.
	Settled       *time.Time       `json:"settled,omitempty"`
	Owner         string           `json:"owner,omitempty"`
	Stamp         *ownership.Stamp `json:"stamp,omitempty"`
	MarkedDeleted bool             `json:"markedDeleted,omitempty"`
	Terminating   bool             `json:"terminating,omitempty"`
	// Outcome and Reason are the verdict, Because says it in a sentence.
	Outcome string `json:"outcome,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Because string `json:"because,omitempty"`
}
