package certs

import (
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEvaluate(t *testing.T) {
	now := time.Date(2026, 12, 1, 9, 30, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { v := metav1.NewTime(now.Add(d)); return &v }
	valid := &x509.Certificate{NotBefore: now.Add(-60 * 24 * time.Hour), NotAfter: now.Add(30 * 24 * time.Hour)}
	ready := func(edits ...func(*certmanagerv1.CertificateStatus)) *certmanagerv1.Certificate {
		c := &certmanagerv1.Certificate{Status: certmanagerv1.CertificateStatus{
			Conditions: []certmanagerv1.CertificateCondition{{Type: certmanagerv1.CertificateConditionReady, Status: cmmeta.ConditionTrue}},
			NotBefore:  at(-60 * 24 * time.Hour), NotAfter: at(30 * 24 * time.Hour), RenewalTime: at(time.Hour),
		}}
		for _, edit := range edits {
			edit(&c.Status)
		}
		return c
	}
	for name, c := range map[string]struct {
		facts   Facts
		want    Reason
		says    string
		serving bool
	}{
		"missing before anything is read": {Facts{}, Missing, "yet", false},
		"missing with the reason":         {Facts{Problem: errors.New("no such file")}, Missing, "no such file", false},
		"expired at the very second": {
			Facts{Served: &x509.Certificate{NotAfter: now}}, Expired, "expired at 2026-12-01T09:30:00Z", false,
		},
		"not valid yet": {
			Facts{Served: &x509.Certificate{NotBefore: now.Add(time.Minute), NotAfter: now.Add(time.Hour)}}, NotYetValid, "only from", false,
		},
		"good when nothing is watched":           {Facts{Served: valid}, Good, "served until", true},
		"good before the Certificate is read":    {Facts{Served: valid, Watched: "a/b", Unread: true}, Good, "", true},
		"not found without the Certificate":      {Facts{Served: valid, Watched: "a/b"}, NotFound, "no Certificate a/b", true},
		"unwatchable when reading it is refused": {Facts{Served: valid, Watched: "a/b", Unwatched: errors.New("forbidden")}, Unwatchable, "forbidden", true},
		"good when cert-manager says so":         {Facts{Served: valid, Watched: "a/b", Certificate: ready()}, Good, "", true},
		"not ready when cert-manager says so": {
			Facts{Served: valid, Watched: "a/b", Certificate: ready(func(s *certmanagerv1.CertificateStatus) {
				s.Conditions[0].Status, s.Conditions[0].Reason, s.Conditions[0].Message = cmmeta.ConditionFalse, "Failed", "no issuer"
			})}, NotReady, "Failed: no issuer", true,
		},
		"not ready while cert-manager says nothing": {
			Facts{Served: valid, Watched: "a/b", Certificate: ready(func(s *certmanagerv1.CertificateStatus) { s.Conditions = nil })}, NotReady, "not answered", true,
		},
		"good within the margin after the renewal time": {
			Facts{Served: valid, Watched: "a/b", Certificate: ready(func(s *certmanagerv1.CertificateStatus) { s.RenewalTime = at(-10 * time.Minute) })}, Good, "", true,
		},
		"overdue past the margin": {
			Facts{Served: valid, Watched: "a/b", Certificate: ready(func(s *certmanagerv1.CertificateStatus) { s.RenewalTime = at(-11 * time.Minute) })}, RenewalOverdue, "should have been renewed", true,
		},
		"good while a renewed one is on its way into the file": {
			Facts{Served: valid, Watched: "a/b", Certificate: ready(func(s *certmanagerv1.CertificateStatus) {
				s.NotBefore, s.NotAfter = at(-time.Minute), at(90*24*time.Hour)
			})}, Good, "", true,
		},
		"not loaded when the renewed one does not come": {
			Facts{Served: valid, Watched: "a/b", Certificate: ready(func(s *certmanagerv1.CertificateStatus) {
				s.NotBefore, s.NotAfter, s.RenewalTime = at(-time.Hour), at(90*24*time.Hour), at(60*24*time.Hour)
			})}, NotLoaded, "still holds", true,
		},
		"expired before all that cert-manager says": {
			Facts{Served: &x509.Certificate{NotAfter: now.Add(-time.Hour)}, Watched: "a/b", Certificate: ready()}, Expired, "", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.facts.Now, c.facts.Margin = now, DefaultMargin
			got := Evaluate(c.facts)
			if got.Reason != c.want || !strings.Contains(got.Message, c.says) {
				t.Errorf("got %s %q, want %s that says %q", got.Reason, got.Message, c.want, c.says)
			}
			if got.Serving() != c.serving {
				t.Errorf("serving is %v", got.Serving())
			}
		})
	}
}
