package check

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// tunnelAnnotations are where Calico notes a node's tunnel addresses.
var tunnelAnnotations = [...]string{
	"projectcalico.org/IPv4IPIPTunnelAddr",
	"projectcalico.org/IPv4VXLANTunnelAddr",
	"projectcalico.org/IPv6VXLANTunnelAddr",
	"projectcalico.org/IPv4WireguardInterfaceAddr",
	"projectcalico.org/IPv6WireguardInterfaceAddr",
}

// addresses sets what blocks record against what pods and nodes use.
type addresses struct {
	allocated map[netip.Addr]Address
	// used is by whom.
	used map[netip.Addr]Address
	// byNode counts allocations.
	byNode                       map[string]int
	tunnels, workloads           int
	blocks, invalid, allocations int
	cooling                      int
}

func newAddresses() *addresses {
	return &addresses{allocated: map[netip.Addr]Address{}, used: map[netip.Addr]Address{}, byNode: map[string]int{}}
}

// allocate takes a block's allocations. Damage is counted and passed over.
func (a *addresses) allocate(spec *calico.IPAMBlockSpec) Block {
	b := Block{CIDR: strings.Clone(spec.CIDR)}
	home := ""
	if spec.Affinity != nil {
		b.Affinity = strings.Clone(*spec.Affinity)
		home = calico.AffinityNode(b.Affinity)
	}
	_, err := netip.ParsePrefix(spec.CIDR)
	b.Invalid = err != nil
	for ordinal, index := range spec.Allocations {
		if index == nil {
			continue
		}
		b.Allocations++
		ip, ok := verdict.Address(spec.CIDR, ordinal)
		if !ok || *index < 0 || *index >= len(spec.Attributes) {
			b.Invalid = true
			continue
		}
		attribute := &spec.Attributes[*index]
		if attribute.ReleasedAt != nil {
			a.cooling++
			continue
		}
		at := Address{IP: ip.String(), Node: cmp.Or(strings.Clone(attribute.Secondary["node"]), home)}
		if attribute.HandleID != nil {
			at.Handle = strings.Clone(*attribute.HandleID)
		}
		if pod := attribute.Secondary["pod"]; pod != "" {
			at.Pod = attribute.Secondary["namespace"] + "/" + pod
		}
		a.allocated[ip] = at
		if at.Node != "" {
			a.byNode[at.Node]++
		}
	}
	a.blocks++
	a.allocations += b.Allocations
	if b.Invalid {
		a.invalid++
	}
	return b
}

func (a *addresses) useByNode(node metav1.Object) {
	for _, key := range tunnelAnnotations {
		if ip, err := netip.ParseAddr(node.GetAnnotations()[key]); err == nil {
			a.tunnels++
			a.used[ip] = Address{Node: strings.Clone(node.GetName())}
		}
	}
}

func (a *addresses) useByPod(pod *corev1.Pod) {
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if finished || pod.Spec.HostNetwork {
		return
	}
	for _, ip := range podIPs(pod) {
		a.workloads++
		a.used[ip] = Address{Pod: pod.Namespace + "/" + pod.Name, Node: strings.Clone(pod.Spec.NodeName)}
	}
}

// podIPs are a pod's addresses, by Calico's annotations and by its status:
// either may be behind.
func podIPs(pod *corev1.Pod) []netip.Addr {
	texts := strings.Split(cmp.Or(pod.Annotations[calico.PodIPsAnnotation], pod.Annotations[calico.PodIPAnnotation]), ",")
	for _, ip := range pod.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	texts = append(texts, pod.Status.PodIP)
	var ips []netip.Addr
	for _, text := range texts {
		text, _, _ = strings.Cut(strings.TrimSpace(text), "/")
		if ip, err := netip.ParseAddr(text); err == nil && !slices.Contains(ips, ip) {
			ips = append(ips, ip)
		}
	}
	return ips
}

func (a *addresses) report(r *Report, inv *inventory.Inventory) {
	r.Blocks, r.BlocksInvalid, r.Allocations, r.CoolingDown = a.blocks, a.invalid, a.allocations, a.cooling
	r.NodeTunnelIPs, r.WorkloadIPs, r.IPsInUse = a.tunnels, a.workloads, len(a.used)
	r.AllocatedNotInUse, r.InUseNotAllocated = []Address{}, []Address{}
	for ip, at := range a.allocated {
		if _, used := a.used[ip]; !used && !heldByOther(at.Handle, inv) {
			r.AllocatedNotInUse = append(r.AllocatedNotInUse, at)
		}
	}
	active := activePools(r.Pools)
	for ip, by := range a.used {
		if _, ok := a.allocated[ip]; ok {
			continue
		}
		if !slices.ContainsFunc(active, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			r.InUseOutsidePools++
			continue
		}
		by.IP = ip.String()
		r.InUseNotAllocated = append(r.InUseNotAllocated, by)
	}
	for _, list := range [][]Address{r.AllocatedNotInUse, r.InUseNotAllocated} {
		slices.SortFunc(list, func(x, y Address) int { return cmp.Compare(x.IP, y.IP) })
	}
	r.Nodes = []Node{}
	for name, n := range a.byNode {
		r.Nodes = append(r.Nodes, Node{name, n})
	}
	slices.SortFunc(r.Nodes, func(x, y Node) int {
		return cmp.Or(cmp.Compare(y.Allocations, x.Allocations), cmp.Compare(x.Name, y.Name))
	})
	if n := len(r.Nodes); n > 0 {
		r.MaxAllocations, r.MedianAllocations = r.Nodes[0].Allocations, r.Nodes[n/2].Allocations
	}
}

// heldByOther tells whether something else than a pod or a noted tunnel holds
// the address: a Service, Windows' reservation, or a node before Calico noted
// its tunnel.
func heldByOther(handleID string, inv *inventory.Inventory) bool {
	name := calico.HandleName(handleID)
	switch id := calico.ParseHandleID(name); id.Kind {
	case calico.KindReserved:
		return true
	case calico.KindService:
		return inv.HasServiceHandle(name)
	case calico.KindNode:
		return inv.HasNode(id.Name)
	default:
		return false
	}
}

func activePools(pools []Pool) []netip.Prefix {
	var active []netip.Prefix
	for _, p := range pools {
		if cidr, err := netip.ParsePrefix(p.CIDR); err == nil && !p.Disabled {
			active = append(active, cidr)
		}
	}
	return active
}
