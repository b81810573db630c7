package explore

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
	"github.com/ipam-guard/ipam-guard/webhook"
)

// webhooks are the product's, as the API server asks them. They serve from the
// caches of replica 0, however stale these are.
type webhooks struct {
	x                  *Explorer
	mutating, checking admission.Handler
	// w is the world of the request that is being served.
	w *world
	standing
	mutated map[mutation]*calico.IPAMHandle
}

// mutation is all that the mutating half's answer depends on.
type mutation struct {
	old, updated, caches uint64
	second               int64
}

// newWebhooks registers the product's webhooks as its manager does, and keeps
// their handlers.
func newWebhooks(x *Explorer) (*webhooks, error) {
	a := &webhooks{x: x, mutated: map[mutation]*calico.IPAMHandle{}}
	if err := webhook.Register(registrar{a: a}, webhook.Options{
		Inventory: a, Blocks: a, Clock: &a.standing, Registerer: prometheus.NewRegistry(), Log: logr.Discard(),
	}); err != nil {
		return nil, err
	}
	if a.mutating == nil || a.checking == nil {
		return nil, fmt.Errorf("webhooks are not served at %s and %s", webhook.MutatePath, webhook.ValidatePath)
	}
	a.mutating, a.checking = x.rules.Mutating(a.mutating), x.rules.Validating(a.checking)
	return a, nil
}

type registrar struct {
	ctrlwebhook.Server
	a *webhooks
}

// Register implements webhook.Server.
func (r registrar) Register(path string, h http.Handler) {
	hook, ok := h.(*admission.Webhook)
	switch {
	case !ok:
	case path == webhook.MutatePath:
		r.a.mutating = hook.Handler
	case path == webhook.ValidatePath:
		r.a.checking = hook.Handler
	}
}

var _ clock.PassiveClock = &standing{}

func (a *webhooks) serve(w *world) {
	a.w, a.second = w, w.now
}

// BlockNode implements webhook.Inventory.
func (a *webhooks) BlockNode(block netip.Prefix) (string, bool) {
	return a.x.inventory(a.w.s, a.w.replicas[0].past).BlockNode(block)
}

// References implements webhook.Inventory.
func (a *webhooks) References(name string) []verdict.Reference {
	return a.x.inventory(a.w.s, a.w.replicas[0].past).References(name)
}

// GetBlock implements webhook.Blocks.
func (a *webhooks) GetBlock(_ context.Context, name string) (*calico.IPAMBlock, error) {
	return a.w.getBlock(name)
}

func (w *world) getBlock(name string) (*calico.IPAMBlock, error) {
	for b := range w.s.blocks {
		if w.s.blocks[b].name == name && w.blocks[b] != nil {
			return w.blocks[b].object, nil
		}
	}
	return nil, apierrors.NewNotFound(blockResource, name)
}

// create is the handle as the mutating half leaves it.
func (a *webhooks) create(w *world, h *calico.IPAMHandle) *calico.IPAMHandle {
	return a.mutate(w, nil, h, admissionv1.Create)
}

// update is the handle as both halves leave it; nil when they refuse.
func (a *webhooks) update(w *world, old, h *calico.IPAMHandle) *calico.IPAMHandle {
	h = a.mutate(w, old, h, admissionv1.Update)
	if !a.ask(a.checking, admissionv1.Update, old, h).Allowed {
		return nil
	}
	return h
}

// delete tells whether a raw delete may go on.
func (a *webhooks) delete(w *world, old *calico.IPAMHandle) bool {
	a.serve(w)
	return a.ask(a.checking, admissionv1.Delete, old, nil).Allowed
}

func (a *webhooks) mutate(w *world, old, h *calico.IPAMHandle, op admissionv1.Operation) *calico.IPAMHandle {
	a.serve(w)
	key := mutation{updated: hashHandle(h, 1), caches: w.replicas[0].past.objects, second: w.now}
	if old != nil {
		key.old = hashHandle(old, 2)
	}
	known, ok := a.mutated[key]
	if !ok {
		known = a.patched(h, a.ask(a.mutating, op, old, h))
		if len(a.mutated) > 1<<16 {
			clear(a.mutated)
		}
		a.mutated[key] = known
	}
	// The rest of the metadata is this request's own.
	out := h.DeepCopy()
	out.Annotations, out.Finalizers = known.Annotations, known.Finalizers
	return out
}

func (a *webhooks) ask(half admission.Handler, op admissionv1.Operation, old, h *calico.IPAMHandle) admission.Response {
	name := ""
	for _, o := range []*calico.IPAMHandle{old, h} {
		if o != nil {
			name = o.Name
		}
	}
	return half.Handle(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: "request", Name: name, Operation: op, Object: a.raw(h), OldObject: a.raw(old),
	}})
}

func (a *webhooks) raw(h *calico.IPAMHandle) runtime.RawExtension {
	if h == nil {
		return runtime.RawExtension{}
	}
	data, err := json.Marshal(h)
	if err != nil {
		a.w.violate("encode handle: %v", err)
	}
	return runtime.RawExtension{Raw: data}
}

// patched applies a JSON patch, as the API server does.
func (a *webhooks) patched(h *calico.IPAMHandle, resp admission.Response) *calico.IPAMHandle {
	if !resp.Allowed {
		a.w.violate("the mutating webhook refused a request of Calico")
	}
	if resp.Patch == nil {
		return h
	}
	out := &calico.IPAMHandle{}
	patch, err := jsonpatch.DecodePatch(resp.Patch)
	if err == nil {
		var data []byte
		if data, err = patch.Apply(a.raw(h).Raw); err == nil {
			err = json.Unmarshal(data, out)
		}
	}
	if err != nil {
		a.w.violate("the webhook's patch cannot be applied: %v", err)
		return h
	}
	return out
}
