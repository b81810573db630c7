package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// selection narrows which orphans a sweep takes. Where only the spec can tell
// and it was not read, it selects: the handle is read and asked about again.
type selection struct {
	olderThan time.Duration
	node      string
	pool      *calico.IPPool
	matches   matcher
	blockNode func(netip.Prefix) (string, bool)
}

func (s selection) selects(e verdict.Evidence, v verdict.Verdict) bool {
	return e.Now.Sub(e.Handle.LastWrite) >= s.olderThan && s.matches(e, v) && s.onNode(e) && s.inPool(e)
}

func (s selection) onNode(e verdict.Evidence) bool {
	if s.node == "" {
		return true
	}
	if e.ID.Kind == calico.KindNode {
		return e.ID.Name == s.node
	}
	if e.Handle.Stamp != nil && e.Handle.Stamp.Node != "" {
		return e.Handle.Stamp.Node == s.node
	}
	return s.anyBlock(e, func(block netip.Prefix) bool {
		node, ok := s.blockNode(block)
		return ok && node == s.node
	})
}

func (s selection) inPool(e verdict.Evidence) bool {
	if s.pool == nil {
		return true
	}
	cidr, err := netip.ParsePrefix(s.pool.Spec.CIDR)
	return err == nil && s.anyBlock(e, func(block netip.Prefix) bool { return cidr.Contains(block.Addr()) })
}

func (s selection) anyBlock(e verdict.Evidence, is func(netip.Prefix) bool) bool {
	if e.Declared == nil {
		return true
	}
	for cidr := range e.Declared {
		if block, err := netip.ParsePrefix(cidr); err == nil && is(block) {
			return true
		}
	}
	return false
}

func getPool(ctx context.Context, cfg *rest.Config, api calico.API, name string) (*calico.IPPool, error) {
	client, err := api.NewRESTClient(cfg)
	if err != nil {
		return nil, err
	}
	pool := &calico.IPPool{}
	if err := client.Get().Resource(api.Pools().Resource).Name(name).Do(ctx).Into(pool); err != nil {
		return nil, fmt.Errorf("read IP pool %s: %w", name, err)
	}
	return pool, nil
}

// matcher tells whether a verdict is selected.
type matcher func(verdict.Evidence, verdict.Verdict) bool

// parseSelector reads terms such as reason=PodGone, all of which must hold.
func parseSelector(selector string) (matcher, error) {
	var terms []matcher
	for text := range strings.SplitSeq(selector, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("--selector: %q is not of the form key=value or key!=value", text)
		}
		key, negated := strings.CutSuffix(key, "!")
		value = strings.TrimPrefix(value, "=")
		var of func(verdict.Evidence, verdict.Verdict) string
		switch key {
		case "reason":
			of = func(_ verdict.Evidence, v verdict.Verdict) string { return string(v.Reason) }
		case "kind":
			of = func(e verdict.Evidence, _ verdict.Verdict) string { return e.ID.Kind.String() }
		case "namespace":
			of = func(e verdict.Evidence, _ verdict.Verdict) string {
				if e.Handle.Stamp != nil && e.Handle.Stamp.Namespace != "" {
					return e.Handle.Stamp.Namespace
				}
				return e.ID.Namespace
			}
		default:
			return nil, fmt.Errorf("--selector: %q is no key; name one of reason, kind, namespace", key)
		}
		terms = append(terms, func(e verdict.Evidence, v verdict.Verdict) bool {
			return (of(e, v) == value) != negated
		})
	}
	return func(e verdict.Evidence, v verdict.Verdict) bool {
		for _, term := range terms {
			if !term(e, v) {
				return false
			}
		}
		return true
	}, nil
}
