package webhook

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// panicking is an Inventory and a reader of blocks with a bug.
type panicking struct{}

func (panicking) BlockNode(netip.Prefix) (string, bool)                       { panic("bug") }
func (panicking) References(string) []verdict.Reference                       { panic("bug") }
func (panicking) GetBlock(context.Context, string) (*calico.IPAMBlock, error) { panic("bug") }

// allocating is a block that gives its addresses 5 and 6 to the handle.
func allocating(cidr, handle string, owner map[string]string) *calico.IPAMBlock {
	index := 0
	allocations := make([]*int, 64)
	allocations[5], allocations[6] = &index, &index
	return &calico.IPAMBlock{Spec: calico.IPAMBlockSpec{
		CIDR: cidr, Allocations: allocations,
		Attributes: []calico.AllocationAttribute{{HandleID: &handle, Secondary: owner}},
	}}
}

func serving(list ...*calico.IPAMBlock) *blocks {
	b := &blocks{byName: map[string]*calico.IPAMBlock{}}
	for _, block := range list {
		b.byName[calico.BlockName(netip.MustParsePrefix(block.Spec.CIDR))] = block
	}
	return b
}

var pod = map[string]string{"namespace": "shop", "pod": "web-0", "node": node}

func TestDelete(t *testing.T) {
	reference := verdict.Reference{Block: blockCIDR, Count: 1, First: 9, Namespace: "shop", Pod: "web-0", Node: node}
	for name, c := range map[string]struct {
		handle     *calico.IPAMHandle
		blocks     *blocks
		references []verdict.Reference
		mode       Mode
		without    bool
		outcome    outcome
		// message holds what the refusal or warning must say.
		message []string
		reads   int
	}{
		"is refused while a block references the handle": {
			blocks: serving(allocating(blockCIDR, handleID, pod)), outcome: outcomeDenied, reads: 1,
			message: []string{handleID, blockCIDR, "10.244.7.5, 10.244.7.6", "pod shop/web-0", "node " + node, "Delete the pod", "--ip=10.244.7.5"},
		},
		"is refused for a handle whose ID differs in case": {
			blocks: serving(allocating(blockCIDR, strings.ToUpper(handleID), pod)), outcome: outcomeDenied, reads: 1,
			message: []string{"10.244.7.5"},
		},
		"is refused for a node's tunnel": {
			blocks:  serving(allocating(blockCIDR, handleID, map[string]string{"node": node, "type": "vxlanTunnelAddress"})),
			outcome: outcomeDenied, reads: 1, message: []string{"for node " + node, "--ip=10.244.7.5"},
		},
		"is refused for an owner that is not told": {
			blocks: serving(allocating(blockCIDR, handleID, nil)), outcome: outcomeDenied, reads: 1,
			message: []string{"Release the address first"},
		},
		"passes when the block gives the handle nothing": {
			blocks: serving(allocating(blockCIDR, "another", pod)), outcome: outcomeAllowed, reads: 1,
		},
		"passes when the block does not exist": {
			blocks: serving(), outcome: outcomeAllowed, reads: 1,
		},
		"passes when only the cache still shows a reference": {
			blocks: serving(allocating(blockCIDR, "another", pod)), references: []verdict.Reference{reference}, outcome: outcomeAllowed, reads: 1,
		},
		"is refused for a block that the handle does not name but the cache does": {
			handle: object(func(h *calico.IPAMHandle) { h.Spec.Block = map[string]int{} }),
			blocks: serving(allocating(blockCIDR, handleID, pod)), references: []verdict.Reference{reference}, outcome: outcomeDenied, reads: 1,
			message: []string{"10.244.7.5"},
		},
		"passes without a read when Calico has marked the handle": {
			handle: object(softDeleted), blocks: serving(allocating(blockCIDR, handleID, pod)), outcome: outcomeAllowed,
		},
		"passes with a warning in mode warn": {
			blocks: serving(allocating(blockCIDR, handleID, pod)), mode: Warn, outcome: outcomeWarned, reads: 1,
			message: []string{"is in use", "10.244.7.5"},
		},
		"passes without a read in mode off": {
			blocks: serving(allocating(blockCIDR, handleID, pod)), mode: Off, outcome: outcomeAllowed,
		},
		"passes without a read without the guard": {
			blocks: serving(allocating(blockCIDR, handleID, pod)), without: true, outcome: outcomeAllowed,
		},
		"passes when the block cannot be read": {
			blocks: &blocks{err: errors.New("away")}, outcome: outcomeError, reads: 1,
		},
		"is refused by the cache when the block cannot be read": {
			blocks: &blocks{err: errors.New("away")}, references: []verdict.Reference{reference}, outcome: outcomeDenied, reads: 1,
			message: []string{"10.244.7.9", "pod shop/web-0"},
		},
		"passes for a handle that names no sound CIDR": {
			handle: object(func(h *calico.IPAMHandle) { h.Spec.Block = map[string]int{"10.244.7.0": 1} }),
			blocks: serving(), outcome: outcomeAllowed,
		},
		"is refused for a block with damaged allocations": {
			blocks: serving(func() *calico.IPAMBlock {
				b, out := allocating(blockCIDR, handleID, pod), 99
				b.Spec.Allocations[0] = &out
				return b
			}()), outcome: outcomeDenied, reads: 1, message: []string{"10.244.7.5"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			o.Blocks, o.Mode, o.WithoutGuard = c.blocks, c.mode, c.without
			o.Inventory = caches{references: map[string][]verdict.Reference{handleID: c.references}}
			v := validating(t, o)
			h := c.handle
			if h == nil {
				h = object()
			}
			resp := v.Handle(t.Context(), request(t, admissionv1.Delete, h, nil))
			if resp.Allowed != (c.outcome != outcomeDenied) {
				t.Errorf("allowed is %v", resp.Allowed)
			}
			said := told(resp)
			if len(c.message) == 0 && said != "" {
				t.Errorf("said %q for nothing", said)
			}
			for _, part := range c.message {
				if !strings.Contains(said, part) {
					t.Errorf("%q does not say %q", said, part)
				}
			}
			if c.blocks.reads != c.reads {
				t.Errorf("%d reads, want %d", c.blocks.reads, c.reads)
			}
			if n := counted(t, v.metrics.requests.WithLabelValues("delete", string(c.outcome))); n != 1 {
				t.Errorf("outcome %s was counted %v times", c.outcome, n)
			}
			want := 0.0
			if c.outcome == outcomeDenied {
				want = 1
			}
			if n := counted(t, v.metrics.denied); n != want {
				t.Errorf("%v deletes counted as denied, want %v", n, want)
			}
		})
	}
}

