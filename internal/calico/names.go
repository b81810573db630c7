package calico

import (
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
