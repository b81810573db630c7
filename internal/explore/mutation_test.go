package explore

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/ipam-guard/ipam-guard/controllers/sweeper"
	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// without are the product without one safety rule: each wraps what the rule
// rests on.
var (
	withoutGrace = Rules{Grace: time.Minute}

	withoutVersion = Rules{API: func(a effect.API) effect.API { return anyVersion{a} }}
	withoutUID     = Rules{API: func(a effect.API) effect.API { return anyUID{a} }}

	withoutFreshness = Rules{Freshness: func(sweeper.Freshness) sweeper.Freshness { return alwaysFresh{} }}

	withoutSecondProof = Rules{Freshness: func(f sweeper.Freshness) sweeper.Freshness { return &onceFresh{Freshness: f} }}

	withoutSecondJudgement = Rules{Evidence: func(e effect.Evidence) effect.Evidence {
		return frozen{e, map[string]verdict.Evidence{}}
	}}

	withoutReferences = Rules{SeenBlock: func(b *calico.IPAMBlock) *calico.IPAMBlock {
		b = b.DeepCopy()
		clear(b.Spec.Allocations)
		return b
	}}

	withoutLastWrite = Rules{Seen: func(h *calico.IPAMHandle) *calico.IPAMHandle {
		h = h.DeepCopy()
		h.ManagedFields = nil
		return h
	}}

	withoutOwner = Rules{Alter: func(e verdict.Evidence) verdict.Evidence {
		e.Owner = ownership.Finding{State: ownership.StateGone, Reason: ownership.PodGone}
		return e
	}}

	withoutLock = Rules{Gate: func(effect.Gate) effect.Gate { return func() error { return nil } }}

	withoutLease = Rules{API: func(a effect.API) effect.API { return deaf{a} }}

	withoutRecord = Rules{Audit: func(audit.Log) audit.Log { return forgetful{} }}

	withoutFinalizerFirst = Rules{API: func(a effect.API) effect.API { return &deleteFirst{API: a} }}

	withoutPatchVersion = Rules{API: func(a effect.API) effect.API { return anyPatch{a} }}

	withoutUpdateVersion = Rules{API: func(a effect.API) effect.API { return anyUpdate{a} }}

	withoutLiveRead = Rules{API: func(a effect.API) effect.API { return blind{a} }}

	withoutCachedReferences = Rules{Alter: func(e verdict.Evidence) verdict.Evidence {
		if e.Handle.Terminating {
			e.References = nil
		}
		return e
	}}

	withoutGuardsWait = Rules{Alter: func(e verdict.Evidence) verdict.Evidence {
		if e.Handle.Terminating {
			e.Handle.LastWrite = epoch.Add(-time.Hour)
		}
		return e
	}}

	withoutSeenEnd = Rules{Alter: func(e verdict.Evidence) verdict.Evidence {
		e.WasReferenced = len(e.References) == 0
		return e
	}}

	withoutHoldOnCreate = Rules{Mutating: answering(func(req admission.Request, resp admission.Response) admission.Response {
		if req.Operation == admissionv1.Create {
			return withoutOps(resp, "/metadata/finalizers")
		}
		return resp
	})}

	withoutHoldOnUpdate = Rules{Mutating: answering(func(req admission.Request, resp admission.Response) admission.Response {
		if req.Operation == admissionv1.Update {
			return withoutOps(resp, "/metadata/finalizers")
		}
		return resp
	})}

	withoutHoldAnew = Rules{Mutating: answering(func(req admission.Request, resp admission.Response) admission.Response {
		if req.Operation == admissionv1.Update && len(decoded(req.OldObject.Raw).Finalizers) == 0 {
			return withoutOps(resp, "/metadata/finalizers")
		}
		return resp
	})}

	withoutFreePass = Rules{Mutating: answering(func(req admission.Request, resp admission.Response) admission.Response {
		if h := decoded(req.Object.Raw); h.Spec.Deleted && len(h.Finalizers) == 0 {
			hold := `{"op":"add","path":"/metadata/finalizers","value":["` + ownership.Finalizer + `"]}]`
			resp.Patch = append(append(resp.Patch[:len(resp.Patch)-1:len(resp.Patch)-1], ','), hold...)
		}
		return resp
	})}

	withoutRefusal = Rules{Validating: answering(func(admission.Request, admission.Response) admission.Response {
		return admission.Allowed("")
	})}
)

