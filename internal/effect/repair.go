package effect

import (
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// Diverged is a divergence as it was observed, unchanged, for the grace period.
type Diverged struct {
	Kind verdict.Divergence
	// Name is the handle's object name.
	Name string
	// ResourceVersion is the handle's, "" for a missing one.
	ResourceVersion string
	// Counts are the addresses that blocks give it, by the block's CIDR.
	Counts map[string]int
}

// Repair makes a handle agree with the blocks, which are the truth: it rewrites
// counts, creates what is missing, revives what is marked deleted but in use,
// and deletes what is marked deleted and in no block. The handle and its blocks
// are read live, and both must be as they were observed: were an address given
// back just now, Calico is about to count the handle down itself. The API server
// compares before it writes. The caller has proven the caches fresh.
func (e *Effector) Repair(ctx context.Context, d Diverged) (Result, error) {
	h, err := e.get(ctx, d.Name)
	switch {
	case apierrors.IsNotFound(err):
		h = nil
	case err != nil:
		return Result{}, fmt.Errorf("read handle %s: %w", d.Name, err)
	}
	if rv := resourceVersion(h); rv != d.ResourceVersion {
		return Result{Outcome: Conflict, Detail: "it has changed"}, nil
	}
	id, counts, err := e.countLive(ctx, h, d)
	switch {
	case err != nil:
		return Result{}, err
	case !maps.Equal(counts, d.Counts):
		return Result{Outcome: Conflict, Detail: "its blocks have changed"}, nil
	case verdict.Compare(h, counts) != d.Kind || d.Kind == verdict.Agrees:
		return Result{Outcome: Kept, Detail: "it agrees with the blocks"}, nil
	case e.o.DryRun:
		return Result{Outcome: WouldDo, Detail: repaired(h, counts)}, nil
	}
	if err := e.admit(ctx); err != nil {
		return Result{}, err
	}
	was := h
	if h == nil {
		was = e.anew(d.Name, id, counts)
	}
	err = e.o.Audit.Write(audit.Record{
		Time: e.o.Clock.Now(), Action: audit.Repair, Reason: string(d.Kind), Detail: repaired(h, counts), Handle: was,
	})
	if err != nil {
		return Result{}, fmt.Errorf("record repair of handle %s: %w", d.Name, err)
	}
	outcome, err := e.write(ctx, h, was, counts)
	return Result{Outcome: outcome, Detail: repaired(h, counts)}, err
}

func resourceVersion(h *calico.IPAMHandle) string {
	if h == nil {
		return ""
	}
	return h.ResourceVersion
}

// repaired says what a repair does, for people.
func repaired(h *calico.IPAMHandle, counts map[string]int) string {
	switch {
	case h == nil:
		return fmt.Sprintf("create it with %v", counts)
	case len(counts) == 0:
		return "finish its delete"
	case h.Spec.Deleted:
		return fmt.Sprintf("revive it with %v, it said %v", counts, h.Spec.Block)
	default:
		return fmt.Sprintf("set its counts to %v, they were %v", counts, h.Spec.Block)
	}
}

// countLive counts the handle's addresses in each block that it names or that
// was observed to name it, and returns its ID as the blocks spell it.
func (e *Effector) countLive(ctx context.Context, h *calico.IPAMHandle, d Diverged) (id string, counts map[string]int, err error) {
	cidrs := maps.Clone(d.Counts)
	if cidrs == nil {
		cidrs = map[string]int{}
	}
	if h != nil {
		maps.Copy(cidrs, h.Spec.Block)
	}
	counts = map[string]int{}
	for _, cidr := range slices.Sorted(maps.Keys(cidrs)) {
		block, err := e.blockOf(ctx, cidr)
		if err != nil {
			return "", nil, err
		}
		if block == nil || block.Spec.Deleted {
			continue
		}
		ordinals := block.Spec.OrdinalsOf(d.Name)
		if len(ordinals) == 0 {
			continue
		}
		counts[cidr] = len(ordinals)
		id = *block.Spec.Attributes[*block.Spec.Allocations[ordinals[0]]].HandleID
	}
	return id, counts, nil
}

// blockOf reads a block; nil means that there is none of this CIDR.
func (e *Effector) blockOf(ctx context.Context, cidr string) (block *calico.IPAMBlock, err error) {
	name, err := calico.ParseBlockName(cidr)
	if err != nil {
		return nil, nil //nolint:nilerr // A damaged CIDR names no block.
	}
	err = e.request(ctx, func(ctx context.Context) (err error) {
		block, err = e.o.API.GetBlock(ctx, name)
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read block %s: %w", cidr, err)
	}
	return block, nil
}

// anew is a missing handle as admission would have let Calico make it.
func (e *Effector) anew(name, id string, counts map[string]int) *calico.IPAMHandle {
	h := &calico.IPAMHandle{Spec: calico.IPAMHandleSpec{HandleID: id, Block: counts}}
	h.Name = name
	stamp := ownership.NewStamp(calico.ParseHandleID(id))
	stamp.Time = e.o.Clock.Now()
	h.Annotations = map[string]string{ownership.StampAnnotation: stamp.Encode()}
	e.hold(h)
	return h
}

func (e *Effector) hold(h *calico.IPAMHandle) {
	if e.o.Hold && !slices.Contains(h.Finalizers, ownership.Finalizer) {
		h.Finalizers = append(h.Finalizers, ownership.Finalizer)
	}
}

// write does the repair of h, nil for a missing handle that is to be made.
func (e *Effector) write(ctx context.Context, h, made *calico.IPAMHandle, counts map[string]int) (Outcome, error) {
	if h != nil && len(counts) == 0 {
		return e.remove(ctx, h)
	}
	err := e.request(ctx, func(ctx context.Context) (err error) {
		if h == nil {
			_, err = e.o.API.CreateHandle(ctx, made)
			return err
		}
		agreed := h.DeepCopy()
		agreed.Spec.Block, agreed.Spec.Deleted = counts, false
		e.hold(agreed)
		_, err = e.o.API.UpdateHandle(ctx, agreed)
		return err
	})
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return Conflict, nil
	case apierrors.IsNotFound(err):
		return Vanished, nil
	case err != nil:
		return "", fmt.Errorf("repair handle %s: %w", made.Name, err)
	}
	return Done, nil
}
