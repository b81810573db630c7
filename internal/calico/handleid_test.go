package calico_test

import (
	"strings"
	"testing"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

var containerID = strings.Repeat("0123456789abcdef", 4)

func TestParseHandleID(t *testing.T) {
	for name, tc := range map[string]struct {
		id   string
		want calico.HandleID
	}{
		"a sandbox of the usual network": {
			"k8s-pod-network." + containerID,
			calico.HandleID{Kind: calico.KindPodSandbox, Network: "k8s-pod-network", ContainerID: containerID},
		},
		"a sandbox of another network": {
			"storage_net." + containerID,
			calico.HandleID{Kind: calico.KindPodSandbox, Network: "storage_net", ContainerID: containerID},
		},
		"a sandbox whose network has dots": {
			"net.v1.example." + containerID,
			calico.HandleID{Kind: calico.KindPodSandbox, Network: "net.v1.example", ContainerID: containerID},
		},
		"a sandbox of a network that looks like a virtual machine's": {
			"a.vmi.b." + containerID,
			calico.HandleID{Kind: calico.KindPodSandbox, Network: "a.vmi.b", ContainerID: containerID},
		},
		"a pod, in the legacy form": {
			"kube-system.coredns-5d78c9869d-x7k2p",
			calico.HandleID{Kind: calico.KindLegacyPod, Namespace: "kube-system", Name: "coredns-5d78c9869d-x7k2p"},
		},
		"a pod with dots in its name": {
			"default.web.v2-0",
			calico.HandleID{Kind: calico.KindLegacyPod, Namespace: "default", Name: "web.v2-0"},
		},
		"a container ID one digit short is a pod's name": {
			"k8s-pod-network." + containerID[1:],
			calico.HandleID{Kind: calico.KindLegacyPod, Namespace: "k8s-pod-network", Name: containerID[1:]},
		},
		"a virtual machine": {
			"k8s-pod-network.vmi.shop.db-1",
			calico.HandleID{Kind: calico.KindVirtualMachine, Network: "k8s-pod-network", Namespace: "shop", Name: "db-1"},
		},
		"a virtual machine whose name has dots": {
			"k8s-pod-network.vmi.shop.db.blue",
			calico.HandleID{Kind: calico.KindVirtualMachine, Network: "k8s-pod-network", Namespace: "shop", Name: "db.blue"},
		},
		"a virtual machine whose name is hashed": {
			"k8s-pod-network.vmi._3fa94c",
			calico.HandleID{Kind: calico.KindVirtualMachine, Network: "k8s-pod-network"},
		},
		"an IPIP tunnel":           {"ipip-tunnel-addr-node-1", calico.HandleID{Kind: calico.KindNode, Name: "node-1"}},
		"a VXLAN tunnel":           {"vxlan-tunnel-addr-ip-10-0-0-1.ec2.internal", calico.HandleID{Kind: calico.KindNode, Name: "ip-10-0-0-1.ec2.internal"}},
		"a VXLAN tunnel, IPv6":     {"vxlan-v6-tunnel-addr-node-1", calico.HandleID{Kind: calico.KindNode, Name: "node-1"}},
		"a WireGuard tunnel":       {"wireguard-tunnel-addr-node-1", calico.HandleID{Kind: calico.KindNode, Name: "node-1"}},
		"a WireGuard tunnel, IPv6": {"wireguard-v6-tunnel-addr-node-1", calico.HandleID{Kind: calico.KindNode, Name: "node-1"}},
		"a Service":                {calico.LoadBalancerHandleID("web", "shop", "6f0c"), calico.HandleID{Kind: calico.KindService}},
		"a Service, as its object's name": {
			calico.HandleName(calico.LoadBalancerHandleID("web", "shop", "6f0c")),
			calico.HandleID{Kind: calico.KindService},
		},
		"the reserved handle":                {"windows-reserved-ipam-handle", calico.HandleID{Kind: calico.KindReserved}},
		"nothing":                            {"", calico.HandleID{}},
		"a word":                             {"docker", calico.HandleID{}},
		"an address":                         {"10.0.0.1", calico.HandleID{}},
		"junk of an old CNI plugin":          {"default.web-0\r\neth0", calico.HandleID{}},
		"an upper-case namespace":            {"Default.web", calico.HandleID{}},
		"a tunnel of no node":                {"ipip-tunnel-addr-", calico.HandleID{}},
		"a tunnel of what is no node's name": {"ipip-tunnel-addr-Node_1", calico.HandleID{}},
		"a sandbox of no network":            {"." + containerID, calico.HandleID{}},
		"an upper-case container ID":         {"k8s-pod-network." + strings.ToUpper(containerID), calico.HandleID{}},
		"a hash too short for a Service":     {"lb-abc", calico.HandleID{}},
		"a hash too long for a Service":      {"lb-" + strings.Repeat("a", 44), calico.HandleID{}},
		"a virtual machine of no namespace":  {"net.vmi..vm", calico.HandleID{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := calico.ParseHandleID(tc.id); got != tc.want {
				t.Errorf("ParseHandleID(%q) = %+v, want %+v", tc.id, got, tc.want)
			}
		})
	}
}

func FuzzParseHandleID(f *testing.F) {
	for _, seed := range []string{
		"k8s-pod-network." + containerID, "default.web-0", "net.vmi.ns.vm", "net.vmi._hash", "vxlan-v6-tunnel-addr-a.b",
		"windows-reserved-ipam-handle", "10.0.0.1", "default.web-0\r\neth0", "lb-", ".", "..", "a.vmi.", "\x00.\xff",
		calico.LoadBalancerHandleID("web", "shop", "6f0c"),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		got := calico.ParseHandleID(id)
		if parsed, ok := calico.ParseOwnerKind(got.Kind.String()); !ok || parsed != got.Kind {
			t.Errorf("kind %d does not survive its own name %q", got.Kind, got.Kind)
		}
		// Whatever names an owner must be the very ID that Calico makes of it:
		// else a handle would be judged by somebody else's life.
		made := map[calico.OwnerKind]string{
			calico.KindPodSandbox: got.Network + "." + got.ContainerID,
			calico.KindLegacyPod:  got.Namespace + "." + got.Name,
			calico.KindReserved:   calico.ReservedHandleID,
		}
		switch {
		case got.Kind == calico.KindVirtualMachine && got.Name != "":
			made[got.Kind] = got.Network + ".vmi." + got.Namespace + "." + got.Name
		case got.Kind == calico.KindNode:
			if !strings.HasSuffix(id, "-tunnel-addr-"+got.Name) || got.Name == "" {
				t.Errorf("%q is no tunnel of node %q", id, got.Name)
			}
		}
		if want, ok := made[got.Kind]; ok && want != id {
			t.Errorf("ParseHandleID(%q) = %+v, which is the ID %q", id, got, want)
		}
		if got.Kind == calico.KindPodSandbox && len(got.ContainerID) != 64 {
			t.Errorf("container ID %q of %q is not 64 digits", got.ContainerID, id)
		}
	})
}

