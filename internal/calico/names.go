package calico

import (
	"fmt"
	"net/netip"
	"strings"
)

// Annotations that Calico's CNI plugin writes on its pod after the IPAM step.
const (
	ContainerIDAnnotation = "cni.projectcalico.org/containerID"
	PodIPAnnotation       = "cni.projectcalico.org/podIP"
	PodIPsAnnotation      = "cni.projectcalico.org/podIPs"
)

// HandleName is the object name of the handle with this ID. Handle IDs keep
// their case, object names cannot.
func HandleName(handleID string) string { return strings.ToLower(handleID) }

var blockNameReplacer = strings.NewReplacer(".", "-", ":", "-", "/", "-")

// BlockName is the object name of the block with this CIDR.
func BlockName(cidr netip.Prefix) string { return blockNameReplacer.Replace(cidr.String()) }

// AffinityNode is the node that a block's affinity names, "" when it names none.
func AffinityNode(affinity string) string {
	node, ok := strings.CutPrefix(affinity, "host:")
	if !ok {
		return ""
	}
	return node
}

// ParseBlockName is the object name of the block with this CIDR, as a handle's
// spec spells it.
func ParseBlockName(cidr string) (string, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return "", fmt.Errorf("block CIDR %q: %w", cidr, err)
	}
	return BlockName(prefix), nil
}

// OrdinalsOf are the addresses, as offsets from the block's first, that
// allocations give to the handle with this object name.
func (s *IPAMBlockSpec) OrdinalsOf(handleName string) []int {
	var ordinals []int
	for ordinal, index := range s.Allocations {
		if index == nil || *index < 0 || *index >= len(s.Attributes) {
			continue
		}
		if id := s.Attributes[*index].HandleID; id != nil && HandleName(*id) == handleName {
			ordinals = append(ordinals, ordinal)
		}
	}
	return ordinals
}
