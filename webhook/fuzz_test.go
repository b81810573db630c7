package webhook

import (
	"encoding/json"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// FuzzMutate feeds arbitrary objects: nothing is refused, nothing panics, and
// a patch always applies and leaves a readable stamp.
func FuzzMutate(f *testing.F) {
	f.Add([]byte(`{}`), []byte(`null`), true)
	f.Add([]byte(`{"metadata":{"name":"x","annotations":null,"finalizers":[]},"spec":{"handleID":"X","block":{"a":-1}}}`), []byte(nil), true)
	f.Add(raw(f, object()).Raw, raw(f, object(stampedWith("was"), held)).Raw, false)
	f.Add(raw(f, object(bare, terminating)).Raw, raw(f, object(terminating)).Raw, false)
	f.Add([]byte("{\"metadata\":{\"name\":\"x\"},\"spec\":{\"handleID\":\"x.\xff\"}}"), []byte(nil), true)
	m := mutating(f, options(f))
	v := validating(f, options(f))
	f.Fuzz(func(t *testing.T, object, old []byte, create bool) {
		req := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Update, Object: runtime.RawExtension{Raw: object}, OldObject: runtime.RawExtension{Raw: old},
		}}
		v.Handle(t.Context(), req)
		req.Operation = admissionv1.Delete
		if resp := v.Handle(t.Context(), req); !resp.Allowed {
			t.Fatalf("refused, although no block is there: %v", resp.Result)
		}
		req.Operation = admissionv1.Update
		if create {
			req.Operation = admissionv1.Create
		}
		resp := m.Handle(t.Context(), req)
		if !resp.Allowed {
			t.Fatal("refused")
		}
		if resp.Patch == nil {
			return
		}
		patch, err := jsonpatch.DecodePatch(resp.Patch)
		if err != nil {
			t.Fatalf("patch %s: %v", resp.Patch, err)
		}
		after, err := patch.Apply(object)
		if err != nil {
			// The API server never repeats a key or sends other than objects.
			if !canonical(object) {
				return
			}
			t.Fatalf("patch %s does not apply to %s: %v", resp.Patch, object, err)
		}
		h, err := decode(after)
		if err != nil {
			return
		}
		if create {
			if _, err := ownership.ParseStamp(h.stamp()); err != nil && len(object) < 1024 {
				t.Fatalf("stamp %q: %v", h.stamp(), err)
			}
		}
	})
}

// canonical tells whether encoding the object anew keeps its form.
func canonical(object []byte) bool {
	var v any
	if err := json.Unmarshal(object, &v); err != nil {
		return false
	}
	again, err := json.Marshal(v)
	return err == nil && len(again) == len(object)
}