// anyVersion drops the resource version of a delete's preconditions.
type anyVersion struct{ effect.API }

func (a anyVersion) DeleteHandle(ctx context.Context, name string, uid types.UID, _ string) (*calico.IPAMHandle, error) {
	return a.API.DeleteHandle(ctx, name, uid, "")
}

// anyUID drops the UID.
type anyUID struct{ effect.API }

func (a anyUID) DeleteHandle(ctx context.Context, name string, _ types.UID, rv string) (*calico.IPAMHandle, error) {
	return a.API.DeleteHandle(ctx, name, "", rv)
}

// anyPatch drops both from a patch.
type anyPatch struct{ effect.API }

func (a anyPatch) PatchHandle(ctx context.Context, name string, patch []byte) (*calico.IPAMHandle, error) {
	var p map[string]map[string]any
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, err
	}
	delete(p["metadata"], "uid")
	delete(p["metadata"], "resourceVersion")
	patch, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return a.API.PatchHandle(ctx, name, patch)
}

// anyUpdate drops both from an update.
type anyUpdate struct{ effect.API }

func (a anyUpdate) UpdateHandle(ctx context.Context, h *calico.IPAMHandle) (*calico.IPAMHandle, error) {
	h = h.DeepCopy()
	h.UID, h.ResourceVersion = "", ""
	return a.API.UpdateHandle(ctx, h)
}

// alwaysFresh claims that the caches are.
type alwaysFresh struct{}

func (alwaysFresh) ProveFresh(context.Context) error { return nil }

// onceFresh proves it once a pass.
type onceFresh struct {
	sweeper.Freshness
	asked bool
}

func (f *onceFresh) ProveFresh(ctx context.Context) error {
	if f.asked {
		return nil
	}
	f.asked = true
	return f.Freshness.ProveFresh(ctx)
}

// frozen judges a handle by what was known of it the first time.
type frozen struct {
	effect.Evidence
	first map[string]verdict.Evidence
}

func (f frozen) EvidenceFor(h *calico.IPAMHandle, now time.Time, grace time.Duration) verdict.Evidence {
	if _, ok := f.first[h.Name]; !ok {
		f.first[h.Name] = f.Evidence.EvidenceFor(h, now, grace)
	}
	return f.first[h.Name]
}

// deaf does not hear that its context has ended.
type deaf struct{ effect.API }

func (d deaf) DeleteHandle(ctx context.Context, name string, uid types.UID, rv string) (*calico.IPAMHandle, error) {
	return d.API.DeleteHandle(context.WithoutCancel(ctx), name, uid, rv)
}

func (d deaf) PatchHandle(ctx context.Context, name string, patch []byte) (*calico.IPAMHandle, error) {
	return d.API.PatchHandle(context.WithoutCancel(ctx), name, patch)
}

// forgetful keeps no record.
type forgetful struct{}

func (forgetful) Write(audit.Record) error { return nil }

// blind finds no block when it looks itself.
type blind struct{ effect.API }

func (blind) GetBlock(_ context.Context, name string) (*calico.IPAMBlock, error) {
	return nil, apierrors.NewNotFound(blockResource, name)
}

// deleteFirst deletes a handle with the finalizer on, and takes that off after.
type deleteFirst struct {
	effect.API
	releasing bool
}

// GetHandle is asked by the guard; the sweeper reads past the effector.
func (d *deleteFirst) GetHandle(ctx context.Context, name string) (*calico.IPAMHandle, error) {
	d.releasing = true
	return d.API.GetHandle(ctx, name)
}

func (d *deleteFirst) PatchHandle(ctx context.Context, name string, patch []byte) (*calico.IPAMHandle, error) {
	if d.releasing {
		return d.API.PatchHandle(ctx, name, patch)
	}
	h := &calico.IPAMHandle{}
	err := json.Unmarshal(patch, h)
	h.Name = name
	return h, err
}

