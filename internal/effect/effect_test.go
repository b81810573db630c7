package effect_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/pace"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

var handles = schema.GroupResource{Group: "crd.projectcalico.org", Resource: "ipamhandles"}

// server is an API with the API server's rules for one handle and its blocks.
type server struct {
	effect.API
	handle *calico.IPAMHandle
	blocks map[string]*calico.IPAMBlock
	err    error
	writes []string
	// beforeDelete runs first, as a writer that is faster.
	beforeDelete, beforePatch func(*calico.IPAMHandle)
}

func (s *server) bump() {
	rv, _ := strconv.Atoi(s.handle.ResourceVersion)
	s.handle.ResourceVersion = strconv.Itoa(rv + 1)
}

func (s *server) GetHandle(_ context.Context, name string) (*calico.IPAMHandle, error) {
	if s.err != nil {
		return nil, s.err
	}
	if s.handle == nil || s.handle.Name != name {
		return nil, apierrors.NewNotFound(handles, name)
	}
	return s.handle.DeepCopy(), nil
}

func (s *server) GetBlock(_ context.Context, name string) (*calico.IPAMBlock, error) {
	if b, ok := s.blocks[name]; ok {
		return b, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "ipamblocks"}, name)
}

func (s *server) DeleteHandle(_ context.Context, name string, uid types.UID, rv string) (*calico.IPAMHandle, error) {
	if s.beforeDelete != nil {
		s.beforeDelete(s.handle)
	}
	switch {
	case s.err != nil:
		return nil, s.err
	case s.handle == nil:
		return nil, apierrors.NewNotFound(handles, name)
	case s.handle.UID != uid || s.handle.ResourceVersion != rv:
		return nil, apierrors.NewConflict(handles, name, errors.New("precondition failed"))
	}
	s.writes = append(s.writes, "delete")
	if len(s.handle.Finalizers) > 0 {
		now := metav1.Now()
		s.handle.DeletionTimestamp = &now
		s.bump()
		return s.handle.DeepCopy(), nil
	}
	s.handle = nil
	return nil, nil
}

func (s *server) PatchHandle(_ context.Context, name string, patch []byte) (*calico.IPAMHandle, error) {
	if s.beforePatch != nil {
		s.beforePatch(s.handle)
	}
	var p struct {
		Metadata struct {
			UID             types.UID          `json:"uid"`
			ResourceVersion string             `json:"resourceVersion"`
			Finalizers      []string           `json:"finalizers"`
			Annotations     map[string]*string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, err
	}
	if p.Metadata.UID != s.handle.UID || p.Metadata.ResourceVersion != s.handle.ResourceVersion {
		return nil, apierrors.NewConflict(handles, name, errors.New("changed"))
	}
	s.writes = append(s.writes, "patch")
	if strings.Contains(string(patch), "finalizers") {
		s.handle.Finalizers = p.Metadata.Finalizers
	}
	for key, value := range p.Metadata.Annotations {
		if value == nil {
			delete(s.handle.Annotations, key)
			continue
		}
		metav1.SetMetaDataAnnotation(&s.handle.ObjectMeta, key, *value)
	}
	s.bump()
	out := s.handle
	if s.handle.DeletionTimestamp != nil && len(s.handle.Finalizers) == 0 {
		s.handle = nil
	}
	return out, nil
}

func (s *server) CreateHandle(_ context.Context, h *calico.IPAMHandle) (*calico.IPAMHandle, error) {
	if s.handle != nil {
		return nil, apierrors.NewAlreadyExists(handles, h.Name)
	}
	s.writes = append(s.writes, "create")
	s.handle = h.DeepCopy()
	return h, nil
}

// log keeps records.
type log struct {
	records []audit.Record
	err     error
}

func (l *log) Write(r audit.Record) error {
	if l.err != nil {
		return l.err
	}
	l.records = append(l.records, r)
	return nil
}

func (l *log) actions() (actions []audit.Action) {
	for _, r := range l.records {
		actions = append(actions, r.Action)
	}
	return actions
}

const (
	id    = "k8s-pod-network.78e00ae4f6a7c5d3b2a190817263544536271809fafbfcfdfeff000102030405"
	cidr  = "10.65.0.0/26"
	grace = 15 * time.Minute
)

func orphan() *calico.IPAMHandle {
	return &calico.IPAMHandle{
		ObjectMeta: metav1.ObjectMeta{
			Name: id, UID: "8a1b2c3d-0000-4000-8000-000000000001", ResourceVersion: "7",
			CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour)),
		},
		Spec: calico.IPAMHandleSpec{HandleID: id, Block: map[string]int{cidr: 1}},
	}
}

