package explain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// ErrUnknown is a subject that is nothing that exists.
var ErrUnknown = errors.New("not found")

func (x *explainer) answer(ctx context.Context, s Subject) (Answer, error) {
	switch s.kind {
	case anIP:
		return x.answerIP(ctx, s)
	case aPod:
		return x.answerPod(ctx, s)
	case aNode:
		return x.answerNode(ctx, s)
	}
	h, err := x.handle(ctx, s.name)
	switch {
	case err != nil:
		return Answer{}, err
	case h != nil || len(x.references(s.name)) > 0:
		return x.withHandles(ctx, Answer{Subject: s.text}, s.name)
	case s.kind == anything && (x.inventory.HasNode(s.name) || len(x.blocks[s.name]) > 0):
		return x.answerNode(ctx, s)
	case s.kind == anything && x.pods[podName(s.namespace, s.name)] != nil:
		return x.answerPod(ctx, s)
	case s.kind == aHandle:
		return Answer{}, fmt.Errorf("%w: handle %s, and no block mentions it", ErrUnknown, s.name)
	}
	return Answer{}, fmt.Errorf("%w: %s is no handle, no node, and no pod in namespace %s", ErrUnknown, s.text, s.namespace)
}

// withHandles explains handles too, each once, in order.
func (x *explainer) withHandles(ctx context.Context, a Answer, ids ...string) (Answer, error) {
	a.Handles = []Handle{}
	seen := map[string]bool{}
	slices.Sort(ids)
	for _, id := range ids {
		name := calico.HandleName(id)
		if id == "" || seen[name] {
			continue
		}
		seen[name] = true
		h, err := x.judge(ctx, id)
		if err != nil {
			return Answer{}, err
		}
		a.Handles = append(a.Handles, h)
	}
	return a, nil
}

// references are the allocations that mention the handle, as far as they were
// asked about.
func (x *explainer) references(id string) []Allocation {
	var found []Allocation
	for _, a := range x.allocations {
		if a.Handle != "" && strings.EqualFold(a.Handle, id) {
			found = append(found, a)
		}
	}
	return found
}

// judge is the evidence on a handle and the verdict.
func (x *explainer) judge(ctx context.Context, id string) (Handle, error) {
	h, err := x.handle(ctx, id)
	if err != nil {
		return Handle{}, err
	}
	if h == nil {
		return Handle{ID: id, Missing: true, References: x.references(id)}, nil
	}
	e := x.inventory.EvidenceFor(h, x.clock.Now(), x.grace)
	v := verdict.Judge(e)
	out := Handle{
		ID: h.Spec.HandleID, OwnerKind: e.ID.Kind.String(), References: x.references(h.Spec.HandleID),
		Owner: string(e.Owner.Reason), Stamp: e.Handle.Stamp, MarkedDeleted: h.Spec.Deleted, Terminating: e.Handle.Terminating,
		Outcome: v.Outcome.String(), Reason: string(v.Reason), Because: verdict.Explain(e, v),
	}
	for _, cidr := range slices.Sorted(maps.Keys(h.Spec.Block)) {
		out.Declared = append(out.Declared, Declared{cidr, h.Spec.Block[cidr]})
	}
	if written := e.Handle.LastWrite.UTC(); !e.Handle.LastWrite.IsZero() {
		settled := written.Add(x.grace)
		out.LastWrite, out.Settled = &written, &settled
	}
	return out, nil
}

func (x *explainer) answerIP(ctx context.Context, s Subject) (Answer, error) {
	ip := &IP{Address: s.ip.String(), Pod: x.users[s.ip]}
	var handle string
	for _, a := range x.allocations {
		if a.IP != ip.Address {
			continue
		}
		if ip.Allocation != nil {
			ip.Disagrees = append(ip.Disagrees, fmt.Sprintf("blocks %s and %s both record it", ip.Allocation.Block, a.Block))
			continue
		}
		ip.Allocation, handle = &a, a.Handle
	}
	said, err := x.disagreements(ctx, ip)
	if err != nil {
		return Answer{}, err
	}
	ip.Disagrees = append(ip.Disagrees, said...)
	return x.withHandles(ctx, Answer{Subject: s.text, IP: ip}, handle)
}

