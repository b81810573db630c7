//go:build linux

package cluster

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/ipam-guard/ipam-guard/e2e/cluster/node"
)

func read(answer *http.Response) string {
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// measured is what kubelet tells of a container.
type measured struct {
	Name string `json:"name"`
	CPU  struct {
		Time  time.Time `json:"time"`
		Total uint64    `json:"usageCoreNanoSeconds"`
	} `json:"cpu"`
	Memory struct {
		WorkingSet uint64 `json:"workingSetBytes"`
		RSS        uint64 `json:"rssBytes"`
	} `json:"memory"`
}

// measure asks kubelet about IPAM Guard's pods.
func (h *harness) measure(t testing.TB) map[string]measured {
	t.Helper()
	data, err := h.clients.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", node.Name, "proxy/stats/summary").DoRaw(t.Context())
	must(t, err)
	var summary struct {
		Pods []struct {
			Ref struct {
				Name      string `json:"name"`
				Namespace string `json:"namespace"`
			} `json:"podRef"`
			Containers []measured `json:"containers"`
		} `json:"pods"`
	}
	must(t, json.Unmarshal(data, &summary))
	all := map[string]measured{}
	for _, p := range summary.Pods {
		if p.Ref.Namespace == namespace && len(p.Containers) == 1 {
			all[p.Ref.Name] = p.Containers[0]
		}
	}
	return all
}

// usage compares what the pods use with what they request.
func (h *harness) usage(t *testing.T) {
	const period = 30 * time.Second
	for _, phase := range []struct {
		name string
		load bool
	}{{"idle", false}, {"under traffic", true}} {
		var load *traffic
		if phase.load {
			load = h.startTraffic(t)
		}
		before := h.measure(t)
		time.Sleep(period)
		after := h.measure(t)
		if load != nil {
			load.end(t)
		}
		for _, p := range h.readyPods(t) {
			requests := p.Spec.Containers[0].Resources.Requests
			now, old := after[p.Name], before[p.Name]
			if !now.CPU.Time.After(old.CPU.Time) {
				t.Errorf("kubelet measured pod %s only once in %s", p.Name, period)
				continue
			}
			cpu := float64(now.CPU.Total-old.CPU.Total) / float64(now.CPU.Time.Sub(old.CPU.Time)) * 1000
			t.Logf("%s %s: %.1fm CPU (requests %s), working set %d MiB, of it resident %d MiB (requests %s), leads %v", p.Name, phase.name,
				cpu, requests.Cpu(), now.Memory.WorkingSet>>20, now.Memory.RSS>>20, requests.Memory(), h.leader(t) == p.Name)
			if !phase.load && cpu > float64(requests.Cpu().MilliValue()) {
				t.Errorf("it uses more CPU idle than it requests")
			}
			if now.Memory.WorkingSet > uint64(requests.Memory().Value()) {
				t.Errorf("it uses more memory than it requests")
			}
		}
	}
}
