package manager

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
