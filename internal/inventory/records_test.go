package inventory

import (
	"encoding/binary"
	"runtime"
	"testing"

	"pgregory.net/rapid"
)

// TestRecordsAreAMap compares with Go's own, through many sizes.
func TestRecordsAreAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		got, want := newRecords(), map[key]record{}
		keys := rapid.IntRange(0, rapid.IntRange(1, 400).Draw(t, "keys"))
		for range rapid.IntRange(0, 1000).Draw(t, "steps") {
			n := keys.Draw(t, "key")
			k := key{network: uint32(n % 3)}                      //nolint:gosec // small
			binary.LittleEndian.PutUint16(k.id[30:], uint16(n/3)) //nolint:gosec // small
			if rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				got.remove(k)
				delete(want, k)
			} else {
				r := record{rv: uint64(n) + 1, lastWrite: uint32(len(want))} //nolint:gosec // small
				got.set(k, r)
				want[k] = r
			}
			found, ok := got.get(k)
			if expected, there := want[k]; ok != there || found != expected || got.has(k) != there {
				t.Fatalf("key %d: got %+v, %v, want %+v, %v", n, found, ok, expected, there)
			}
		}
		if got.len() != len(want) {
			t.Fatalf("it holds %d, want %d", got.len(), len(want))
		}
		seen := map[key]bool{}
		for n := range got.len() {
			e := got.at(n)
			if seen[e.key] {
				t.Fatalf("%+v comes twice", e.key)
			}
			seen[e.key] = true
			if found, ok := got.get(e.key); !ok || found != e.record || want[e.key] != e.record {
				t.Fatalf("%+v: got %+v, %v, want %+v", e.key, found, ok, want[e.key])
			}
		}
		// In a walk from the end all can be removed.
		for n := got.len() - 1; n >= 0; n-- {
			got.remove(got.at(n).key)
		}
		if got.len() != 0 || len(got.chunks) != 0 {
			t.Fatalf("after all went there are %d in %d chunks", got.len(), len(got.chunks))
		}
		for at, place := range got.index {
			if place != 0 {
				t.Fatalf("the index still has place %d at %d", place, at)
			}
		}
	})
}

func TestRecordsGiveMemoryBack(t *testing.T) {
	alive := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const n = 100_000
	before := alive()
	r := newRecords()
	k := key{}
	for i := range uint64(n) {
		binary.LittleEndian.PutUint64(k.id[:], i)
		r.set(k, record{rv: i})
	}
	full := alive()
	for i := range uint64(n) {
		binary.LittleEndian.PutUint64(k.id[:], i)
		r.remove(k)
	}
	empty := alive()
	if full-before < n*80 || int64(empty)-int64(before) > n*12 { //nolint:gosec // far less
		t.Errorf("from %d B it grew to %d B, and shrank to %d B", before, full, empty)
	}
	runtime.KeepAlive(r)
}
