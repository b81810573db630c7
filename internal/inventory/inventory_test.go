package inventory_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

var sandboxName = "k8s-pod-network." + containerID(1)

// holding is a block in which the handle holds this many addresses.
func holding(rv uint64, handle string, count int) *calico.IPAMBlock {
	b := &calico.IPAMBlock{
		ObjectMeta: metav1.ObjectMeta{Name: "10-0-0-0-26", ResourceVersion: strconv.FormatUint(rv, 10)},
		Spec: calico.IPAMBlockSpec{
			CIDR: "10.0.0.0/26", Allocations: make([]*int, 64),
			Attributes: []calico.AllocationAttribute{{
				HandleID:  ptr.To(handle),
				Secondary: map[string]string{"namespace": "shop", "pod": "web-0", "node": "node-1"},
			}},
		},
	}
	for n := range count {
		b.Spec.Allocations[5+n] = ptr.To(0)
	}
	return b
}

func handleAt(rv uint64) inventory.Handle {
	return inventory.Handle{Name: sandboxName, UID: "0b7a9a3e-2d0f-4a52-9d3c-6a1d2f3b4c5d", ResourceVersion: rv, LastWrite: now.Add(-time.Hour)}
}

// generation is h at this generation of its spec.
func generation(h inventory.Handle, n int64, terminating bool) inventory.Handle {
	h.Generation, h.Terminating = n, terminating
	return h
}

// TestWasReferenced: the finalizer of a handle that somebody deletes goes at
// once when the assignment that wrote it is known to have ended. An assignment
// under way must never look like one that ended.
func TestWasReferenced(t *testing.T) {
	for name, tc := range map[string]struct {
		events func(*inventory.Inventory)
		want   bool
	}{
		"an assignment that was seen to come and go has ended": {func(i *inventory.Inventory) {
			i.ApplyBlock(holding(5, "", 0))
			i.ApplyHandle(handleAt(10))
			i.ApplyBlock(holding(11, sandboxName, 1))
			i.ApplyBlock(holding(12, sandboxName, 0))
		}, true},
		"so has one whose block came before its handle, from another watch": {func(i *inventory.Inventory) {
			i.ApplyBlock(holding(5, "", 0))
			i.ApplyBlock(holding(11, sandboxName, 1))
			i.ApplyHandle(handleAt(10))
			i.ApplyBlock(holding(12, sandboxName, 0))
		}, true},
		"so has a second address in the same block": {func(i *inventory.Inventory) {
			i.ApplyBlock(holding(9, sandboxName, 1))
			i.ApplyHandle(handleAt(10))
			i.ApplyBlock(holding(11, sandboxName, 2))
			i.ApplyBlock(holding(12, sandboxName, 0))
		}, true},
		"so has one whose block was deleted": {func(i *inventory.Inventory) {
			i.ApplyBlock(holding(5, "", 0))
			i.ApplyHandle(handleAt(10))
			i.ApplyBlock(holding(11, sandboxName, 1))
			i.DeleteBlock("10-0-0-0-26", 12)
		}, true},
		"a deletion before the release does not hide the end": {func(i *inventory.Inventory) {
			i.ApplyBlock(holding(5, "", 0))
			i.ApplyHandle(generation(handleAt(10), 1, false))
			i.ApplyBlock(holding(11, sandboxName, 1))
			i.ApplyHandle(generation(handleAt(12), 2, true))
			i.ApplyBlock(holding(13, sandboxName, 0))
		}, true},
		"nor does one after the release": {func(i *inventory.Inventory) {
			i.ApplyBlock(holding(5, "", 0))
			i.ApplyHandle(generation(handleAt(10), 1, false))
			i.ApplyBlock(holding(11, sandboxName, 1))
			i.ApplyBlock(holding(12, sandboxName, 0))
			i.ApplyHandle(generation(handleAt(13), 2, true))
		}, true},
		"a deletion seen together with another write proves nothing": {func(i *inventory.Inventory) {
			i.ApplyBlock(holding(5, "", 0))
			i.ApplyHandle(generation(handleAt(10), 1, false))
			i.ApplyBlock(holding(11, sandboxName, 1))
			i.ApplyHandle(generation(handleAt(13), 3, true))
			i.ApplyBlock(holding(14, sandboxName, 0))
		}, false},
		"a write after the deletion starts anew": {func(i *inventory.Inventory) {
			i.ApplyBlock(holding(5, "", 0))
			i.ApplyHandle(generation(handleAt(10), 1, false))
			i.ApplyBlock(holding(11, sandboxName, 1))
			i.ApplyHandle(generation(handleAt(12), 2, true))
			i.ApplyHandle(generation(handleAt(13), 3, true))
			i.ApplyBlock(holding(14, sandboxName, 0))
		}, false},
		"a release between the two writes of a new assignment proves nothing": {func(i *inventory.Inventory) {
			i.ApplyBlock(holding(5, "", 0))
			i.ApplyHandle(handleAt(10))
			i.ApplyBlock(holding(11, sandboxName, 1))
			i.ApplyHandle(handleAt(13)) // Another address is on its way.
			i.ApplyBlock(holding(14, sandboxName, 0))
		}, false},
		"a write of the handle after the release starts anew": {func(i *inventory.Inventory) {
			i.ApplyBlock(holding(5, "", 0))
			i.ApplyHandle(handleAt(10))
			i.ApplyBlock(holding(11, sandboxName, 1))
			i.ApplyBlock(holding(12, sandboxName, 0))
			i.ApplyHandle(handleAt(13))
		}, false},
		"a reference that was there when watching began proves nothing": {func(i *inventory.Inventory) {
			i.ApplyHandle(handleAt(10))
			i.ApplyBlock(holding(11, sandboxName, 1))
			i.ApplyBlock(holding(12, sandboxName, 0))
		}, false},
		"nor does a reference that only another address's coming kept": {func(i *inventory.Inventory) {
			i.ApplyBlock(holding(5, "", 0))
			i.ApplyBlock(holding(8, sandboxName, 1))
			i.ApplyHandle(handleAt(10))
			i.ApplyBlock(holding(11, sandboxName, 1))
			i.ApplyBlock(holding(12, sandboxName, 0))
		}, false},
		"a handle that is referenced is not one that was": {func(i *inventory.Inventory) {
			i.ApplyBlock(holding(5, "", 0))
			i.ApplyHandle(handleAt(10))
			i.ApplyBlock(holding(11, sandboxName, 1))
			i.ApplyBlock(holding(12, sandboxName, 0))
			i.ApplyBlock(holding(13, sandboxName, 1))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			i := inventory.New(clocktesting.NewFakePassiveClock(now))
			tc.events(i)
			e, ok := i.Evidence(sandboxName, now, grace)
			if !ok || e.WasReferenced != tc.want {
				t.Errorf("got %v, %v, want %v", e.WasReferenced, ok, tc.want)
			}
		})
	}
}

