package calico_test

import (
	"encoding/json"
	"slices"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

func TestLooseBool(t *testing.T) {
	for name, tc := range map[string]struct {
		json string
		want calico.LooseBool
		ok   bool
	}{
		"a boolean":                 {`true`, true, true},
		"a boolean that is false":   {`false`, false, true},
		"the older group's string":  {`"true"`, true, true},
		"the older group's \"no\"":  {`"false"`, false, true},
		"an empty string is no":     {`""`, false, true},
		"null is no":                {`null`, false, true},
		"a number is refused":       {`1`, false, false},
		"another word is refused":   {`"yes"`, false, false},
		"an upper case is refused":  {`"True"`, false, false},
		"a nested value is refused": {`{"a":true}`, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			var got struct{ Deleted calico.LooseBool }
			err := json.Unmarshal([]byte(`{"deleted":`+tc.json+`}`), &got)
			if (err == nil) != tc.ok || got.Deleted != tc.want {
				t.Errorf("%s reads as %v with error %v", tc.json, got.Deleted, err)
			}
		})
	}
	for value, want := range map[calico.LooseBool]string{true: `"true"`, false: `"false"`} {
		if got, err := json.Marshal(value); err != nil || string(got) != want {
			t.Errorf("%v writes as %s with error %v, want %s", value, got, err, want)
		}
	}
}

func TestOrdinalsOf(t *testing.T) {
	spec := calico.IPAMBlockSpec{
		Allocations: []*int{ptr.To(0), nil, ptr.To(1), ptr.To(0), ptr.To(7), ptr.To(-1), ptr.To(2)},
		Attributes: []calico.AllocationAttribute{
			{HandleID: ptr.To("lb-AbC")}, {HandleID: ptr.To("other")}, {}, {HandleID: ptr.To("garbage")},
		},
	}
	for name, tc := range map[string]struct {
		handle string
		want   []int
	}{
		"finds all addresses, whatever the ID's case":   {"lb-abc", []int{0, 3}},
		"finds one address":                             {"other", []int{2}},
		"passes over an attribute that nothing uses":    {"garbage", nil},
		"passes over attributes without a handle":       {"", nil},
		"finds none for a handle that it does not know": {"absent", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := spec.OrdinalsOf(tc.handle); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestParseBlockName(t *testing.T) {
	for cidr, want := range map[string]string{
		"10.244.1.64/26":      "10-244-1-64-26",
		"fd00:10:244::40/122": "fd00-10-244--40-122",
	} {
		if got, err := calico.ParseBlockName(cidr); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", cidr, got, err, want)
		}
	}
	for _, damaged := range []string{"", "10.244.1.64", "10.244.1.64/99", "block"} {
		if got, err := calico.ParseBlockName(damaged); err == nil {
			t.Errorf("%q names block %q", damaged, got)
		}
	}
}

func TestAffinityNode(t *testing.T) {
	for affinity, want := range map[string]string{
		"host:node-1": "node-1", "virtual:load-balancer": "", "": "", "host:": "",
	} {
		if got := calico.AffinityNode(affinity); got != want {
			t.Errorf("%q names node %q, want %q", affinity, got, want)
		}
	}
}
