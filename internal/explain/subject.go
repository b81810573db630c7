package explain

import (
	"fmt"
	"net/netip"
	"strings"
)

// kind is what is asked about.
type kind uint8

const (
	// anything is a bare word: a handle, else a node, else a pod.
	anything kind = iota
	aHandle
	aPod
	aNode
	anIP
)

// Subject is what an explanation is asked for.
type Subject struct {
	text            string
	kind            kind
	namespace, name string
	ip              netip.Addr
}

// ParseSubject reads handle/NAME, pod/NAMESPACE/NAME, pod/NAME, node/NAME,
// ip/ADDRESS, NAMESPACE/POD, an address, or a bare name. A pod without a
// namespace is looked for in the one given.
func ParseSubject(text, namespace string) (Subject, error) {
	if ip, err := netip.ParseAddr(text); err == nil {
		return Subject{text: text, kind: anIP, ip: ip}, nil
	}
	prefix, rest, ok := strings.Cut(text, "/")
	if !ok {
		return Subject{text: text, name: text, namespace: namespace}, nil
	}
	if i := strings.IndexByte(prefix, '.'); i > 0 {
		prefix = prefix[:i] // As in ipamhandle.crd.projectcalico.org/NAME.
	}
	switch strings.ToLower(prefix) {
	case "handle", "ipamhandle", "ipamhandles":
		return Subject{text: text, kind: aHandle, name: rest}, nil
	case "node", "nodes", "no":
		return Subject{text: text, kind: aNode, name: rest}, nil
	case "pod", "pods", "po":
		if ns, name, ok := strings.Cut(rest, "/"); ok {
			return Subject{text: text, kind: aPod, namespace: ns, name: name}, nil
		}
		return Subject{text: text, kind: aPod, namespace: namespace, name: rest}, nil
	case "ip":
		ip, err := netip.ParseAddr(rest)
		if err != nil {
			return Subject{}, fmt.Errorf("%s: %w", text, err)
		}
		return Subject{text: text, kind: anIP, ip: ip}, nil
	}
	if strings.Contains(rest, "/") || rest == "" {
		return Subject{}, fmt.Errorf("%s: name a HANDLE, an IP, node/NAME or pod/NAMESPACE/NAME", text)
	}
	return Subject{text: text, kind: aPod, namespace: prefix, name: rest}, nil
}
