package explain

import (
	"net/netip"
	"testing"
)

func TestParseSubject(t *testing.T) {
	for text, want := range map[string]Subject{
		"10.0.0.1":             {kind: anIP, ip: netip.MustParseAddr("10.0.0.1")},
		"ip/fd00::1":           {kind: anIP, ip: netip.MustParseAddr("fd00::1")},
		"pod/a":                {kind: aPod, namespace: "here", name: "a"},
		"pod/there/a":          {kind: aPod, namespace: "there", name: "a"},
		"there/a":              {kind: aPod, namespace: "there", name: "a"},
		"node/n":               {kind: aNode, name: "n"},
		"handle/h":             {kind: aHandle, name: "h"},
		"ipamhandle.a.b/h":     {kind: aHandle, name: "h"},
		"vxlan-tunnel-addr-n1": {kind: anything, namespace: "here", name: "vxlan-tunnel-addr-n1"},
	} {
		want.text = text
		if got, err := ParseSubject(text, "here"); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"a/b/c", "a/", "ip/x"} {
		if got, err := ParseSubject(text, "here"); err == nil {
			t.Errorf("%s: got %+v", text, got)
		}
	}
}
