package webhook

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// maxWarnings bounds what one request is told; a damaged handle may be wrong
// in hundreds of places.
const maxWarnings = 4

// malformed says what is wrong with a handle. It is only ever a warning.
func malformed(h *handle) []string {
	var wrong []string
	if calico.HandleName(h.Spec.HandleID) != h.Metadata.Name {
		wrong = append(wrong, fmt.Sprintf("the handle's name is not its spec.handleID %.100q in lower case: Calico will not find it", h.Spec.HandleID))
	}
	if !damaged(h.Spec.Block) {
		return wrong
	}
	for _, cidr := range slices.Sorted(maps.Keys(h.Spec.Block)) {
		if len(wrong) == maxWarnings {
			break
		}
		if _, err := netip.ParsePrefix(cidr); err != nil {
			wrong = append(wrong, fmt.Sprintf("spec.block names %.100q, which is no CIDR", cidr))
		} else if n := h.Spec.Block[cidr]; n < 0 {
			wrong = append(wrong, fmt.Sprintf("spec.block counts %d addresses in %s", n, cidr))
		}
	}
	return wrong
}

// damaged spares sound handles the sorting.
func damaged(block map[string]int64) bool {
	for cidr, n := range block {
		if _, err := netip.ParsePrefix(cidr); err != nil || n < 0 {
			return true
		}
	}
	return false
}