func (d *deleteFirst) DeleteHandle(ctx context.Context, name string, uid types.UID, rv string) (*calico.IPAMHandle, error) {
	kept, err := d.API.DeleteHandle(ctx, name, uid, rv)
	if kept == nil {
		return nil, err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": kept.UID, "resourceVersion": kept.ResourceVersion, "finalizers": []string{},
	}})
	if err != nil {
		return nil, err
	}
	_, err = d.API.PatchHandle(ctx, name, patch)
	return nil, err
}

// answering changes what admission answers.
func answering(change func(admission.Request, admission.Response) admission.Response) func(admission.Handler) admission.Handler {
	return func(h admission.Handler) admission.Handler {
		return admission.HandlerFunc(func(ctx context.Context, req admission.Request) admission.Response {
			return change(req, h.Handle(ctx, req))
		})
	}
}

// withoutOps leaves out what a patch does below path.
func withoutOps(resp admission.Response, path string) admission.Response {
	if resp.Patch == nil {
		return resp
	}
	var ops []map[string]any
	if err := json.Unmarshal(resp.Patch, &ops); err != nil {
		panic(err)
	}
	ops = slices.DeleteFunc(ops, func(op map[string]any) bool {
		at, _ := op["path"].(string)
		return strings.HasPrefix(at, path)
	})
	patch, err := json.Marshal(ops)
	if err != nil {
		panic(err)
	}
	resp.Patch = patch
	return resp
}

func decoded(raw []byte) *calico.IPAMHandle {
	h := &calico.IPAMHandle{}
	if err := json.Unmarshal(raw, h); err != nil {
		panic(err)
	}
	return h
}

// TestEachRuleIsNeeded takes one safety rule away at a time: the explorer then
// finds a schedule that breaks a promise.
func TestEachRuleIsNeeded(t *testing.T) {
	for name, tc := range map[string]struct {
		rules    Rules
		scenario string
		breaks   string
	}{
		"the grace period outlasts an assignment":                             {withoutGrace, "assign", "IPAM Guard has removed"},
		"a delete carries the resource version that was judged":               {withoutVersion, "tunnel at once", "IPAM Guard has removed"},
		"the caches are proven fresh before a batch":                          {withoutFreshness, "assign", "IPAM Guard has removed"},
		"a proof that has grown old is made anew":                             {withoutSecondProof, "tunnel", "IPAM Guard has removed"},
		"a handle is judged again after the proof":                            {withoutSecondJudgement, "assign", "IPAM Guard has removed"},
		"a handle that a block references is in use, whatever its owner":      {withoutReferences, "release", "IPAM Guard has removed"},
		"a handle's last write is the newest of all, not its creation":        {withoutLastWrite, "tunnel", "IPAM Guard has removed"},
		"nothing is swept while the datastore is locked":                      {withoutLock, "lock", "IPAM Guard has removed"},
		"a replica that lost the lease sends nothing more":                    {withoutLease, "two replicas", "lost the lease"},
		"a delete is recorded before it is sent":                              {withoutRecord, "release", "without a record"},
		"a sweep takes the finalizer off before it deletes":                   {withoutFinalizerFirst, "tunnel at once", "IPAM Guard has removed"},
		"a finalizer is taken off by the version that was judged":             {withoutPatchVersion, "tunnel held", "IPAM Guard has removed"},
		"a repair waits as long as an assignment may be under way":            {withoutGrace, "repair, under way", "rewritten not to name it"},
		"a repair carries the resource version that was observed":             {withoutUpdateVersion, "repair, second address", "rewritten not to name it"},
		"the guard reads the blocks that a handle names":                      {withoutLiveRead, "raw delete", "IPAM Guard has removed"},
		"the guard waits while an assignment may be under way":                {withoutGuardsWait, "raw delete", "IPAM Guard has removed"},
		"only an end that was seen spares the guard's wait":                   {withoutSeenEnd, "raw delete", "IPAM Guard has removed"},
		"a new handle is held":                                                {withoutHoldOnCreate, "raw delete", "somebody could delete"},
		"an update that knows nothing of the finalizer gets it back":          {withoutHoldOnUpdate, "dual stack", "somebody could delete"},
		"a handle that lost its finalizer to a late sweep is held anew":       {withoutHoldAnew, "tunnel, raw delete", "somebody could delete"},
		"a handle that Calico marks deleted is not held, so Calico may go on": {withoutFreePass, "release", "marked deleted and held"},
	} {
		t.Run(name, func(t *testing.T) {
			v := hunt(t, tc.rules, tc.scenario)
			if v == nil && testing.Short() {
				t.Skip("needs a longer look")
			}
			if v == nil {
				t.Fatalf("nothing in %q breaks without this rule", tc.scenario)
			}
			if !strings.Contains(v.What, tc.breaks) {
				t.Errorf("breaks otherwise than by %q:\n%s", tc.breaks, v)
			}
		})
	}
}

