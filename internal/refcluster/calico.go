package refcluster

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// network leads the IDs of sandboxes' handles.
const network = "k8s-pod-network."

// metadataAnnotation is all of a handle's metadata that Calico itself writes.
const (
	metadataAnnotation = "projectcalico.org/metadata"
	metadataValue      = `{"creationTimestamp":null}`
)

// Of a thousand orphans this many are something else than a sandbox's handle
// with its one address.
const (
	tunnelsOfGoneNodes = 2
	legacyPods         = 2
	softDeleted        = 4
	emptied            = 4
)

// LiveHandles are the handles that blocks reference: those of pods, then those
// of tunnels.
func (s Spec) LiveHandles() iter.Seq[*calico.IPAMHandle] {
	return func(yield func(*calico.IPAMHandle) bool) {
		l := newLayout(s)
		for pod := range s.Pods {
			c := s.chance("pod", pod)
			at := s.podCreated(c.rand())
			if !yield(s.handle(c, network+c.containerID(), blockCIDR(l.placeOfPod(pod).block), at, at)) {
				return
			}
		}
		for node := range s.Nodes {
			c := s.chance("tunnel", node)
			at := s.nodeCreated()
			if !yield(s.handle(c, tunnelID(nodeName(node)), blockCIDR(l.placeOfTunnel(node).block), at, at)) {
				return
			}
		}
	}
}

// OrphanHandles are the handles that no block references and whose owner is gone.
func (s Spec) OrphanHandles() iter.Seq[*calico.IPAMHandle] {
	return func(yield func(*calico.IPAMHandle) bool) {
		blocks := newLayout(s).blocks()
		for n := range s.Orphans {
			if !yield(s.orphan(n, blocks)) {
				return
			}
		}
	}
}

func (s Spec) orphan(n, blocks int) *calico.IPAMHandle {
	c := s.chance("orphan", n)
	r := c.rand()
	written := s.before(s.Oldest)
	if n > 0 { // The first is as old as the Spec says.
		written = s.before(s.Youngest + time.Duration(r.Int64N(int64(s.Oldest-s.Youngest)+1)))
	}
	created := written
	if r.IntN(20) == 0 { // A second block or address family came later.
		created = written.Add(-time.Duration(1+r.IntN(60)) * time.Second)
	}
	cidr := blockCIDR(r.IntN(blocks))
	if r.IntN(5) < 2 { // Blocks go when they are empty.
		cidr = blockCIDR(liveBlocks + r.IntN(goneBlocks))
	}
	id := network + c.containerID()
	kind := r.IntN(1000)
	switch {
	case kind < tunnelsOfGoneNodes:
		id = tunnelID(fmt.Sprintf("retired-%d", n))
	case kind < tunnelsOfGoneNodes+legacyPods:
		id = fmt.Sprintf("%s.retired-%d", namespaces[n%len(namespaces)], n)
	}
	h := s.handle(c, id, cidr, created, written)
	switch kind = 999 - kind; {
	case kind < softDeleted:
		h.Spec.Deleted = true
	case kind < softDeleted+emptied:
		h.Spec.Block = map[string]int{}
	}
	return h
}

func tunnelID(node string) string { return "vxlan-tunnel-addr-" + node }

func (s Spec) handle(c chance, id string, cidr netip.Prefix, created, written time.Time) *calico.IPAMHandle {
	h := &calico.IPAMHandle{
		TypeMeta:   s.typeMeta("IPAMHandle"),
		ObjectMeta: s.meta(calico.HandleName(id), c, created),
		Spec:       calico.IPAMHandleSpec{HandleID: id, Block: map[string]int{cidr.String(): 1}},
	}
	h.Annotations = map[string]string{metadataAnnotation: metadataValue}
	h.ManagedFields = []metav1.ManagedFieldsEntry{{
		APIVersion: s.API.String(),
		FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{".":{},"f:` + metadataAnnotation +
			`":{}}},"f:spec":{".":{},"f:block":{".":{},"f:` + cidr.String() + `":{}},"f:deleted":{},"f:handleID":{}}}`),
		Manager:   "Go-http-client",
		Operation: metav1.ManagedFieldsOperationUpdate,
		Time:      ptr.To(metav1.NewTime(written)),
	}}
	if written.After(created) {
		h.Generation = 2
	}
	return h
}

// Blocks are the blocks, with the allocations of live handles.
func (s Spec) Blocks() iter.Seq[*calico.IPAMBlock] {
	return func(yield func(*calico.IPAMBlock) bool) {
		l := newLayout(s)
		for node := range s.Nodes {
			for block := l.first[node]; block < l.first[node+1]; block++ {
				if !yield(s.block(l, node, block)) {
					return
				}
			}
		}
	}
}

