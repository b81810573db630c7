package refcluster

import (
	"iter"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// Finding is what a handle should be judged to be.
type Finding struct {
	Outcome verdict.Outcome
	Reason  verdict.Reason
	Skewed  bool
}

// Oddity is one rare situation. Its blocks, pods and handles are its own, so
// each can be had alone or with the others, beside a reference cluster or not.
type Oddity struct {
	// Name reads as a sentence.
	Name    string
	Objects []runtime.Object
	// Want says, by object name, how each of its handles should be judged with
	// the default grace, at the moment that the oddities were made for, by a
	// judge that has read the handle's spec.
	Want map[string]Finding
	// Missing are IDs of handles that its blocks reference and that do not exist.
	Missing []string
}

// Oddities are the rare situations, as of one moment.
type Oddities struct {
	// Shared are the nodes, the namespace and the pools that the cases lie in.
	Shared []runtime.Object
	Cases  []Oddity
}

// Objects are the shared objects, then those of all cases.
func (o Oddities) Objects() iter.Seq[runtime.Object] {
	return func(yield func(runtime.Object) bool) {
		for _, object := range o.Shared {
			if !yield(object) {
				return
			}
		}
		for _, c := range o.Cases {
			for _, object := range c.Objects {
				if !yield(object) {
					return
				}
			}
		}
	}
}

// The nodes that oddities live on, and the one that is gone.
const (
	oddNode      = "odd-a"
	oddOtherNode = "odd-b"
	oddGoneNode  = "odd-gone"
	oddNamespace = "odd"
)

// NewOddities makes the oddities as of now.
func NewOddities(api calico.API, now time.Time) Oddities {
	s := Default(now)
	s.API = api
	o := Oddities{Shared: oddShared(s)}
	for i, describe := range []func(*oddBuilder){
		oddIPv6, oddDualStack, oddSkewed, oddLoadBalancer, oddLoadBalancerGone, oddWindows,
		oddCooldown, oddBorrowed, oddOutOfRange, oddGarbage, oddSoftDeleted, oddSoftDeletedInUse,
		oddDisabledPool, oddMissing, oddSettling, oddOwnerAlive, oddOldCNI, oddFinished,
		oddRecreated, oddLegacy, oddVirtualMachine, oddHashedVirtualMachine, oddUnknown, oddGoneNodeBlock,
	} {
		b := &oddBuilder{spec: s, number: i, Oddity: Oddity{Want: map[string]Finding{}}}
		describe(b)
		o.Cases = append(o.Cases, b.Oddity)
	}
	return o
}

func oddShared(s Spec) []runtime.Object {
	var shared []runtime.Object
	for i, name := range []string{oddNode, oddOtherNode} {
		node := &corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: s.meta(name, s.chance("odd node", i), s.nodeCreated()),
		}
		node.Generation = 0
		shared = append(shared, node)
	}
	namespace := &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: s.meta(oddNamespace, s.chance("odd namespace", 0), s.nodeCreated()),
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}
	namespace.Generation = 0
	shared = append(shared, namespace)
	for i, pool := range []calico.IPPoolSpec{
		{CIDR: "10.64.0.0/16", BlockSize: blockBits},
		{CIDR: "10.65.0.0/16", BlockSize: blockBits, Disabled: true},
		{CIDR: "fd00:10:64::/64", BlockSize: 122},
	} {
		shared = append(shared, &calico.IPPool{
			TypeMeta:   s.typeMeta("IPPool"),
			ObjectMeta: s.meta("odd-"+strconv.Itoa(i), s.chance("odd pool", i), s.nodeCreated()),
			Spec:       pool,
		})
	}
	return shared
}

// oddBuilder builds one case; its number keeps its addresses and IDs apart.
type oddBuilder struct {
	Oddity
	spec   Spec
	number int
	made   int
}

func (b *oddBuilder) chance() chance {
	b.made++
	return b.spec.chance("oddity", b.number<<8|b.made)
}

func (b *oddBuilder) sandbox() (id, containerID string) {
	containerID = b.chance().containerID()
	return network + containerID, containerID
}

const (
	oddAge    = 30 * 24 * time.Hour
	oddRecent = time.Minute
)

func (b *oddBuilder) handle(id string, block map[string]int, want Finding) *calico.IPAMHandle {
	written := b.spec.before(oddAge)
	cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, 0, 0}), blockBits)
	h := b.spec.handle(b.chance(), id, cidr, written, written)
	h.Spec.Block = block
	b.Objects = append(b.Objects, h)
	b.Want[h.Name] = want
	return h
}

