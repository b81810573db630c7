package check

import (
	"time"

	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// The report's type, as JSON and YAML tell it.
const (
	APIVersion = "ipam-guard.io/v1"
	Kind       = "CheckReport"
)

// Report is what one look found.
type Report struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Time       time.Time `json:"time"`
	// Group is Calico's API group.
	Group string `json:"group"`
	// Blocks counts IPAM blocks, BlocksInvalid those of them whose CIDR or
	// allocations are damaged. One that is marked deleted counts as absent.
	Blocks              int `json:"blocks"`
	BlocksInvalid       int `json:"blocksInvalid"`
	BlocksMarkedDeleted int `json:"blocksMarkedDeleted"`
	// Allocations counts the addresses that blocks record, CoolingDown those
	// of them that were released and wait to be free.
	Allocations int `json:"allocations"`
	CoolingDown int `json:"coolingDown"`
	// NodeTunnelIPs and WorkloadIPs are in use, and together IPsInUse.
	NodeTunnelIPs int `json:"nodeTunnelIPs"`
	WorkloadIPs   int `json:"workloadIPs"`
	IPsInUse      int `json:"ipsInUse"`
	// Nodes are those with allocations, most first. Median and most are over
	// them.
	Nodes             []Node `json:"nodes"`
	MaxAllocations    int    `json:"maxAllocations"`
	MedianAllocations int    `json:"medianAllocations"`
	// AllocatedNotInUse are allocated, but no pod, node or Service has them.
	AllocatedNotInUse []Address `json:"allocatedNotInUse"`
	// InUseNotAllocated lie in an active pool, InUseOutsidePools in none.
	InUseNotAllocated []Address `json:"inUseNotAllocated"`
	InUseOutsidePools int       `json:"inUseOutsidePools"`
	// HandlesWithMatches have an address in a block, HandlesWithoutMatches have
	// none. Those marked deleted are among them.
	HandlesWithMatches    int `json:"handlesWithMatches"`
	HandlesWithoutMatches int `json:"handlesWithoutMatches"`
	HandlesMarkedDeleted  int `json:"handlesMarkedDeleted"`
	// HandlesMissing are mentioned in blocks but do not exist, or are marked
	// deleted, which Calico reads as absent; HandlesSkewed exist, but their
	// counts differ from the blocks'.
	HandlesMissing int `json:"handlesMissing"`
	HandlesSkewed  int `json:"handlesSkewed"`
	// Problems is the number of all that disagrees.
	Problems int `json:"problems"`
	// Verdicts count all handles.
	Verdicts []Verdict `json:"verdicts"`
	// OwnerKinds count all handles by what their ID says they are for.
	OwnerKinds []Count `json:"ownerKinds"`
	// Orphans by the time since their last write, youngest first; by node and
	// by pool, most first.
	OrphanAges    []Count `json:"orphanAges"`
	OrphansByNode []Count `json:"orphansByNode"`
	OrphansByPool []Count `json:"orphansByPool"`
	// OldestOrphan is when the oldest orphan was last written.
	OldestOrphan *time.Time `json:"oldestOrphan,omitempty"`
	// BlockList and Pools are the objects themselves.
	BlockList []Block `json:"blockList"`
	Pools     []Pool  `json:"pools"`
}

// Verdict counts the handles of one outcome and reason.
type Verdict struct {
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
	Handles int    `json:"handles"`
}

// Count is a number of handles under a name.
type Count struct {
	Name    string `json:"name"`
	Handles int    `json:"handles"`
}

// Node is a node's addresses.
type Node struct {
	Name        string `json:"name"`
	Allocations int    `json:"allocations"`
}

// Block is one IPAM block.
type Block struct {
	CIDR        string `json:"cidr"`
	Affinity    string `json:"affinity,omitempty"`
	Allocations int    `json:"allocations"`
	Invalid     bool   `json:"invalid,omitempty"`
}

// Pool is one IP pool.
type Pool struct {
	Name     string `json:"name"`
	CIDR     string `json:"cidr"`
	Disabled bool   `json:"disabled,omitempty"`
}

// Address is one IP and whom it is said to belong to.
type Address struct {
	IP     string `json:"ip"`
	Handle string `json:"handle,omitempty"`
	Pod    string `json:"pod,omitempty"`
	Node   string `json:"node,omitempty"`
}

// Orphans is how many handles would be swept.
func (r *Report) Orphans() int {
	n := 0
	for _, v := range r.Verdicts {
		if v.Outcome == verdict.Orphaned.String() {
			n += v.Handles
		}
	}
	return n
}

func (r *Report) sum() {
	r.Problems = r.BlocksInvalid + len(r.AllocatedNotInUse) + len(r.InUseNotAllocated) + r.InUseOutsidePools +
		r.HandlesWithoutMatches + r.HandlesMissing + r.HandlesSkewed
}
