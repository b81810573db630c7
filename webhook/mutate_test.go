package webhook

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

func TestCreateStampsWhatIsKnown(t *testing.T) {
	for name, edit := range map[string]func(*calico.IPAMHandle){
		"a handle as Calico makes it":         func(*calico.IPAMHandle) {},
		"a handle without annotations":        bare,
		"a handle with an empty annotations":  func(h *calico.IPAMHandle) { h.Annotations = map[string]string{} },
		"a handle with another finalizer":     func(h *calico.IPAMHandle) { h.Finalizers = []string{"example.com/other"} },
		"a handle that brings a forged stamp": stampedWith(`{"v":1,"kind":"LegacyPod","namespace":"kube-system","name":"forged"}`),
		"a handle that brings the finalizer":  held,
	} {
		t.Run(name, func(t *testing.T) {
			m := mutating(t, options(t))
			h := object(edit)
			resp := m.Handle(t.Context(), request(t, admissionv1.Create, nil, h))
			if !resp.Allowed || len(resp.Warnings) > 0 {
				t.Fatalf("allowed %v, warnings %q", resp.Allowed, resp.Warnings)
			}
			got := patched(t, h, resp)
			stamp, err := ownership.ParseStamp(got.Annotations[ownership.StampAnnotation])
			if err != nil {
				t.Fatal(err)
			}
			want := ownership.Stamp{
				Version: 1, Kind: "PodSandbox", Network: "k8s-pod-network", ContainerID: containerID, Node: node,
				User:    "system:serviceaccount:calico-system:calico-cni-plugin",
				Request: "0d1a6f0e-6d7e-4d2a-8f52-c6b7f1a3f9d2", Time: now,
			}
			if diff := cmp.Diff(want, stamp); diff != "" {
				t.Errorf("stamp (-want +got):\n%s", diff)
			}
			wantFinalizers := slices.DeleteFunc(slices.Clone(h.Finalizers), func(f string) bool { return f == ownership.Finalizer })
			wantFinalizers = append(wantFinalizers, ownership.Finalizer)
			if diff := cmp.Diff(wantFinalizers, got.Finalizers); diff != "" {
				t.Errorf("finalizers (-want +got):\n%s", diff)
			}
			got.Annotations, got.Finalizers = h.Annotations, h.Finalizers
			if diff := cmp.Diff(raw(t, h).Raw, raw(t, got).Raw); diff != "" {
				t.Errorf("the patch changes more than it should:\n%s", diff)
			}
		})
	}
}

func TestStampNode(t *testing.T) {
	for name, c := range map[string]struct {
		id    string
		block map[string]int
		want  string
	}{
		"is that of the block's affinity":                     {handleID, map[string]int{blockCIDR: 1}, node},
		"is unknown when no cache knows the block":            {handleID, map[string]int{"10.244.9.0/26": 1}, ""},
		"comes from the block that has one":                   {handleID, map[string]int{"fd00::/122": 1, blockCIDR: 1}, node},
		"is not sought in a damaged CIDR":                     {handleID, map[string]int{"10.244.7.0": 1}, ""},
		"is the node of a tunnel's ID, whatever the block is": {"vxlan-tunnel-addr-worker-1", map[string]int{blockCIDR: 1}, "worker-1"},
	} {
		t.Run(name, func(t *testing.T) {
			h := object(func(h *calico.IPAMHandle) {
				h.Name, h.Spec.HandleID, h.Spec.Block = calico.HandleName(c.id), c.id, c.block
			})
			got := patched(t, h, mutating(t, options(t)).Handle(t.Context(), request(t, admissionv1.Create, nil, h)))
			stamp, err := ownership.ParseStamp(got.Annotations[ownership.StampAnnotation])
			if err != nil {
				t.Fatal(err)
			}
			if stamp.Node != c.want {
				t.Errorf("got node %q, want %q", stamp.Node, c.want)
			}
		})
	}
}

func TestUpdateCarriesBothThroughCalicosWrites(t *testing.T) {
	m := mutating(t, options(t))
	created := object()
	created = patched(t, created, m.Handle(t.Context(), request(t, admissionv1.Create, nil, created)))

	second := object(func(h *calico.IPAMHandle) { h.Spec.Block["fd00::/122"] = 1 })
	got := patched(t, second, m.Handle(t.Context(), request(t, admissionv1.Update, created, second)))
	if diff := cmp.Diff(created.Annotations, got.Annotations); diff != "" {
		t.Errorf("annotations after the second block:\n%s", diff)
	}
	if !slices.Contains(got.Finalizers, ownership.Finalizer) {
		t.Error("the finalizer is lost with the second block")
	}

	marked := object(softDeleted)
	got = patched(t, marked, m.Handle(t.Context(), request(t, admissionv1.Update, got, marked)))
	if diff := cmp.Diff(created.Annotations, got.Annotations); diff != "" {
		t.Errorf("annotations after the deletion mark:\n%s", diff)
	}
	if len(got.Finalizers) > 0 {
		t.Errorf("finalizers %q would make Calico's release wait", got.Finalizers)
	}
	if n := counted(t, m.metrics.restored); n != 2 {
		t.Errorf("%v stamps restored, want 2", n)
	}
}

