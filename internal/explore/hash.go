package explore

import (
	"math/bits"
	"slices"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// mix adds x to a hash. It is the same in every run, as schedules must be.
func mix(h, x uint64) uint64 {
	h ^= x + 0x9e3779b97f4a7c15 + bits.RotateLeft64(h, 23)
	h *= 0xff51afd7ed558ccd
	return h ^ h>>32
}

func mixBool(h uint64, b bool) uint64 {
	if b {
		return mix(h, 1)
	}
	return mix(h, 2)
}

func mixString(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return mix(h, uint64(len(s)))
}

func hashHandle(h *calico.IPAMHandle, rv uint64) uint64 {
	x := mixString(mixString(rv, string(h.UID)), h.ResourceVersion)
	for _, cidr := range sortedKeys(h.Spec.Block) {
		x = mix(mixString(x, cidr), uint64(h.Spec.Block[cidr])) //nolint:gosec // small
	}
	x = mixBool(x, h.Spec.Deleted)
	x = mixBool(x, h.DeletionTimestamp != nil)
	x = mixBool(x, slices.Contains(h.Finalizers, ownership.Finalizer))
	x = mixString(x, h.Annotations[ownership.StampAnnotation])
	return mix(x, uint64(lastWrite(h).Unix())) //nolint:gosec // positive
}

func hashBlock(b *calico.IPAMBlockSpec, rv uint64) uint64 {
	x := rv
	for _, index := range b.Allocations {
		if index == nil {
			x = mix(x, 0)
			continue
		}
		x = mixString(x, *b.Attributes[*index].HandleID)
	}
	return x
}