func told(resp admission.Response) string {
	if len(resp.Warnings) > 0 {
		return strings.Join(resp.Warnings, "\n")
	}
	if resp.Result != nil {
		return resp.Result.Message
	}
	return ""
}

func TestDeleteDoesNotWaitForAHangingAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(t)
		o.Blocks, o.Clock = hanging{}, nil
		v := validating(t, o)
		h := object(func(h *calico.IPAMHandle) {
			h.Spec.Block = map[string]int{blockCIDR: 1, "10.244.8.0/26": 1, "10.244.9.0/26": 1}
		})
		start := time.Now()
		resp := v.Handle(t.Context(), request(t, admissionv1.Delete, h, nil))
		if took := time.Since(start); took != liveReadTimeout {
			t.Errorf("answered after %s, want %s", took, liveReadTimeout)
		}
		if !resp.Allowed {
			t.Error("a delete that cannot be judged is left to the finalizer")
		}
	})
}

func TestValidateAllowsWhatMakesItPanic(t *testing.T) {
	o := options(t)
	o.Inventory, o.Blocks = panicking{}, panicking{}
	resp := validating(t, o).Handle(t.Context(), request(t, admissionv1.Delete, object(), nil))
	if !resp.Allowed {
		t.Error("a bug of ours refuses deletes")
	}
}

func TestUpdateIsRefusedForATamperedStamp(t *testing.T) {
	v := validating(t, options(t))
	old := object(stampedWith("was"), held)
	resp := v.Handle(t.Context(), request(t, admissionv1.Update, old, object(stampedWith("is"), held)))
	if resp.Allowed || !strings.Contains(told(resp), "ipam-guard.io/creation-owner") || !strings.Contains(told(resp), "ipam-guard.io/in-use") {
		t.Errorf("allowed %v: %q", resp.Allowed, told(resp))
	}
	if resp := v.Handle(t.Context(), request(t, admissionv1.Update, old, object(stampedWith("was")))); !resp.Allowed {
		t.Errorf("the finalizer alone may go: %q", told(resp))
	}
	if n := counted(t, v.metrics.denied); n != 0 {
		t.Errorf("%v deletes counted as denied by updates", n)
	}
}

func TestUpdateWarnsOfMalformedHandles(t *testing.T) {
	h := object(func(h *calico.IPAMHandle) { h.Spec.Block = map[string]int{blockCIDR: -1} })
	resp := validating(t, options(t)).Handle(t.Context(), request(t, admissionv1.Update, object(), h))
	if !resp.Allowed || !strings.Contains(told(resp), "counts -1 addresses") {
		t.Errorf("allowed %v: %q", resp.Allowed, told(resp))
	}
}

func TestAddress(t *testing.T) {
	for _, c := range []struct {
		cidr    string
		ordinal int
		want    string
	}{
		{"10.244.7.64/26", 0, "10.244.7.64"},
		{"10.244.7.64/26", 63, "10.244.7.127"},
		{"10.244.0.0/16", 300, "10.244.1.44"},
		{"10.244.255.128/24", 255, "10.244.255.255"},
		{"fd00::40/122", 63, "fd00::7f"},
		{"fd00::/64", 65536, "fd00::1:0"},
		{"damage", 3, "address 3 of damage"},
	} {
		if got := address(c.cidr, c.ordinal); got != c.want {
			t.Errorf("address %d of %s is %s, want %s", c.ordinal, c.cidr, got, c.want)
		}
	}
}
