package controlplane

import (
	"context"
	"testing"
)

// ForTest starts a control plane for one test and stops it when that ends. It
// builds missing binaries, skips under -short, and keeps the folder with the
// logs when the test failed.
func ForTest(t testing.TB, o Options) *ControlPlane {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	if o.Log == nil {
		o.Log = t.Output()
	}
	// Not t.Context(): that ends before the cleanup does.
	c, err := Start(context.WithoutCancel(t.Context()), o)
	if err != nil {
		t.Fatalf("start the control plane: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the control plane's data and logs are kept in %s", c.KeepDir())
		}
		if err := c.Stop(); err != nil {
			t.Errorf("stop the control plane: %v", err)
		}
	})
	return c
}
