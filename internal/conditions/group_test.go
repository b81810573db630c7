package conditions_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/conditions"
)

func TestGroup(t *testing.T) {
	older, newer := calico.API{GroupVersion: calico.GroupCRD}, calico.API{GroupVersion: calico.GroupV3}
	certain := calico.Detection{API: older, Certain: true}
	for name, tc := range map[string]struct {
		next      calico.Detection
		err       error
		uncertain string
		ends      string
	}{
		"a group that stays certain is certain":           {next: certain},
		"a group that becomes uncertain says why":         {next: calico.Detection{API: older, Detail: "both answer"}, uncertain: "both answer"},
		"an API server that is away changes nothing":      {err: errors.New("connection refused")},
		"a move of Calico is an error, and uncertain":     {next: calico.Detection{API: newer, Certain: true}, uncertain: "has moved", ends: "has moved"},
		"a Calico that went away is an error":             {err: calico.ErrNoCalico, uncertain: calico.ErrNoCalico.Error(), ends: calico.ErrNoCalico.Error()},
		"handles behind an aggregated API alone end this": {err: calico.ErrAggregatedOnly, uncertain: calico.ErrAggregatedOnly.Error(), ends: calico.ErrAggregatedOnly.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				looks := 0
				g := conditions.NewGroup(certain, func(context.Context) (calico.Detection, error) {
					looks++
					return tc.next, tc.err
				}, clock.RealClock{}, logr.Discard())
				ended := make(chan error, 1)
				go func() { ended <- g.Start(ctx) }()
				if g.Uncertain() != "" {
					t.Errorf("uncertain at first: %s", g.Uncertain())
				}
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if looks == 0 {
					t.Fatal("it did not look again")
				}
				if got := g.Uncertain(); (got == "") != (tc.uncertain == "") || !strings.Contains(got, tc.uncertain) {
					t.Errorf("uncertain: %q, want %q", got, tc.uncertain)
				}
				cancel()
				switch err := <-ended; {
				case (err == nil) != (tc.ends == ""):
					t.Errorf("it ended with %v", err)
				case err != nil && !strings.Contains(err.Error(), tc.ends):
					t.Errorf("it ended with %v, want %s", err, tc.ends)
				}
			})
		})
	}
}
