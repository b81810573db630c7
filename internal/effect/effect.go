// Package effect is the one place that changes handles: deletes, finalizer
// releases and stamps. Whatever asks for an effect, it judges the handle again
// from the object it holds, records it, and lets the API server compare before
// it acts.
package effect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/pace"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// Evidence is what the caches know about a handle that was just read; the
// inventory implements it.
type Evidence interface {
	EvidenceFor(h *calico.IPAMHandle, now time.Time, grace time.Duration) verdict.Evidence
}

// Gate says whether effects are allowed right now. A nil error allows.
type Gate func() error

// ErrClosed wraps what a Gate answers when it does not allow.
var ErrClosed = errors.New("no effect is allowed now")

// Options say how effects are done. API, Evidence, Audit, Pace and Clock are
// required.
type Options struct {
	API      API
	Evidence Evidence
	Audit    audit.Log
	Pace     *pace.Pace
	Clock    clock.Clock
	// Gate is asked before each request; nil allows all.
	Gate Gate
	// Grace is how long a handle must be unchanged before it may be swept.
	Grace time.Duration
	// DryRun judges and reports but changes nothing.
	DryRun bool
	// SweepUnknown also sweeps settled, unreferenced handles whose owner
	// cannot be told.
	SweepUnknown bool
	// Hold puts our finalizer on what a repair makes or revives: those writes do
	// not pass through admission.
	Hold bool
	// Timeout bounds each request; zero means DefaultTimeout.
	Timeout time.Duration
}

// DefaultTimeout bounds one request.
const DefaultTimeout = 15 * time.Second

// Effector does effects. It is safe for concurrent use.
type Effector struct{ o Options }