// TestARestoredBackupReplacesWhatLooksNewer: and while it is listed, nothing
// that exists before and after seems gone.
func TestARestoredBackupReplacesWhatLooksNewer(t *testing.T) {
	i := inventory.New(clock.RealClock{})
	node := func(rv string) metav1.Object { return &metav1.ObjectMeta{Name: "node-1", ResourceVersion: rv} }
	service := func(rv string) metav1.Object {
		return &metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1", ResourceVersion: rv}
	}
	pod := func(rv, id string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-0", ResourceVersion: rv, Annotations: map[string]string{calico.ContainerIDAnnotation: id},
		}}
	}
	held := func(h inventory.Handle) inventory.Handle { h.Held, h.Terminating = true, true; return h }
	// As the datastore was before: all newer, and nobody's address in the block.
	i.ApplyHandle(held(handleAt(100)))
	i.ApplyBlock(holding(101, "another", 1))
	i.ApplyPod(pod("102", "later"))
	i.ApplyNode(node("103"))
	i.ApplyService(service("104"))
	i.ApplyMachine(inventory.VirtualMachines, node("105"))
	backup := map[inventory.Resource]func(){
		inventory.Handles:         func() { i.ApplyHandle(handleAt(40)) },
		inventory.Blocks:          func() { i.ApplyBlock(holding(41, sandboxName, 2)) },
		inventory.Pods:            func() { i.ApplyPod(pod("42", "earlier")) },
		inventory.Nodes:           func() { i.ApplyNode(node("43")) },
		inventory.Services:        func() { i.ApplyService(service("44")) },
		inventory.VirtualMachines: func() { i.ApplyMachine(inventory.VirtualMachines, node("45")) },
	}
	for r, list := range backup {
		i.Begin(r)
		list()
		if !i.SetBack(r) {
			t.Errorf("older %s do not show that the datastore was set back", r)
		}
		i.Commit(r)
	}
	if len(i.Held()) != 1 || len(i.References(sandboxName)) != 0 {
		t.Error("older states replaced newer ones")
	}
	for r, list := range backup {
		i.BeginAnew(r)
		if !i.HasNode("node-1") {
			t.Errorf("while %s are listed anew, a node seems gone", r)
		}
		list()
		i.Commit(r)
	}
	if len(i.Held()) != 0 {
		t.Error("it keeps a newer handle")
	}
	if refs := i.References(sandboxName); len(refs) != 1 || refs[0].Count != 2 || len(i.References("another")) != 0 {
		t.Errorf("it keeps a newer block: %v, %v", refs, i.References("another"))
	}
	if _, found := i.PodByContainerID("earlier"); !found {
		t.Error("it keeps a newer pod")
	}
	if _, found := i.PodByContainerID("later"); found {
		t.Error("it keeps what a newer pod held")
	}
	// A reference that only the backup's restoring took away ended nothing.
	i.ApplyBlock(holding(50, "another", 1))
	i.BeginAnew(inventory.Blocks)
	i.ApplyBlock(holding(41, sandboxName, 2))
	i.Commit(inventory.Blocks)
	i.BeginAnew(inventory.Blocks)
	i.ApplyBlock(holding(40, "another", 1))
	i.Commit(inventory.Blocks)
	if e, _ := i.Evidence(sandboxName, now, time.Minute); e.WasReferenced || len(e.References) != 0 {
		t.Errorf("it shows an assignment that ended: %+v", e)
	}
	for r := range backup {
		i.Begin(r)
		if i.SetBack(r) {
			t.Errorf("once listed anew, %s still look set back", r)
		}
	}
	i.ApplyNode(node("42"))
	i.DeleteNode("node-1", 42)
	if !i.HasNode("node-1") {
		t.Error("once listed anew, older states count again")
	}
}