// disagreements are what block, handle and pod tell differently of an address.
func (x *explainer) disagreements(ctx context.Context, ip *IP) ([]string, error) {
	a := ip.Allocation
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	switch {
	case a == nil && ip.Pod != "":
		say("pod %s has it, but no block records it", ip.Pod)
		return said, nil
	case a == nil:
		return nil, nil
	case a.Damaged:
		say("the block is damaged: attribute %d does not exist", a.Attribute)
	case a.ReleasedAt != nil && ip.Pod != "":
		say("the block says that it was released, but pod %s has it", ip.Pod)
	case a.ReleasedAt != nil:
		return nil, nil
	case a.Handle == "":
		say("it is allocated to no handle: Calico cannot release it")
	}
	noted := a.pod()
	switch {
	case noted != "" && ip.Pod == "":
		say("the block says pod %s, but no running pod has the address", noted)
	case noted != "" && noted != ip.Pod:
		say("the block says pod %s, but pod %s has the address", noted, ip.Pod)
	}
	if user := x.pods[ip.Pod]; user != nil {
		said = append(said, x.against(user, a)...)
	}
	if a.Handle == "" {
		return said, nil
	}
	h, err := x.handle(ctx, a.Handle)
	switch {
	case err != nil:
		return nil, err
	case h == nil:
		say("its handle does not exist: Calico cannot release it")
	case h.Spec.Block[a.Block] == 0:
		say("its handle does not name block %s", a.Block)
	}
	return said, nil
}

// against compares a pod with the allocation of an address that it has.
func (x *explainer) against(p *Pod, a *Allocation) []string {
	var said []string
	if id := calico.ParseHandleID(a.Handle); id.ContainerID != "" && p.ContainerID != "" && id.ContainerID != p.ContainerID {
		said = append(said, fmt.Sprintf("the handle is of sandbox %s, but pod %s/%s runs in %s", id.ContainerID, p.Namespace, p.Name, p.ContainerID))
	}
	if node := a.Attributes["node"]; node != "" && p.Node != "" && node != p.Node {
		said = append(said, fmt.Sprintf("the block says node %s, but pod %s/%s runs on %s", node, p.Namespace, p.Name, p.Node))
	}
	return said
}

func (x *explainer) answerPod(ctx context.Context, s Subject) (Answer, error) {
	name := podName(s.namespace, s.name)
	p := x.pods[name]
	if p == nil {
		return Answer{}, fmt.Errorf("%w: pod %s on the pod network", ErrUnknown, name)
	}
	recorded := map[string]bool{}
	var ids []string
	for _, a := range x.allocations {
		sandbox := calico.ParseHandleID(a.Handle).ContainerID
		if a.pod() == name || p.ContainerID != "" && sandbox == p.ContainerID {
			ids = append(ids, a.Handle)
			recorded[a.IP] = true
		}
	}
	for _, ip := range p.IPs {
		if at, err := netip.ParseAddr(ip); err == nil && x.users[at] == name && !recorded[at.String()] {
			p.Disagrees = append(p.Disagrees, fmt.Sprintf("no block records %s for it", ip))
		}
	}
	return x.withHandles(ctx, Answer{Subject: s.text, Pod: p}, ids...)
}

func (x *explainer) answerNode(ctx context.Context, s Subject) (Answer, error) {
	n := &Node{Name: s.name, Exists: x.inventory.HasNode(s.name), Blocks: []Block{}}
	for _, cidr := range slices.Sorted(maps.Keys(x.blocks[s.name])) {
		n.Blocks = append(n.Blocks, Block{cidr, x.blocks[s.name][cidr]})
	}
	var tunnels []string
	for _, a := range x.allocations {
		if a.Attributes["node"] == s.name && a.home() != s.name {
			n.Borrowed++
		}
		if id := calico.ParseHandleID(a.Handle); id.Kind == calico.KindNode && id.Name == s.name {
			tunnels = append(tunnels, a.Handle)
		}
	}
	for e, v := range x.inventory.All(x.clock.Now(), x.grace) {
		if e.ID.Kind == calico.KindNode && e.ID.Name == s.name {
			tunnels = append(tunnels, e.Handle.Name)
		}
		if v.Outcome == verdict.Orphaned && e.Handle.Stamp != nil && e.Handle.Stamp.Node == s.name {
			n.StampedOrphans++
		}
	}
	if !n.Exists && len(n.Blocks) == 0 && n.Borrowed == 0 && len(tunnels) == 0 && n.StampedOrphans == 0 {
		return Answer{}, fmt.Errorf("%w: node %s, and nothing mentions it", ErrUnknown, s.name)
	}
	return x.withHandles(ctx, Answer{Subject: s.text, Node: n}, tunnels...)
}
