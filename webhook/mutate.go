package webhook

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// mutator is the mutating half. It asks the caches alone.
type mutator struct {
	inventory Inventory
	guard     bool
	clock     clock.PassiveClock
	metrics   *metrics
	log       logr.Logger
}

func newMutator(o Options, m *metrics) *mutator {
	return &mutator{inventory: o.Inventory, guard: !o.WithoutGuard, clock: o.Clock, metrics: m, log: o.Log}
}

// Handle implements admission.Handler.
func (m *mutator) Handle(_ context.Context, req admission.Request) (resp admission.Response) {
	op, decide := opUpdate, m.update
	switch req.Operation {
	case admissionv1.Create:
		op, decide = opCreate, m.create
	case admissionv1.Update:
	default:
		return allowed()
	}
	start, result := m.clock.Now(), outcomeError
	defer func() {
		if r := recover(); r != nil {
			m.log.Error(fmt.Errorf("panic: %v", r), "admission allows what it cannot decide", "op", op, "handle", req.Name)
			resp = allowed()
		}
		m.metrics.observe(op, result, m.clock.Since(start))
	}()
	resp, result, err := m.respond(&req, decide)
	if err != nil {
		m.log.Error(err, "admission allows what it cannot decide", "op", op, "handle", req.Name)
		result = outcomeError
		return allowed()
	}
	return resp
}

type decision func(req *admission.Request, h *handle) (change, []string, error)

func (m *mutator) respond(req *admission.Request, decide decision) (admission.Response, outcome, error) {
	h, err := decode(req.Object.Raw)
	if err != nil {
		return admission.Response{}, outcomeError, err
	}
	c, warnings, err := decide(req, h)
	if err != nil {
		return admission.Response{}, outcomeError, err
	}
	patch, err := c.patch(h)
	if err != nil {
		return admission.Response{}, outcomeError, err
	}
	resp := allowed(warnings...)
	if patch != nil {
		kind := admissionv1.PatchTypeJSONPatch
		resp.Patch, resp.PatchType = patch, &kind
	}
	return resp, c.outcome, nil
}

func (m *mutator) create(req *admission.Request, h *handle) (change, []string, error) {
	stamp := m.stamp(h)
	stamp.User, stamp.Request = req.UserInfo.Username, string(req.UID)
	return decideCreate(h, stamp.Encode(), m.guard), malformed(h), nil
}

// update leaves warnings to the validating half, which sees every update too.
func (m *mutator) update(req *admission.Request, h *handle) (change, []string, error) {
	old, err := decode(req.OldObject.Raw)
	if err != nil {
		return change{}, nil, err
	}
	// Whoever updates the handle is not who asked for its creation.
	fresh := func() string { return m.stamp(h).Encode() }
	return decideUpdate(old, h, fresh, m.guard), nil, nil
}

// stamp is what the handle and the caches tell of its owner.
func (m *mutator) stamp(h *handle) ownership.Stamp {
	id := h.Spec.HandleID
	if !strings.EqualFold(id, h.Metadata.Name) {
		id = h.Metadata.Name // What everything else goes by.
	}
	stamp := ownership.NewStamp(calico.ParseHandleID(id))
	if stamp.Node == "" {
		stamp.Node = m.node(h.Spec.Block)
	}
	stamp.Time = m.clock.Now()
	return stamp
}

// node is the one that the affinity of the block names; of several, that of
// the least CIDR, so that map order does not show.
func (m *mutator) node(block map[string]int64) string {
	first, node := "", ""
	for cidr := range block {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil || (first != "" && cidr > first) {
			continue
		}
		if name, ok := m.inventory.BlockNode(prefix); ok {
			first, node = cidr, name
		}
	}
	return node
}

func allowed(warnings ...string) admission.Response {
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true, Warnings: warnings}}
}
