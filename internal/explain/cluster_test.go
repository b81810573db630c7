package explain_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/explain"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
	"github.com/ipam-guard/ipam-guard/internal/terminal"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

var api = calico.API{GroupVersion: calico.GroupCRD}

func ask(t *testing.T, cfg *rest.Config, texts ...string) (*explain.Explanation, error) {
	t.Helper()
	var subjects []explain.Subject
	for _, text := range texts {
		s, err := explain.ParseSubject(text, "default")
		if err != nil {
			t.Fatal(err)
		}
		subjects = append(subjects, s)
	}
	return explain.Run(t.Context(), cfg, api, clock.RealClock{}, verdict.DefaultGrace, subjects)
}

func printed(t *testing.T, x *explain.Explanation) string {
	t.Helper()
	var out strings.Builder
	if err := x.Print(&out, terminal.Palette{}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestExplainTheReferenceCluster(t *testing.T) {
	spec := refcluster.Default(time.Now()).Resize(60, 0.5)
	cp := controlplane.ForTest(t, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error { return refcluster.Load(ctx, etcd, spec) },
	})
	if err := controlplane.InstallCRDs(t.Context(), cp.Config(), api); err != nil {
		t.Fatal(err)
	}
	var pod *corev1.Pod
	for pod = range spec.PodObjects() {
		break
	}
	id := "k8s-pod-network." + pod.Annotations[calico.ContainerIDAnnotation]
	for _, about := range []string{pod.Status.PodIP, "pod/" + pod.Namespace + "/" + pod.Name, pod.Namespace + "/" + pod.Name, id, "handle/" + id} {
		x, err := ask(t, cp.Config(), about)
		if err != nil {
			t.Errorf("%s: %v", about, err)
			continue
		}
		a := x.Answers[0]
		if a.Subject != about || len(a.Handles) != 1 {
			t.Errorf("%s: got %+v", about, a)
			continue
		}
		h := a.Handles[0]
		if h.ID != id || h.Outcome != "InUse" || h.Reason != "Referenced" || len(h.References) != 1 || h.References[0].IP != pod.Status.PodIP ||
			h.References[0].Attributes["pod"] != pod.Name || len(h.Declared) != 1 || h.Declared[0].Block != h.References[0].Block {
			t.Errorf("%s: the handle is %+v", about, h)
		}
		text := printed(t, x)
		if !strings.Contains(text, "verdict InUse/Referenced") || !strings.Contains(text, pod.Status.PodIP+" (ordinal ") || strings.Contains(text, "DISAGREES") {
			t.Errorf("%s: got %q", about, text)
		}
	}
	x, err := ask(t, cp.Config(), pod.Spec.NodeName)
	if err != nil {
		t.Fatal(err)
	}
	n := x.Answers[0].Node
	if n == nil || !n.Exists || len(n.Blocks) == 0 || n.Blocks[0].Allocations == 0 || !slices.ContainsFunc(x.Answers[0].Handles, func(h explain.Handle) bool {
		return h.ID == "vxlan-tunnel-addr-"+n.Name && h.Outcome == "InUse" && len(h.References) == 1
	}) {
		t.Errorf("node: got %+v", x.Answers[0])
	}
	for _, nothing := range []string{"no-such-thing", "pod/no/such", "node/no-such", "handle/no-such"} {
		if _, err := ask(t, cp.Config(), nothing); !errors.Is(err, explain.ErrUnknown) || !strings.Contains(err.Error(), strings.TrimPrefix(nothing, "pod/")[:2]) {
			t.Errorf("%s: got %v", nothing, err)
		}
	}
}

// TestExplainOddities asks about the rare situations, and what disagrees there.
func TestExplainOddities(t *testing.T) {
	odd := refcluster.NewOddities(api, time.Now())
	cp := controlplane.ForTest(t, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error {
			return refcluster.LoadObjects(ctx, etcd, odd.Objects())
		},
	})
	if err := controlplane.InstallCRDs(t.Context(), cp.Config(), api); err != nil {
		t.Fatal(err)
	}
	t.Run("every handle gets the verdict that it should, and each missing one is told", func(t *testing.T) {
		for _, c := range odd.Cases {
			names := c.Missing
			for name := range c.Want {
				names = append(names, "handle/"+name)
			}
			x, err := ask(t, cp.Config(), names...)
			if err != nil {
				t.Errorf("%s: %v", c.Name, err)
				continue
			}
			for i, a := range x.Answers {
				h := a.Handles[0]
				want, exists := c.Want[strings.TrimPrefix(names[i], "handle/")]
				if h.Missing == exists || exists && (h.Outcome != want.Outcome.String() || h.Reason != string(want.Reason)) {
					t.Errorf("%s: %s is %s/%s, missing %v, want %+v", c.Name, h.ID, h.Outcome, h.Reason, h.Missing, want)
				}
			}
		}
	})
	for _, tc := range []struct {
		oddity string
		// ordinal is of the address in the case's first block.
		ordinal int
		want    string
	}{
		{"a pod with an IPv6 address", 0, ""},
		{"a pod with an address borrowed from another node's block", 0, ""},
		{"a pod whose pool was disabled later", 0, ""},
		{"the address of a Service of type LoadBalancer", 0, ""},
		{"an address that cools down after its release, its handle left behind", 0, ""},
		{"a damaged block, with an allocation that points to no attribute", 1, "the block is damaged: attribute 7 does not exist"},
		{"a soft-deleted handle that a block still references", 0, ""},
		{"a block that references a handle that does not exist", 0, "its handle does not exist"},
		{"a pod that runs although no block references its handle", 0, "but no block records it"},
	} {
		t.Run("the address of "+tc.oddity, func(t *testing.T) {
			i := slices.IndexFunc(odd.Cases, func(c refcluster.Oddity) bool { return c.Name == tc.oddity })
			if i < 0 {
				t.Fatal("there is no such oddity")
			}
			ip, ok := verdict.Address(firstBlock(t, odd.Cases[i].Objects).Spec.CIDR, tc.ordinal)
			if !ok {
				t.Fatal("no address")
			}
			x, err := ask(t, cp.Config(), ip.String())
			if err != nil {
				t.Fatal(err)
			}
			text := printed(t, x)
			if got := x.Answers[0].IP.Disagrees; tc.want == "" && len(got) > 0 || tc.want != "" && !strings.Contains(strings.Join(got, "\n"), tc.want) {
				t.Errorf("it disagrees in %q, want %q", got, tc.want)
			}
			if strings.Contains(text, "DISAGREES") != (tc.want != "") {
				t.Errorf("it prints %s", text)
			}
		})
	}
	t.Run("a node that is gone is known by what it left", func(t *testing.T) {
		x, err := ask(t, cp.Config(), "node/odd-gone")
		if err != nil {
			t.Fatal(err)
		}
		if a := x.Answers[0]; a.Node.Exists || len(a.Handles) != 1 || a.Handles[0].Reason != "NodeGone" {
			t.Errorf("got %+v", a)
		}
	})
	t.Run("a node's borrowed addresses are counted", func(t *testing.T) {
		x, err := ask(t, cp.Config(), "node/odd-a")
		if err != nil {
			t.Fatal(err)
		}
		if n := x.Answers[0].Node; !n.Exists || n.Borrowed != 1 {
			t.Errorf("got %+v", n)
		}
	})
}

func firstBlock(t *testing.T, objects []runtime.Object) *calico.IPAMBlock {
	t.Helper()
	for _, o := range objects {
		if b, ok := o.(*calico.IPAMBlock); ok {
			return b
		}
	}
	t.Fatal("it has no block")
	return nil
}
