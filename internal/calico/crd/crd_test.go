package crd_test

import (
	"testing"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/calico/crd"
)

func TestForNamesTheGroup(t *testing.T) {
	for _, api := range []calico.API{{GroupVersion: calico.GroupCRD}, {GroupVersion: calico.GroupV3}} {
		t.Run(api.String(), func(t *testing.T) {
			crds, err := crd.For(api)
			if err != nil {
				t.Fatal(err)
			}
			names := map[string]bool{}
			for _, c := range crds {
				names[c.Name] = true
				if c.Spec.Group != api.Group || len(c.Spec.Versions) != 1 || c.Spec.Versions[0].Name != api.Version {
					t.Errorf("%s: group %s, versions %v", c.Name, c.Spec.Group, c.Spec.Versions)
				}
			}
			for _, r := range []string{"ipamhandles", "ipamblocks", "blockaffinities", "ippools", "clusterinformations"} {
				if !names[r+"."+api.Group] {
					t.Errorf("no definition of %s.%s", r, api.Group)
				}
			}
		})
	}
}
