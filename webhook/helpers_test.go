package webhook

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

const (
	containerID = "78e0aa1b5d0f4c9e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f"
	handleID    = "k8s-pod-network." + containerID
	blockCIDR   = "10.244.7.0/26"
	node        = "worker-7"
)

var now = time.Date(2026, 12, 1, 9, 30, 0, 0, time.UTC)

// caches is an Inventory made by hand.
type caches struct {
	nodes      map[netip.Prefix]string
	references map[string][]verdict.Reference
}

func (c caches) BlockNode(block netip.Prefix) (string, bool) {
	node, ok := c.nodes[block]
	return node, ok
}

func (c caches) References(name string) []verdict.Reference { return c.references[name] }

// blocks are what the API server has; err answers for every block.
type blocks struct {
	byName map[string]*calico.IPAMBlock
	err    error
	reads  int
}

func (b *blocks) GetBlock(ctx context.Context, name string) (*calico.IPAMBlock, error) {
	b.reads++
	if b.err != nil {
		return nil, b.err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if block, ok := b.byName[name]; ok {
		return block, nil
	}
	return nil, apierrors.NewNotFound(calico.API{GroupVersion: calico.GroupCRD}.Blocks().GroupResource(), name)
}

// hanging never answers before its context ends.
type hanging struct{}

func (hanging) GetBlock(ctx context.Context, _ string) (*calico.IPAMBlock, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func options(t testing.TB) Options {
	t.Helper()
	o := Options{
		Inventory:  caches{nodes: map[netip.Prefix]string{netip.MustParsePrefix(blockCIDR): node}},
		Blocks:     &blocks{},
		Clock:      clocktesting.NewFakePassiveClock(now),
		Registerer: prometheus.NewRegistry(),
		Log:        logr.Discard(),
	}
	return o
}

func mutating(t testing.TB, o Options) *mutator {
	t.Helper()
	m, err := o.metricsForTest(t)
	if err != nil {
		t.Fatal(err)
	}
	return newMutator(o, m)
}

func validating(t testing.TB, o Options) *validator {
	t.Helper()
	m, err := o.metricsForTest(t)
	if err != nil {
		t.Fatal(err)
	}
	return newValidator(o, m)
}

func (o *Options) metricsForTest(t testing.TB) (*metrics, error) {
	t.Helper()
	if err := o.complete(); err != nil {
		return nil, err
	}
	return newMetrics(o.Registerer)
}

// object is a handle as the API server sends it.
func object(edits ...func(*calico.IPAMHandle)) *calico.IPAMHandle {
	h := &calico.IPAMHandle{
		TypeMeta: metav1.TypeMeta{APIVersion: calico.GroupCRD.String(), Kind: "IPAMHandle"},
		ObjectMeta: metav1.ObjectMeta{
			Name: handleID, UID: "5a3f4a52-8a0b-4b7a-9c27-2a3de8b2f4c1",
			CreationTimestamp: metav1.NewTime(now), Generation: 1,
			Annotations: map[string]string{"projectcalico.org/metadata": `{"creationTimestamp":null}`},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "calico", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: calico.GroupCRD.String(), FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{".":{},"f:projectcalico.org/metadata":{}}},"f:spec":{".":{},"f:block":{".":{},"f:10.244.7.0/26":{}},"f:deleted":{},"f:handleID":{}}}`),
			}},
		},
		Spec: calico.IPAMHandleSpec{HandleID: handleID, Block: map[string]int{blockCIDR: 1}},
	}
	for _, edit := range edits {
		edit(h)
	}
	return h
}

func stampedWith(value string) func(*calico.IPAMHandle) {
	return func(h *calico.IPAMHandle) {
		if h.Annotations == nil {
			h.Annotations = map[string]string{}
		}
		h.Annotations[ownership.StampAnnotation] = value
	}
}

func held(h *calico.IPAMHandle) { h.Finalizers = append(h.Finalizers, ownership.Finalizer) }

func softDeleted(h *calico.IPAMHandle) { h.Spec.Deleted = true }

func terminating(h *calico.IPAMHandle) {
	at := metav1.NewTime(now)
	h.DeletionTimestamp = &at
}

func bare(h *calico.IPAMHandle) { h.Annotations = nil }

func raw(t testing.TB, h *calico.IPAMHandle) runtime.RawExtension {
	t.Helper()
	if h == nil {
		return runtime.RawExtension{}
	}
	data, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	return runtime.RawExtension{Raw: data}
}

func request(t testing.TB, op admissionv1.Operation, old, updated *calico.IPAMHandle) admission.Request {
	t.Helper()
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: types.UID("0d1a6f0e-6d7e-4d2a-8f52-c6b7f1a3f9d2"), Operation: op, Name: handleID,
		UserInfo: authenticationv1.UserInfo{Username: "system:serviceaccount:calico-system:calico-cni-plugin"},
		Object:   raw(t, updated), OldObject: raw(t, old),
	}}
}

// patched is the object after the response's patch.
func patched(t testing.TB, h *calico.IPAMHandle, resp admission.Response) *calico.IPAMHandle {
	t.Helper()
	if resp.Patch == nil {
		return h
	}
	if resp.PatchType == nil || *resp.PatchType != admissionv1.PatchTypeJSONPatch {
		t.Fatalf("patch without its type: %v", resp.PatchType)
	}
	patch, err := jsonpatch.DecodePatch(resp.Patch)
	if err != nil {
		t.Fatalf("decode patch %s: %v", resp.Patch, err)
	}
	data, err := patch.Apply(raw(t, h).Raw)
	if err != nil {
		t.Fatalf("apply patch %s: %v", resp.Patch, err)
	}
	out := &calico.IPAMHandle{}
	if err := json.Unmarshal(data, out); err != nil {
		t.Fatal(err)
	}
	return out
}
