package explore

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipam-guard/ipam-guard/internal/inventory"
)

// replica is one IPAM Guard: how far its watches have come, what it is doing.
type replica struct {
	seen [streams]uint16
	past *past
	// knowsLock is what its watch of the datastore's lock last brought.
	knowsLock bool
	// leads is what it believes; the lease itself is the world's.
	leads bool
	doing *operation
}

// past is what a replica's caches have taken in, newest last. Inventories
// cannot be copied, so one is made from its past, and kept for the next world
// with the same one.
type past struct {
	before *past
	stream stream
	events []event
	second int64
	// all makes the events a list of everything, as at a start.
	all bool
	// Handles and blocks depend on each other's order; owners on none.
	objects, owners uint64
}

func (p *past) with(s stream, events []event, second int64, all bool) *past {
	n := &past{before: p, stream: s, events: events, second: second, all: all}
	if p != nil {
		n.objects, n.owners = p.objects, p.owners
	}
	h := &n.objects
	if s == ownerStream {
		h = &n.owners
	}
	*h = mixBool(mix(*h, uint64(s)), all)
	if s == blockStream {
		*h = mix(*h, uint64(second)) //nolint:gosec // not negative
	}
	for _, e := range events {
		*h = mixBool(mixBool(mix(mix(mix(*h, e.rv), e.hash), uint64(e.index)), e.gone), e.isNode)
	}
	return n
}

type pastKey struct{ objects, owners uint64 }

// maxInventories bounds how many are kept; each takes 30 KB.
const maxInventories = 4096

// inventory is the product's own, fed with the past.
func (x *Explorer) inventory(s *Scenario, p *past) *inventory.Inventory {
	key := pastKey{p.objects, p.owners}
	if inv, ok := x.inventories[key]; ok {
		return inv
	}
	if len(x.inventories) >= maxInventories {
		clear(x.inventories)
	}
	var order []*past
	for n := p; n != nil; n = n.before {
		order = append(order, n)
	}
	c := &standing{}
	inv := inventory.New(c)
	for n := len(order) - 1; n >= 0; n-- {
		c.second = order[n].second
		order[n].feed(s, inv, &x.rules)
	}
	x.inventories[key] = inv
	return inv
}

func (p *past) feed(s *Scenario, inv *inventory.Inventory, rules *Rules) {
	resources := map[stream][]inventory.Resource{
		handleStream: {inventory.Handles}, blockStream: {inventory.Blocks}, ownerStream: {inventory.Pods, inventory.Nodes},
	}[p.stream]
	if p.all {
		for _, r := range resources {
			inv.Begin(r)
		}
	}
	for _, e := range p.events {
		switch {
		case p.stream == handleStream && e.gone:
			inv.DeleteHandle(s.handles[e.index].name, e.rv)
		case p.stream == handleStream:
			inv.ApplyHandle(inventory.FromObject(rules.Seen(e.handle)))
		case p.stream == blockStream && e.gone:
			inv.DeleteBlock(s.blocks[e.index].name, e.rv)
		case p.stream == blockStream:
			inv.ApplyBlock(rules.SeenBlock(e.block))
		case e.isNode && e.gone:
			inv.DeleteNode(nodeName, e.rv)
		case e.isNode:
			inv.ApplyNode(e.node)
		case e.gone:
			inv.DeletePod(s.pods[e.index].namespace, s.pods[e.index].name, e.rv)
		default:
			inv.ApplyPod(e.pod)
		}
	}
	if p.all {
		for _, r := range resources {
			inv.Commit(r)
		}
	}
}

// sync brings a replica's watch up to now.
func (w *world) sync(r int, s stream) {
	rep := &w.replicas[r]
	news := w.logs[s][rep.seen[s]:]
	if len(news) == 0 {
		return
	}
	rep.past = rep.past.with(s, news, w.now, false)
	rep.seen[s] = uint16(len(w.logs[s])) //nolint:gosec // a schedule is short
}

func (w *world) syncAll(r int) {
	for s := range streams {
		w.sync(r, s)
	}
	w.replicas[r].knowsLock = w.locked
}

// list makes a replica start anew: it lists handles, then blocks, then owners.
func (w *world) list(r int) {
	rep := &w.replicas[r]
	rep.past, rep.doing = nil, nil
	for s := range streams {
		rep.past = rep.past.with(s, w.current(s), w.now, true)
		rep.seen[s] = uint16(len(w.logs[s])) //nolint:gosec // a schedule is short
	}
	rep.knowsLock = w.locked
}

// current are a stream's objects, as events.
func (w *world) current(s stream) []event {
	var all []event
	switch s {
	case handleStream:
		for i, h := range w.handles {
			if h != nil {
				all = append(all, event{rv: h.rv, hash: h.hash, index: uint8(i), handle: h.object})
			}
		}
	case blockStream:
		for i, b := range w.blocks {
			if b != nil {
				all = append(all, event{rv: b.rv, hash: b.hash, index: uint8(i), block: b.object})
			}
		}
	case ownerStream:
		for i, p := range w.pods {
			if p != nil {
				all = append(all, event{rv: p.rv, hash: p.hash, index: uint8(i), pod: p.object})
			}
		}
		if w.node != nil {
			all = append(all, event{rv: w.node.rv, hash: w.node.hash, node: w.node.object, isNode: true})
		}
		all = append(all, event{rv: 1, node: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: otherNode, ResourceVersion: "1"}}, isNode: true})
	case streams:
	}
	return all
}

// reached tells whether a replica's caches have seen what a proof asks for.
func (w *world) reached(r int, target [streams]uint64) bool {
	for s := range streams {
		if seen := w.replicas[r].seen[s]; target[s] > 0 {
			at := w.listed(r, s)
			if seen > 0 {
				at = max(at, w.logs[s][seen-1].rv)
			}
			if at < target[s] {
				return false
			}
		}
	}
	return true
}

// listed is the newest version that a replica's list brought.
func (w *world) listed(r int, s stream) uint64 {
	for p := w.replicas[r].past; p != nil; p = p.before {
		if p.stream == s && p.all {
			rv := uint64(0)
			for _, e := range p.events {
				rv = max(rv, e.rv)
			}
			return rv
		}
	}
	return 0
}

// standing is a clock that stands still; whoever waits has waited long enough.
type standing struct{ second int64 }

func (c *standing) Now() time.Time                  { return at(c.second) }
func (c *standing) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
