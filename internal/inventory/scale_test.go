package inventory_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

var scale = flag.Bool("scale", false, "also test a million handles; takes a gigabyte and half a minute")

// The largest cluster that is tried: as many pods as Kubernetes supports, in
// 20,000 blocks, among a million handles.
const (
	largeHandles = 1_000_000
	largeBlocks  = 20_000
	largePods    = 150_000
	largeNodes   = 5_000
	// maxHeap leaves half of 400 MiB to the collector and to all that is not the
	// inventory.
	maxHeapMiB = 200
)

// large fills an inventory with the largest cluster.
func large(i *inventory.Inventory) {
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // not for secrets
	sandbox := func() (containerID string) {
		var id [32]byte
		for at := 0; at < len(id); at += 8 {
			binary.LittleEndian.PutUint64(id[at:], random.Uint64())
		}
		return fmt.Sprintf("%x", id)
	}
	node := func(n int) string { return "worker-" + strconv.Itoa(n%largeNodes) + ".example.internal" }
	rv := 0
	meta := func(name string) metav1.ObjectMeta {
		rv++
		created := metav1.NewTime(now.Add(-time.Duration(rv) * time.Minute))
		return metav1.ObjectMeta{
			Name: name, ResourceVersion: strconv.Itoa(rv), CreationTimestamp: created,
			UID:           uid(random),
			ManagedFields: []metav1.ManagedFieldsEntry{{Time: &created}},
		}
	}
	handle := func(name string) {
		i.ApplyHandle(inventory.FromObject(&metav1.PartialObjectMetadata{ObjectMeta: meta(name)}))
	}
	for _, r := range []inventory.Resource{inventory.Handles, inventory.Blocks, inventory.Nodes, inventory.Pods} {
		i.Begin(r)
	}
	for n := range largeNodes {
		i.ApplyNode(ptr.To(meta(node(n))))
	}
	base := netip.MustParseAddr("10.0.0.0").As4()
	pods := 0
	for b := range largeBlocks {
		// As an API server's answer, no string is shared.
		first := binary.BigEndian.Uint32(base[:]) + uint32(b)*64
		var address [4]byte
		binary.BigEndian.PutUint32(address[:], first)
		cidr := netip.PrefixFrom(netip.AddrFrom4(address), 26)
		block := &calico.IPAMBlock{ObjectMeta: meta(calico.BlockName(cidr)), Spec: calico.IPAMBlockSpec{
			CIDR: cidr.String(), Affinity: ptr.To("host:" + node(b)), Allocations: make([]*int, 64),
		}}
		for n := range largePods / largeBlocks {
			containerID, name, namespace := sandbox(), fmt.Sprintf("checkout-service-7c9d8f6b5-%05d", pods), fmt.Sprintf("team-%d", pods%500)
			handle("k8s-pod-network." + containerID)
			block.Spec.Allocations[n] = ptr.To(n)
			block.Spec.Attributes = append(block.Spec.Attributes, calico.AllocationAttribute{
				HandleID:  ptr.To("k8s-pod-network." + containerID),
				Secondary: map[string]string{"namespace": fmt.Sprintf("team-%d", pods%500), "pod": fmt.Sprintf("checkout-service-7c9d8f6b5-%05d", pods), "node": node(b)},
			})
			pod := &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{NodeName: node(b)}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
			pod.Namespace = namespace
			pod.Annotations = map[string]string{calico.ContainerIDAnnotation: containerID, calico.PodIPAnnotation: cidr.Addr().String() + "/32"}
			i.ApplyPod(pod)
			pods++
		}
		i.ApplyBlock(block)
	}
	for range largeHandles - pods {
		handle("k8s-pod-network." + sandbox())
	}
	for _, r := range []inventory.Resource{inventory.Handles, inventory.Blocks, inventory.Nodes, inventory.Pods} {
		i.Commit(r)
	}
}

func uid(random *rand.Rand) types.UID {
	return types.UID(fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", random.Uint32(), random.Uint32()>>16, random.Uint32()>>20, random.Uint32()>>20, random.Uint64()>>16))
}

func TestAMillionHandles(t *testing.T) {
	if !*scale {
		t.Skip("without -scale")
	}
	i := inventory.New(clock.RealClock{})
	before := heap()
	large(i)
	alive := float64(heap()-before) / (1 << 20)
	t.Logf("%.0f MiB for %d handles, %d blocks and %d pods", alive, largeHandles, largeBlocks, largePods)
	if alive > maxHeapMiB {
		t.Errorf("%.0f MiB are alive, want %d at most", alive, maxHeapMiB)
	}
	orphans, inUse := 0, 0
	for _, v := range i.All(now, grace) {
		switch v.Outcome {
		case verdict.Orphaned:
			orphans++
		case verdict.InUse:
			inUse++
		}
	}
	if live := largePods / largeBlocks * largeBlocks; inUse != live || orphans != largeHandles-live {
		t.Errorf("%d are in use and %d orphaned, want %d and %d", inUse, orphans, live, largeHandles-live)
	}
	runtime.KeepAlive(i)
}
