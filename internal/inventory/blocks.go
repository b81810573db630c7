package inventory

import (
	"net/netip"
	"sync"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// block is one IPAMBlock's part in references. Its CIDR does not change.
type block struct {
	cidr       string
	rv         uint64
	generation uint32
	node       string
	// handles are the keys that it references.
	handles map[key]struct{}
}

type blocks struct {
	mu     sync.RWMutex
	byName map[string]*block
	byCIDR map[netip.Prefix]*block
}

func (b *blocks) init() {
	b.byName = map[string]*block{}
	b.byCIDR = map[netip.Prefix]*block{}
}

func (b *blocks) count() int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return len(b.byName)
}

func (b *blocks) node(cidr netip.Prefix) (string, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	found, ok := b.byCIDR[cidr.Masked()]
	if !ok || found.node == "" {
		return "", false
	}
	return found.node, true
}

// ApplyBlock adds or updates a block. A soft-deleted block counts like any
// other: Calico deletes only blocks that are empty, and should one not be, its
// references are reason enough to keep a handle.
func (i *Inventory) ApplyBlock(obj *calico.IPAMBlock) {
	rv := resourceVersion(obj.ResourceVersion)
	i.blocks.mu.Lock()
	defer i.blocks.mu.Unlock()
	relist := &i.relists[Blocks]
	b, had := i.blocks.byName[obj.Name]
	if had && !relist.supersedes(rv, b.rv) {
		b.generation = relist.generation.Load()
		return
	}
	// Only between two states that followed each other did a count rise or fall.
	follows := had && rv >= b.rv
	if had && b.cidr != obj.Spec.CIDR {
		i.dropBlock(obj.Name, b, follows)
		had, follows = false, false
	}
	if !had {
		b = &block{cidr: obj.Spec.CIDR, handles: map[key]struct{}{}}
		i.blocks.byName[obj.Name] = b
		if cidr, err := netip.ParsePrefix(b.cidr); err == nil {
			i.blocks.byCIDR[cidr.Masked()] = b
		}
	}
	b.rv, b.generation, b.node = rv, relist.generation.Load(), ""
	if obj.Spec.Affinity != nil {
		b.node = i.names.word(calico.AffinityNode(*obj.Spec.Affinity))
	}
	referenced := i.refsOf(b, &obj.Spec)
	for k, r := range referenced {
		i.shard(k).refer(k, r, rv, follows, nil, i.clock.Now())
		b.handles[k] = struct{}{}
	}
	for k := range b.handles {
		if _, still := referenced[k]; !still {
			i.unrefer(b, k, follows)
		}
	}
	i.subscribers.notify()
}

// refsOf reads the allocations. Only an attribute that one points to counts;
// an index out of range is damage, and points to nothing. An attribute that
// keeps its handle while it cools down still counts.
func (i *Inventory) refsOf(b *block, spec *calico.IPAMBlockSpec) map[key]ref {
	found := map[key]ref{}
	// Most attributes belong to one allocation: each name is looked up once.
	keys := make([]*key, len(spec.Attributes))
	for ordinal, index := range spec.Allocations {
		if index == nil || *index < 0 || *index >= len(spec.Attributes) {
			continue
		}
		attribute := &spec.Attributes[*index]
		if attribute.HandleID == nil || *attribute.HandleID == "" {
			continue
		}
		if keys[*index] == nil {
			k := i.names.key(calico.HandleName(*attribute.HandleID))
			keys[*index] = &k
		}
		k := *keys[*index]
		r, ok := found[k]
		if !ok {
			r = ref{block: b, first: ordinal, owner: &owner{
				namespace: i.names.word(attribute.Secondary["namespace"]),
				pod:       attribute.Secondary["pod"],
				node:      i.names.word(attribute.Secondary["node"]),
			}}
		}
		r.count++
		found[k] = r
	}
	return found
}

// unrefer takes a block's reference to a handle away.
func (i *Inventory) unrefer(b *block, k key, follows bool) {
	delete(b.handles, k)
	i.shard(k).refer(k, ref{block: b}, b.rv, follows, func() string { return i.podUID(k) }, i.clock.Now())
}

// DeleteBlock removes a block, unless a newer state of it is known.
func (i *Inventory) DeleteBlock(name string, rv uint64) {
	i.blocks.mu.Lock()
	defer i.blocks.mu.Unlock()
	if b, ok := i.blocks.byName[name]; ok && b.rv <= rv {
		i.dropBlock(name, b, true)
		i.subscribers.notify()
	}
}

func (i *Inventory) dropBlock(name string, b *block, follows bool) {
	for k := range b.handles {
		i.unrefer(b, k, follows)
	}
	delete(i.blocks.byName, name)
	if cidr, err := netip.ParsePrefix(b.cidr); err == nil && i.blocks.byCIDR[cidr.Masked()] == b {
		delete(i.blocks.byCIDR, cidr.Masked())
	}
}

func (i *Inventory) retainBlocks(generation uint32, follows bool) {
	i.blocks.mu.Lock()
	defer i.blocks.mu.Unlock()
	for name, b := range i.blocks.byName {
		if b.generation != generation {
			i.dropBlock(name, b, follows)
		}
	}
}