func (s Spec) block(l layout, node, block int) *calico.IPAMBlock {
	c := s.chance("block", block)
	cidr := blockCIDR(block)
	b := &calico.IPAMBlock{
		TypeMeta:   s.typeMeta("IPAMBlock"),
		ObjectMeta: s.meta(calico.BlockName(cidr), c, s.nodeCreated()),
		Spec: calico.IPAMBlockSpec{
			CIDR:                        cidr.String(),
			Affinity:                    ptr.To("host:" + nodeName(node)),
			AffinityClaimTime:           ptr.To(metav1.NewTime(s.nodeCreated())),
			Allocations:                 make([]*int, blockSize),
			Attributes:                  []calico.AllocationAttribute{},
			Unallocated:                 []int{},
			SequenceNumber:              1e6,
			SequenceNumberForAllocation: map[string]uint64{},
		},
	}
	b.Annotations = map[string]string{metadataAnnotation: metadataValue}
	for ordinal := range blockSize {
		pod, ok := l.owner(node, place{block, ordinal})
		if !ok {
			b.Spec.Unallocated = append(b.Spec.Unallocated, ordinal)
			continue
		}
		b.Spec.Allocations[ordinal] = ptr.To(len(b.Spec.Attributes))
		b.Spec.SequenceNumberForAllocation[strconv.Itoa(ordinal)] = 1e6 - uint64(ordinal)
		b.Spec.Attributes = append(b.Spec.Attributes, s.attribute(node, pod))
	}
	return b
}

func (s Spec) attribute(node, pod int) calico.AllocationAttribute {
	if pod < 0 {
		return calico.AllocationAttribute{
			HandleID:  ptr.To(tunnelID(nodeName(node))),
			Secondary: map[string]string{"node": nodeName(node), "type": "vxlanTunnelAddress"},
		}
	}
	c := s.chance("pod", pod)
	namespace, name := podName(pod, c)
	return calico.AllocationAttribute{
		HandleID: ptr.To(network + c.containerID()),
		Secondary: map[string]string{
			"namespace": namespace, "pod": name, "node": nodeName(node),
			"timestamp": s.podCreated(c.rand()).Format("2006-01-02 15:04:05 -0700 MST"),
		},
	}
}

// Affinities are the nodes' claims on the blocks.
func (s Spec) Affinities() iter.Seq[*calico.BlockAffinity] {
	return func(yield func(*calico.BlockAffinity) bool) {
		l := newLayout(s)
		for node := range s.Nodes {
			for block := l.first[node]; block < l.first[node+1]; block++ {
				cidr := blockCIDR(block)
				if !yield(&calico.BlockAffinity{
					TypeMeta:   s.typeMeta("BlockAffinity"),
					ObjectMeta: s.meta(nodeName(node)+"-"+calico.BlockName(cidr), s.chance("affinity", block), s.nodeCreated()),
					Spec:       calico.BlockAffinitySpec{State: "confirmed", Node: nodeName(node), Type: "host", CIDR: cidr.String()},
				}) {
					return
				}
			}
		}
	}
}

// Pools are the address pools, one for each address family.
func (s Spec) Pools() []*calico.IPPool {
	pools := []*calico.IPPool{
		{Spec: calico.IPPoolSpec{CIDR: pool.String(), BlockSize: blockBits}},
		{Spec: calico.IPPoolSpec{CIDR: "fd00:10:128::/64", BlockSize: 122}},
	}
	for i, name := range []string{"default-ipv4-ippool", "default-ipv6-ippool"} {
		pools[i].TypeMeta = s.typeMeta("IPPool")
		pools[i].ObjectMeta = s.meta(name, s.chance("pool", i), s.nodeCreated())
	}
	return pools
}

// ClusterInformation says that the datastore is not locked.
func (s Spec) ClusterInformation() *calico.ClusterInformation {
	return &calico.ClusterInformation{
		TypeMeta:   s.typeMeta("ClusterInformation"),
		ObjectMeta: s.meta("default", s.chance("cluster", 0), s.nodeCreated()),
		Spec:       calico.ClusterInformationSpec{CalicoVersion: "v3.32.0", DatastoreReady: ptr.To(true)},
	}
}

func (s Spec) typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: s.API.String(), Kind: kind}
}

func (s Spec) meta(name string, c chance, created time.Time) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, UID: c.uid(), CreationTimestamp: metav1.NewTime(created), Generation: 1}
}

const longLived = 90 * 24 * time.Hour

// podCreated is when a pod, and so its sandbox, came to be.
func (s Spec) podCreated(r *rand.Rand) time.Time {
	return s.before(time.Duration(r.Int64N(int64(longLived))))
}

// nodeCreated is when nodes came: before any pod, and any orphan.
func (s Spec) nodeCreated() time.Time { return s.before(max(s.Oldest, longLived) + time.Hour) }