// v4 and v6 are this case's blocks.
func (b *oddBuilder) v4() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, byte(b.number), 0}), blockBits)
}

func (b *oddBuilder) v6() netip.Prefix {
	a := netip.MustParseAddr("fd00:10:64::").As16()
	a[13] = byte(b.number)
	return netip.PrefixFrom(netip.AddrFrom16(a), 122)
}

// block has one allocation for each attribute, from its first address on.
func (b *oddBuilder) block(cidr netip.Prefix, affinity string, attributes ...calico.AllocationAttribute) *calico.IPAMBlock {
	block := &calico.IPAMBlock{
		TypeMeta:   b.spec.typeMeta("IPAMBlock"),
		ObjectMeta: b.spec.meta(calico.BlockName(cidr), b.chance(), b.spec.nodeCreated()),
		Spec: calico.IPAMBlockSpec{
			CIDR:                        cidr.String(),
			Affinity:                    ptr.To(affinity),
			Allocations:                 make([]*int, blockSize),
			Attributes:                  attributes,
			SequenceNumberForAllocation: map[string]uint64{},
		},
	}
	for ordinal := range blockSize {
		if ordinal < len(attributes) {
			block.Spec.Allocations[ordinal] = ptr.To(ordinal)
		} else {
			block.Spec.Unallocated = append(block.Spec.Unallocated, ordinal)
		}
	}
	b.Objects = append(b.Objects, block)
	if node := calico.AffinityNode(affinity); node != "" {
		b.Objects = append(b.Objects, &calico.BlockAffinity{
			TypeMeta:   b.spec.typeMeta("BlockAffinity"),
			ObjectMeta: b.spec.meta(node+"-"+calico.BlockName(cidr), b.chance(), b.spec.nodeCreated()),
			Spec:       calico.BlockAffinitySpec{State: "confirmed", Node: node, Type: "host", CIDR: cidr.String()},
		})
	}
	return block
}

func podAttribute(id, pod string) calico.AllocationAttribute {
	return calico.AllocationAttribute{
		HandleID:  ptr.To(id),
		Secondary: map[string]string{"namespace": oddNamespace, "pod": pod, "node": oddNode},
	}
}

// pod runs on oddNode with addresses; an empty container ID stands for an old
// CNI plugin that wrote none.
func (b *oddBuilder) pod(name, containerID string, ips ...netip.Addr) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: b.spec.meta(name, b.chance(), b.spec.before(oddAge)),
		Spec: corev1.PodSpec{
			NodeName:    oddNode,
			Containers:  []corev1.Container{{Name: "app", Image: "registry.example/app:1"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ips[0].String()},
	}
	pod.Namespace = oddNamespace
	for _, ip := range ips {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	if containerID != "" {
		pod.Annotations = map[string]string{
			calico.ContainerIDAnnotation: containerID,
			calico.PodIPAnnotation:       netip.PrefixFrom(ips[0], ips[0].BitLen()).String(),
		}
	}
	b.Objects = append(b.Objects, pod)
	return pod
}

func (b *oddBuilder) service(name string, uid types.UID) {
	b.Objects = append(b.Objects, &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: oddNamespace, Name: name, UID: uid, CreationTimestamp: metav1.NewTime(b.spec.before(oddAge))},
		Spec: corev1.ServiceSpec{
			Type:                          corev1.ServiceTypeLoadBalancer,
			ClusterIP:                     corev1.ClusterIPNone,
			ClusterIPs:                    []string{corev1.ClusterIPNone},
			IPFamilies:                    []corev1.IPFamily{corev1.IPv4Protocol},
			IPFamilyPolicy:                ptr.To(corev1.IPFamilyPolicySingleStack),
			AllocateLoadBalancerNodePorts: ptr.To(false),
			Ports:                         []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	})
}

var inUse = Finding{Outcome: verdict.InUse, Reason: verdict.Referenced}

func orphan(reason verdict.Reason) Finding { return Finding{Outcome: verdict.Orphaned, Reason: reason} }

func unknown(reason verdict.Reason) Finding {
	return Finding{Outcome: verdict.OwnerUnknown, Reason: reason}
}

const (
	hostA = "host:" + oddNode
	hostB = "host:" + oddOtherNode
)

func counts(cidrs ...netip.Prefix) map[string]int {
	m := map[string]int{}
	for _, cidr := range cidrs {
		m[cidr.String()]++
	}
	return m
}

func oddIPv6(b *oddBuilder) {
	b.Name = "a pod with an IPv6 address"
	id, cid := b.sandbox()
	b.block(b.v6(), hostA, podAttribute(id, "v6"))
	b.pod("v6", cid, b.v6().Addr())
	b.handle(id, counts(b.v6()), inUse)
}

