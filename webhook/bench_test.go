package webhook

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// maxCreateAllocs is the budget of one CREATE, from the decoded request to the
// encoded response.
const maxCreateAllocs = 60

func review(t testing.TB) *admissionv1.AdmissionReview {
	t.Helper()
	req := request(t, admissionv1.Create, nil, object())
	return &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request:  &req.AdmissionRequest,
	}
}

func BenchmarkCreate(b *testing.B) {
	o := options(b)
	o.Clock = clock.RealClock{}
	h := hook(mutating(b, o), o.Log)
	req := request(b, admissionv1.Create, nil, object())
	b.Run("handler", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			resp := h.Handle(b.Context(), req)
			if resp.Patch == nil {
				b.Fatal("no stamp")
			}
			if _, err := json.Marshal(resp.AdmissionResponse); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("http", func(b *testing.B) {
		body, err := json.Marshal(review(b))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, MutatePath, bytes.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				b.Fatal(w.Body.String())
			}
		}
	})
}

func TestCreateKeepsToItsAllocations(t *testing.T) {
	o := options(t)
	h := hook(mutating(t, o), o.Log)
	req := request(t, admissionv1.Create, nil, object())
	allocs := testing.AllocsPerRun(100, func() {
		resp := h.Handle(t.Context(), req)
		if _, err := json.Marshal(resp.AdmissionResponse); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > maxCreateAllocs {
		t.Errorf("%v allocations a CREATE, want at most %d", allocs, maxCreateAllocs)
	}
}
