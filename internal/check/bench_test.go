package check_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/check"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

// BenchmarkCheck runs the plugin's own process against a real API server, and
// tells its CPU time and its peak memory.
func BenchmarkCheck(b *testing.B) {
	plugin := filepath.Join(b.TempDir(), "kubectl-ipam_guard")
	build := exec.CommandContext(b.Context(), "go", "build", "-o", plugin, "../../cmd/kubectl-ipam_guard")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build: %v: %s", err, out)
	}
	for _, handles := range []int{31_092, 100_000, 300_000} {
		b.Run(fmt.Sprintf("handles=%d", handles), func(b *testing.B) { benchmarkCheck(b, plugin, handles) })
	}
}

func benchmarkCheck(b *testing.B, plugin string, handles int) {
	spec := refcluster.Default(time.Now())
	spec.Orphans = handles - spec.Live()
	cp := controlplane.ForTest(b, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error { return refcluster.Load(ctx, etcd, spec) },
	})
	if err := controlplane.InstallCRDs(b.Context(), cp.Config(), calico.API{GroupVersion: calico.GroupCRD}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		cmd := exec.CommandContext(b.Context(), plugin, "--kubeconfig="+cp.Kubeconfig(), "check", "-o", "json")
		out, err := cmd.Output()
		if err != nil {
			b.Fatal(err)
		}
		var r check.Report
		if err := json.Unmarshal(out, &r); err != nil || r.HandlesWithoutMatches != spec.Orphans {
			b.Fatalf("%d handles without matches, want %d: %v", r.HandlesWithoutMatches, spec.Orphans, err)
		}
		state := cmd.ProcessState
		b.ReportMetric((state.UserTime() + state.SystemTime()).Seconds(), "CPU-s")
		if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
			b.ReportMetric(float64(usage.Maxrss)/1024, "peak-MiB")
		}
	}
}
