package refcluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

// BenchmarkLoad loads a hundred thousand handles.
func BenchmarkLoad(b *testing.B) {
	s := refcluster.Default(time.Now()).Resize(100_000, 0.95)
	for b.Loop() {
		b.StopTimer()
		controlplane.ForTest(b, controlplane.Options{BeforeAPIServer: func(ctx context.Context, etcd string) error {
			b.StartTimer()
			defer b.StopTimer()
			return refcluster.Load(ctx, etcd, s)
		}})
		b.StartTimer()
	}
	b.ReportMetric(float64(s.Handles()*b.N)/b.Elapsed().Seconds(), "handles/s")
}