func oddDualStack(b *oddBuilder) {
	b.Name = "a dual-stack pod, whose handle has a block of each family"
	id, cid := b.sandbox()
	b.block(b.v4(), hostA, podAttribute(id, "dual"))
	b.block(b.v6(), hostA, podAttribute(id, "dual"))
	b.pod("dual", cid, b.v4().Addr(), b.v6().Addr())
	b.handle(id, counts(b.v4(), b.v6()), inUse)
}

func oddSkewed(b *oddBuilder) {
	b.Name = "a handle that counts one address more than its block"
	id, cid := b.sandbox()
	b.block(b.v4(), hostA, podAttribute(id, "skewed"))
	b.pod("skewed", cid, b.v4().Addr())
	b.handle(id, counts(b.v4(), b.v4()), Finding{Outcome: verdict.InUse, Reason: verdict.Referenced, Skewed: true})
}

func oddLoadBalancer(b *oddBuilder) {
	b.Name = "the address of a Service of type LoadBalancer"
	uid := b.chance().uid()
	id := calico.LoadBalancerHandleID("web", oddNamespace, string(uid))
	b.service("web", uid)
	b.block(b.v4(), "virtual:load-balancer", calico.AllocationAttribute{
		HandleID: ptr.To(id), Secondary: map[string]string{"namespace": oddNamespace, "service": "web"},
	})
	b.handle(id, counts(b.v4()), inUse)
}

func oddLoadBalancerGone(b *oddBuilder) {
	b.Name = "the handle of a Service that is gone"
	id := calico.LoadBalancerHandleID("old-web", oddNamespace, string(b.chance().uid()))
	b.handle(id, counts(b.v4()), orphan(ownership.ServiceGone))
}

func oddWindows(b *oddBuilder) {
	b.Name = "the handle of addresses that Windows reserves"
	b.handle(calico.ReservedHandleID, counts(b.v4(), b.v4(), b.v4()),
		Finding{Outcome: verdict.Reserved, Reason: ownership.ReservedHandle})
}

func oddCooldown(b *oddBuilder) {
	b.Name = "an address that cools down after its release, its handle left behind"
	id, _ := b.sandbox()
	b.block(b.v4(), hostA, calico.AllocationAttribute{ReleasedAt: ptr.To(metav1.NewTime(b.spec.before(oddRecent)))})
	b.handle(id, counts(b.v4()), orphan(ownership.PodGone))
}

func oddBorrowed(b *oddBuilder) {
	b.Name = "a pod with an address borrowed from another node's block"
	id, cid := b.sandbox()
	b.block(b.v4(), hostB, podAttribute(id, "borrower"))
	b.pod("borrower", cid, b.v4().Addr())
	b.handle(id, counts(b.v4()), inUse)
}

func oddOutOfRange(b *oddBuilder) {
	b.Name = "a damaged block, with an allocation that points to no attribute"
	good, goodContainer := b.sandbox()
	lost, lostContainer := b.sandbox()
	block := b.block(b.v4(), hostA, podAttribute(good, "good"))
	block.Spec.Allocations[1] = ptr.To(7)
	block.Spec.Unallocated = block.Spec.Unallocated[1:]
	b.pod("good", goodContainer, b.v4().Addr())
	b.pod("lost", lostContainer, b.v4().Addr().Next())
	b.handle(good, counts(b.v4()), inUse)
	b.handle(lost, counts(b.v4()), Finding{Outcome: verdict.OwnerAlive, Reason: ownership.PodAlive})
}

func oddGarbage(b *oddBuilder) {
	b.Name = "an attribute that no allocation points to"
	id, _ := b.sandbox()
	block := b.block(b.v4(), hostA)
	block.Spec.Attributes = []calico.AllocationAttribute{podAttribute(id, "garbage")}
	b.handle(id, counts(b.v4()), orphan(ownership.PodGone))
}

func oddSoftDeleted(b *oddBuilder) {
	b.Name = "a handle stuck between the two steps of its delete"
	id, _ := b.sandbox()
	b.handle(id, counts(b.v4()), orphan(ownership.PodGone)).Spec.Deleted = true
}

func oddSoftDeletedInUse(b *oddBuilder) {
	b.Name = "a soft-deleted handle that a block still references"
	id, cid := b.sandbox()
	b.block(b.v4(), hostA, podAttribute(id, "half-deleted"))
	b.pod("half-deleted", cid, b.v4().Addr())
	b.handle(id, counts(b.v4()), Finding{Outcome: verdict.InUse, Reason: verdict.ReferencedSoftDeleted}).Spec.Deleted = true
}

