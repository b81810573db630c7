package effect_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

func (s *server) UpdateHandle(_ context.Context, h *calico.IPAMHandle) (*calico.IPAMHandle, error) {
	switch {
	case s.handle == nil:
		return nil, apierrors.NewNotFound(handles, h.Name)
	case s.handle.ResourceVersion != h.ResourceVersion:
		return nil, apierrors.NewConflict(handles, h.Name, errors.New("changed"))
	}
	s.writes = append(s.writes, "update")
	s.handle = h.DeepCopy()
	s.bump()
	return s.handle.DeepCopy(), nil
}

func TestRepair(t *testing.T) {
	counts := func(n int) map[string]int { return map[string]int{cidr: n} }
	marked := func() *calico.IPAMHandle {
		h := orphan()
		h.Spec.Deleted = true
		return h
	}
	skewed := effect.Diverged{Kind: verdict.Skewed, Name: id, ResourceVersion: "7", Counts: counts(2)}
	for name, tc := range map[string]struct {
		handle *calico.IPAMHandle
		block  *calico.IPAMBlock
		d      effect.Diverged
		change func(*effect.Options)
		log    error
		want   effect.Outcome
		err    error
		writes []string
		// after are the counts that the handle has then; nil for no handle.
		after map[string]int
	}{
		"counts are set to the blocks'": {
			handle: orphan(), block: block("3", id, id), d: skewed,
			want: effect.Done, writes: []string{"update"}, after: counts(2),
		},
		"a missing handle is made": {
			block: block("3", id), d: effect.Diverged{Kind: verdict.Missing, Name: id, Counts: counts(1)},
			want: effect.Done, writes: []string{"create"}, after: counts(1),
		},
		"a handle marked deleted but in use is revived": {
			handle: marked(), block: block("3", id), d: effect.Diverged{Kind: verdict.Stuck, Name: id, ResourceVersion: "7", Counts: counts(1)},
			want: effect.Done, writes: []string{"update"}, after: counts(1),
		},
		"a delete that got stuck is finished": {
			handle: marked(), block: block("3"), d: effect.Diverged{Kind: verdict.Stuck, Name: id, ResourceVersion: "7"},
			want: effect.Done, writes: []string{"delete"},
		},
		"a delete that got stuck is finished, finalizer and all": {
			handle: func() *calico.IPAMHandle {
				h := marked()
				h.Finalizers = []string{ownership.Finalizer}
				return h
			}(),
			block: block("3"), d: effect.Diverged{Kind: verdict.Stuck, Name: id, ResourceVersion: "7"},
			want: effect.Done, writes: []string{"patch", "delete"},
		},
		"an address that was given back just now is Calico's to count down": {
			handle: orphan(), block: block("4", id), d: skewed,
			want: effect.Conflict, after: counts(1),
		},
		"an address that was taken just now is counted later": {
			handle: orphan(), block: block("4", id, id, id), d: skewed,
			want: effect.Conflict, after: counts(1),
		},
		"a handle that somebody wrote is left": {
			handle: func() *calico.IPAMHandle {
				h := orphan()
				h.ResourceVersion = "8"
				return h
			}(),
			block: block("3", id, id), d: skewed, want: effect.Conflict, after: counts(1),
		},
		"a missing handle that is there by now is left": {
			handle: orphan(), block: block("3", id), d: effect.Diverged{Kind: verdict.Missing, Name: id, Counts: counts(1)},
			want: effect.Conflict, after: counts(1),
		},
		"a stuck delete of a handle that is in use again is left": {
			handle: marked(), block: block("4", id), d: effect.Diverged{Kind: verdict.Stuck, Name: id, ResourceVersion: "7"},
			want: effect.Conflict, after: counts(1),
		},
		"a handle that was skewed and agrees now is left": {
			handle: orphan(), block: block("3", id), d: effect.Diverged{Kind: verdict.Skewed, Name: id, ResourceVersion: "7", Counts: counts(1)},
			want: effect.Kept, after: counts(1),
		},
		"a dry run writes nothing": {
			handle: orphan(), block: block("3", id, id), d: skewed, change: func(o *effect.Options) { o.DryRun = true },
			want: effect.WouldDo, after: counts(1),
		},
		"nothing is written while no effect is allowed": {
			handle: orphan(), block: block("3", id, id), d: skewed,
			change: func(o *effect.Options) { o.Gate = func() error { return errors.New("locked") } },
			err:    effect.ErrClosed, after: counts(1),
		},
		"nothing is written that is not recorded": {
			handle: orphan(), block: block("3", id, id), d: skewed, log: errFull, err: errFull, after: counts(1),
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tc.handle, func(o *effect.Options) {
				o.Hold = true
				if tc.change != nil {
					tc.change(o)
				}
			})
			r.log.err = tc.log
			r.server.blocks[tc.block.Name] = tc.block
			result, err := r.Repair(t.Context(), tc.d)
			if result.Outcome != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("got %q, %v, want %q, %v", result.Outcome, err, tc.want, tc.err)
			}
			if !slices.Equal(r.server.writes, tc.writes) {
				t.Errorf("writes are %q, want %q", r.server.writes, tc.writes)
			}
			switch h := r.server.handle; {
			case (h == nil) != (tc.after == nil):
				t.Errorf("the handle is %+v", h)
			case h != nil && !maps.Equal(h.Spec.Block, tc.after):
				t.Errorf("its counts are %v, want %v", h.Spec.Block, tc.after)
			case h != nil && tc.want == effect.Done && (h.Spec.Deleted || h.Spec.HandleID != id):
				t.Errorf("the handle is %+v", h.Spec)
			}
			if h := r.server.handle; h != nil && tc.want == effect.Done {
				if _, stamped := h.Annotations[ownership.StampAnnotation]; stamped != (tc.handle == nil) || !slices.Contains(h.Finalizers, ownership.Finalizer) {
					t.Errorf("it is stamped: %v, with finalizers %q", stamped, h.Finalizers)
				}
			}
			if tc.want == effect.Done != slices.Contains(r.log.actions(), audit.Repair) {
				t.Errorf("recorded are %v", r.log.actions())
			}
		})
	}
}

var errFull = errors.New("the disk is full")