// New returns an Effector.
func New(o Options) *Effector {
	if o.Gate == nil {
		o.Gate = func() error { return nil }
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	return &Effector{o: o}
}

// Outcome is what came of an effect.
type Outcome string

// The outcomes.
const (
	// Done: the effect happened.
	Done Outcome = "done"
	// WouldDo: it would have, but for dry run.
	WouldDo Outcome = "would-do"
	// Kept: judged anew, the handle is not to be touched.
	Kept Outcome = "kept"
	// Conflict: somebody changed the handle first. Judge it anew.
	Conflict Outcome = "conflict"
	// Vanished: the handle was gone already.
	Vanished Outcome = "vanished"
	// Held: a finalizer that is not ours keeps the handle.
	Held Outcome = "held"
)

// Result is an effect's outcome and the verdict that it rests on.
type Result struct {
	Outcome Outcome
	Verdict verdict.Verdict
	// Detail is the verdict for people, where the effect did not happen.
	Detail string
}

// Sweepable says whether the policy lets a handle with this verdict be swept.
func (e *Effector) Sweepable(v verdict.Verdict) bool {
	if v.Provisional {
		return false
	}
	return v.Outcome == verdict.Orphaned || (e.o.SweepUnknown && v.Outcome == verdict.OwnerUnknown)
}

// Judge judges a handle that was just read.
func (e *Effector) Judge(h *calico.IPAMHandle) (verdict.Evidence, verdict.Verdict) {
	ev := e.o.Evidence.EvidenceFor(h, e.o.Clock.Now(), e.o.Grace)
	return ev, verdict.Judge(ev)
}

// Sweep deletes a handle that was just read in full, if it is an orphan. The
// caller has proven the caches fresh since the handle was read or judged.
func (e *Effector) Sweep(ctx context.Context, h *calico.IPAMHandle) (Result, error) {
	if _, v := e.Judge(h); !e.Sweepable(v) {
		return Result{Outcome: Kept, Verdict: v}, nil
	} else if len(without(h.Finalizers)) > 0 {
		// A delete would not remove it, but leave it to vanish at Calico's next
		// write, which drops what it does not know.
		return Result{Outcome: Held, Verdict: v}, nil
	} else if e.o.DryRun {
		return Result{Outcome: WouldDo, Verdict: v}, nil
	}
	if err := e.admit(ctx); err != nil {
		return Result{}, err
	}
	// Waiting took time; what counts is what is known now.
	ev, v := e.Judge(h)
	if !e.Sweepable(v) {
		return Result{Outcome: Kept, Verdict: v}, nil
	}
	if err := e.record(audit.Sweep, h, ev, v); err != nil {
		return Result{}, err
	}
	outcome, err := e.remove(ctx, h)
	switch {
	case err != nil && !errors.Is(err, ErrClosed):
		// Whether the delete happened is not known; the record stays.
		return Result{}, err
	case outcome != Done && outcome != Held:
		err = errors.Join(err, e.record(audit.Kept, h, ev, v))
	}
	return Result{Outcome: outcome, Verdict: v}, err
}

// remove deletes the handle as it was judged. Our finalizer goes first: were
// the handle deleted with it, it would be left terminating for a moment, and
// Calico, taking it up again just then while no webhook answers, would drop the
// finalizer and the handle with it. Taken up in between as it is, the delete
// conflicts, and admission holds the handle anew.
func (e *Effector) remove(ctx context.Context, h *calico.IPAMHandle) (Outcome, error) {
	if slices.Contains(h.Finalizers, ownership.Finalizer) {
		free, outcome, err := e.dropFinalizer(ctx, h)
		if outcome != Done || h.DeletionTimestamp != nil {
			return outcome, err // What was deleted already has gone with it.
		}
		if err := e.open(); err != nil {
			return "", err
		}
		h = free
	}
	var kept *calico.IPAMHandle
	err := e.request(ctx, func(ctx context.Context) (err error) {
		kept, err = e.o.API.DeleteHandle(ctx, h.Name, h.UID, h.ResourceVersion)
		return err
	})
	switch {
	case apierrors.IsConflict(err):
		return Conflict, nil
	case apierrors.IsNotFound(err):
		return Vanished, nil
	case err != nil:
		return "", fmt.Errorf("delete handle %s: %w", h.Name, err)
	case kept != nil:
		return Held, nil
	}
	return Done, nil
}

// Release takes our finalizer off a terminating handle when nothing references
// it and no assignment is under way. The proof is live: the handle and each
// block that it names are read now. Calico names a block in the handle before
// it writes the block, and releases only by the blocks named.
func (e *Effector) Release(ctx context.Context, name string) (Result, error) {
	h, err := e.get(ctx, name)
	if apierrors.IsNotFound(err) {
		return Result{Outcome: Vanished}, nil
	}
	if err != nil {
		return Result{}, fmt.Errorf("read handle %s: %w", name, err)
	}
	if !slices.Contains(h.Finalizers, ownership.Finalizer) {
		return Result{Outcome: Vanished}, nil
	}
	ev, v := e.Judge(h)
	if !verdict.Releasable(ev) {
		return Result{Outcome: Kept, Verdict: v, Detail: verdict.Explain(ev, v)}, nil
	}
	referenced, err := e.referencedLive(ctx, h)
	if err != nil {
		return Result{}, err
	}
	if referenced {
		return Result{Outcome: Kept, Verdict: v}, nil
	}
	if e.o.DryRun {
		return Result{Outcome: WouldDo, Verdict: v}, nil
	}
	if err := e.admit(ctx); err != nil {
		return Result{}, err
	}
	if err := e.record(audit.Release, h, ev, v); err != nil {
		return Result{}, err
	}
	_, outcome, err := e.dropFinalizer(ctx, h)
	return Result{Outcome: outcome, Verdict: v}, err
}

// referencedLive reads the blocks that the handle names.
func (e *Effector) referencedLive(ctx context.Context, h *calico.IPAMHandle) (bool, error) {
	for _, cidr := range slices.Sorted(maps.Keys(h.Spec.Block)) {
		// A damaged CIDR names no block that Calico could release from.
		block, err := e.blockOf(ctx, cidr)
		if err != nil {
			return false, err
		}
		if block == nil {
			continue
		}
		if len(block.Spec.OrdinalsOf(h.Name)) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// Complete writes the pod that leaked a handle into its stamp.
func (e *Effector) Complete(ctx context.Context, name, namespace, pod, uid, node string) (Result, error) {
	h, err := e.get(ctx, name)
	if apierrors.IsNotFound(err) {
		return Result{Outcome: Vanished}, nil
	}
	if err != nil {
		return Result{}, fmt.Errorf("read handle %s: %w", name, err)
	}
	ev, v := e.Judge(h)
	if v.Outcome == verdict.InUse || ev.Handle.Terminating {
		return Result{Outcome: Kept, Verdict: v}, nil
	}
	stamp, err := ownership.ParseStamp(h.Annotations[ownership.StampAnnotation])
	if err != nil {
		stamp = ownership.NewStamp(ev.ID)
	}
	if stamp.Complete() {
		return Result{Outcome: Kept, Verdict: v}, nil
	}
	stamp.Namespace, stamp.Name, stamp.UID = namespace, pod, uid
	if stamp.Node == "" {
		stamp.Node = node
	}
	if e.o.DryRun {
		return Result{Outcome: WouldDo, Verdict: v}, nil
	}
	if err := e.admit(ctx); err != nil {
		return Result{}, err
	}
	if err := e.record(audit.Complete, h, ev, v); err != nil {
		return Result{}, err
	}
	_, outcome, err := e.patch(ctx, h, map[string]any{
		"annotations": map[string]any{ownership.StampAnnotation: stamp.Encode()},
	})
	return Result{Outcome: outcome, Verdict: v}, err
}

// Strip takes our finalizer and stamp off a handle, for an uninstall. A
// terminating handle that a block references goes with the finalizer; Calico
// then cannot release its addresses, so it is kept unless force is set.
func (e *Effector) Strip(ctx context.Context, h *calico.IPAMHandle, force bool) (Result, error) {
	_, stamped := h.Annotations[ownership.StampAnnotation]
	held := slices.Contains(h.Finalizers, ownership.Finalizer)
	ev, v := e.Judge(h)
	if !stamped && !held {
		return Result{Outcome: Kept, Verdict: v}, nil
	}
	if ev.Handle.Terminating && v.Outcome == verdict.InUse && !force {
		return Result{Outcome: Held, Verdict: v}, nil
	}
	if e.o.DryRun {
		return Result{Outcome: WouldDo, Verdict: v}, nil
	}
	if err := e.admit(ctx); err != nil {
		return Result{}, err
	}
	if err := e.record(audit.Strip, h, ev, v); err != nil {
		return Result{}, err
	}
	metadata := map[string]any{"annotations": map[string]any{ownership.StampAnnotation: nil}}
	if held {
		metadata["finalizers"] = without(h.Finalizers)
	}
	_, outcome, err := e.patch(ctx, h, metadata)
	return Result{Outcome: outcome, Verdict: v}, err
}

// Restore creates a swept handle anew, with its ID, blocks and stamp. It
// refuses where one of the name exists.
func (e *Effector) Restore(ctx context.Context, swept *calico.IPAMHandle) (Result, error) {
	handle := &calico.IPAMHandle{Spec: *swept.Spec.DeepCopy()}
	handle.Name = swept.Name
	for key, value := range swept.Annotations {
		if handle.Annotations == nil {
			handle.Annotations = map[string]string{}
		}
		handle.Annotations[key] = value
	}
	if e.o.DryRun {
		_, err := e.get(ctx, swept.Name)
		switch {
		case apierrors.IsNotFound(err):
			return Result{Outcome: WouldDo}, nil
		case err != nil:
			return Result{}, fmt.Errorf("read handle %s: %w", swept.Name, err)
		}
		return Result{Outcome: Kept}, nil
	}
	if err := e.admit(ctx); err != nil {
		return Result{}, err
	}
	err := e.request(ctx, func(ctx context.Context) error {
		_, err := e.o.API.CreateHandle(ctx, handle)
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		return Result{Outcome: Kept}, nil
	}
	if err != nil {
		return Result{}, fmt.Errorf("create handle %s: %w", swept.Name, err)
	}
	return Result{Outcome: Done}, e.o.Audit.Write(audit.Record{
		Time: e.o.Clock.Now(), Action: audit.Restore, Handle: handle,
	})
}

func (e *Effector) dropFinalizer(ctx context.Context, h *calico.IPAMHandle) (*calico.IPAMHandle, Outcome, error) {
	if err := e.open(); err != nil {
		return nil, "", err
	}
	return e.patch(ctx, h, map[string]any{"finalizers": without(h.Finalizers)})
}

func without(finalizers []string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == ownership.Finalizer })
}

// patch changes metadata if UID and resourceVersion still match. It returns
// the handle as it then is.
func (e *Effector) patch(ctx context.Context, h *calico.IPAMHandle, metadata map[string]any) (patched *calico.IPAMHandle, _ Outcome, _ error) {
	metadata["uid"] = h.UID
	metadata["resourceVersion"] = h.ResourceVersion
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return nil, "", fmt.Errorf("encode patch of handle %s: %w", h.Name, err)
	}
	err = e.request(ctx, func(ctx context.Context) (err error) {
		patched, err = e.o.API.PatchHandle(ctx, h.Name, body)
		return err
	})
	switch {
	case apierrors.IsConflict(err):
		return nil, Conflict, nil
	case apierrors.IsNotFound(err):
		return nil, Vanished, nil
	case err != nil:
		return nil, "", fmt.Errorf("patch handle %s: %w", h.Name, err)
	}
	return patched, Done, nil
}

// admit waits for the pace, then asks the gate.
func (e *Effector) admit(ctx context.Context) error {
	if err := e.o.Pace.Wait(ctx); err != nil {
		return err
	}
	return e.open()
}

func (e *Effector) open() error {
	if err := e.o.Gate(); err != nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return nil
}

func (e *Effector) get(ctx context.Context, name string) (h *calico.IPAMHandle, err error) {
	err = e.request(ctx, func(ctx context.Context) (err error) {
		h, err = e.o.API.GetHandle(ctx, name)
		return err
	})
	return h, err
}

// request gives fn a deadline and tells the pace how it went.
func (e *Effector) request(ctx context.Context, fn func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, e.o.Timeout)
	defer cancel()
	start := e.o.Clock.Now()
	err := fn(bounded)
	if !errors.Is(ctx.Err(), context.Canceled) {
		e.o.Pace.Observe(e.o.Clock.Since(start), err)
	}
	return err
}

func (e *Effector) record(action audit.Action, h *calico.IPAMHandle, ev verdict.Evidence, v verdict.Verdict) error {
	err := e.o.Audit.Write(audit.Record{
		Time:    ev.Now,
		Action:  action,
		Verdict: v.Outcome.String(),
		Reason:  string(v.Reason),
		Detail:  verdict.Explain(ev, v),
		Handle:  h,
	})
	if err != nil {
		return fmt.Errorf("record %s of handle %s: %w", action, h.Name, err)
	}
	return nil
}
