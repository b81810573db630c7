package check_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	var cpu, peak float64
	runs := 0
	for b.Loop() {
		var out bytes.Buffer
		cmd := exec.CommandContext(b.Context(), plugin, "--kubeconfig="+cp.Kubeconfig(), "check", "-o", "json")
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		peak = max(peak, peakMiB(b, cmd.Process.Pid, ended))
		var r check.Report
		if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.HandlesWithoutMatches != spec.Orphans {
			b.Fatalf("%d handles without matches, want %d: %v", r.HandlesWithoutMatches, spec.Orphans, err)
		}
		cpu += (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
		runs++
	}
	b.ReportMetric(cpu/float64(runs), "CPU-s")
	b.ReportMetric(peak, "peak-MiB")
	b.ReportMetric(cpu/float64(runs)/float64(handles)*1e6, "CPU-µs/handle")
}

// peakMiB follows a process's peak of memory until it ends. What the kernel
// tells of an ended process counts its parent's memory too, from before the
// process began.
func peakMiB(b *testing.B, pid int, ended <-chan error) float64 {
	b.Helper()
	peak := 0.0
	for {
		select {
		case err := <-ended:
			if err != nil {
				b.Fatal(err)
			}
			return peak
		case <-time.After(2 * time.Millisecond):
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // It has just ended.
		}
		if _, after, ok := strings.Cut(string(status), "VmHWM:"); ok {
			var kib float64
			if _, err := fmt.Sscan(after, &kib); err != nil {
				b.Fatal(err)
			}
			peak = max(peak, kib/1024)
		}
	}
}
