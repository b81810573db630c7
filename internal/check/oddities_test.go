package check_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/check"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// counted is what one oddity adds to each count.
type counted map[string]int

// oddCounts say by hand what each oddity adds; how its handles are judged is
// the oddity's own to say.
var oddCounts = map[string]counted{
	"a pod with an IPv6 address":                                                                 {"blocks": 1, "allocations": 1, "workloads": 1, "matches": 1},
	"a dual-stack pod, whose handle has a block of each family":                                  {"blocks": 2, "allocations": 2, "workloads": 2, "matches": 1},
	"a handle that counts one address more than its block":                                       {"blocks": 1, "allocations": 1, "workloads": 1, "matches": 1, "skewed": 1},
	"the address of a Service of type LoadBalancer":                                              {"blocks": 1, "allocations": 1, "matches": 1},
	"the handle of a Service that is gone":                                                       {"no matches": 1},
	"the handle of addresses that Windows reserves":                                              {"no matches": 1},
	"an address that cools down after its release, its handle left behind":                       {"blocks": 1, "allocations": 1, "cooling": 1, "no matches": 1},
	"a pod with an address borrowed from another node's block":                                   {"blocks": 1, "allocations": 1, "workloads": 1, "matches": 1},
	"a damaged block, with an allocation that points to no attribute":                            {"blocks": 1, "invalid": 1, "allocations": 2, "workloads": 2, "not allocated": 1, "matches": 1, "no matches": 1},
	"an attribute that no allocation points to":                                                  {"blocks": 1, "no matches": 1},
	"a handle stuck between the two steps of its delete":                                         {"no matches": 1, "marked": 1},
	"a soft-deleted handle that a block still references":                                        {"blocks": 1, "allocations": 1, "workloads": 1, "matches": 1, "marked": 1, "missing": 1},
	"a pod whose pool was disabled later":                                                        {"blocks": 1, "allocations": 1, "workloads": 1, "matches": 1},
	"a block that references a handle that does not exist":                                       {"blocks": 1, "allocations": 1, "workloads": 1, "missing": 1},
	"a handle written a minute ago, its block not yet":                                           {"no matches": 1},
	"a pod that runs although no block references its handle":                                    {"blocks": 1, "workloads": 1, "not allocated": 1, "no matches": 1},
	"a pod of an old CNI plugin, without a container ID, in the block that a handle names":       {"blocks": 1, "workloads": 1, "not allocated": 1, "no matches": 1},
	"a pod that has finished, its handle left behind":                                            {"no matches": 1},
	"a StatefulSet's pod re-created under its name, the old sandbox's handle left behind":        {"blocks": 1, "allocations": 1, "workloads": 1, "matches": 1, "no matches": 1},
	"handles in the legacy form, of a pod that runs and of one that is gone":                     {"workloads": 1, "not allocated": 1, "no matches": 2},
	"the handle of a virtual machine, in a cluster without KubeVirt":                             {"no matches": 1},
	"the handle of a virtual machine with a name so long that it was hashed":                     {"no matches": 1},
	"a handle of no known form":                                                                  {"no matches": 1},
	"handles that a node left behind: its tunnel's, and a pod's in a block that it still claims": {"blocks": 1, "no matches": 2},
}

func TestCheckCountsOddities(t *testing.T) {
	for name, group := range map[string]calico.API{"older group": {GroupVersion: calico.GroupCRD}, "newer group": {GroupVersion: calico.GroupV3}} {
		t.Run(name, func(t *testing.T) { checkOddities(t, group) })
	}
}

func checkOddities(t *testing.T, api calico.API) {
	odd := refcluster.NewOddities(api, time.Now())
	cp := controlplane.ForTest(t, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error {
			return refcluster.LoadObjects(ctx, etcd, odd.Objects())
		},
	})
	if err := controlplane.InstallCRDs(t.Context(), cp.Config(), api); err != nil {
		t.Fatal(err)
	}
	want := counted{"not in use": 0, "outside pools": 0}
	verdicts := map[check.Verdict]int{}
	for _, c := range odd.Cases {
		adds, ok := oddCounts[c.Name]
		if !ok {
			t.Errorf("what does %q add?", c.Name)
		}
		for what, n := range adds {
			want[what] += n
		}
		for _, finding := range c.Want {
			verdicts[check.Verdict{Outcome: finding.Outcome.String(), Reason: string(finding.Reason)}]++
		}
	}
	if len(oddCounts) != len(odd.Cases) {
		t.Errorf("%d oddities are counted here, but there are %d", len(oddCounts), len(odd.Cases))
	}

	r, err := check.Run(t.Context(), cp.Config(), api, clock.RealClock{}, verdict.DefaultGrace, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := counted{
		"blocks": r.Blocks, "invalid": r.BlocksInvalid, "allocations": r.Allocations, "cooling": r.CoolingDown,
		"workloads": r.WorkloadIPs, "matches": r.HandlesWithMatches, "no matches": r.HandlesWithoutMatches,
		"skewed": r.HandlesSkewed, "marked": r.HandlesMarkedDeleted, "missing": r.HandlesMissing,
		"not allocated": len(r.InUseNotAllocated), "not in use": len(r.AllocatedNotInUse), "outside pools": r.InUseOutsidePools,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	judged := map[check.Verdict]int{}
	for _, v := range r.Verdicts {
		judged[check.Verdict{Outcome: v.Outcome, Reason: v.Reason}] = v.Handles
	}
	if !maps.Equal(judged, verdicts) {
		t.Errorf("judged %v\nwant %v", judged, verdicts)
	}
	problems := want["invalid"] + want["not in use"] + want["not allocated"] + want["outside pools"] + want["no matches"] + want["missing"] + want["skewed"]
	if r.Problems != problems {
		t.Errorf("%d problems, want %d", r.Problems, problems)
	}
	if r.NodeTunnelIPs != 0 || r.IPsInUse != r.WorkloadIPs {
		t.Errorf("%d tunnel IPs, %d IPs in use of %d workload IPs", r.NodeTunnelIPs, r.IPsInUse, r.WorkloadIPs)
	}
	if active := len(r.Pools); active != 3 || !r.Pools[1].Disabled {
		t.Errorf("the pools are %+v", r.Pools)
	}
}
