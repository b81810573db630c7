package certs

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

var (
	_ webhook.Server                 = &Server{}
	_ manager.LeaderElectionRunnable = &Server{}
)

func TestHandshakesGoOnWhileTheCertificateChanges(t *testing.T) {
	ca, o := newAuthority(t), testOptions(t)
	first := ca.issue(t, o.Dir, time.Hour)
	s := start(t, o)
	client := &tls.Config{RootCAs: ca.pool, MinVersion: tls.VersionTLS13}
	address := addressOf(o)
	eventually(t, "the server answers", func() bool { return s.Check()(probe("")) == nil })

	var failed atomic.Pointer[error]
	var handshakes atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := serial(address, client); err != nil {
					failed.Store(&err)
				}
				handshakes.Add(1)
			}
		})
	}
	last := first
	for range 5 {
		next := ca.issue(t, o.Dir, time.Hour)
		eventually(t, "the new certificate is served", func() bool {
			got, err := serial(address, client)
			return err == nil && got == next
		})
		last = next
	}
	close(stop)
	clients.Wait()
	if err := failed.Load(); err != nil {
		t.Errorf("a handshake failed: %v", *err)
	}
	if last == first || handshakes.Load() < 20 {
		t.Errorf("%d handshakes over serial numbers %d to %d prove nothing", handshakes.Load(), first, last)
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		least  uint16
		client uint16
		works  bool
	}{
		"1.2 by default":           {0, tls.VersionTLS12, false},
		"1.3 by default":           {0, tls.VersionTLS13, true},
		"1.2 where it is allowed":  {tls.VersionTLS12, tls.VersionTLS12, true},
		"1.1 where 1.2 is allowed": {tls.VersionTLS12, tls.VersionTLS11, false},
	} {
		t.Run(name, func(t *testing.T) {
			ca, o := newAuthority(t), testOptions(t)
			o.MinVersion = c.least
			ca.issue(t, o.Dir, time.Hour)
			s := start(t, o)
			eventually(t, "the server answers", func() bool { return s.Check()(probe("")) == nil })
			_, err := serial(addressOf(o), &tls.Config{RootCAs: ca.pool, MinVersion: tls.VersionTLS10, MaxVersion: c.client})
			if c.works != (err == nil) {
				t.Errorf("handshake: %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "protocol version") {
				t.Errorf("refused for another reason: %v", err)
			}
		})
	}
}

func TestServerWaitsForItsCertificate(t *testing.T) {
	ca, o := newAuthority(t), testOptions(t)
	registry, recorder := prometheus.NewRegistry(), events.NewFakeRecorder(10)
	o.Registerer = registry
	o.Recorder, o.Regarding = recorder, &corev1.ObjectReference{Kind: "Deployment", Namespace: "ipam-guard-system", Name: "ipam-guard-manager"}
	s := start(t, o)
	eventually(t, "the check says why", func() bool {
		err := s.Check()(probe(""))
		return err != nil && strings.Contains(err.Error(), "no such file")
	})
	if got := gathered(t, registry); len(got) != 0 {
		t.Errorf("metric %v of no certificate", got)
	}
	expect(t, recorder, "Warning "+string(Missing))

	ca.issue(t, o.Dir, 30*time.Minute)
	eventually(t, "the check passes", func() bool { return s.Check()(probe("")) == nil })
	if _, err := serial(addressOf(o), &tls.Config{RootCAs: ca.pool}); err != nil {
		t.Errorf("handshake: %v", err)
	}
	got := gathered(t, registry)
	if len(got) != 1 || got[0] < 29*60 || got[0] > 30*60 {
		t.Errorf("seconds until expiry: %v, want a little less than 1800", got)
	}
	expect(t, recorder, "Normal "+string(Good))
}

func TestRenewalTroubleNeverFailsAPlainProbe(t *testing.T) {
	// An API server without cert-manager.
	api := httptest.NewServer(http.NotFoundHandler())
	defer api.Close()
	ca, o := newAuthority(t), testOptions(t)
	recorder := events.NewFakeRecorder(10)
	o.Recorder, o.Regarding = recorder, &corev1.ObjectReference{Kind: "Deployment"}
	o.Config = &rest.Config{Host: api.URL}
	o.Certificate = types.NamespacedName{Namespace: "ipam-guard-system", Name: "serving"}
	ca.issue(t, o.Dir, time.Hour)
	s := start(t, o)
	eventually(t, "the absent kind is noticed", func() bool { return s.State().Reason == NotFound })
	eventually(t, "a plain probe passes", func() bool { return s.Check()(probe("")) == nil })
	expect(t, recorder, "Warning "+string(NotFound))

	// As the manager mounts it.
	checks := http.StripPrefix("/readyz", &healthz.Handler{Checks: map[string]healthz.Checker{"certificate": s.Check()}})
	for path, want := range map[string]struct {
		code int
		says string
	}{
		"/readyz":             {http.StatusOK, "ok"},
		"/readyz/certificate": {http.StatusInternalServerError, "there is no Certificate ipam-guard-system/serving"},
		"/readyz?verbose":     {http.StatusInternalServerError, "[-]certificate failed"},
	} {
		w := httptest.NewRecorder()
		checks.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != want.code || !strings.Contains(w.Body.String(), want.says) {
			t.Errorf("%s answers %d %q, want %d that says %q", path, w.Code, w.Body, want.code, want.says)
		}
	}
}

func TestNewServerSaysWhatIsMissing(t *testing.T) {
	for says, edit := range map[string]func(*Options){
		"folder":     func(o *Options) { o.Dir = "" },
		"registerer": func(o *Options) { o.Registerer = nil },
		"API server": func(o *Options) { o.Certificate.Name = "serving" },
		"TLS 1.1":    func(o *Options) { o.MinVersion = tls.VersionTLS11 },
		"metric":     func(o *Options) { o.Registerer.MustRegister(expiry{}) },
	} {
		o := testOptions(t)
		edit(&o)
		if _, err := NewServer(o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got error %v, want one that says %q", err, says)
		}
	}
}

// probe is a request as the checks' handler passes it on.
func probe(path string) *http.Request {
	r, err := http.NewRequest(http.MethodGet, "http://127.0.0.1/"+path, nil) //nolint:noctx // It goes nowhere.
	if err != nil {
		panic(err)
	}
	return r
}

func expect(t *testing.T, recorder *events.FakeRecorder, prefix string) {
	t.Helper()
	select {
	case got := <-recorder.Events:
		if !strings.HasPrefix(got, prefix) {
			t.Errorf("event %q, want %q", got, prefix)
		}
	case <-time.After(15 * time.Second):
		t.Errorf("no event %q", prefix)
	}
	select {
	case got := <-recorder.Events:
		t.Errorf("told twice: %q", got)
	default:
	}
}

// gathered are the values of the one metric.
func gathered(t *testing.T, r *prometheus.Registry) []float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var values []float64
	for _, f := range families {
		if f.GetName() != "ipam_guard_certificate_expiry_seconds" {
			t.Errorf("unexpected metric %s", f.GetName())
		}
		for _, m := range f.GetMetric() {
			values = append(values, m.GetGauge().GetValue())
		}
	}
	return values
}
