package webhook_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/webhook"
)

// The two take turns, so that what else the machine does hits both alike.
const (
	admissionRounds  = 10
	createsPerRound  = 300
	admissionPercent = 99
)

// BenchmarkAdmission compares the time of a handle's creation through our
// webhooks with that through webhooks that do nothing, at the 99th percentile.
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
	clients, err := kubernetes.NewForConfig(cp.Config())
	if err != nil {
		b.Fatal(err)
	}
	type contender struct {
		address string
		ca      []byte
		stamps  bool
		took    []time.Duration
	}
	ours, noop := &contender{stamps: true}, &contender{}
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

	made := 0
	create := func() *calico.IPAMHandle {
		made++
		h := &calico.IPAMHandle{Spec: calico.IPAMHandleSpec{
			HandleID: fmt.Sprintf("k8s-pod-network.%064x", made), Block: map[string]int{v4.String(): 1},
		}}
		h.Name = calico.HandleName(h.Spec.HandleID)
		h.Annotations = map[string]string{"projectcalico.org/metadata": `{"creationTimestamp":null}`}
		h, err := effects.CreateHandle(b.Context(), h)
		if err != nil {
			b.Fatal(err)
		}
		return h
	}
	round := func(c *contender) {
		configure(b, cp.Config(), api, c.address, c.ca)
		// The API server takes configurations up by and by.
		for end := time.Now().Add(30 * time.Second); c.stamps && create().Annotations[ownership.StampAnnotation] == ""; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				b.Fatal("the API server does not use the webhook")
			}
		}
		time.Sleep(time.Second)
		for range createsPerRound {
			start := time.Now()
			h := create()
			c.took = append(c.took, time.Since(start))
			if stamped := h.Annotations[ownership.StampAnnotation] != ""; stamped != c.stamps {
				b.Fatalf("stamped is %v, want %v", stamped, c.stamps)
			}
		}
		name := "ipam-guard." + api.Group
		if err := clients.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(b.Context(), name, metav1.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
		if err := clients.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(b.Context(), name, metav1.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	for b.Loop() {
		for range admissionRounds {
			round(noop)
			round(ours)
		}
	}
	percentile := func(took []time.Duration) float64 {
		slices.Sort(took)
		return took[len(took)*admissionPercent/100].Seconds() * 1000
	}
	b.ReportMetric(percentile(noop.took), "noop-p99-ms")
	b.ReportMetric(percentile(ours.took), "ours-p99-ms")
	b.ReportMetric(percentile(ours.took)/percentile(noop.took), "ratio")
	b.ReportMetric(0, "ns/op") // A run's length says nothing.
}
