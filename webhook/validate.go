package webhook

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// tamperedMessage says why an update is refused and what to do.
const tamperedMessage = "annotation " + ownership.StampAnnotation +
	" records who the handle was created for and may be neither changed nor removed: leave it as it is. " +
	"To stop IPAM Guard from holding the handle, remove the finalizer " + ownership.Finalizer + " alone."

// validator is the validating half.
type validator struct {
	judge   judge
	mode    Mode
	clock   clock.PassiveClock
	metrics *metrics
	log     logr.Logger
}

func newValidator(o Options, m *metrics) *validator {
	mode := o.Mode
	if o.WithoutGuard {
		mode = Off
	}
	return &validator{
		judge: judge{blocks: o.Blocks, inventory: o.Inventory},
		mode:  mode, clock: o.Clock, metrics: m, log: o.Log,
	}
}

// Handle implements admission.Handler.
func (v *validator) Handle(ctx context.Context, req admission.Request) (resp admission.Response) {
	op, decide := opDelete, v.delete
	switch req.Operation {
	case admissionv1.Update:
		op, decide = opValidateUpdate, v.update
	case admissionv1.Delete:
	default:
		return allowed()
	}
	start, result := v.clock.Now(), outcomeError
	defer func() {
		if r := recover(); r != nil {
			v.log.Error(fmt.Errorf("panic: %v", r), "admission allows what it cannot decide", "op", op, "handle", req.Name)
			resp = allowed()
		}
		v.metrics.observe(op, result, v.clock.Since(start))
	}()
	resp, result, err := decide(ctx, &req)
	if err != nil {
		v.log.Error(err, "admission allows what it cannot decide", "op", op, "handle", req.Name)
		result = outcomeError
		return allowed()
	}
	return resp
}

func (v *validator) update(_ context.Context, req *admission.Request) (admission.Response, outcome, error) {
	old, err := decode(req.OldObject.Raw)
	if err != nil {
		return admission.Response{}, outcomeError, err
	}
	updated, err := decode(req.Object.Raw)
	if err != nil {
		return admission.Response{}, outcomeError, err
	}
	if tampered(old, updated) {
		return admission.Denied(tamperedMessage), outcomeDenied, nil
	}
	return allowed(malformed(updated)...), outcomeAllowed, nil
}

func (v *validator) delete(ctx context.Context, req *admission.Request) (admission.Response, outcome, error) {
	if v.mode == Off {
		return allowed(), outcomeAllowed, nil
	}
	h, err := decode(req.OldObject.Raw)
	if err != nil {
		return admission.Response{}, outcomeError, err
	}
	// Calico marks the handle first: this is its own release.
	if h.Spec.Deleted {
		return allowed(), outcomeAllowed, nil
	}
	held, err := v.judge.holdings(ctx, h)
	switch {
	case len(held) == 0 && err != nil:
		return admission.Response{}, outcomeError, err
	case len(held) == 0:
		return allowed(), outcomeAllowed, nil
	case v.mode == Warn:
		return allowed(inUse(h.Metadata.Name, held)), outcomeWarned, nil
	default:
		return admission.Denied(inUse(h.Metadata.Name, held)), outcomeDenied, nil
	}
}