func held() *calico.IPAMHandle {
	h := orphan()
	h.Finalizers = []string{ownership.Finalizer}
	return h
}

func terminating() *calico.IPAMHandle {
	h := held()
	now := metav1.Now()
	h.DeletionTimestamp = &now
	return h
}

func terminatingSince(age time.Duration) *calico.IPAMHandle {
	h := terminating()
	at := metav1.NewTime(time.Now().Add(-age))
	h.DeletionTimestamp = &at
	return h
}

func block(rv string, handleIDs ...string) *calico.IPAMBlock {
	b := &calico.IPAMBlock{
		ObjectMeta: metav1.ObjectMeta{Name: "10-65-0-0-26", ResourceVersion: rv},
		Spec:       calico.IPAMBlockSpec{CIDR: cidr},
	}
	for n, handleID := range handleIDs {
		b.Spec.Attributes = append(b.Spec.Attributes, calico.AllocationAttribute{HandleID: &handleID})
		b.Spec.Allocations = append(b.Spec.Allocations, &n)
	}
	return b
}

type rig struct {
	*effect.Effector
	server *server
	log    *log
	cache  *inventory.Inventory
}

func newRig(t *testing.T, h *calico.IPAMHandle, change func(*effect.Options)) *rig {
	t.Helper()
	c := clock.RealClock{}
	p, err := pace.New(0, c)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{server: &server{handle: h, blocks: map[string]*calico.IPAMBlock{}}, log: &log{}, cache: inventory.New(c)}
	o := effect.Options{API: r.server, Evidence: r.cache, Audit: r.log, Pace: p, Clock: c, Grace: grace}
	if change != nil {
		change(&o)
	}
	r.Effector = effect.New(o)
	return r
}

