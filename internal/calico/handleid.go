package calico

import (
	"crypto/sha256"
	"encoding/base64"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// OwnerKind is the kind of thing that a handle's ID says it was made for.
type OwnerKind uint8

// The kinds, in the order of the grammar.
const (
	// KindUnknown is an ID of no known form: OpenStack, docker, damage.
	KindUnknown OwnerKind = iota
	// KindPodSandbox is "<network>.<64 hex container ID>"; never reused.
	KindPodSandbox
	// KindLegacyPod is "<namespace>.<pod>".
	KindLegacyPod
	// KindVirtualMachine is "<network>.vmi.<namespace>.<vm>"; reused.
	KindVirtualMachine
	// KindNode is a tunnel address of a node; reused.
	KindNode
	// KindService is "lb-<hash>", a LoadBalancer Service; reused.
	KindService
	// KindReserved is the handle of addresses that Windows reserves.
	KindReserved
)

var ownerKindNames = [...]string{"Unknown", "PodSandbox", "LegacyPod", "VirtualMachine", "Node", "Service", "Reserved"}

// String is the kind's stable name, as stamps, metrics and reports spell it.
func (k OwnerKind) String() string {
	if int(k) < len(ownerKindNames) {
		return ownerKindNames[k]
	}
	return ownerKindNames[KindUnknown]
}

// ParseOwnerKind is the inverse of String; ok is false for any other word.
func ParseOwnerKind(s string) (kind OwnerKind, ok bool) {
	for i, name := range ownerKindNames {
		if s == name {
			return OwnerKind(i), true
		}
	}
	return KindUnknown, false
}

// ReservedHandleID is the one reserved handle.
const ReservedHandleID = "windows-reserved-ipam-handle"

// containerIDLen is the number of hex digits in a container ID.
const containerIDLen = 64

// tunnelPrefixes lead the handle IDs of node tunnel addresses.
var tunnelPrefixes = [...]string{
	"ipip-tunnel-addr-",
	"vxlan-tunnel-addr-",
	"vxlan-v6-tunnel-addr-",
	"wireguard-tunnel-addr-",
	"wireguard-v6-tunnel-addr-",
}

// HandleID is what a handle's ID says. Fields that its kind does not have are
// empty; all are substrings of what was parsed.
type HandleID struct {
	Kind OwnerKind
	// Network leads a sandbox's or a virtual machine's ID.
	Network string
	// ContainerID is 64 lower-case hex digits.
	ContainerID string
	// Namespace and Name are the pod's, the virtual machine's or, Name alone,
	// the node's. A virtual machine whose ID was hashed has neither.
	Namespace, Name string
}

// ParseHandleID reads a handle's ID, or its object name. It never fails: what
// fits no form is KindUnknown, and the owner of such a handle cannot be told.
func ParseHandleID(id string) HandleID {
	switch {
	case id == ReservedHandleID:
		return HandleID{Kind: KindReserved}
	case isLoadBalancerID(id):
		return HandleID{Kind: KindService}
	}
	for _, prefix := range tunnelPrefixes {
		if node, ok := strings.CutPrefix(id, prefix); ok {
			if !isSubdomain(node) {
				return HandleID{}
			}
			return HandleID{Kind: KindNode, Name: node}
		}
	}
	if i := strings.LastIndexByte(id, '.'); i > 0 && isContainerID(id[i+1:]) {
		return HandleID{Kind: KindPodSandbox, Network: id[:i], ContainerID: id[i+1:]}
	}
	if vm, ok := parseVirtualMachine(id); ok {
		return vm
	}
	return parseLegacyPod(id)
}

func parseVirtualMachine(id string) (HandleID, bool) {
	network, rest, ok := strings.Cut(id, ".vmi.")
	if !ok || network == "" {
		return HandleID{}, false
	}
	if strings.HasPrefix(rest, "_") {
		return HandleID{Kind: KindVirtualMachine, Network: network}, true
	}
	namespace, name, ok := strings.Cut(rest, ".")
	if !ok || !isLabel(namespace) || !isSubdomain(name) {
		return HandleID{}, false
	}
	return HandleID{Kind: KindVirtualMachine, Network: network, Namespace: namespace, Name: name}, true
}

func parseLegacyPod(id string) HandleID {
	namespace, name, ok := strings.Cut(id, ".")
	if !ok || !isLabel(namespace) || !isSubdomain(name) {
		return HandleID{}
	}
	// "10.0.0.1" fits the form, but an address is no pod.
	if _, err := netip.ParseAddr(id); err == nil {
		return HandleID{}
	}
	return HandleID{Kind: KindLegacyPod, Namespace: namespace, Name: name}
}

// LoadBalancerHandleID is the ID of the handle for a Service of type
// LoadBalancer. Object names hold its lower case.
func LoadBalancerHandleID(service, namespace, uid string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(service + "-" + namespace + "-" + uid)))
	encoded := base64.RawURLEncoding.EncodeToString(sum[:])
	return "lb-" + strings.NewReplacer("-", "", "_", "", ".", "").Replace(encoded)
}

// maxLoadBalancerHash is the length of 32 bytes in unpadded base64.
const maxLoadBalancerHash = 43

func isLoadBalancerID(id string) bool {
	hash, ok := strings.CutPrefix(id, "lb-")
	// Only '-' and '_' are removed from the hash, so a short one is no hash.
	if !ok || len(hash) > maxLoadBalancerHash || len(hash) < maxLoadBalancerHash/2 {
		return false
	}
	for i := range len(hash) {
		c := hash[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

func isContainerID(s string) bool {
	if len(s) != containerIDLen {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func isLabel(s string) bool     { return len(validation.IsDNS1123Label(s)) == 0 }
func isSubdomain(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }
