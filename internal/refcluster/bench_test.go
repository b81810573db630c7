package refcluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

// BenchmarkLoad loads a hundred thousand handles; only the load is timed.
func BenchmarkLoad(b *testing.B) {
	s := refcluster.Default(time.Now()).Resize(100_000, 0.95)
	var loading time.Duration
	loads := 0
	for b.Loop() {
		controlplane.ForTest(b, controlplane.Options{BeforeAPIServer: func(ctx context.Context, etcd string) error {
			begin := time.Now()
			defer func() { loading += time.Since(begin); loads++ }()
			return refcluster.Load(ctx, etcd, s)
		}})
	}
	b.ReportMetric(float64(s.Handles()*loads)/loading.Seconds(), "handles/s")
}