// TestOneRuleCoversAnother takes two rules away that guard the same thing: the
// explorer misses neither alone, but both together.
func TestOneRuleCoversAnother(t *testing.T) {
	if testing.Short() {
		t.Skip("that nothing is found takes a while")
	}
	for name, tc := range map[string]struct {
		one, other Rules
		scenario   string
		// needed marks the other as one that is missed by itself.
		needed bool
	}{
		"the resource version covers the UID of a delete":   {withoutUID, withoutVersion, "tunnel at once", true},
		"the finalizer covers the refusal of a raw delete":  {withoutRefusal, withoutHoldOnCreate, "raw delete", true},
		"the guard's own read covers the cached references": {withoutCachedReferences, withoutLiveRead, "raw delete", true},
		"the proof of freshness covers the owner":           {withoutOwner, withoutFreshness, "assign", true},
		"the lock covers the owner of a block that is away": {withoutOwner, withoutLock, "lock, pod alive", false},
	} {
		t.Run(name, func(t *testing.T) {
			if v := hunt(t, tc.one, tc.scenario); v != nil {
				t.Errorf("the first is missed:\n%s", v)
			}
			if v := hunt(t, tc.other, tc.scenario); (v != nil) != tc.needed {
				t.Errorf("the second by itself breaks: %v", v)
			}
			if v := hunt(t, merged(tc.one, tc.other), tc.scenario); v == nil {
				t.Error("neither is missed")
			}
		})
	}
}

// merged takes away what either does.
func merged(a, b Rules) Rules {
	a.complete()
	b.complete()
	return Rules{
		API:        after(a.API, b.API),
		Seen:       after(a.Seen, b.Seen),
		SeenBlock:  after(a.SeenBlock, b.SeenBlock),
		Evidence:   after(a.Evidence, b.Evidence),
		Alter:      after(a.Alter, b.Alter),
		Audit:      after(a.Audit, b.Audit),
		Freshness:  after(a.Freshness, b.Freshness),
		Gate:       after(a.Gate, b.Gate),
		Mutating:   after(a.Mutating, b.Mutating),
		Validating: after(a.Validating, b.Validating),
		Grace:      min(a.Grace, b.Grace),
	}
}

func after[T any](a, b func(T) T) func(T) T { return func(v T) T { return b(a(v)) } }

// TestRestIsLookedAt makes the product fail to do its work: the explorer then
// finds that something is left when all have come to rest.
func TestRestIsLookedAt(t *testing.T) {
	for name, tc := range map[string]struct {
		rules            Rules
		scenario, breaks string
	}{
		"an orphan that is never swept": {
			Rules{Freshness: func(sweeper.Freshness) sweeper.Freshness { return neverFresh{} }}, "release", "never swept",
		},
		"a handle that is held for nothing": {
			Rules{API: func(a effect.API) effect.API { return neverPatches{a} }}, "tunnel held", "is stuck",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if v := hunt(t, tc.rules, tc.scenario); v == nil || !strings.Contains(v.What, tc.breaks) {
				t.Errorf("found %v", v)
			}
		})
	}
}

type neverFresh struct{}

func (neverFresh) ProveFresh(context.Context) error { return errNotYet }

type neverPatches struct{ effect.API }

func (neverPatches) PatchHandle(context.Context, string, []byte) (*calico.IPAMHandle, error) {
	return nil, apierrors.NewTimeoutError("etcd is slow", 1)
}