func oddDisabledPool(b *oddBuilder) {
	b.Name = "a pod whose pool was disabled later"
	id, cid := b.sandbox()
	cidr := netip.MustParsePrefix("10.65.0.0/26")
	b.block(cidr, hostA, podAttribute(id, "disabled-pool"))
	b.pod("disabled-pool", cid, cidr.Addr())
	b.handle(id, counts(cidr), inUse)
}

func oddMissing(b *oddBuilder) {
	b.Name = "a block that references a handle that does not exist"
	id, cid := b.sandbox()
	b.block(b.v4(), hostA, podAttribute(id, "missing"))
	b.pod("missing", cid, b.v4().Addr())
	b.Missing = []string{id}
}

func oddSettling(b *oddBuilder) {
	b.Name = "a handle written a minute ago, its block not yet"
	id, _ := b.sandbox()
	h := b.handle(id, counts(b.v4()), Finding{Outcome: verdict.Settling, Reason: verdict.RecentlyWritten})
	h.CreationTimestamp = metav1.NewTime(b.spec.before(oddRecent))
	h.ManagedFields[0].Time = ptr.To(metav1.NewTime(b.spec.before(oddRecent)))
}

func oddOwnerAlive(b *oddBuilder) {
	b.Name = "a pod that runs although no block references its handle"
	id, cid := b.sandbox()
	b.block(b.v4(), hostA)
	b.pod("unreferenced", cid, b.v4().Addr())
	b.handle(id, counts(b.v4()), Finding{Outcome: verdict.OwnerAlive, Reason: ownership.PodAlive})
}

func oddOldCNI(b *oddBuilder) {
	b.Name = "a pod of an old CNI plugin, without a container ID, in the block that a handle names"
	id, _ := b.sandbox()
	b.block(b.v4(), hostA)
	b.pod("old-cni", "", b.v4().Addr())
	b.handle(id, counts(b.v4()), unknown(ownership.PodWithoutContainerID))
}

func oddFinished(b *oddBuilder) {
	b.Name = "a pod that has finished, its handle left behind"
	id, cid := b.sandbox()
	b.pod("finished", cid, b.v4().Addr()).Status.Phase = corev1.PodSucceeded
	b.handle(id, counts(b.v4()), orphan(ownership.PodFinished))
}

func oddRecreated(b *oddBuilder) {
	b.Name = "a StatefulSet's pod re-created under its name, the old sandbox's handle left behind"
	before, _ := b.sandbox()
	id, cid := b.sandbox()
	b.block(b.v4(), hostA, podAttribute(id, "db-0"))
	b.pod("db-0", cid, b.v4().Addr())
	b.handle(before, counts(b.v4()), orphan(ownership.PodGone))
	b.handle(id, counts(b.v4()), inUse)
}

func oddLegacy(b *oddBuilder) {
	b.Name = "handles in the legacy form, of a pod that runs and of one that is gone"
	_, cid := b.sandbox()
	b.pod("legacy", cid, b.v4().Addr())
	b.handle(oddNamespace+".legacy", counts(b.v4()), Finding{Outcome: verdict.OwnerAlive, Reason: ownership.PodAlive})
	b.handle(oddNamespace+".legacy-gone", counts(b.v4()), orphan(ownership.PodGone))
}

func oddVirtualMachine(b *oddBuilder) {
	b.Name = "the handle of a virtual machine, in a cluster without KubeVirt"
	b.handle(network+"vmi."+oddNamespace+".vm-1", counts(b.v4()), unknown(ownership.VirtualMachineUnknown))
}

func oddHashedVirtualMachine(b *oddBuilder) {
	b.Name = "the handle of a virtual machine with a name so long that it was hashed"
	b.handle(network+"vmi._"+b.chance().containerID()[:40], counts(b.v4()), unknown(ownership.HashedID))
}

func oddUnknown(b *oddBuilder) {
	b.Name = "a handle of no known form"
	b.handle(string(b.chance().uid()), counts(b.v4()), unknown(ownership.UnknownForm))
}

func oddGoneNodeBlock(b *oddBuilder) {
	b.Name = "handles that a node left behind: its tunnel's, and a pod's in a block that it still claims"
	id, _ := b.sandbox()
	b.block(b.v4(), "host:"+oddGoneNode)
	b.handle(id, counts(b.v4()), orphan(ownership.NodeGone))
	b.handle(tunnelID(oddGoneNode), counts(b.v4()), orphan(ownership.NodeGone))
}
