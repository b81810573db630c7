package ownership

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

const testContainerID = "78e0aa1b5d0f4c9e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f"

func TestNewStamp(t *testing.T) {
	for id, want := range map[string]Stamp{
		"k8s-pod-network." + testContainerID:            {Version: 1, Kind: "PodSandbox", Network: "k8s-pod-network", ContainerID: testContainerID},
		"shop.web-0":                                    {Version: 1, Kind: "LegacyPod", Namespace: "shop", Name: "web-0"},
		"k8s-pod-network.vmi.shop.db":                   {Version: 1, Kind: "VirtualMachine", Network: "k8s-pod-network", Namespace: "shop", Name: "db"},
		"k8s-pod-network.vmi._c0ffee":                   {Version: 1, Kind: "VirtualMachine", Network: "k8s-pod-network"},
		"vxlan-tunnel-addr-worker-1":                    {Version: 1, Kind: "Node", Node: "worker-1"},
		"wireguard-v6-tunnel-addr-worker-1.eu":          {Version: 1, Kind: "Node", Node: "worker-1.eu"},
		calico.LoadBalancerHandleID("web", "shop", "1"): {Version: 1, Kind: "Service"},
		calico.ReservedHandleID:                         {Version: 1, Kind: "Reserved"},
		"junk\r\neth0":                                  {Version: 1, Kind: "Unknown"},
	} {
		if diff := cmp.Diff(want, NewStamp(calico.ParseHandleID(id))); diff != "" {
			t.Errorf("%q (-want +got):\n%s", id, diff)
		}
	}
}

func TestEncode(t *testing.T) {
	s := NewStamp(calico.ParseHandleID("k8s-pod-network." + testContainerID))
	s.Node, s.User, s.Request = "worker-7", "system:serviceaccount:calico-system:<cni>", "0d1a"
	s.Time = time.Date(2026, 12, 1, 10, 30, 0, 999, time.FixedZone("", 3600))
	want := `{"v":1,"kind":"PodSandbox","network":"k8s-pod-network","containerID":"` + testContainerID +
		`","node":"worker-7","user":"system:serviceaccount:calico-system:<cni>","request":"0d1a","time":"2026-12-01T09:30:00Z"}`
	if diff := cmp.Diff(want, s.Encode()); diff != "" {
		t.Errorf("stamp (-want +got):\n%s", diff)
	}
	got, err := ParseStamp(s.Encode())
	if err != nil {
		t.Fatal(err)
	}
	s.Time = s.Time.UTC().Truncate(time.Second)
	if diff := cmp.Diff(s, got); diff != "" {
		t.Errorf("what is read is not what was written (-want +got):\n%s", diff)
	}
	if bare := (Stamp{Version: 1, Kind: "Unknown"}).Encode(); bare != `{"v":1,"kind":"Unknown"}` {
		t.Errorf("an empty stamp is not compact: %s", bare)
	}
}

func TestParseStampRefuses(t *testing.T) {
	for name, c := range map[string]struct{ value, says string }{
		"nothing":                       {"", "empty"},
		"what is no JSON":               {"worker-7", "no JSON"},
		"JSON of another form":          {`["worker-7"]`, "no JSON of the known form"},
		"a field of another type":       {`{"v":1,"kind":"Node","node":7}`, "no JSON of the known form"},
		"a version that it cannot read": {`{"v":2,"kind":"Node"}`, "version 2"},
		"no version":                    {`{"kind":"Node"}`, "version 0"},
		"an unknown kind":               {`{"v":1,"kind":"Pod"}`, `unknown kind "Pod"`},
		"no kind":                       {`{"v":1}`, "unknown kind"},
		"a time that is none":           {`{"v":1,"kind":"Node","time":"yesterday"}`, "no JSON of the known form"},
		"what is too long":              {`{"v":1,"kind":"Node","node":"` + strings.Repeat("x", maxStampBytes) + `"}`, "more than 4096"},
		"something after the stamp":     {`{"v":1,"kind":"Node"}{}`, "no JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseStamp(c.value)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %+v and error %v, want one that says %q", got, err, c.says)
			}
		})
	}
}

func TestParseStampToleratesNewFields(t *testing.T) {
	got, err := ParseStamp(`{"v":1,"kind":"Node","node":"worker-7","zone":"eu-1"}`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Stamp{Version: 1, Kind: "Node", Node: "worker-7"}, got); diff != "" {
		t.Errorf("stamp (-want +got):\n%s", diff)
	}
}

func TestComplete(t *testing.T) {
	for name, c := range map[string]struct {
		stamp Stamp
		want  bool
	}{
		"a sandbox's stamp lacks its pod":              {Stamp{Kind: "PodSandbox", Node: "worker-7"}, false},
		"a sandbox's stamp names its pod":              {Stamp{Kind: "PodSandbox", Namespace: "shop", Name: "web-0"}, true},
		"a node's stamp never lacks anything":          {Stamp{Kind: "Node", Node: "worker-7"}, true},
		"an unknown owner's stamp cannot be completed": {Stamp{Kind: "Unknown"}, true},
	} {
		if got := c.stamp.Complete(); got != c.want {
			t.Errorf("%s: complete is %v", name, got)
		}
	}
}

// FuzzParseStamp reads arbitrary annotations: it never panics, and what it
// accepts is written and read again without change.
func FuzzParseStamp(f *testing.F) {
	f.Add("")
	f.Add(`{"v":1,"kind":"Unknown"}`)
	f.Add(`{"v":1,"kind":"Node","node":"<\u0000\ud800>","time":"2026-12-01T09:30:00+01:00"}`)
	f.Add(NewStamp(calico.ParseHandleID("k8s-pod-network." + testContainerID)).Encode())
	f.Fuzz(func(t *testing.T, value string) {
		s, err := ParseStamp(value)
		if err != nil {
			if s != (Stamp{}) {
				t.Fatalf("half-read evidence: %+v", s)
			}
			return
		}
		encoded := s.Encode()
		if len(encoded) > maxStampBytes {
			return
		}
		again, err := ParseStamp(encoded)
		if err != nil {
			t.Fatalf("%s is not read again: %v", encoded, err)
		}
		s.Time = s.Time.UTC().Truncate(time.Second)
		if diff := cmp.Diff(s, again); diff != "" {
			t.Fatalf("%s (-first +second):\n%s", encoded, diff)
		}
	})
}
