package check_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/check"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
	"github.com/ipam-guard/ipam-guard/internal/terminal"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

func TestCheckCountsTheReferenceCluster(t *testing.T) {
	spec := refcluster.Default(time.Now())
	cp := controlplane.ForTest(t, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error { return refcluster.Load(ctx, etcd, spec) },
	})
	api := calico.API{GroupVersion: calico.GroupCRD}
	if err := controlplane.InstallCRDs(t.Context(), cp.Config(), api); err != nil {
		t.Fatal(err)
	}
	r, err := check.Run(t.Context(), cp.Config(), api, clock.RealClock{}, verdict.DefaultGrace, nil)
	if err != nil {
		t.Fatal(err)
	}
	marked := 0
	for h := range spec.OrphanHandles() {
		if h.Spec.Deleted {
			marked++
		}
	}
	for what, got := range map[string][2]int{
		"handles with no matching IPs": {r.HandlesWithoutMatches, 30_555},
		"handles with matches":         {r.HandlesWithMatches, 537},
		"orphans":                      {r.Orphans(), 30_555},
		"blocks":                       {r.Blocks, 13},
		"allocations":                  {r.Allocations, 537},
		"node tunnel IPs":              {r.NodeTunnelIPs, 6},
		"workload IPs":                 {r.WorkloadIPs, 531},
		"IPs in use":                   {r.IPsInUse, 537},
		"allocated but not in use":     {len(r.AllocatedNotInUse), 0},
		"in use but not allocated":     {len(r.InUseNotAllocated), 0},
		"in use outside of pools":      {r.InUseOutsidePools, 0},
		"invalid blocks":               {r.BlocksInvalid, 0},
		"problems":                     {r.Problems, 30_555},
		"missing handles":              {r.HandlesMissing, 0},
		"skewed handles":               {r.HandlesSkewed, 0},
		"handles marked deleted":       {r.HandlesMarkedDeleted, marked},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: got %d, want %d", what, got[0], got[1])
		}
	}
	var out strings.Builder
	if err := r.Print(&out, terminal.Palette{}, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Found 13 IPAM blocks.",
		"Found 30555 handles with no matching IPs (and 537 handles with matches).",
		"The oldest orphan was last written 2 y ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, out.String())
		}
	}
}
