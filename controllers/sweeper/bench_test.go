package sweeper_test

import (
	"context"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/ipam-guard/ipam-guard/controllers/sweeper"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// Sizes of BenchmarkSweep: rounds of one bare loop and one sweep, each on a
// fresh control plane with the same handles.
const (
	benchRounds = 2
	benchLeaks  = 15_000
)

// BenchmarkSweep compares the sweeper, without a rate limit, with a bare loop
// of preconditioned deletes with as many workers. Both know the handles from a
// list beforehand; reading specs and proving freshness is the sweeper's cost.
func BenchmarkSweep(b *testing.B) {
	for b.Loop() {
		var bare, swept float64
		for range benchRounds {
			bare += bareLoop(b) / benchRounds
			swept += sweepAll(b) / benchRounds
		}
		b.ReportMetric(bare, "bare/s")
		b.ReportMetric(swept, "swept/s")
		b.ReportMetric(swept/bare, "ratio")
	}
	b.ReportMetric(0, "ns/op") // A run's length says nothing.
}

func leaking(b *testing.B) (*controlplane.ControlPlane, *stack) {
	b.Helper()
	spec := refcluster.Default(time.Now())
	spec.Orphans = benchLeaks
	cp := controlplane.ForTest(b, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error { return refcluster.Load(ctx, etcd, spec) },
	})
	must(b, controlplane.InstallCRDs(b.Context(), cp.Config(), api))
	return cp, newStack(b, cp.Config(), 0)
}

// bareLoop tells how many handles a second it deleted.
func bareLoop(b *testing.B) float64 {
	b.Helper()
	cp, s := leaking(b)
	server, err := effect.NewAPI(cp.Config(), api)
	must(b, err)
	var orphans []verdict.Handle
	for ev, v := range s.inventory.All(time.Now(), grace) {
		if v.Outcome == verdict.Orphaned {
			orphans = append(orphans, ev.Handle)
		}
	}
	start := time.Now()
	workqueue.ParallelizeUntil(b.Context(), sweeper.DefaultWorkers, len(orphans), func(i int) {
		if _, err := server.DeleteHandle(b.Context(), orphans[i].Name, orphans[i].UID, orphans[i].ResourceVersion); err != nil {
			b.Errorf("delete: %v", err)
		}
	})
	took := time.Since(start)
	must(b, cp.Stop())
	if len(orphans) != benchLeaks {
		b.Fatalf("deleted %d handles, want %d", len(orphans), benchLeaks)
	}
	return float64(len(orphans)) / took.Seconds()
}

// sweepAll tells how many handles a second one pass swept.
func sweepAll(b *testing.B) float64 {
	b.Helper()
	cp, s := leaking(b)
	report := s.sweeper.Pass(b.Context())
	must(b, report.Err)
	must(b, cp.Stop())
	if report.Swept != benchLeaks {
		b.Fatalf("swept %d handles, want %d: %+v", report.Swept, benchLeaks, report)
	}
	return float64(report.Swept) / report.Ended.Sub(report.Started).Seconds()
}
