package calicoproto_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/calicoproto"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
)

func TestCalicosProtocol(t *testing.T) {
	cp := controlplane.ForTest(t, controlplane.Options{})
	for _, group := range []calico.API{{GroupVersion: calico.GroupCRD}, {GroupVersion: calico.GroupV3}} {
		t.Run(group.Group, func(t *testing.T) {
			if err := controlplane.InstallCRDs(t.Context(), cp.Config(), group); err != nil {
				t.Fatal(err)
			}
			c, err := calicoproto.New(cp.Config(), group)
			if err != nil {
				t.Fatal(err)
			}
			v4, v6 := netip.MustParsePrefix("10.65.0.0/26"), netip.MustParsePrefix("fd00:65::/122")
			for _, cidr := range []netip.Prefix{v4, v6} {
				if err := c.EnsureBlock(t.Context(), cidr, "node-a"); err != nil {
					t.Fatal(err)
				}
			}
			t.Run("assigns from two blocks and releases both", func(t *testing.T) { assignAndRelease(t, c, v4, v6) })
			t.Run("leaves what each stop leaves", func(t *testing.T) { stopEverywhere(t, c, v4) })
		})
	}
}

func assignAndRelease(t *testing.T, c *calicoproto.Client, v4, v6 netip.Prefix) {
	const id = "k8s-pod-network.Dual"
	for _, cidr := range []netip.Prefix{v4, v6} {
		address, err := c.Assign(t.Context(), id, cidr, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !cidr.Contains(address) {
			t.Errorf("address %s is not of %s", address, cidr)
		}
	}
	h, err := c.GetHandle(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if h.Name != "k8s-pod-network.dual" || h.Spec.Block[v4.String()] != 1 || h.Spec.Block[v6.String()] != 1 {
		t.Errorf("handle %s declares %v", h.Name, h.Spec.Block)
	}
	if err := c.Release(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetHandle(t.Context(), id); !apierrors.IsNotFound(err) {
		t.Errorf("the handle is still there: %v", err)
	}
	for _, cidr := range []netip.Prefix{v4, v6} {
		b, err := c.GetBlock(t.Context(), cidr)
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Spec.Unallocated) != 64 || len(b.Spec.Attributes) != 0 {
			t.Errorf("block %s has %d free addresses and %d attributes", cidr, len(b.Spec.Unallocated), len(b.Spec.Attributes))
		}
	}
}

func stopEverywhere(t *testing.T, c *calicoproto.Client, cidr netip.Prefix) {
	killed := errors.New("killed")
	for _, tc := range []struct {
		at              calicoproto.Step
		handle, block   bool
		markedForDelete bool
	}{
		{calicoproto.WriteHandle, false, false, false},
		{calicoproto.WriteBlock, true, false, false},
		{calicoproto.ReleaseBlock, true, true, false},
		{calicoproto.SoftDelete, true, false, false},
		{calicoproto.DeleteHandle, true, false, true},
	} {
		t.Run("before "+string(tc.at), func(t *testing.T) {
			id := "stop." + string(tc.at[0:3]) + string(tc.at[len(tc.at)-5:])
			c.Before = func(_ context.Context, s calicoproto.Step) error {
				if s == tc.at {
					return killed
				}
				return nil
			}
			defer func() { c.Before = nil }()
			_, err := c.Assign(t.Context(), id, cidr, nil)
			if err == nil {
				err = c.Release(t.Context(), id)
			}
			if !errors.Is(err, killed) {
				t.Fatalf("got %v, want the stop", err)
			}
			c.Before = nil
			b, err := c.GetBlock(t.Context(), cidr)
			if err != nil {
				t.Fatal(err)
			}
			if got := len(b.Spec.OrdinalsOf(calico.HandleName(id))) > 0; got != tc.block {
				t.Errorf("the block references the handle: %v, want %v", got, tc.block)
			}
			_, err = c.GetHandle(t.Context(), id)
			if got := err == nil; got != (tc.handle && !tc.markedForDelete) {
				t.Errorf("readers see the handle: %v (%v)", got, err)
			}
		})
	}
}