func TestLateStampNamesNoCreator(t *testing.T) {
	h := object()
	got := patched(t, h, mutating(t, options(t)).Handle(t.Context(), request(t, admissionv1.Update, object(), h)))
	stamp, err := ownership.ParseStamp(got.Annotations[ownership.StampAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	if stamp.User != "" || stamp.Request != "" {
		t.Errorf("who updated a handle is recorded as its creator: %+v", stamp)
	}
	if stamp.ContainerID != containerID || stamp.Time != now {
		t.Errorf("the stamp lacks what is known: %+v", stamp)
	}
}

func TestMutateAllowsWhatItCannotDecide(t *testing.T) {
	for name, req := range map[string]admission.Request{
		"a create without an object":      request(t, admissionv1.Create, nil, nil),
		"an update without an old object": request(t, admissionv1.Update, nil, object()),
		"an update without a new object":  request(t, admissionv1.Update, object(), nil),
		"an object of another form": {AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: []byte(`{"metadata":{"name":"x"},"spec":{"block":[]}}`)},
		}},
		"an object without metadata": {AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: []byte(`{"spec":{"handleID":"x"}}`)},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := mutating(t, options(t))
			resp := m.Handle(t.Context(), req)
			if !resp.Allowed || resp.Patch != nil {
				t.Errorf("got allowed %v and patch %s", resp.Allowed, resp.Patch)
			}
			op := strings.ToLower(string(req.Operation))
			if n := counted(t, m.metrics.requests.WithLabelValues(op, "error")); n != 1 {
				t.Errorf("%v errors counted, want 1", n)
			}
		})
	}
}

func TestMutateAllowsWhatMakesItPanic(t *testing.T) {
	o := options(t)
	o.Inventory = panicking{}
	m := mutating(t, o)
	resp := m.Handle(t.Context(), request(t, admissionv1.Create, nil, object()))
	if !resp.Allowed || resp.Patch != nil {
		t.Errorf("got allowed %v and patch %s", resp.Allowed, resp.Patch)
	}
	if n := counted(t, m.metrics.requests.WithLabelValues("create", "error")); n != 1 {
		t.Errorf("%v errors counted, want 1", n)
	}
}

func TestMutateLeavesOtherOperationsAlone(t *testing.T) {
	resp := mutating(t, options(t)).Handle(t.Context(), request(t, admissionv1.Delete, object(), nil))
	if !resp.Allowed || resp.Patch != nil {
		t.Errorf("got allowed %v and patch %s", resp.Allowed, resp.Patch)
	}
}

func TestCreateWarnsOfMalformedHandles(t *testing.T) {
	h := object(func(h *calico.IPAMHandle) {
		h.Spec.HandleID = "another"
		h.Spec.Block = map[string]int{"10.0.0.0": 1, "10.0.1.0/26": -2, "10.0.2.0/26": 1}
	})
	resp := mutating(t, options(t)).Handle(t.Context(), request(t, admissionv1.Create, nil, h))
	want := []string{
		`the handle's name is not its spec.handleID "another" in lower case: Calico will not find it`,
		`spec.block names "10.0.0.0", which is no CIDR`,
		`spec.block counts -2 addresses in 10.0.1.0/26`,
	}
	if diff := cmp.Diff(want, resp.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	stamp, err := ownership.ParseStamp(patched(t, h, resp).Annotations[ownership.StampAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	if stamp.ContainerID != containerID {
		t.Errorf("the stamp goes by the false ID, not by the name: %+v", stamp)
	}
}

// counted is a counter's value, or a histogram's number of observations.
func counted(t testing.TB, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	if h := out.GetHistogram(); h != nil {
		return float64(h.GetSampleCount())
	}
	return out.GetCounter().GetValue()
}

func TestCreateTakesNoTimeOfItsOwn(t *testing.T) {
	// A second of reads would be a second of every pod's start.
	o := options(t)
	o.Blocks = hanging{}
	o.Clock = nil
	m := mutating(t, o)
	start := time.Now()
	m.Handle(t.Context(), request(t, admissionv1.Create, nil, object()))
	if took := time.Since(start); took > liveReadTimeout/2 {
		t.Errorf("took %s: did it read a block?", took)
	}
	histogram, ok := m.metrics.duration.WithLabelValues("create").(prometheus.Histogram)
	if !ok {
		t.Fatal("no histogram")
	}
	if n := counted(t, histogram); n != 1 {
		t.Errorf("%v durations observed, want 1", n)
	}
}
