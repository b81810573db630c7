package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/ipam-guard/ipam-guard/certs"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/calicoproto"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
	"github.com/ipam-guard/ipam-guard/webhook"
)

var (
	v4  = netip.MustParsePrefix("10.65.0.0/26")
	v6  = netip.MustParsePrefix("fd00:65::/122")
	pod = map[string]string{"namespace": "shop", "pod": "web-0", "node": "node-a"}
)

// nodes is an inventory that knows of affinities alone, so that what is denied
// is denied by the API server's own blocks.
type nodes map[netip.Prefix]string

func (n nodes) BlockNode(block netip.Prefix) (string, bool) { node, ok := n[block]; return node, ok }
func (nodes) References(string) []verdict.Reference         { return nil }

// cluster is an API server that asks our webhooks about one group's handles.
type cluster struct {
	calico  *calicoproto.Client
	effects effect.API
	// steps are Calico's writes.
	steps []calicoproto.Step
	ids   int
}

// id is a new sandbox's handle ID.
func (c *cluster) id() string {
	c.ids++
	return fmt.Sprintf("k8s-pod-network.%064x", c.ids)
}

func (c *cluster) handle(t *testing.T, id string) *calico.IPAMHandle {
	t.Helper()
	h, err := c.effects.GetHandle(t.Context(), calico.HandleName(id))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (c *cluster) assign(t *testing.T, id string, cidr netip.Prefix) {
	t.Helper()
	if _, err := c.calico.Assign(t.Context(), id, cidr, pod); err != nil {
		t.Fatal(err)
	}
}

// deleteRaw deletes as kubectl does: without a mark, without preconditions.
func (c *cluster) deleteRaw(t *testing.T, h *calico.IPAMHandle) error {
	t.Helper()
	_, err := c.effects.DeleteHandle(t.Context(), h.Name, h.UID, h.ResourceVersion)
	return err
}

func (c *cluster) patch(t *testing.T, name string, metadata map[string]any) error {
	t.Helper()
	data, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.effects.PatchHandle(t.Context(), name, data)
	return err
}

func TestAdmissionOnARealAPIServer(t *testing.T) {
	cp := controlplane.ForTest(t, controlplane.Options{})
	for _, api := range []calico.API{{GroupVersion: calico.GroupCRD}, {GroupVersion: calico.GroupV3}} {
		t.Run(api.Group, func(t *testing.T) {
			if err := controlplane.InstallCRDs(t.Context(), cp.Config(), api); err != nil {
				t.Fatal(err)
			}
			c := newCluster(t, cp.Config(), api)
			t.Run("stamp and finalizer outlive Calico's writes", c.outlives)
			t.Run("Calico's release costs no more and is done at once", c.releases)
			t.Run("a raw delete of a handle in use is denied", c.denies)
			t.Run("Calico works on a terminating handle and its release ends it", c.ends)
			t.Run("a stamp may not be tampered with", c.refusesTampering)
			t.Run("the finalizer alone may be taken off", c.letsGo)
			t.Run("a malformed handle gets warnings and passes", c.warns)
		})
	}
}

func (c *cluster) outlives(t *testing.T) {
	id := c.id()
	c.assign(t, id, v4)
	h := c.handle(t, id)
	created := h.Annotations[ownership.StampAnnotation]
	stamp, err := ownership.ParseStamp(created)
	if err != nil {
		t.Fatal(err)
	}
	if stamp.Kind != "PodSandbox" || stamp.Node != "node-a" || stamp.User == "" || stamp.Request == "" {
		t.Errorf("the stamp lacks what is known: %s", created)
	}
	check := func(when string) {
		t.Helper()
		h := c.handle(t, id)
		if h.Annotations[ownership.StampAnnotation] != created || !slices.Contains(h.Finalizers, ownership.Finalizer) {
			t.Errorf("%s: stamp %q, finalizers %q", when, h.Annotations[ownership.StampAnnotation], h.Finalizers)
		}
	}
	check("after the creation")
	c.assign(t, id, v6)
	check("after the second address family")
	if _, err := c.calico.Free(t.Context(), id, v6); err != nil {
		t.Fatal(err)
	}
	if err := c.calico.Decrement(t.Context(), id, v6, 1); err != nil {
		t.Fatal(err)
	}
	check("after the decrement")
}

func (c *cluster) releases(t *testing.T) {
	id := c.id()
	c.assign(t, id, v4)
	c.steps = nil
	if err := c.calico.Release(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := c.effects.GetHandle(t.Context(), id); !apierrors.IsNotFound(err) {
		t.Errorf("the handle is still there: %v", err)
	}
	want := []calicoproto.Step{calicoproto.ReleaseBlock, calicoproto.SoftDelete, calicoproto.DeleteHandle}
	if !slices.Equal(c.steps, want) {
		t.Errorf("Calico wrote %q, want %q", c.steps, want)
	}
}

func (c *cluster) denies(t *testing.T) {
	id := c.id()
	address, err := c.calico.Assign(t.Context(), id, v4, pod)
	if err != nil {
		t.Fatal(err)
	}
	err = c.deleteRaw(t, c.handle(t, id))
	if !apierrors.IsForbidden(err) {
		t.Fatalf("the delete met %v", err)
	}
	for _, part := range []string{address.String(), "pod shop/web-0", "node node-a", "Delete the pod"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if h := c.handle(t, id); h.DeletionTimestamp != nil {
		t.Error("the handle is terminating")
	}
}

// ends deletes in the moment between handle and block, when no block can tell
// that the handle will be used.
func (c *cluster) ends(t *testing.T) {
	id := c.id()
	if err := c.calico.Increment(t.Context(), id, v4, 1); err != nil {
		t.Fatal(err)
	}
	if err := c.deleteRaw(t, c.handle(t, id)); err != nil {
		t.Fatal(err)
	}
	if h := c.handle(t, id); h.DeletionTimestamp == nil || !slices.Contains(h.Finalizers, ownership.Finalizer) {
		t.Fatalf("the handle is not held: %+v", h.ObjectMeta)
	}
	if _, err := c.calico.Allocate(t.Context(), id, v4, pod); err != nil {
		t.Fatal(err)
	}
	c.assign(t, id, v6)
	if h := c.handle(t, id); !slices.Contains(h.Finalizers, ownership.Finalizer) || h.Annotations[ownership.StampAnnotation] == "" {
		t.Errorf("a terminating handle lost what it had: %+v", h.ObjectMeta)
	}
	if err := c.calico.Release(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := c.effects.GetHandle(t.Context(), id); !apierrors.IsNotFound(err) {
		t.Errorf("the handle is still there: %v", err)
	}
	for _, cidr := range []netip.Prefix{v4, v6} {
		b, err := c.calico.GetBlock(t.Context(), cidr)
		if err != nil {
			t.Fatal(err)
		}
		if left := b.Spec.OrdinalsOf(id); len(left) > 0 {
			t.Errorf("block %s still references the handle", cidr)
		}
	}
}

func (c *cluster) refusesTampering(t *testing.T) {
	id := c.id()
	c.assign(t, id, v4)
	before := c.handle(t, id).Annotations[ownership.StampAnnotation]
	for _, value := range []any{`{"v":1,"kind":"Unknown"}`, nil, ""} {
		err := c.patch(t, id, map[string]any{"annotations": map[string]any{ownership.StampAnnotation: value}})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), ownership.StampAnnotation) {
			t.Errorf("changing the stamp to %v met %v", value, err)
		}
	}
	if after := c.handle(t, id).Annotations[ownership.StampAnnotation]; after != before {
		t.Errorf("the stamp changed from %s to %s", before, after)
	}
}

func (c *cluster) letsGo(t *testing.T) {
	id := c.id()
	c.assign(t, id, v4)
	if err := c.patch(t, id, map[string]any{"finalizers": nil}); err != nil {
		t.Fatal(err)
	}
	if h := c.handle(t, id); len(h.Finalizers) > 0 || h.Annotations[ownership.StampAnnotation] == "" {
		t.Errorf("finalizers %q, stamp %q", h.Finalizers, h.Annotations[ownership.StampAnnotation])
	}
	c.assign(t, id, v6)
	if h := c.handle(t, id); !slices.Contains(h.Finalizers, ownership.Finalizer) {
		t.Errorf("after Calico's next write the finalizers are %q", h.Finalizers)
	}
}

func (c *cluster) warns(t *testing.T) {
	h, err := c.effects.CreateHandle(t.Context(), &calico.IPAMHandle{
		ObjectMeta: metav1.ObjectMeta{Name: "misnamed"},
		Spec:       calico.IPAMHandleSpec{HandleID: "another", Block: map[string]int{"10.65.0.0": -1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if h.Annotations[ownership.StampAnnotation] == "" {
		t.Error("the handle has no stamp")
	}
	if err := c.deleteRaw(t, h); err != nil {
		t.Errorf("its delete met %v", err)
	}
}

func newCluster(t *testing.T, cfg *rest.Config, api calico.API) *cluster {
	t.Helper()
	effects, err := effect.NewAPI(cfg, api)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{effects: effects}
	if c.calico, err = calicoproto.New(cfg, api); err != nil {
		t.Fatal(err)
	}
	c.calico.Before = func(_ context.Context, s calicoproto.Step) error {
		c.steps = append(c.steps, s)
		return nil
	}
	for _, cidr := range []netip.Prefix{v4, v6} {
		if err := c.calico.EnsureBlock(t.Context(), cidr, "node-a"); err != nil {
			t.Fatal(err)
		}
	}
	address, ca := serve(t, testr.New(t), func(server ctrlwebhook.Server, r prometheus.Registerer) error {
		return webhook.Register(server, webhook.Options{
			Inventory: nodes{v4: "node-a"}, Blocks: effects, Registerer: r, Log: testr.New(t),
		})
	})
	configure(t, cfg, api, "ipam-guard."+api.Group, address, ca)
	c.waitForAdmission(t)
	return c
}

// serve serves what register registers on loopback, and returns where and by
// whose word.
func serve(t testing.TB, log logr.Logger, register func(ctrlwebhook.Server, prometheus.Registerer) error) (address string, ca []byte) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = listener.Addr().String()
	_, text, _ := net.SplitHostPort(address)
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	ca, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{"tls.crt": ca, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	registry := prometheus.NewRegistry()
	server, err := certs.NewServer(certs.Options{
		Host: "127.0.0.1", Port: port, Dir: dir, Registerer: registry, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := register(server, registry); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server ended with: %v", err)
		}
	})
	return address, ca
}

// configure asks address about those of the group's handles that match, as the
// installation does, but that a webhook that fails makes the test fail.
func configure(t testing.TB, cfg *rest.Config, api calico.API, name, address string, ca []byte, match ...admissionregistrationv1.MatchCondition) {
	t.Helper()
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	fail, equivalent := admissionregistrationv1.Fail, admissionregistrationv1.Equivalent
	none, timeout := admissionregistrationv1.SideEffectClassNone, int32(10)
	at := func(path string) admissionregistrationv1.WebhookClientConfig {
		url := "https://" + address + path
		return admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: ca}
	}
	rules := func(ops ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
		return []admissionregistrationv1.RuleWithOperations{{Operations: ops, Rule: admissionregistrationv1.Rule{
			APIGroups: []string{api.Group}, APIVersions: []string{api.Version}, Resources: []string{"ipamhandles"},
		}}}
	}
	meta := metav1.ObjectMeta{Name: name}
	_, err = client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: meta, Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "stamp.ipam-guard.io", ClientConfig: at(webhook.MutatePath),
			Rules:         rules(admissionregistrationv1.Create, admissionregistrationv1.Update),
			FailurePolicy: &fail, MatchPolicy: &equivalent, SideEffects: &none, TimeoutSeconds: &timeout, AdmissionReviewVersions: []string{"v1"}, MatchConditions: match,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: meta, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "guard.ipam-guard.io", ClientConfig: at(webhook.ValidatePath),
			Rules:         rules(admissionregistrationv1.Update, admissionregistrationv1.Delete),
			FailurePolicy: &fail, MatchPolicy: &equivalent, SideEffects: &none, TimeoutSeconds: &timeout, AdmissionReviewVersions: []string{"v1"}, MatchConditions: match,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// waitForAdmission waits until the API server has taken up the configurations
// and the server answers.
func (c *cluster) waitForAdmission(t *testing.T) {
	t.Helper()
	id := c.id()
	deadline := time.Now().Add(30 * time.Second)
	for last := error(nil); ; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the API server does not use the webhooks: %v", last)
		}
		if last = c.calico.Increment(t.Context(), id, v4, 1); last != nil {
			continue
		}
		h := c.handle(t, id)
		if h.Annotations[ownership.StampAnnotation] == "" {
			continue
		}
		last = c.patch(t, h.Name, map[string]any{"annotations": map[string]any{ownership.StampAnnotation: "forged"}})
		if apierrors.IsForbidden(last) {
			return
		}
		if last == nil {
			id = c.id() // The validating half was not there yet.
		}
	}
}
