package explore

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// Scenarios are what is explored. Each is small, so that all its interleavings
// can be looked at; together they hold every actor.
func Scenarios() []*Scenario {
	return []*Scenario{
		{
			Name: "assign", Claim: "a pod gets an address, CNI may be killed, and the caches may be stale",
			handles: []handleSpec{sandbox(0)}, blocks: []blockSpec{block(v4)}, pods: []podSpec{{"shop", "cart-0"}},
			agents: []agentSpec{
				{name: "CNI ADD", at: readForIncrement, blocks: []int{0}, mortal: true},
			},
			replicas: 1,
			left:     budget{hours: 3, crashes: 1, podsGone: 1, work: [works]uint8{sweepPass: 2}},
		},
		{
			Name: "one block", Claim: "two pods get addresses of one block at the same time, and a sweep looks at both handles",
			handles: []handleSpec{sandbox(0), sandbox(1)}, blocks: []blockSpec{block(v4)}, pods: []podSpec{{"shop", "cart-0"}, {"shop", "cart-1"}},
			agents: []agentSpec{
				{name: "CNI ADD of cart-0", at: readForIncrement, blocks: []int{0}, mortal: true},
				{name: "CNI ADD of cart-1", at: readForIncrement, handle: 1, blocks: []int{0}},
			},
			replicas: 1,
			left:     budget{hours: 2, crashes: 1, podsGone: 2, work: [works]uint8{sweepPass: 1}},
		},
		{
			Name: "release", Claim: "a pod goes, and CNI may be killed while it releases the address",
			handles: []handleSpec{sandbox(0)}, blocks: []blockSpec{block(v4)}, pods: []podSpec{{"shop", "cart-0"}},
			agents: []agentSpec{
				{name: "CNI DEL", at: readForRelease, mortal: true},
				{name: "IP GC", at: collect, blocks: []int{0}},
			},
			replicas: 1, begin: inUse(0),
			left: budget{hours: 2, crashes: 1, podsGone: 1, work: [works]uint8{sweepPass: 1, completeStamps: 1}},
		},
		{
			Name: "raw delete", Claim: "somebody deletes the handle of a pod that is being set up, with the webhooks going down and up",
			handles: []handleSpec{sandbox(0)}, blocks: []blockSpec{block(v4)}, pods: []podSpec{{"shop", "cart-0"}},
			agents: []agentSpec{
				{name: "CNI ADD", at: readForIncrement, blocks: []int{0}, mortal: true},
				{name: "kubectl", at: admitDelete},
				{name: "CNI DEL", at: readForRelease, after: 1},
			},
			replicas: 1,
			left:     budget{hours: 2, webhook: 1, crashes: 1, work: [works]uint8{guardCheck: 1}},
		},
		{
			Name: "dual stack", Claim: "a pod gets two addresses, and Calico's second update knows nothing of stamp and finalizer",
			handles: []handleSpec{sandbox(0)}, blocks: []blockSpec{block(v4), block(v6)}, pods: []podSpec{{"shop", "cart-0"}},
			agents: []agentSpec{
				{name: "CNI ADD", at: readForIncrement, blocks: []int{0, 1}},
				{name: "kubectl", at: admitDelete},
				{name: "CNI DEL", at: readForRelease, after: 1},
			},
			replicas: 1,
			left:     budget{hours: 2, webhook: 1, work: [works]uint8{guardCheck: 1}},
		},
		{
			Name: "tunnel", Claim: "a node comes back under its name and takes its tunnel's leaked handle up again",
			handles: []handleSpec{tunnel()}, blocks: []blockSpec{block(v4)},
			agents: []agentSpec{
				{name: "tunnel", at: readForIncrement, blocks: []int{0}, mortal: true},
			},
			replicas: 1, begin: leaked(0, 0), noNode: true,
			left: budget{hours: 2, webhook: 1, nodes: 1, work: [works]uint8{sweepPass: 1}},
		},
		{
			Name: "tunnel at once", Claim: "the same, with no time passing and the webhooks going down",
			handles: []handleSpec{tunnel()}, blocks: []blockSpec{block(v4)},
			agents: []agentSpec{
				{name: "tunnel", at: readForIncrement, blocks: []int{0}},
			},
			replicas: 1, begin: leaked(0, 0), noNode: true,
			left: budget{webhook: 1, work: [works]uint8{sweepPass: 1}},
		},
		{
			Name: "tunnel held", Claim: "a node comes back while the guard is about to let its deleted handle go",
			handles: []handleSpec{tunnel()}, blocks: []blockSpec{block(v4)},
			agents: []agentSpec{
				{name: "tunnel", at: readForIncrement, blocks: []int{0}, mortal: true},
				{name: "release", at: readForRelease, after: 1},
			},
			replicas: 1, begin: terminating(0, 0),
			left: budget{hours: 2, work: [works]uint8{sweepPass: 1, guardCheck: 1}},
		},
		{
			Name: "tunnel, raw delete", Claim: "a sweep comes too late for a tunnel's handle, and somebody deletes it while it is in use",
			handles: []handleSpec{tunnel()}, blocks: []blockSpec{block(v4)},
			agents: []agentSpec{
				{name: "tunnel", at: readForIncrement, blocks: []int{0}},
				{name: "kubectl", at: admitDelete},
			},
			replicas: 1, begin: leaked(0, 0), noNode: true,
			left: budget{hours: 1, webhook: 1, work: [works]uint8{sweepPass: 1, guardCheck: 1}},
		},
		{
			Name: "two replicas", Claim: "the lease moves while a sweep is under way, and the old leader does not hear of it at once",
			handles: []handleSpec{tunnel()}, blocks: []blockSpec{block(v4)},
			agents: []agentSpec{
				{name: "tunnel", at: readForIncrement, blocks: []int{0}},
			},
			replicas: 2, begin: leaked(0, 0), noNode: true,
			left: budget{leases: 1, nodes: 1, work: [works]uint8{sweepPass: 2}},
		},
		{
			Name: "lock", Claim: "an operator locks the datastore and takes a block away for a while; its pod is gone, its address not released",
			handles: []handleSpec{sandbox(0)}, blocks: []blockSpec{block(v4), block(v6)}, pods: []podSpec{{"shop", "cart-0"}},
			agents: []agentSpec{
				{name: "operator", at: lock, blocks: []int{0}},
				{name: "CNI DEL", at: readForRelease, after: 1, mortal: true},
			},
			replicas: 1, begin: podless(0, inUse(0)),
			left: budget{hours: 2, work: [works]uint8{sweepPass: 2}},
		},
		{
			Name: "lock, pod alive", Claim: "the same while the pod lives on",
			handles: []handleSpec{sandbox(0)}, blocks: []blockSpec{block(v4), block(v6)}, pods: []podSpec{{"shop", "cart-0"}},
			agents: []agentSpec{
				{name: "operator", at: lock, blocks: []int{0}},
			},
			replicas: 1, begin: inUse(0),
			left: budget{hours: 3, work: [works]uint8{sweepPass: 2}},
		},
		{
			Name: "repair", Claim: "CNI is killed halfway to a second address, and the handle's counts are set right",
			handles: []handleSpec{sandbox(0)}, blocks: []blockSpec{block(v4), block(v6)}, pods: []podSpec{{"shop", "cart-0"}},
			agents: []agentSpec{
				{name: "CNI ADD", at: readForIncrement, blocks: []int{0, 1}, mortal: true},
				{name: "CNI DEL", at: readForRelease, after: 1},
			},
			replicas: 1, repairs: true,
			left: budget{hours: 3, crashes: 1, work: [works]uint8{repairPasses: 1}},
		},
		{
			Name: "repair, under way", Claim: "a handle is skewed only because its second assignment is under way",
			handles: []handleSpec{sandbox(0)}, blocks: []blockSpec{block(v4), block(v6)}, pods: []podSpec{{"shop", "cart-0"}},
			agents: []agentSpec{
				{name: "CNI ADD", at: readForAllocate, blocks: []int{1}, begun: true, mortal: true},
			},
			replicas: 1, repairs: true,
			begin: spoilt(func(h *calico.IPAMHandle) {
				h.Spec.Block[v6] = 1
				h.ManagedFields[0].Time = &metav1.Time{Time: epoch}
			}, inUse(0)),
			left: budget{hours: 3, crashes: 1, work: [works]uint8{repairPasses: 1}},
		},
		{
			Name: "repair, second address", Claim: "a skewed handle is repaired while it gets a second address",
			handles: []handleSpec{sandbox(0)}, blocks: []blockSpec{block(v4), block(v6)}, pods: []podSpec{{"shop", "cart-0"}},
			agents: []agentSpec{
				{name: "CNI ADD", at: readForIncrement, blocks: []int{1}, mortal: true},
			},
			replicas: 1, repairs: true, begin: spoilt(func(h *calico.IPAMHandle) { h.Spec.Block[v4] = 2 }, inUse(0)),
			left: budget{hours: 2, work: [works]uint8{repairPasses: 1}},
		},
		{
			Name: "repair, missing", Claim: "a handle that is gone is made anew, while Calico collects its address",
			handles: []handleSpec{sandbox(0)}, blocks: []blockSpec{block(v4)}, pods: []podSpec{{"shop", "cart-0"}},
			agents: []agentSpec{
				{name: "CNI DEL", at: readForRelease, mortal: true},
				{name: "IP GC", at: collect, blocks: []int{0}},
			},
			replicas: 1, begin: spoilt(nil, inUse(0)), repairs: true,
			left: budget{hours: 3, podsGone: 1, work: [works]uint8{sweepPass: 1, repairPasses: 1}},
		},
		{
			Name: "repair, stuck", Claim: "a tunnel's handle is marked deleted for good, and the tunnel needs an address",
			handles: []handleSpec{tunnel()}, blocks: []blockSpec{block(v4)},
			agents: []agentSpec{
				{name: "tunnel", at: readForIncrement, blocks: []int{0}, mortal: true},
				{name: "tunnel again", at: readForIncrement, blocks: []int{0}, after: 1},
			},
			replicas: 1, repairs: true,
			begin: spoilt(func(h *calico.IPAMHandle) {
				h.Spec.Deleted, h.Spec.Block, h.Finalizers = true, nil, nil
			}, leaked(0, 0)),
			left: budget{hours: 3, crashes: 1, nodes: 1, work: [works]uint8{sweepPass: 1, repairPasses: 1}},
		},
		{
			Name: "everything", Claim: "two replicas, a pod with two addresses, a tunnel, people, and all that can go wrong",
			handles: []handleSpec{sandbox(0), tunnel()}, blocks: []blockSpec{block(v4), block(v6)}, pods: []podSpec{{"shop", "cart-0"}},
			agents: []agentSpec{
				{name: "CNI ADD", at: readForIncrement, blocks: []int{0, 1}, mortal: true},
				{name: "CNI DEL", at: readForRelease, after: 1, mortal: true},
				{name: "tunnel", at: readForIncrement, handle: 1, blocks: []int{0}, mortal: true},
				{name: "kubectl", at: admitDelete},
			},
			replicas: 2, begin: leaked(1, 0), noNode: true,
			left: budget{hours: 5, webhook: 2, crashes: 1, restarts: 1, leases: 1, podsGone: 1, nodes: 3, work: [works]uint8{3, 3, 1}},
		},
	}
}