func TestSweep(t *testing.T) {
	closed := errors.New("lease lost")
	for name, tc := range map[string]struct {
		handle  *calico.IPAMHandle
		arrange func(*rig)
		options func(*effect.Options)
		want    effect.Outcome
		err     error
		writes  []string
		actions []audit.Action
		// left tells whether the handle is still there.
		left bool
	}{
		"deletes an orphan in one request, recorded first": {
			handle: orphan(), want: effect.Done, writes: []string{"delete"}, actions: []audit.Action{audit.Sweep},
		},
		"keeps a handle that a block references": {
			handle:  orphan(),
			arrange: func(r *rig) { r.cache.ApplyBlock(block("8", id)) },
			want:    effect.Kept, left: true,
		},
		"keeps a handle that a block references in another case": {
			handle:  orphan(),
			arrange: func(r *rig) { r.cache.ApplyBlock(block("8", strings.ToUpper(id))) },
			want:    effect.Kept, left: true,
		},
		"keeps a handle whose object was written within the grace period": {
			handle: func() *calico.IPAMHandle {
				h := orphan()
				now := metav1.Now()
				h.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &now}}
				return h
			}(),
			want: effect.Kept, left: true,
		},
		"keeps a handle that somebody changed since it was read": {
			handle:  orphan(),
			arrange: func(r *rig) { r.server.beforeDelete = func(*calico.IPAMHandle) { r.server.bump() } },
			want:    effect.Conflict, actions: []audit.Action{audit.Sweep, audit.Kept}, left: true,
		},
		"keeps a handle that was made anew under its name": {
			handle:  orphan(),
			arrange: func(r *rig) { r.server.beforeDelete = func(h *calico.IPAMHandle) { h.UID = "another" } },
			want:    effect.Conflict, actions: []audit.Action{audit.Sweep, audit.Kept}, left: true,
		},
		"is content when the handle is gone already": {
			handle:  orphan(),
			arrange: func(r *rig) { r.server.beforeDelete = func(*calico.IPAMHandle) { r.server.handle = nil } },
			want:    effect.Vanished, actions: []audit.Action{audit.Sweep, audit.Kept},
		},
		"changes nothing in a dry run": {
			handle: orphan(), options: func(o *effect.Options) { o.DryRun = true },
			want: effect.WouldDo, left: true,
		},
		"sends nothing while the gate is closed": {
			handle: orphan(), options: func(o *effect.Options) { o.Gate = func() error { return closed } },
			err: effect.ErrClosed, left: true,
		},
		"sends nothing that is not recorded": {
			handle: orphan(), arrange: func(r *rig) { r.log.err = closed },
			err: closed, left: true,
		},
		"deletes a handle that carries our finalizer in two requests": {
			handle: held(), want: effect.Done, writes: []string{"patch", "delete"}, actions: []audit.Action{audit.Sweep},
		},
		"never leaves a handle terminating that Calico takes up again: the finalizer goes first": {
			handle: held(),
			arrange: func(r *rig) {
				r.server.beforeDelete = func(h *calico.IPAMHandle) {
					if len(h.Finalizers) > 0 {
						r.server.err = errors.New("deleted with the finalizer still on")
					}
					r.server.bump()
				}
			},
			want: effect.Conflict, writes: []string{"patch"}, actions: []audit.Action{audit.Sweep, audit.Kept}, left: true,
		},
		"leaves the finalizer on a handle that Calico takes up before": {
			handle:  held(),
			arrange: func(r *rig) { r.server.beforePatch = func(*calico.IPAMHandle) { r.server.bump() } },
			want:    effect.Conflict, actions: []audit.Action{audit.Sweep, audit.Kept}, left: true,
		},
		"deletes nothing when the gate closes after the finalizer went": {
			handle: held(),
			options: func(o *effect.Options) {
				asked := 0
				o.Gate = func() error {
					if asked++; asked > 2 {
						return closed
					}
					return nil
				}
			},
			err: effect.ErrClosed, writes: []string{"patch"}, actions: []audit.Action{audit.Sweep, audit.Kept}, left: true,
		},
		"lets an orphan go at once that somebody has deleted already": {
			handle: terminatingSince(time.Hour), want: effect.Done, writes: []string{"patch"}, actions: []audit.Action{audit.Sweep},
		},
		"does not touch a handle that another finalizer keeps": {
			handle: func() *calico.IPAMHandle {
				h := orphan()
				h.Finalizers = []string{"example.com/theirs"}
				return h
			}(),
			want: effect.Held, left: true,
		},
		"keeps a handle of unknown owner": {
			handle: func() *calico.IPAMHandle {
				h := orphan()
				h.Name, h.Spec.HandleID = "openstack", "openstack"
				return h
			}(),
			want: effect.Kept, left: true,
		},
		"sweeps a handle of unknown owner when told to": {
			handle: func() *calico.IPAMHandle {
				h := orphan()
				h.Name, h.Spec.HandleID = "openstack", "openstack"
				return h
			}(),
			options: func(o *effect.Options) { o.SweepUnknown = true },
			want:    effect.Done, writes: []string{"delete"}, actions: []audit.Action{audit.Sweep},
		},
		"never touches the reserved handle": {
			handle: func() *calico.IPAMHandle {
				h := orphan()
				h.Name, h.Spec.HandleID = calico.ReservedHandleID, calico.ReservedHandleID
				return h
			}(),
			options: func(o *effect.Options) { o.SweepUnknown = true },
			want:    effect.Kept, left: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tc.handle, tc.options)
			if tc.arrange != nil {
				tc.arrange(r)
			}
			got, err := r.Sweep(t.Context(), tc.handle.DeepCopy())
			if !errors.Is(err, tc.err) {
				t.Fatalf("got error %v, want %v", err, tc.err)
			}
			if got.Outcome != tc.want {
				t.Errorf("outcome is %q (%s/%s), want %q", got.Outcome, got.Verdict.Outcome, got.Verdict.Reason, tc.want)
			}
			if !slices.Equal(r.server.writes, tc.writes) {
				t.Errorf("writes are %v, want %v", r.server.writes, tc.writes)
			}
			if actions := r.log.actions(); !slices.Equal(actions, tc.actions) {
				t.Errorf("records are %v, want %v", actions, tc.actions)
			}
			if left := r.server.handle != nil; left != tc.left {
				t.Errorf("the handle is left: %v, want %v", left, tc.left)
			}
		})
	}
}

