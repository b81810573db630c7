package manager_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/calicoproto"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

var scaleHandles = flag.Int("scale.handles", 300_000, "handles of BenchmarkScale; one in seven is a live pod's")

const (
	// atRest is how long nothing happens.
	atRest = 30 * time.Second
	// churnFor is how long handles live and die, churners at once.
	churnFor = 20 * time.Second
	churners = 16
	// churnRate is what the CPU of churn is told for, in handles a second.
	churnRate = 500
	// clockTick is the unit of a process's CPU time on Linux.
	clockTick = 100
)

var churnBlock = netip.MustParsePrefix("10.250.0.0/26")

// BenchmarkScale tells what a manager takes on a large cluster: time to the
// first verdict on all handles, memory, CPU at rest, requests at rest, and CPU
// while handles live and die. It judges and sweeps nothing.
func BenchmarkScale(b *testing.B) {
	manager := build(b)
	spec := refcluster.Default(time.Now())
	spec.Pods = *scaleHandles * 3 / 20
	spec.Nodes = max(spec.Nodes, min(*scaleHandles/61, 16_000)) // What the address pool has blocks for.
	spec.Orphans = *scaleHandles - spec.Live()
	cp := controlplane.ForTest(b, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error { return refcluster.Load(ctx, etcd, spec) },
	})
	must(b, controlplane.InstallCRDs(b.Context(), cp.Config(), older))
	for b.Loop() {
		metrics := freeAddress(b)
		health := freeAddress(b)
		process := controlplane.NewComponent("manager", manager, filepath.Join(b.TempDir(), "manager.log"), "http://"+health+"/readyz",
			"--kubeconfig="+cp.Kubeconfig(), "--leader-elect=false", "--webhook=false", "--guard=off", "--dry-run", "--rate=0",
			"--metrics-secure=false", "--metrics-bind-address="+metrics, "--health-probe-bind-address="+health, "--log-level=error")
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
		began := time.Now()
		must(b, process.Start(ctx))
		m := &scraper{url: "http://" + metrics + "/metrics"}
		for m.sum(b, "ipam_guard_handles") < float64(spec.Handles()) {
			if ctx.Err() != nil {
				b.Fatalf("no verdict on all handles:\n%s", process.LogTail())
			}
			time.Sleep(100 * time.Millisecond)
		}
		cancel()
		b.ReportMetric(time.Since(began).Seconds(), "first-verdict-s")
		rss, _ := memory(b, process.PID())
		for settled := 0; settled < 3; time.Sleep(3 * time.Second) {
			// A dry run's first pass still reads what it would sweep.
			was := rss
			rss, _ = memory(b, process.PID())
			if math.Abs(rss-was) < 4 {
				settled++
			} else {
				settled = 0
			}
		}
		waitForPass(b, m)

		cpu, requests := cpuSeconds(b, process.PID()), m.sum(b, "rest_client_requests_total")
		time.Sleep(atRest)
		b.ReportMetric(100*(cpuSeconds(b, process.PID())-cpu)/atRest.Seconds(), "rest-CPU-%")
		// Asking for the metrics is none of its requests.
		b.ReportMetric(m.sum(b, "rest_client_requests_total")-requests, "rest-requests")
		rss, peak := memory(b, process.PID())
		b.ReportMetric(rss, "RSS-MiB")
		b.ReportMetric(peak, "peak-MiB")

		cpu = cpuSeconds(b, process.PID())
		lives := churn(b, cp)
		b.ReportMetric((cpuSeconds(b, process.PID())-cpu)/float64(lives)*churnRate, "churn-cores")
		b.ReportMetric(float64(lives)/churnFor.Seconds(), "churned/s")
		must(b, process.Stop())
	}
	b.ReportMetric(0, "ns/op") // A run's length says nothing.
}

// waitForPass waits until the dry run's first pass is over.
func waitForPass(b *testing.B, m *scraper) {
	b.Helper()
	for end := time.Now().Add(10 * time.Minute); m.sum(b, "ipam_guard_sweep_duration_seconds_count") == 0; time.Sleep(time.Second) {
		if time.Now().After(end) {
			b.Fatal("the first pass does not end")
		}
	}
	time.Sleep(5 * time.Second)
}

// churn makes handles and releases them as fast as it can, and tells how many.
func churn(b *testing.B, cp *controlplane.ControlPlane) int {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), churnFor)
	defer cancel()
	counts := make([]int, churners)
	var running sync.WaitGroup
	for n := range churners {
		running.Go(func() {
			cni, err := calicoproto.New(cp.Config(), older)
			if err != nil {
				b.Errorf("Calico: %v", err)
				return
			}
			for ctx.Err() == nil {
				id := fmt.Sprintf("k8s-pod-network.%032x%032x", n, counts[n])
				if err := cni.Increment(b.Context(), id, churnBlock, 1); err != nil {
					b.Errorf("Calico: %v", err)
					return
				}
				if err := cni.Decrement(b.Context(), id, churnBlock, 1); err != nil {
					b.Errorf("Calico: %v", err)
					return
				}
				counts[n]++
			}
		})
	}
	running.Wait()
	lives := 0
	for _, n := range counts {
		lives += n
	}
	return lives
}

// memory is what a process holds now, and the most it ever held, in MiB.
func memory(b *testing.B, pid int) (now, peak float64) {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(b, err)
	for line := range strings.Lines(string(status)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kib); err == nil {
			now = kib / 1024
		}
		if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kib); err == nil {
			peak = kib / 1024
		}
	}
	return now, peak
}

// cpuSeconds is what a process has taken so far.
func cpuSeconds(b *testing.B, pid int) float64 {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(b, err)
	// The command's name, in parentheses, may hold anything.
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	ticks := 0.0
	for _, field := range fields[11:13] {
		n, err := strconv.ParseFloat(field, 64)
		must(b, err)
		ticks += n
	}
	return ticks / clockTick
}

// scraper reads a manager's metrics.
type scraper struct{ url string }

func (s *scraper) sum(b *testing.B, name string) float64 {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, s.url, nil)
	must(b, err)
	answer, err := http.DefaultClient.Do(request)
	must(b, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must(b, err)
	sum := 0.0
	for line := range strings.Lines(string(body)) {
		fields := strings.Fields(line)
		if len(fields) == 2 && strings.SplitN(fields[0], "{", 2)[0] == name {
			n, err := strconv.ParseFloat(fields[1], 64)
			must(b, err)
			sum += n
		}
	}
	return sum
}
