package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// subjectKind is what explain is asked about.
type subjectKind uint8

const (
	// subjectAny is a bare word: a handle, else a node, else a pod.
	subjectAny subjectKind = iota
	subjectHandle
	subjectPod
	subjectNode
	subjectIP
)

// subject is one argument of explain.
type subject struct {
	kind            subjectKind
	namespace, name string
	ip              netip.Addr
}

// parseSubject reads handle/NAME, pod/NAMESPACE/NAME, pod/NAME, node/NAME,
// ip/ADDRESS, NAMESPACE/POD, an address, or a bare name.
func parseSubject(text, namespace string) (subject, error) {
	if ip, err := netip.ParseAddr(text); err == nil {
		return subject{kind: subjectIP, ip: ip}, nil
	}
	kind, rest, ok := strings.Cut(text, "/")
	if !ok {
		return subject{name: text, namespace: namespace}, nil
	}
	if i := strings.IndexByte(kind, '.'); i > 0 {
		kind = kind[:i] // As in ipamhandle.crd.projectcalico.org/NAME.
	}
	switch strings.ToLower(kind) {
	case "handle", "ipamhandle", "ipamhandles":
		return subject{kind: subjectHandle, name: rest}, nil
	case "node", "nodes", "no":
		return subject{kind: subjectNode, name: rest}, nil
	case "pod", "pods", "po":
		if ns, name, ok := strings.Cut(rest, "/"); ok {
			return subject{kind: subjectPod, namespace: ns, name: name}, nil
		}
		return subject{kind: subjectPod, namespace: namespace, name: rest}, nil
	case "ip":
		ip, err := netip.ParseAddr(rest)
		if err != nil {
			return subject{}, fmt.Errorf("%s: %w", text, err)
		}
		return subject{kind: subjectIP, ip: ip}, nil
	}
	if strings.Contains(rest, "/") || rest == "" {
		return subject{}, fmt.Errorf("%s: name a HANDLE, an IP, node/NAME or pod/NAMESPACE/NAME", text)
	}
	return subject{kind: subjectPod, namespace: kind, name: rest}, nil
}
