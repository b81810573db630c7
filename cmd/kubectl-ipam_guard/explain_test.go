package main

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

func TestParseSubject(t *testing.T) {
	for text, want := range map[string]subject{
		"10.0.0.1":             {kind: subjectIP, ip: netip.MustParseAddr("10.0.0.1")},
		"ip/fd00::1":           {kind: subjectIP, ip: netip.MustParseAddr("fd00::1")},
		"pod/a":                {kind: subjectPod, namespace: "here", name: "a"},
		"pod/there/a":          {kind: subjectPod, namespace: "there", name: "a"},
		"there/a":              {kind: subjectPod, namespace: "there", name: "a"},
		"node/n":               {kind: subjectNode, name: "n"},
		"handle/h":             {kind: subjectHandle, name: "h"},
		"ipamhandle.a.b/h":     {kind: subjectHandle, name: "h"},
		"vxlan-tunnel-addr-n1": {kind: subjectAny, namespace: "here", name: "vxlan-tunnel-addr-n1"},
	} {
		if got, err := parseSubject(text, "here"); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"a/b/c", "a/", "ip/x"} {
		if got, err := parseSubject(text, "here"); err == nil {
			t.Errorf("%s: got %+v", text, got)
		}
	}
}

func TestExplainOnARealAPIServer(t *testing.T) {
	spec := refcluster.Default(time.Now()).Resize(60, 0.5)
	cp := controlplane.ForTest(t, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error { return refcluster.Load(ctx, etcd, spec) },
	})
	api := calico.API{GroupVersion: calico.GroupCRD}
	if err := controlplane.InstallCRDs(t.Context(), cp.Config(), api); err != nil {
		t.Fatal(err)
	}
	connect := "--kubeconfig=" + cp.Kubeconfig()
	for p := range spec.PodObjects() {
		id := "k8s-pod-network." + p.Annotations[calico.ContainerIDAnnotation]
		for _, about := range []string{p.Status.PodIP, "pod/" + p.Namespace + "/" + p.Name, p.Namespace + "/" + p.Name, id} {
			out, err := run(t, connect, "explain", about)
			if err != nil || !strings.Contains(out, "InUse/Referenced") || !strings.Contains(out, p.Status.PodIP+" (ordinal ") || strings.Contains(out, "DISAGREES") {
				t.Errorf("%s: got %q, %v", about, out, err)
			}
		}
		out, err := run(t, connect, "explain", p.Spec.NodeName)
		if err != nil || !strings.Contains(out, "Node "+p.Spec.NodeName+" exists") || !strings.Contains(out, "vxlan-tunnel-addr-"+p.Spec.NodeName) {
			t.Errorf("node: got %q, %v", out, err)
		}
		break
	}
	if out, err := run(t, connect, "explain", "no-such-thing"); err == nil {
		t.Errorf("got %q", out)
	}
	names, err := run(t, connect, "check", "-o", "name")
	if err != nil || strings.Count(names, "ipamhandle.crd.projectcalico.org/") != 30 {
		t.Errorf("check -o name: got %q, %v", names, err)
	}
	first, _, _ := strings.Cut(names, "\n")
	if out, err := run(t, connect, "explain", first); err != nil || !strings.Contains(out, "verdict Orphaned/") {
		t.Errorf("%s: got %q, %v", first, out, err)
	}
	if out, err := run(t, connect, "check", "-o", "jsonpath={.blocks} {.problems}"); err != nil || !strings.HasSuffix(out, " 30") {
		t.Errorf("check -o jsonpath: got %q, %v", out, err)
	}
}