func TestReusedHandlesNeverCountAsReferencedBefore(t *testing.T) {
	// Another writer of a shared handle may be between its two writes.
	for _, name := range []string{"net.vmi.shop.db", "vxlan-tunnel-addr-node-1", calico.HandleName(serviceHandle)} {
		i := inventory.New(clocktesting.NewFakePassiveClock(now))
		i.ApplyBlock(holding(5, "", 0))
		h := handleAt(10)
		h.Name = name
		i.ApplyHandle(h)
		i.ApplyBlock(holding(11, name, 1))
		i.ApplyBlock(holding(12, name, 0))
		if e, ok := i.Evidence(name, now, grace); !ok || e.WasReferenced {
			t.Errorf("%s: got %v, %v", name, e.WasReferenced, ok)
		}
	}
}

func TestLeaks(t *testing.T) {
	c := clocktesting.NewFakePassiveClock(now)
	i := inventory.New(c)
	i.ApplyPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "web-0", UID: "pod-uid", ResourceVersion: "3",
		Annotations: map[string]string{calico.ContainerIDAnnotation: containerID(1)},
	}})
	i.ApplyHandle(handleAt(10))
	i.ApplyBlock(holding(11, sandboxName, 1))
	i.ApplyBlock(holding(12, sandboxName, 0))
	i.DeletePod("shop", "web-0", 13)

	if got := i.Leaks(time.Minute, now.Add(59*time.Second)); len(got) != 0 {
		t.Errorf("before its minute is over the handle leaks: %+v", got)
	}
	want := inventory.Leak{Handle: sandboxName, Namespace: "shop", Pod: "web-0", UID: "pod-uid", Node: "node-1"}
	if got := i.Leaks(time.Minute, now.Add(time.Minute)); len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	stamped := handleAt(14)
	stamped.Stamped, stamped.StampComplete = true, true
	i.ApplyHandle(stamped)
	if got := i.Leaks(0, now.Add(time.Hour)); len(got) != 0 {
		t.Errorf("a leak whose pod is in the stamp is told again: %+v", got)
	}
}

