package ownership_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// facts is a cluster of few things.
type facts struct {
	byContainer map[string]ownership.Pod
	byName      map[string]ownership.Pod
	nodes       []string
	services    []string
	bare        map[string]ownership.Pod // by address
	blockNodes  map[string]string
	vms         ownership.Existence
}

func (f facts) PodByContainerID(id string) (ownership.Pod, bool) {
	p, ok := f.byContainer[id]
	return p, ok
}

func (f facts) PodByName(namespace, name string) (ownership.Pod, bool) {
	p, ok := f.byName[namespace+"/"+name]
	return p, ok
}

func (f facts) HasNode(name string) bool { return contains(f.nodes, name) }

func (f facts) HasServiceHandle(name string) bool { return contains(f.services, name) }

func (f facts) BarePods() int { return len(f.bare) }

func (f facts) BarePodIn(block netip.Prefix) (ownership.Pod, bool) {
	for address, p := range f.bare {
		if block.Contains(netip.MustParseAddr(address)) {
			return p, true
		}
	}
	return ownership.Pod{}, false
}

func (f facts) BlockNode(block netip.Prefix) (string, bool) {
	node, ok := f.blockNodes[block.String()]
	return node, ok
}

func (f facts) VirtualMachine(string, string) ownership.Existence { return f.vms }

func contains(all []string, s string) bool {
	for _, one := range all {
		if one == s {
			return true
		}
	}
	return false
}

