package verdict

import (
	"maps"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// Divergence is a way in which a handle and the blocks disagree other than an
// orphan's. Blocks are the truth.
type Divergence string

// The divergences.
const (
	Agrees Divergence = ""
	// Skewed: the handle's counts are not the blocks'. Calico, counting down,
	// would delete it too early or never.
	Skewed Divergence = "skewed"
	// Missing: blocks reference a handle that does not exist. Calico cannot
	// release its addresses.
	Missing Divergence = "missing"
	// Stuck: the handle is marked deleted, but was neither deleted nor taken up
	// again. Calico reads it as absent.
	Stuck Divergence = "stuck"
)

// Divergences are all that can be repaired.
func Divergences() []Divergence { return []Divergence{Skewed, Missing, Stuck} }

// Compare says how a handle that was read in full, nil where there is none,
// disagrees with counts: the addresses that blocks give it, by the block's CIDR.
func Compare(h *calico.IPAMHandle, counts map[string]int) Divergence {
	switch {
	case h == nil && len(counts) == 0:
		return Agrees
	case h == nil:
		return Missing
	case calico.ParseHandleID(h.Spec.HandleID).Kind == calico.KindReserved:
		return Agrees
	case h.DeletionTimestamp != nil:
		return Agrees // The guard's, or somebody's with a finalizer of theirs.
	case h.Spec.Deleted:
		return Stuck
	case len(counts) == 0:
		return Agrees // An orphan, if anything.
	case !maps.Equal(h.Spec.Block, counts):
		return Skewed
	}
	return Agrees
}

// Counts are the addresses that references give, by the block's CIDR.
func Counts(references []Reference) map[string]int {
	counts := map[string]int{}
	for _, r := range references {
		counts[r.Block] = r.Count
	}
	return counts
}