func TestSweepRecordsTheWholeHandle(t *testing.T) {
	h := orphan()
	r := newRig(t, h.DeepCopy(), nil)
	if _, err := r.Sweep(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	got := r.log.records[0]
	if got.Handle.Spec.HandleID != id || got.Handle.Spec.Block[cidr] != 1 || got.Handle.UID != h.UID {
		t.Errorf("recorded %+v", got.Handle)
	}
	if got.Verdict != "Orphaned" || got.Reason != "PodGone" || !strings.Contains(got.Detail, "no block references it") {
		t.Errorf("recorded %q %q %q", got.Verdict, got.Reason, got.Detail)
	}
}

func TestSweepKeepsARecordOfADeleteWhoseFateIsUnknown(t *testing.T) {
	r := newRig(t, orphan(), nil)
	r.server.err = apierrors.NewTimeoutError("etcd is slow", 1)
	if _, err := r.Sweep(t.Context(), orphan()); err == nil {
		t.Fatal("a timeout is no success")
	}
	if got := r.log.actions(); !slices.Equal(got, []audit.Action{audit.Sweep}) {
		t.Errorf("records are %v, want the sweep alone", got)
	}
}

func TestRelease(t *testing.T) {
	settled := func(h *calico.IPAMHandle) *calico.IPAMHandle {
		h.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
		return h
	}
	recent := func(h *calico.IPAMHandle) *calico.IPAMHandle {
		h.CreationTimestamp = metav1.Now()
		return h
	}
	for name, tc := range map[string]struct {
		handle  *calico.IPAMHandle
		arrange func(*rig)
		want    effect.Outcome
		left    bool
	}{
		"lets go of a deleted handle that nothing references": {handle: settled(terminating()), want: effect.Done},
		"holds a deleted handle that the caches see referenced": {
			handle: settled(terminating()), arrange: func(r *rig) { r.cache.ApplyBlock(block("8", id)) },
			want: effect.Kept, left: true,
		},
		"holds a deleted handle that a block references which the caches have not seen": {
			handle: settled(terminating()), arrange: func(r *rig) { r.server.blocks["10-65-0-0-26"] = block("8", id) },
			want: effect.Kept, left: true,
		},
		"holds a deleted handle whose assignment may be under way": {
			handle: recent(terminating()), want: effect.Kept, left: true,
		},
		"lets go at once when the assignment has ended": {
			handle: recent(terminating()),
			arrange: func(r *rig) {
				r.cache.ApplyHandle(inventory.FromObject(r.server.handle))
				r.cache.ApplyBlock(block("6"))
				r.cache.ApplyBlock(block("8", id))
				r.cache.ApplyBlock(block("9"))
			},
			want: effect.Done,
		},
		"leaves a handle that nobody deleted": {handle: settled(held()), want: effect.Kept, left: true},
		"leaves a handle without our finalizer": {
			handle: settled(orphan()), want: effect.Vanished, left: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tc.handle, nil)
			if tc.arrange != nil {
				tc.arrange(r)
			}
			got, err := r.Release(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if got.Outcome != tc.want {
				t.Errorf("outcome is %q (%s), want %q", got.Outcome, got.Detail, tc.want)
			}
			if left := r.server.handle != nil; left != tc.left {
				t.Errorf("the handle is left: %v, want %v", left, tc.left)
			}
		})
	}
}

