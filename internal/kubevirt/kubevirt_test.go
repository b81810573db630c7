package kubevirt_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/kubevirt"
)

func TestWatchEndsWhenKubeVirtComesOrGoes(t *testing.T) {
	none, v1 := schema.GroupVersion{}, schema.GroupVersion{Group: kubevirt.Group, Version: "v1"}
	for name, tc := range map[string]struct {
		was, is schema.GroupVersion
		err     error
		ends    string
	}{
		"nothing changes":                {was: v1, is: v1},
		"the API server is away":         {was: v1, err: errors.New("connection refused")},
		"it is installed":                {was: none, is: v1, ends: `now "kubevirt.io/v1", was ""`},
		"it is removed":                  {was: v1, is: none, ends: `now "", was "kubevirt.io/v1"`},
		"there never was any, as before": {was: none, is: none},
		"another version is preferred":   {was: v1, is: schema.GroupVersion{Group: kubevirt.Group, Version: "v2"}, ends: `now "kubevirt.io/v2"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() {
					ended <- kubevirt.Watch(ctx, tc.was, func(context.Context) (schema.GroupVersion, error) { return tc.is, tc.err }, clock.RealClock{})
				}()
				time.Sleep(3 * time.Minute)
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
