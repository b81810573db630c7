package verdict_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

func TestCompare(t *testing.T) {
	const a, b = "10.0.0.0/26", "fd00::/122"
	handle := func(block map[string]int, change ...func(*calico.IPAMHandle)) *calico.IPAMHandle {
		h := &calico.IPAMHandle{Spec: calico.IPAMHandleSpec{HandleID: "net.x", Block: block}}
		for _, c := range change {
			c(h)
		}
		return h
	}
	deleted := func(h *calico.IPAMHandle) { h.Spec.Deleted = true }
	terminating := func(h *calico.IPAMHandle) { h.DeletionTimestamp = &metav1.Time{} }
	reserved := func(h *calico.IPAMHandle) { h.Spec.HandleID = calico.ReservedHandleID }
	for name, tc := range map[string]struct {
		handle *calico.IPAMHandle
		counts map[string]int
		want   verdict.Divergence
	}{
		"a handle that says what the blocks say agrees":            {handle(map[string]int{a: 1, b: 1}), map[string]int{a: 1, b: 1}, verdict.Agrees},
		"a count that is too high is skewed":                       {handle(map[string]int{a: 2}), map[string]int{a: 1}, verdict.Skewed},
		"a count that is too low is skewed":                        {handle(map[string]int{a: 1}), map[string]int{a: 2}, verdict.Skewed},
		"a block that the handle does not name is skew":            {handle(map[string]int{a: 1}), map[string]int{a: 1, b: 1}, verdict.Skewed},
		"a block that gives it nothing is skew":                    {handle(map[string]int{a: 1, b: 1}), map[string]int{a: 1}, verdict.Skewed},
		"a handle that no block references is an orphan, not skew": {handle(map[string]int{a: 1}), nil, verdict.Agrees},
		"no handle for an address is a missing one":                {nil, map[string]int{a: 1}, verdict.Missing},
		"no handle and no address agree":                           {nil, nil, verdict.Agrees},
		"a mark of deletion that stayed is stuck":                  {handle(map[string]int{}, deleted), nil, verdict.Stuck},
		"a mark of deletion on a handle in use is stuck":           {handle(map[string]int{a: 1}, deleted), map[string]int{a: 1}, verdict.Stuck},
		"a terminating handle is the guard's":                      {handle(map[string]int{a: 2}, terminating), map[string]int{a: 1}, verdict.Agrees},
		"a terminating handle is the guard's, marked or not":       {handle(map[string]int{a: 1}, terminating, deleted), nil, verdict.Agrees},
		"Windows' reservation is left alone":                       {handle(map[string]int{a: 3}, reserved), map[string]int{a: 1}, verdict.Agrees},
	} {
		t.Run(name, func(t *testing.T) {
			if got := verdict.Compare(tc.handle, tc.counts); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
