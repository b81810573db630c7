package manager

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/ipam-guard/ipam-guard/internal/config"
)

func TestToldToEndItGoesOnForAWhileWhenItServesAdmission(t *testing.T) {
	for name, tc := range map[string]struct {
		enabled bool
		linger  time.Duration
		want    time.Duration
	}{
		"as configured":         {true, 5 * time.Second, 5 * time.Second},
		"not when told not to":  {true, 0, 0},
		"not without admission": {false, 5 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := config.Default()
				cfg.Webhook.Enabled, cfg.Webhook.Linger = tc.enabled, metav1.Duration{Duration: tc.linger}
				told, tell := context.WithCancel(t.Context())
				ctx := lingering(told, cfg)
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Error("it ended without being told to")
				}
				began := time.Now()
				tell()
				<-ctx.Done()
				if took := time.Since(began); took != tc.want {
					t.Errorf("it went on for %s, want %s", took, tc.want)
				}
			})
		})
	}
}

func TestToldToEndItKeepsNoConnection(t *testing.T) {
	told := make(chan struct{})
	mux := http.NewServeMux()
	parting{ctrlwebhook.NewServer(ctrlwebhook.Options{WebhookMux: mux}), told}.Register("/hook",
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server := httptest.NewServer(mux)
	defer server.Close()
	closed := func() bool {
		answer, err := server.Client().Post(server.URL+"/hook", "", nil) //nolint:noctx // a test's own loopback
		if err != nil {
			t.Fatal(err)
		}
		if err := answer.Body.Close(); err != nil {
			t.Fatal(err)
		}
		return answer.Close
	}
	if closed() {
		t.Error("it closes a connection before it is told to end")
	}
	close(told)
	if !closed() {
		t.Error("it keeps a connection that it will soon close under the caller")
	}
}
