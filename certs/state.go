package certs

import (
	"crypto/x509"
	"fmt"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
)

// Reason is a stable code for the certificate's state.
type Reason string

// The reasons. The first group keeps admission from being served.
const (
	Missing     Reason = "CertificateMissing"
	Expired     Reason = "CertificateExpired"
	NotYetValid Reason = "CertificateNotYetValid"

	// NotReady: cert-manager says that the Certificate is not ready.
	NotReady Reason = "CertificateNotReady"
	// RenewalOverdue: the served certificate should have been replaced.
	RenewalOverdue Reason = "CertificateRenewalOverdue"
	// NotLoaded: cert-manager has renewed, but the file is still the old one.
	NotLoaded Reason = "CertificateNotLoaded"
	// NotFound: there is no such Certificate, or no cert-manager to have one.
	NotFound Reason = "CertificateNotFound"
	// Unwatchable: the Certificate cannot be read.
	Unwatchable Reason = "CertificateUnwatchable"

	Good Reason = "CertificateGood"
)

// State is what is known of the serving certificate.
type State struct {
	Reason  Reason
	Message string
}

// Serving tells whether callers can trust what is served. A certificate whose
// renewal fails is served on: taking it away would turn a warning into an
// outage.
func (s State) Serving() bool {
	return s.Reason != Missing && s.Reason != Expired && s.Reason != NotYetValid
}

// Facts are what a State rests on.
type Facts struct {
	// Served is the certificate that is served, nil without one; then Problem
	// says why.
	Served  *x509.Certificate
	Problem error
	// Watched is the cert-manager Certificate's name, "" when none is watched.
	Watched string
	// Certificate is what cert-manager says of it, nil when there is none.
	Certificate *certmanagerv1.Certificate
	// Unwatched is why the Certificate cannot be read. Not set when it, or its
	// kind, merely does not exist.
	Unwatched error
	// Unread is true until the first answer about the Certificate.
	Unread bool
	Now    time.Time
	// Margin is how late a renewal may be.
	Margin time.Duration
}

// Evaluate is a pure function of the facts. The worst comes first.
func Evaluate(f Facts) State {
	if s, bad := unusable(f); bad {
		return s
	}
	good := State{Good, "served until " + stamp(f.Served.NotAfter)}
	switch {
	case f.Watched == "" || f.Unread:
		return good
	case f.Unwatched != nil:
		return State{Unwatchable, fmt.Sprintf("Certificate %s cannot be read: %v", f.Watched, f.Unwatched)}
	case f.Certificate == nil:
		return State{NotFound, fmt.Sprintf("there is no Certificate %s, so nothing renews the one that is served until %s", f.Watched, stamp(f.Served.NotAfter))}
	}
	if s, bad := unrenewed(f); bad {
		return s
	}
	return good
}

func unusable(f Facts) (State, bool) {
	switch {
	case f.Served == nil && f.Problem != nil:
		return State{Missing, fmt.Sprintf("no serving certificate: %v", f.Problem)}, true
	case f.Served == nil:
		return State{Missing, "no serving certificate yet"}, true
	case !f.Now.Before(f.Served.NotAfter):
		return State{Expired, "the serving certificate expired at " + stamp(f.Served.NotAfter)}, true
	case f.Now.Before(f.Served.NotBefore):
		return State{NotYetValid, "the serving certificate is valid only from " + stamp(f.Served.NotBefore)}, true
	}
	return State{}, false
}

func unrenewed(f Facts) (State, bool) {
	status := f.Certificate.Status
	for _, c := range status.Conditions {
		if c.Type == certmanagerv1.CertificateConditionReady && c.Status == cmmeta.ConditionTrue {
			return late(f)
		}
		if c.Type == certmanagerv1.CertificateConditionReady {
			return State{NotReady, fmt.Sprintf("Certificate %s is not ready: %s: %s", f.Watched, c.Reason, c.Message)}, true
		}
	}
	return State{NotReady, fmt.Sprintf("Certificate %s is not ready: its issuer has not answered", f.Watched)}, true
}

// late compares what is served with what cert-manager has done.
func late(f Facts) (State, bool) {
	status := f.Certificate.Status
	renewed := status.NotAfter != nil && status.NotBefore != nil && status.NotAfter.After(f.Served.NotAfter)
	switch {
	case renewed && f.Now.After(status.NotBefore.Add(f.Margin)):
		return State{NotLoaded, fmt.Sprintf("Certificate %s was renewed at %s, but the file still holds the one that expires at %s",
			f.Watched, stamp(status.NotBefore.Time), stamp(f.Served.NotAfter))}, true
	case renewed:
		return State{}, false
	case status.RenewalTime != nil && f.Now.After(status.RenewalTime.Add(f.Margin)):
		return State{RenewalOverdue, fmt.Sprintf("Certificate %s should have been renewed at %s; the one that is served expires at %s",
			f.Watched, stamp(status.RenewalTime.Time), stamp(f.Served.NotAfter))}, true
	}
	return State{}, false
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