func TestLoadBalancerHandleID(t *testing.T) {
	id := calico.LoadBalancerHandleID("web", "shop", "6f0c")
	// sha256("web-shop-6f0c") in unpadded base64url, without '-', '_' and '.'.
	if want := "lb-sjHrgjSEMtMC5yHfLTcW6mun9eSPnthAV6JdzT5Ec"; id != want {
		t.Errorf("got %q, want %q", id, want)
	}
	if calico.LoadBalancerHandleID("WEB", "Shop", "6F0C") != id {
		t.Error("the hash depends on case")
	}
	if calico.LoadBalancerHandleID("shop", "web", "6f0c") == id {
		t.Error("the hash does not depend on the order of its parts")
	}
	if strings.ContainsAny(strings.TrimPrefix(id, "lb-"), "-_.=") {
		t.Errorf("%q holds what Calico removes", id)
	}
}

func TestEveryLoadBalancerHandleIsAService(t *testing.T) {
	for n := range 5000 {
		id := calico.LoadBalancerHandleID("web", "shop", strings.Repeat("x", n%7)+string(rune('a'+n%26))+strings.Repeat("y", n/100))
		if got := calico.ParseHandleID(id).Kind; got != calico.KindService {
			t.Fatalf("%q is %s", id, got)
		}
	}
}

func TestParseOwnerKindRefusesOtherWords(t *testing.T) {
	for _, word := range []string{"", "podsandbox", "Pod"} {
		if kind, ok := calico.ParseOwnerKind(word); ok || kind != calico.KindUnknown {
			t.Errorf("ParseOwnerKind(%q) = %s, %v", word, kind, ok)
		}
	}
}
