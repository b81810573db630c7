package webhook_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/webhook"
)

const (
	createsEach      = 5000
	admissionPercent = 99
)

// contender is one pair of webhooks; it is asked about handles whose names
// begin with its own.
type contender struct {
	name    string
	stamps  bool
	address string
	ca      []byte
	took    []time.Duration
}

// BenchmarkAdmission compares the time of a handle's creation through our
// webhooks with that through webhooks that do nothing, at the 99th percentile.
// Both are configured at once and take turns handle by handle, so that what else
// the machine does hits both alike.
func BenchmarkAdmission(b *testing.B) {
	api := calico.API{GroupVersion: calico.GroupCRD}
	cp := controlplane.ForTest(b, controlplane.Options{})
	if err := controlplane.InstallCRDs(b.Context(), cp.Config(), api); err != nil {
		b.Fatal(err)
	}
	effects, err := effect.NewAPI(cp.Config(), api)
	if err != nil {
		b.Fatal(err)
	}
	ours, noop := &contender{name: "ours", stamps: true}, &contender{name: "noop"}
	ours.address, ours.ca = serve(b, logr.Discard(), func(s ctrlwebhook.Server, r prometheus.Registerer) error {
		return webhook.Register(s, webhook.Options{Inventory: nodes{v4: "node-a"}, Blocks: effects, Registerer: r, Log: logr.Discard()})
	})
	noop.address, noop.ca = serve(b, logr.Discard(), func(s ctrlwebhook.Server, _ prometheus.Registerer) error {
		allow := &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
			return admission.Allowed("")
		})}
		s.Register(webhook.MutatePath, allow)
		s.Register(webhook.ValidatePath, allow)
		return nil
	})
	for _, c := range []*contender{ours, noop} {
		configure(b, cp.Config(), api, c.name+".ipam-guard.io", c.address, c.ca, admissionregistrationv1.MatchCondition{
			Name: "its-own", Expression: fmt.Sprintf("request.name.startsWith('%s.')", c.name),
		})
	}

	made := 0
	create := func(c *contender) *calico.IPAMHandle {
		made++
		h := &calico.IPAMHandle{Spec: calico.IPAMHandleSpec{
			HandleID: fmt.Sprintf("%s.%064x", c.name, made), Block: map[string]int{v4.String(): 1},
		}}
		h.Name = calico.HandleName(h.Spec.HandleID)
		h.Annotations = map[string]string{"projectcalico.org/metadata": `{"creationTimestamp":null}`}
		h, err := effects.CreateHandle(b.Context(), h)
		if err != nil {
			b.Fatal(err)
		}
		return h
	}
	// The API server takes configurations up by and by.
	for end := time.Now().Add(30 * time.Second); create(ours).Annotations[ownership.StampAnnotation] == ""; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("the API server does not use the webhook")
		}
	}
	time.Sleep(time.Second)
	for b.Loop() {
		for turn := range 2 * createsEach {
			// The one that goes first in a pair goes second in the next.
			c := []*contender{ours, noop, noop, ours}[turn%4]
			start := time.Now()
			h := create(c)
			c.took = append(c.took, time.Since(start))
			if stamped := h.Annotations[ownership.StampAnnotation] != ""; stamped != c.stamps {
				b.Fatalf("stamped is %v, want %v", stamped, c.stamps)
			}
		}
	}
	percentile := func(took []time.Duration, percent int) float64 {
		slices.Sort(took)
		return took[len(took)*percent/100].Seconds() * 1000
	}
	for _, percent := range []int{50, admissionPercent} {
		b.ReportMetric(percentile(noop.took, percent), fmt.Sprintf("noop-p%d-ms", percent))
		b.ReportMetric(percentile(ours.took, percent), fmt.Sprintf("ours-p%d-ms", percent))
	}
	b.ReportMetric(percentile(ours.took, admissionPercent)/percentile(noop.took, admissionPercent), "ratio")
	b.ReportMetric(0, "ns/op") // A run's length says nothing.
}
