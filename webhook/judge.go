package webhook

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// liveReadTimeout bounds all reads for one delete. The API server gives up on
// a webhook after two seconds, and would then count it as failed.
const liveReadTimeout = time.Second

// maxHoldings bounds how many addresses are sought for one answer.
const maxHoldings = 4

// holding is one address that a block gives to the handle.
type holding struct {
	block, address       string
	namespace, pod, node string
}

// judge finds the addresses that blocks give to a handle.
type judge struct {
	blocks    Blocks
	inventory Inventory
}

// holdings are the handle's addresses, as the API server has the blocks now.
// Where a block cannot be read, the caches speak for it. The error says what
// could not be read; the holdings are true nonetheless.
func (j judge) holdings(ctx context.Context, h *handle) ([]holding, error) {
	ctx, cancel := context.WithTimeout(ctx, liveReadTimeout)
	defer cancel()
	cached := map[string]verdict.Reference{}
	for _, r := range j.inventory.References(h.Metadata.Name) {
		cached[r.Block] = r
	}
	cidrs := map[string]struct{}{}
	for cidr := range h.Spec.Block {
		cidrs[cidr] = struct{}{}
	}
	for cidr := range cached {
		cidrs[cidr] = struct{}{}
	}
	var found []holding
	var errs []error
	for _, cidr := range slices.Sorted(maps.Keys(cidrs)) {
		if len(found) >= maxHoldings {
			break
		}
		name, err := calico.ParseBlockName(cidr)
		if err != nil {
			continue // No block has such a name.
		}
		block, err := j.blocks.GetBlock(ctx, name)
		switch {
		case err == nil:
			found = append(found, holdingsIn(&block.Spec, h.Metadata.Name)...)
		case apierrors.IsNotFound(err):
		default:
			errs = append(errs, fmt.Errorf("read block %s: %w", cidr, err))
			if r, ok := cached[cidr]; ok {
				found = append(found, cachedHolding(r))
			}
		}
	}
	return found, errors.Join(errs...)
}

func holdingsIn(block *calico.IPAMBlockSpec, handle string) []holding {
	var found []holding
	for _, ordinal := range block.OrdinalsOf(handle) {
		owner := block.Attributes[*block.Allocations[ordinal]].Secondary
		found = append(found, holding{
			block: block.CIDR, address: address(block.CIDR, ordinal),
			namespace: owner["namespace"], pod: owner["pod"], node: owner["node"],
		})
	}
	return found
}

func cachedHolding(r verdict.Reference) holding {
	return holding{
		block: r.Block, address: address(r.Block, r.First),
		namespace: r.Namespace, pod: r.Pod, node: r.Node,
	}
}

// address is the block's address with this ordinal.
func address(cidr string, ordinal int) string {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return fmt.Sprintf("address %d of %s", ordinal, cidr)
	}
	raw := prefix.Masked().Addr().AsSlice()
	for i := len(raw) - 1; i >= 0 && ordinal > 0; i-- {
		ordinal += int(raw[i])
		raw[i] = byte(ordinal)
		ordinal >>= 8
	}
	sum, _ := netip.AddrFromSlice(raw)
	return sum.String()
}

// inUse says who holds the handle and what to do instead of deleting it.
func inUse(name string, held []holding) string {
	addresses := make([]string, 0, len(held))
	for _, h := range held {
		if len(addresses) == maxHoldings {
			addresses = append(addresses, "more")
			break
		}
		addresses = append(addresses, h.address)
	}
	first := held[0]
	owner, next := "", fmt.Sprintf("Release the address first: calicoctl ipam release --ip=%s.", first.address)
	switch {
	case first.pod != "":
		owner = fmt.Sprintf(" for pod %s/%s", first.namespace, first.pod)
		next = fmt.Sprintf("Delete the pod instead, and Calico releases both; if there is no such pod: calicoctl ipam release --ip=%s.", first.address)
		if first.node != "" {
			owner += " on node " + first.node
		}
	case first.node != "":
		owner = " for node " + first.node
		next = fmt.Sprintf("Calico releases both with the node; if there is no such node: calicoctl ipam release --ip=%s.", first.address)
	}
	return fmt.Sprintf("IPAM handle %s is in use: block %s gives it %s%s. Without the handle the address could never be released. %s",
		name, first.block, strings.Join(addresses, ", "), owner, next)
}