func TestResolve(t *testing.T) {
	container := strings.Repeat("7e", 32)
	sandbox := "k8s-pod-network." + container
	pod := ownership.Pod{Namespace: "shop", Name: "cart-0", UID: "u", Node: "a", ContainerID: container}
	finished := pod
	finished.Finished = true
	other := pod
	other.ContainerID = strings.Repeat("0a", 32)
	bare := ownership.Pod{Namespace: "old", Name: "web"}
	named := map[string]int{"10.65.0.0/26": 1}
	onNode := func(node string) *ownership.Stamp { return &ownership.Stamp{Node: node} }
	carries := func(p ownership.Pod) map[string]ownership.Pod { return map[string]ownership.Pod{p.ContainerID: p} }

	for name, tc := range map[string]struct {
		id          string
		stamp       *ownership.Stamp
		declared    map[string]int
		facts       facts
		state       ownership.State
		reason      ownership.Reason
		provisional bool
	}{
		"a sandbox whose pod carries its container ID is alive": {
			id: sandbox, facts: facts{byContainer: carries(pod), nodes: []string{"a"}},
			state: ownership.StateAlive, reason: ownership.PodAlive,
		},
		"a stamp that names a gone node does not override a live pod": {
			id: sandbox, stamp: onNode("gone"), facts: facts{byContainer: carries(pod)},
			state: ownership.StateAlive, reason: ownership.PodAlive,
		},
		"a sandbox whose pod has finished is gone": {
			id: sandbox, facts: facts{byContainer: carries(finished)},
			state: ownership.StateGone, reason: ownership.PodFinished,
		},
		"a sandbox whose pod was made anew under its name is gone": {
			id: sandbox, facts: facts{byContainer: carries(other), byName: map[string]ownership.Pod{"shop/cart-0": other}, nodes: []string{"a"}},
			state: ownership.StateGone, reason: ownership.PodGone,
		},
		"a sandbox that no pod carries is gone": {
			id: sandbox, declared: named, facts: facts{},
			state: ownership.StateGone, reason: ownership.PodGone,
		},
		"a sandbox of any network is told by its container ID": {
			id: "my.other.network." + container, facts: facts{byContainer: carries(pod)},
			state: ownership.StateAlive, reason: ownership.PodAlive,
		},
		"a sandbox whose stamp names a gone node is gone with it": {
			id: sandbox, stamp: onNode("gone"), declared: named, facts: facts{nodes: []string{"a"}},
			state: ownership.StateGone, reason: ownership.NodeGone,
		},
		"a sandbox whose block's affinity names a gone node is gone with it": {
			id: sandbox, declared: named, facts: facts{blockNodes: map[string]string{"10.65.0.0/26": "gone"}},
			state: ownership.StateGone, reason: ownership.NodeGone,
		},
		"a pod without a container ID in a block that the handle names makes the owner unknown": {
			id: sandbox, declared: named, facts: facts{bare: map[string]ownership.Pod{"10.65.0.9": bare}},
			state: ownership.StateUnknown, reason: ownership.PodWithoutContainerID,
		},
		"even when the stamp's node is gone, for the address may be borrowed": {
			id: sandbox, stamp: onNode("gone"), declared: named, facts: facts{bare: map[string]ownership.Pod{"10.65.0.9": bare}},
			state: ownership.StateUnknown, reason: ownership.PodWithoutContainerID,
		},
		"a pod without a container ID in another block does not": {
			id: sandbox, declared: named, facts: facts{bare: map[string]ownership.Pod{"10.65.7.9": bare}},
			state: ownership.StateGone, reason: ownership.PodGone,
		},
		"while the spec was not read such pods make the finding provisional": {
			id: sandbox, facts: facts{bare: map[string]ownership.Pod{"10.65.7.9": bare}},
			state: ownership.StateGone, reason: ownership.PodGone, provisional: true,
		},
		"a damaged CIDR beside such pods makes the owner unknown": {
			id: sandbox, declared: map[string]int{"10.65.0.0": 1}, facts: facts{bare: map[string]ownership.Pod{"10.65.7.9": bare}},
			state: ownership.StateUnknown, reason: ownership.DamagedHandle,
		},
		"a legacy handle whose pod exists is alive": {
			id: "shop.cart-0", facts: facts{byName: map[string]ownership.Pod{"shop/cart-0": pod}},
			state: ownership.StateAlive, reason: ownership.PodAlive,
		},
		"a legacy handle whose pod has finished is gone": {
			id: "shop.cart-0", facts: facts{byName: map[string]ownership.Pod{"shop/cart-0": finished}},
			state: ownership.StateGone, reason: ownership.PodFinished,
		},
		"a legacy handle without its pod is gone": {
			id: "shop.cart-0", state: ownership.StateGone, reason: ownership.PodGone,
		},
		"an IPIP tunnel on a node that exists is alive": {
			id: "ipip-tunnel-addr-a", facts: facts{nodes: []string{"a"}},
			state: ownership.StateAlive, reason: ownership.NodeAlive,
		},
		"a VXLAN tunnel on a gone node is gone": {
			id: "vxlan-tunnel-addr-a", state: ownership.StateGone, reason: ownership.NodeGone,
		},
		"a VXLAN tunnel for IPv6 on a gone node is gone": {
			id: "vxlan-v6-tunnel-addr-a.example.com", state: ownership.StateGone, reason: ownership.NodeGone,
		},
		"a WireGuard tunnel on a node that exists is alive": {
			id: "wireguard-tunnel-addr-a", facts: facts{nodes: []string{"a"}},
			state: ownership.StateAlive, reason: ownership.NodeAlive,
		},
		"a WireGuard tunnel for IPv6 on a gone node is gone": {
			id: "wireguard-v6-tunnel-addr-a", state: ownership.StateGone, reason: ownership.NodeGone,
		},
		"a LoadBalancer handle that a Service hashes to is alive": {
			id: calico.LoadBalancerHandleID("web", "shop", "u"), facts: facts{services: []string{calico.HandleName(calico.LoadBalancerHandleID("web", "shop", "u"))}},
			state: ownership.StateAlive, reason: ownership.ServiceAlive,
		},
		"a LoadBalancer handle that no Service hashes to is gone": {
			id: calico.LoadBalancerHandleID("web", "shop", "u"), state: ownership.StateGone, reason: ownership.ServiceGone,
		},
		"a virtual machine that exists is alive": {
			id: "k8s-pod-network.vmi.shop.db", facts: facts{vms: ownership.Exists},
			state: ownership.StateAlive, reason: ownership.VirtualMachineAlive,
		},
		"a virtual machine that is gone is gone": {
			id: "k8s-pod-network.vmi.shop.db", facts: facts{vms: ownership.Gone},
			state: ownership.StateGone, reason: ownership.VirtualMachineGone,
		},
		"without KubeVirt a virtual machine cannot be told": {
			id: "k8s-pod-network.vmi.shop.db", state: ownership.StateUnknown, reason: ownership.VirtualMachineUnknown,
		},
		"a virtual machine behind a hash cannot be told": {
			id: "k8s-pod-network.vmi._0123abcd", facts: facts{vms: ownership.Gone},
			state: ownership.StateUnknown, reason: ownership.HashedID,
		},
		"an ID of no known form cannot be told": {
			id: "openstack", state: ownership.StateUnknown, reason: ownership.UnknownForm,
		},
		"a damaged sandbox's ID cannot be told": {
			id: sandbox + "\r\neth0", state: ownership.StateUnknown, reason: ownership.UnknownForm,
		},
		"the reserved handle is never gone": {
			id: calico.ReservedHandleID, state: ownership.StateAlive, reason: ownership.ReservedHandle,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := ownership.Resolve(ownership.Subject{
				ID: calico.ParseHandleID(tc.id), Name: calico.HandleName(tc.id), Stamp: tc.stamp, Declared: tc.declared,
			}, tc.facts)
			if got.State != tc.state || got.Reason != tc.reason || got.Provisional != tc.provisional {
				t.Errorf("got %+v, want state %d, %s, provisional %v", got, tc.state, tc.reason, tc.provisional)
			}
		})
	}
}