func TestCompleteWritesThePodIntoTheStampOnce(t *testing.T) {
	h := orphan()
	stamp := ownership.NewStamp(calico.ParseHandleID(id))
	stamp.Node = "node-a"
	h.Annotations = map[string]string{ownership.StampAnnotation: stamp.Encode()}
	r := newRig(t, h, nil)
	for n, want := range []effect.Outcome{effect.Done, effect.Kept} {
		got, err := r.Complete(t.Context(), id, "shop", "cart-0", "uid-1", "node-b")
		if err != nil || got.Outcome != want {
			t.Fatalf("call %d: got %q, %v, want %q", n+1, got.Outcome, err, want)
		}
	}
	got, err := ownership.ParseStamp(r.server.handle.Annotations[ownership.StampAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	stamp.Namespace, stamp.Name, stamp.UID = "shop", "cart-0", "uid-1"
	if got != stamp {
		t.Errorf("the stamp is %+v, want %+v", got, stamp)
	}
}

func TestRestoreBringsASweptHandleBackAndRefusesASecond(t *testing.T) {
	h := orphan()
	h.Annotations = map[string]string{ownership.StampAnnotation: ownership.NewStamp(calico.ParseHandleID(id)).Encode()}
	r := newRig(t, h.DeepCopy(), nil)
	if _, err := r.Sweep(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	for n, want := range []effect.Outcome{effect.Done, effect.Kept} {
		got, err := r.Restore(t.Context(), r.log.records[0].Handle)
		if err != nil || got.Outcome != want {
			t.Fatalf("call %d: got %q, %v, want %q", n+1, got.Outcome, err, want)
		}
	}
	back := r.server.handle
	if back.Spec.Block[cidr] != 1 || back.Annotations[ownership.StampAnnotation] == "" || back.UID != "" || back.ResourceVersion != "" {
		t.Errorf("restored %+v", back)
	}
}

func TestStrip(t *testing.T) {
	t.Run("takes finalizer and stamp off in one request", func(t *testing.T) {
		h := held()
		h.Annotations = map[string]string{ownership.StampAnnotation: "{}", "example.com/theirs": "1"}
		h.Finalizers = append(h.Finalizers, "example.com/theirs")
		r := newRig(t, h, nil)
		got, err := r.Strip(t.Context(), h.DeepCopy(), false)
		if err != nil || got.Outcome != effect.Done {
			t.Fatalf("got %q, %v", got.Outcome, err)
		}
		if !slices.Equal(r.server.handle.Finalizers, []string{"example.com/theirs"}) || len(r.server.handle.Annotations) != 1 {
			t.Errorf("left %v and %v", r.server.handle.Finalizers, r.server.handle.Annotations)
		}
	})
	t.Run("holds a deleted handle in use unless forced", func(t *testing.T) {
		r := newRig(t, terminating(), nil)
		r.cache.ApplyBlock(block("8", id))
		if got, err := r.Strip(t.Context(), terminating(), false); err != nil || got.Outcome != effect.Held {
			t.Fatalf("got %q, %v", got.Outcome, err)
		}
		if got, err := r.Strip(t.Context(), r.server.handle.DeepCopy(), true); err != nil || got.Outcome != effect.Done {
			t.Fatalf("forced: got %q, %v", got.Outcome, err)
		}
	})
}

func TestSweepableNeverTakesAProvisionalVerdict(t *testing.T) {
	r := newRig(t, orphan(), func(o *effect.Options) { o.SweepUnknown = true })
	if r.Sweepable(verdict.Verdict{Outcome: verdict.Orphaned, Provisional: true}) {
		t.Error("a verdict that the spec may overturn is sweepable")
	}
}
