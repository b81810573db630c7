package certs

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// api serves one Certificate; news are sent to whoever watches.
type api struct {
	t    *testing.T
	list certmanagerv1.CertificateList
	news chan *certmanagerv1.Certificate
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if r.URL.Path != "/apis/cert-manager.io/v1/namespaces/ipam-guard-system/certificates" || query.Get("fieldSelector") != "metadata.name=serving" {
		a.t.Errorf("asked for more than the one Certificate: %s", r.URL)
	}
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	switch {
	case query.Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		a.encode(out, metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
	case query.Get("watch") == "":
		a.encode(out, a.list)
	default:
		w.WriteHeader(http.StatusOK)
		for {
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			select {
			case <-r.Context().Done():
				return
			case c := <-a.news:
				a.encode(out, map[string]any{"type": "MODIFIED", "object": c})
			}
		}
	}
}

func (a *api) encode(out *json.Encoder, v any) {
	if err := out.Encode(v); err != nil {
		a.t.Errorf("answer: %v", err)
	}
}

func certificate(version string, ready cmmeta.ConditionStatus) *certmanagerv1.Certificate {
	return &certmanagerv1.Certificate{
		TypeMeta:   metav1.TypeMeta{APIVersion: "cert-manager.io/v1", Kind: "Certificate"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ipam-guard-system", Name: "serving", ResourceVersion: version},
		Status: certmanagerv1.CertificateStatus{Conditions: []certmanagerv1.CertificateCondition{{
			Type: certmanagerv1.CertificateConditionReady, Status: ready, Reason: "Failed", Message: "no issuer",
		}}},
	}
}

func TestCertificateIsFollowed(t *testing.T) {
	a := &api{t: t, news: make(chan *certmanagerv1.Certificate), list: certmanagerv1.CertificateList{
		TypeMeta: metav1.TypeMeta{APIVersion: "cert-manager.io/v1", Kind: "CertificateList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "1"},
		Items:    []certmanagerv1.Certificate{*certificate("1", cmmeta.ConditionFalse)},
	}}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	ca, o := newAuthority(t), testOptions(t)
	ca.issue(t, o.Dir, time.Hour)
	o.Config = &rest.Config{Host: server.URL}
	o.Certificate = types.NamespacedName{Namespace: "ipam-guard-system", Name: "serving"}
	s := start(t, o)
	eventually(t, "the Certificate is not ready", func() bool {
		state := s.State()
		return state.Reason == NotReady && strings.Contains(state.Message, "no issuer")
	})
	a.news <- certificate("2", cmmeta.ConditionTrue)
	eventually(t, "the Certificate is ready", func() bool { return s.State().Reason == Good })
}