func TestFromObject(t *testing.T) {
	created := metav1.NewTime(now.Add(-2 * time.Hour))
	at := func(minutes int) *metav1.Time {
		return &metav1.Time{Time: created.Add(time.Duration(minutes) * time.Minute)}
	}
	stamp := ownership.NewStamp(calico.ParseHandleID(sandboxName))
	stamp.Node = "node-1"
	for name, tc := range map[string]struct {
		meta metav1.ObjectMeta
		want inventory.Handle
	}{
		"takes the newest of all times": {
			metav1.ObjectMeta{CreationTimestamp: created, ManagedFields: []metav1.ManagedFieldsEntry{{Time: at(1)}, {Time: at(9)}, {}, {Time: at(3)}}},
			inventory.Handle{LastWrite: at(9).Time},
		},
		"takes creation when no field has a time": {
			metav1.ObjectMeta{CreationTimestamp: created, ManagedFields: []metav1.ManagedFieldsEntry{{}}},
			inventory.Handle{LastWrite: created.Time},
		},
		"knows no time when there is none": {metav1.ObjectMeta{}, inventory.Handle{}},
		"keeps a time in the future": {
			metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.AddDate(1, 0, 0))}, inventory.Handle{LastWrite: now.AddDate(1, 0, 0)},
		},
		"tells our finalizer from others": {
			metav1.ObjectMeta{DeletionTimestamp: at(0), Finalizers: []string{"other", ownership.Finalizer}},
			inventory.Handle{Terminating: true, Held: true},
		},
		"holds nothing by another's finalizer": {metav1.ObjectMeta{Finalizers: []string{"other"}}, inventory.Handle{}},
		"keeps what a stamp is needed for": {
			metav1.ObjectMeta{Annotations: map[string]string{ownership.StampAnnotation: stamp.Encode()}},
			inventory.Handle{Stamped: true, StampNode: "node-1"},
		},
		"passes over a stamp that it cannot read": {
			metav1.ObjectMeta{Annotations: map[string]string{ownership.StampAnnotation: `{"v":99}`}}, inventory.Handle{},
		},
		"ranks a resource version that is no number below all": {metav1.ObjectMeta{ResourceVersion: "abc"}, inventory.Handle{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := inventory.FromObject(&metav1.PartialObjectMetadata{ObjectMeta: tc.meta})
			if !got.LastWrite.Equal(tc.want.LastWrite) {
				t.Errorf("last write is %s, want %s", got.LastWrite, tc.want.LastWrite)
			}
			got.LastWrite = tc.want.LastWrite
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestEvidenceFor(t *testing.T) {
	read := func(rv string, age time.Duration) *calico.IPAMHandle {
		return &calico.IPAMHandle{
			ObjectMeta: metav1.ObjectMeta{Name: sandboxName, UID: "u", ResourceVersion: rv, CreationTimestamp: metav1.NewTime(now.Add(-age))},
			Spec:       calico.IPAMHandleSpec{HandleID: sandboxName, Block: map[string]int{"10.0.0.0/26": 2}},
		}
	}
	for name, tc := range map[string]struct {
		known  func(*inventory.Inventory)
		handle *calico.IPAMHandle
		want   verdict.Verdict
	}{
		"keeps a handle that a block references, though the cache lacks the handle": {
			func(i *inventory.Inventory) { i.ApplyBlock(holding(5, sandboxName, 2)) },
			read("10", time.Hour),
			verdict.Verdict{Outcome: verdict.InUse, Reason: verdict.Referenced},
		},
		"tells that the counts differ": {
			func(i *inventory.Inventory) { i.ApplyBlock(holding(5, sandboxName, 1)) },
			read("10", time.Hour),
			verdict.Verdict{Outcome: verdict.InUse, Reason: verdict.Referenced, Skewed: true},
		},
		"believes the handle that was read, not the older one in the cache": {
			func(i *inventory.Inventory) { i.ApplyHandle(handleAt(9)) },
			read("10", time.Minute),
			verdict.Verdict{Outcome: verdict.Settling, Reason: verdict.RecentlyWritten},
		},
		"finds an orphan": {
			func(i *inventory.Inventory) { i.ApplyHandle(handleAt(10)) },
			read("10", time.Hour),
			verdict.Verdict{Outcome: verdict.Orphaned, Reason: ownership.PodGone},
		},
		"keeps a handle in whose block a pod without container ID lives": {
			func(i *inventory.Inventory) {
				i.ApplyPod(&corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "old", ResourceVersion: "1"},
					Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.9"}}},
				})
			},
			read("10", time.Hour),
			verdict.Verdict{Outcome: verdict.OwnerUnknown, Reason: ownership.PodWithoutContainerID},
		},
		"sweeps nothing whose time is neither in it nor in the cache": {
			func(*inventory.Inventory) {},
			&calico.IPAMHandle{ObjectMeta: metav1.ObjectMeta{Name: sandboxName, ResourceVersion: "10"}},
			verdict.Verdict{Outcome: verdict.Settling, Reason: verdict.NoWriteTime},
		},
	} {
		t.Run(name, func(t *testing.T) {
			i := inventory.New(clocktesting.NewFakePassiveClock(now))
			tc.known(i)
			if got := verdict.Judge(i.EvidenceFor(tc.handle, now, grace)); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestHandleWithoutTimesAges(t *testing.T) {
	c := clocktesting.NewFakePassiveClock(now)
	i := inventory.New(c)
	untimed := &calico.IPAMHandle{ObjectMeta: metav1.ObjectMeta{Name: sandboxName, ResourceVersion: "10"}}
	judge := func() verdict.Outcome { return verdict.Judge(i.EvidenceFor(untimed, c.Now(), grace)).Outcome }
	i.ApplyHandle(inventory.FromObject(untimed))
	if got := judge(); got != verdict.Settling {
		t.Errorf("when first seen it is %s", got)
	}
	c.SetTime(now.Add(grace))
	i.Begin(inventory.Handles)
	i.ApplyHandle(inventory.FromObject(untimed)) // A relist does not make it young again.
	i.Commit(inventory.Handles)
	if got := judge(); got != verdict.Orphaned {
		t.Errorf("unchanged for the grace period it is %s", got)
	}
	untimed.ResourceVersion = "11"
	i.ApplyHandle(inventory.FromObject(untimed))
	if got := judge(); got != verdict.Settling {
		t.Errorf("changed it is %s", got)
	}
}

func TestAVirtualMachineIsGoneOnceItWasForFiveMinutes(t *testing.T) {
	c := clocktesting.NewFakePassiveClock(now)
	i := inventory.New(c)
	is := func(when string, want ownership.Existence) {
		t.Helper()
		if got := i.VirtualMachine("shop", "db"); got != want {
			t.Errorf("%s it is %v, want %v", when, got, want)
		}
	}
	machine := func(rv string) metav1.Object {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", ResourceVersion: rv}}
	}
	list := func(r inventory.Resource, objects ...metav1.Object) {
		i.Begin(r)
		for _, o := range objects {
			i.ApplyMachine(r, o)
		}
		i.Commit(r)
	}
	is("unless KubeVirt is followed", ownership.ExistenceUnknown)
	list(inventory.VirtualMachines)
	is("until both kinds are listed", ownership.ExistenceUnknown)
	list(inventory.VirtualMachineInstances)
	is("listed a moment ago without it", ownership.JustGone)
	c.SetTime(c.Now().Add(5 * time.Minute))
	is("listed five minutes ago without it", ownership.Gone)

	i.ApplyMachine(inventory.VirtualMachines, machine("3"))
	i.ApplyMachine(inventory.VirtualMachineInstances, machine("4"))
	is("when it is made", ownership.Exists)
	i.DeleteMachine(inventory.VirtualMachines, "shop", "db", 5)
	is("while its instance runs", ownership.Exists)
	c.SetTime(c.Now().Add(10 * time.Minute))
	i.DeleteMachine(inventory.VirtualMachineInstances, "shop", "db", 3)
	is("when an older instance's end comes late", ownership.Exists)
	i.DeleteMachine(inventory.VirtualMachineInstances, "shop", "db", 6)
	is("when its instance ends", ownership.JustGone)
	c.SetTime(c.Now().Add(5*time.Minute - time.Second))
	is("a second before five minutes", ownership.JustGone)
	c.SetTime(c.Now().Add(time.Second))
	is("five minutes after", ownership.Gone)

	list(inventory.VirtualMachines, machine("9"))
	is("when a list brings it back", ownership.Exists)
	list(inventory.VirtualMachines)
	is("when a list lacks it", ownership.JustGone)
	c.SetTime(c.Now().Add(5 * time.Minute))
	is("five minutes after that", ownership.Gone)
}

func TestSubscribersHearOfChangesOnce(t *testing.T) {
	i := inventory.New(clocktesting.NewFakePassiveClock(now))
	changed := i.Subscribe()
	i.ApplyHandle(handleAt(1))
	i.ApplyHandle(handleAt(2))
	<-changed
	select {
	case <-changed:
		t.Error("a notice is given twice")
	default:
	}
}

// TestConcurrentUse is for the race detector, and for locks that wait for each
// other.
func TestConcurrentUse(t *testing.T) {
	const rounds = 300
	i := inventory.New(clock.RealClock{})
	ctx, stop := context.WithCancel(t.Context())
	var writers, readers sync.WaitGroup
	name := func(n int) string { return "k8s-pod-network." + containerID(n%17+1) }
	for _, write := range []func(n int){
		func(n int) {
			h := handleAt(uint64(n))
			h.Name, h.Terminating, h.Held = name(n), n%2 == 0, true
			h.StampNode = fmt.Sprintf("node-%d", n%5)
			i.ApplyHandle(h)
			i.RememberDeclared(h.Name, strconv.Itoa(n), map[string]int{"10.0.0.0/26": 1})
		},
		func(n int) { i.ApplyBlock(holding(uint64(n), name(n), n%3)) },
		func(n int) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: fmt.Sprint("web-", n%5), ResourceVersion: strconv.Itoa(n), UID: types.UID(strconv.Itoa(n)),
				Annotations: map[string]string{calico.ContainerIDAnnotation: containerID(n%17 + 1)},
			}}
			i.ApplyPod(pod)
			i.DeletePod("shop", fmt.Sprint("web-", (n+1)%5), uint64(n))
		},
		func(n int) {
			node := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "one", ResourceVersion: strconv.Itoa(n)}}
			i.ApplyNode(node)
			i.ApplyService(node)
			i.DeleteNode("one", uint64(n))
			i.DeleteService("shop", "one", uint64(n))
		},
		func(n int) {
			resource := inventory.Resource(n % 5)
			i.Begin(resource)
			i.Commit(resource)
			i.DeleteHandle(name(n), uint64(n))
			i.DeleteBlock("10-0-0-0-26", uint64(n))
		},
	} {
		writers.Go(func() {
			for n := range rounds {
				write(n)
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			changed := i.Subscribe()
			for n := 0; ctx.Err() == nil; n++ {
				for e, v := range i.All(now, grace) {
					if got := verdict.Judge(e); got != v {
						t.Errorf("%+v judges as %+v, not %+v", e, got, v)
					}
				}
				i.Evidence(name(n), now, grace)
				i.EvidenceFor(&calico.IPAMHandle{ObjectMeta: metav1.ObjectMeta{Name: name(n)}}, now, grace)
				i.References(name(n))
				i.Summary()
				i.Held()
				i.Leaks(0, now)
				<-changed
			}
		})
	}
	writers.Wait()
	stop()
	done := make(chan struct{})
	go func() { readers.Wait(); close(done) }()
	for {
		select {
		case <-done:
			for _, r := range []inventory.Resource{inventory.Handles, inventory.Blocks, inventory.Pods, inventory.Nodes, inventory.Services} {
				i.Begin(r)
				i.Commit(r)
			}
			if got := i.Summary(); got != (inventory.Summary{}) {
				t.Errorf("after empty lists there is %+v", got)
			}
			return
		case <-time.After(time.Millisecond):
			i.ApplyHandle(handleAt(rounds)) // Wakes readers that wait for a change.
		}
	}
}
