package inventory_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// maxBytesPerHandle leaves room for the collector: a heap may grow to twice
// what is alive, and a million handles shall stay well under 400 MB.
const maxBytesPerHandle = 110

// fill applies this many sandboxes' handles, as a metadata list brings them.
func fill(i *inventory.Inventory, handles int) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // not for secrets
	i.Begin(inventory.Handles)
	for n := range handles {
		var id [32]byte
		for at := 0; at < len(id); at += 8 {
			binary.LittleEndian.PutUint64(id[at:], random.Uint64())
		}
		created := metav1.NewTime(now.Add(-time.Duration(n) * time.Minute))
		i.ApplyHandle(inventory.FromObject(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name:            fmt.Sprintf("k8s-pod-network.%x", id),
			UID:             types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16])),
			ResourceVersion: strconv.Itoa(n + 1), CreationTimestamp: created,
			ManagedFields: []metav1.ManagedFieldsEntry{{Time: &created}},
		}}))
	}
	i.Commit(inventory.Handles)
}

// heap is what is alive now.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func bytesPerHandle(handles int) float64 {
	i := inventory.New(clocktesting.NewFakePassiveClock(now))
	before := heap()
	fill(i, handles)
	perHandle := (float64(heap()) - float64(before)) / float64(handles)
	runtime.KeepAlive(i)
	return perHandle
}

func TestMemory(t *testing.T) {
	for _, handles := range []int{31_092, 150_000} {
		if got := bytesPerHandle(handles); got > maxBytesPerHandle {
			t.Errorf("%d handles: %.0f B each, more than %d", handles, got, maxBytesPerHandle)
		} else {
			t.Logf("%d handles: %.0f B each", handles, got)
		}
	}
}

// BenchmarkMemory tells what a handle takes of a million.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(bytesPerHandle(1_000_000), "B/handle")
	}
}

// BenchmarkApplyHandle is what an event costs.
func BenchmarkApplyHandle(b *testing.B) {
	i := inventory.New(clocktesting.NewFakePassiveClock(now))
	fill(i, 100_000)
	h := handleAt(1)
	b.ReportAllocs()
	for b.Loop() {
		h.ResourceVersion++
		i.ApplyHandle(h)
	}
}

// BenchmarkAll is what it costs to judge a handle.
func BenchmarkAll(b *testing.B) {
	const handles = 100_000
	i := inventory.New(clocktesting.NewFakePassiveClock(now))
	fill(i, handles)
	b.ReportAllocs()
	for b.Loop() {
		orphans := 0
		for _, v := range i.All(now, grace) {
			if v.Outcome == verdict.Orphaned {
				orphans++
			}
		}
		if orphans == 0 {
			b.Fatal("nothing was judged")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/handles, "ns/handle")
}
