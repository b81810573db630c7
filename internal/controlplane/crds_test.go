package controlplane_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
)

func TestInstallCRDs(t *testing.T) {
	cp := controlplane.ForTest(t, controlplane.Options{})
	for _, api := range []calico.API{{GroupVersion: calico.GroupCRD}, {GroupVersion: calico.GroupV3}} {
		t.Run("serves "+api.String()+" at once, free addresses included", func(t *testing.T) {
			if err := controlplane.InstallCRDs(t.Context(), cp.Config(), api); err != nil {
				t.Fatal(err)
			}
			if err := controlplane.InstallCRDs(t.Context(), cp.Config(), api); err != nil {
				t.Fatalf("a second time: %v", err)
			}
			client, err := api.NewRESTClient(cp.Config())
			if err != nil {
				t.Fatal(err)
			}
			want := &calico.IPAMBlock{
				ObjectMeta: metav1.ObjectMeta{Name: "10-0-0-0-30"},
				Spec: calico.IPAMBlockSpec{
					CIDR:        "10.0.0.0/30",
					Allocations: []*int{nil, ptr.To(0), nil, ptr.To(7)},
					Attributes:  []calico.AllocationAttribute{{HandleID: ptr.To("Some.ID"), Secondary: map[string]string{"node": "n"}}},
					Unallocated: []int{0, 2},
				},
			}
			var got calico.IPAMBlock
			if err := client.Post().Resource("ipamblocks").Body(want).Do(t.Context()).Into(&got); err != nil {
				t.Fatal(err)
			}
			if ordinals := got.Spec.OrdinalsOf("some.id"); len(got.Spec.Allocations) != 4 || len(ordinals) != 1 || ordinals[0] != 1 {
				t.Errorf("block came back as %+v", got.Spec)
			}
			affinity := &calico.BlockAffinity{
				ObjectMeta: metav1.ObjectMeta{Name: "n-10-0-0-0-30"},
				Spec:       calico.BlockAffinitySpec{State: "confirmed", Node: "n", CIDR: "10.0.0.0/30"},
			}
			if err := client.Post().Resource("blockaffinities").Body(affinity).Do(t.Context()).Error(); err != nil {
				t.Error(err)
			}
		})
	}
}
