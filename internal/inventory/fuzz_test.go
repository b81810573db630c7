package inventory_test

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
)

// FuzzBlock feeds any block that decodes: each address that one of its
// allocations gives to a handle must be counted, and all must go with it.
func FuzzBlock(f *testing.F) {
	for _, seed := range []string{
		`{"cidr":"10.0.0.0/30","affinity":"host:node-1","allocations":[0,null,1,0],"attributes":[{"handle_id":"a.b","secondary":{"pod":"b"}},{"handle_id":"lb-AbC"}]}`,
		`{"cidr":"fd00::/126","allocations":[0,7,-1],"attributes":[{"handle_id":null},{"handle_id":""}]}`,
		`{"cidr":"damaged","allocations":[0],"attributes":[{"handle_id":"a.b","releasedAt":"2026-01-01T00:00:00Z"}],"deleted":true}`,
		`{"allocations":null,"attributes":null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var spec calico.IPAMBlockSpec
		if json.Unmarshal(raw, &spec) != nil {
			t.Skip()
		}
		i := inventory.New(clock.RealClock{})
		i.ApplyBlock(&calico.IPAMBlock{ObjectMeta: metav1.ObjectMeta{Name: "b", ResourceVersion: "1"}, Spec: spec})
		check := func(there bool) {
			for _, a := range spec.Attributes {
				if a.HandleID == nil || *a.HandleID == "" {
					continue
				}
				name := calico.HandleName(*a.HandleID)
				want := 0
				if there {
					want = len(spec.OrdinalsOf(name))
				}
				got := 0
				for _, r := range i.References(name) {
					got += r.Count
				}
				if got != want {
					t.Errorf("handle %q: %d addresses, want %d", name, got, want)
				}
			}
		}
		check(true)
		i.DeleteBlock("b", 2)
		check(false)
		if s := i.Summary(); s != (inventory.Summary{}) {
			t.Errorf("after the block went there is %+v", s)
		}
	})
}
