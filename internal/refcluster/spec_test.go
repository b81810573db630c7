package refcluster

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"testing"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

var testNow = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// referenced is the live handle names that a Spec's blocks reference, each
// with the block that does.
func referenced(s Spec) map[string]string {
	names := map[string]string{}
	for b := range s.Blocks() {
		for _, index := range b.Spec.Allocations {
			if index != nil {
				names[calico.HandleName(*b.Spec.Attributes[*index].HandleID)] = b.Spec.CIDR
			}
		}
	}
	return names
}

func TestDefaultIsTheReferenceCluster(t *testing.T) {
	s := Default(testNow)
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	if s.Handles() != 31_092 || s.Live() != 537 {
		t.Errorf("%d handles, %d live", s.Handles(), s.Live())
	}
	blocks := 0
	for range s.Blocks() {
		blocks++
	}
	if blocks != 13 {
		t.Errorf("%d blocks, want 13", blocks)
	}
}

func TestSpecHolds(t *testing.T) {
	for _, s := range []Spec{
		Default(testNow),
		Default(testNow).Resize(2_000, 0.5),
		Default(testNow).Resize(10, 0),
		Default(testNow).Resize(100_000, 0.7),
	} {
		t.Run(fmt.Sprintf("%d handles, %d of them orphans", s.Handles(), s.Orphans), func(t *testing.T) {
			if err := s.Validate(); err != nil {
				t.Fatal(err)
			}
			refs := referenced(s)
			if len(refs) != s.Live() {
				t.Errorf("blocks reference %d handles, want %d", len(refs), s.Live())
			}
			names := map[string]bool{}
			for h := range s.LiveHandles() {
				names[h.Name] = true
				if cidr, ok := refs[h.Name]; !ok || h.Spec.Block[cidr] != 1 {
					t.Fatalf("live handle %s names %v, block is %q", h.Name, h.Spec.Block, cidr)
				}
			}
			orphans := 0
			for h := range s.OrphanHandles() {
				orphans++
				names[h.Name] = true
				if _, ok := refs[h.Name]; ok {
					t.Fatalf("a block references orphan %s", h.Name)
				}
				if age := testNow.Sub(h.ManagedFields[0].Time.Time); age < s.Youngest || age > s.Oldest {
					t.Fatalf("orphan %s was last written %s ago", h.Name, age)
				}
			}
			if orphans != s.Orphans || len(names) != s.Handles() {
				t.Errorf("%d orphans, %d names; want %d, %d", orphans, len(names), s.Orphans, s.Handles())
			}
			ids := map[string]bool{}
			for p := range s.PodObjects() {
				id := p.Annotations[calico.ContainerIDAnnotation]
				ids[id] = true
				if _, ok := refs[network+id]; !ok {
					t.Fatalf("no block references pod %s", p.Name)
				}
			}
			if len(ids) != s.Pods {
				t.Errorf("%d pods, want %d", len(ids), s.Pods)
			}
		})
	}
}

func TestOldestOrphanIsAsOldAsTheSpecSays(t *testing.T) {
	s := Default(testNow)
	for h := range s.OrphanHandles() {
		if got, want := h.ManagedFields[0].Time.Time, s.before(s.Oldest); !got.Equal(want) {
			t.Errorf("first orphan was last written %s, want %s", got, want)
		}
		return
	}
}

func fingerprint(t *testing.T, s Spec) uint64 {
	t.Helper()
	h := fnv.New64a()
	for o := range s.Objects() {
		data, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = h.Write(data) // A hash never fails.
	}
	return h.Sum64()
}

func TestSameSpecMakesSameObjects(t *testing.T) {
	s := Default(testNow).Resize(3_000, 0.9)
	a := fingerprint(t, s)
	if b := fingerprint(t, s); a != b {
		t.Errorf("fingerprints differ: %x, %x", a, b)
	}
	s.Seed++
	if b := fingerprint(t, s); a == b {
		t.Error("another seed made the same objects")
	}
}

func TestValidateNamesWhatCannotBe(t *testing.T) {
	for name, change := range map[string]func(*Spec){
		"no group":                     func(s *Spec) { s.API = calico.API{} },
		"no node":                      func(s *Spec) { s.Nodes = 0 },
		"more nodes than addresses":    func(s *Spec) { s.Nodes = 1 << 20 },
		"negative orphans":             func(s *Spec) { s.Orphans = -1 },
		"no time":                      func(s *Spec) { s.Now = time.Time{} },
		"oldest younger than youngest": func(s *Spec) { s.Oldest = 0 },
		"more pods than addresses":     func(s *Spec) { s.Pods = 1 << 23 },
	} {
		t.Run(name, func(t *testing.T) {
			s := Default(testNow)
			change(&s)
			if err := s.Validate(); err == nil {
				t.Error("no error")
			}
		})
	}
}

func BenchmarkOrphanHandles(b *testing.B) {
	b.ReportAllocs()
	s := Default(testNow)
	s.Orphans = b.N
	for range s.OrphanHandles() {
	}
}
