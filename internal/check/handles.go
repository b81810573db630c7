package check

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// handles remembers what handles declare and what blocks mention, in a few
// bytes each: names and what is declared are hashed, CIDRs are numbered.
type handles struct {
	seed      maphash.Seed
	declared  map[uint64]declaration
	mentioned map[uint64]mention
	cidrs     []string
	numbers   map[string]uint32
	// more holds the blocks of the few handles with more than one.
	more map[uint64][]uint32
}

type declaration struct {
	// digest is the sum of the hashes of each block with its count, so that
	// order does not matter.
	digest uint64
	// first is the number of one block; none is noBlock.
	first   uint32
	deleted bool
}

type mention struct {
	digest uint64
	name   string
}

const noBlock = ^uint32(0)

func newHandles() *handles {
	return &handles{
		seed: maphash.MakeSeed(), declared: map[uint64]declaration{}, mentioned: map[uint64]mention{},
		numbers: map[string]uint32{}, more: map[uint64][]uint32{},
	}
}

func (h *handles) key(name string) uint64 { return maphash.String(h.seed, name) }

func (h *handles) digest(cidr string, count int) uint64 {
	return maphash.Comparable(h.seed, struct {
		cidr  string
		count int
	}{cidr, count})
}

// declare takes what a handle says of blocks.
func (h *handles) declare(handle *calico.IPAMHandle) {
	d := declaration{first: noBlock, deleted: handle.Spec.Deleted}
	key := h.key(handle.Name)
	for cidr, count := range handle.Spec.Block {
		d.digest += h.digest(cidr, count)
		n, ok := h.numbers[cidr]
		if !ok {
			n = uint32(len(h.cidrs)) //nolint:gosec // fewer blocks than that
			h.numbers[cidr] = n
			h.cidrs = append(h.cidrs, cidr)
		}
		if d.first == noBlock {
			d.first = n
		} else {
			h.more[key] = append(h.more[key], n)
		}
	}
	h.declared[key] = d
}

// mention takes what a block says of handles.
func (h *handles) mention(spec *calico.IPAMBlockSpec) {
	counts := map[string]int{}
	for _, index := range spec.Allocations {
		if index == nil || *index < 0 || *index >= len(spec.Attributes) {
			continue
		}
		if id := spec.Attributes[*index].HandleID; id != nil && *id != "" {
			counts[calico.HandleName(*id)]++
		}
	}
	for name, count := range counts {
		key := h.key(name)
		m := h.mentioned[key]
		m.digest += h.digest(spec.CIDR, count)
		m.name = name
		h.mentioned[key] = m
	}
}

// blocks are the CIDRs that a handle names, without their counts.
func (h *handles) blocks(key uint64) map[string]int {
	named := map[string]int{}
	if d := h.declared[key]; d.first != noBlock {
		named[h.cidrs[d.first]] = 1
	}
	for _, n := range h.more[key] {
		named[h.cidrs[n]] = 1
	}
	return named
}

func (h *handles) report(r *Report, inv *inventory.Inventory, grace time.Duration, each func(verdict.Evidence, verdict.Verdict)) {
	for _, d := range h.declared {
		if d.deleted {
			r.HandlesMarkedDeleted++
		}
	}
	for key, m := range h.mentioned {
		switch d, ok := h.declared[key]; {
		case !ok || d.deleted:
			r.HandlesMissing++
		case d.digest != m.digest && calico.ParseHandleID(m.name).Kind != calico.KindReserved:
			r.HandlesSkewed++
		}
	}
	t := newTally(r, inv)
	for e, v := range inv.All(r.Time, grace) {
		key := h.key(e.Handle.Name)
		switch {
		case h.declared[key].deleted && len(e.References) > 0:
			e.Handle.SoftDeleted = true
			v = verdict.Judge(e)
		case len(e.References) == 0:
			e.Declared = h.blocks(key)
			e.Owner = ownership.Resolve(ownership.Subject{ID: e.ID, Name: e.Handle.Name, Stamp: e.Handle.Stamp, Declared: e.Declared}, inv)
			v = verdict.Judge(e)
		}
		t.add(e, v)
		if each != nil {
			each(e, v)
		}
	}
	t.finish()
}

// tally counts judged handles.
type tally struct {
	r        *Report
	inv      *inventory.Inventory
	places   map[string]place
	verdicts map[Verdict]int
	kinds    map[string]int
	ages     []int
	nodes    map[string]int
	byPool   map[string]int
}

// place is where a block lies.
type place struct{ node, pool string }

// Where an orphan's node or pool cannot be told.
const unknown = "unknown"

func newTally(r *Report, inv *inventory.Inventory) *tally {
	return &tally{
		r: r, inv: inv, places: map[string]place{}, verdicts: map[Verdict]int{}, kinds: map[string]int{},
		ages: make([]int, len(ages)), nodes: map[string]int{}, byPool: map[string]int{},
	}
}

func (t *tally) add(e verdict.Evidence, v verdict.Verdict) {
	t.verdicts[Verdict{Outcome: v.Outcome.String(), Reason: string(v.Reason)}]++
	t.kinds[e.ID.Kind.String()]++
	if len(e.References) > 0 {
		t.r.HandlesWithMatches++
	} else {
		t.r.HandlesWithoutMatches++
	}
	if v.Outcome != verdict.Orphaned {
		return
	}
	if written := e.Handle.LastWrite; t.r.OldestOrphan == nil || written.Before(*t.r.OldestOrphan) {
		t.r.OldestOrphan = &written
	}
	t.ages[ageOf(e.Now.Sub(e.Handle.LastWrite))]++
	at := t.placeOf(e)
	t.nodes[at.node]++
	t.byPool[at.pool]++
}

// placeOf an orphan is by the least of its blocks, so that map order does not
// show; ID and stamp know the node better.
func (t *tally) placeOf(e verdict.Evidence) place {
	at := place{unknown, unknown}
	least := ""
	for cidr := range e.Declared {
		if least == "" || cidr < least {
			least = cidr
		}
	}
	if least != "" {
		known, ok := t.places[least]
		if !ok {
			known = t.placeOfBlock(least)
			t.places[least] = known
		}
		at = known
	}
	switch {
	case e.ID.Kind == calico.KindNode:
		at.node = e.ID.Name
	case e.Handle.Stamp != nil && e.Handle.Stamp.Node != "":
		at.node = e.Handle.Stamp.Node
	}
	return at
}

func (t *tally) placeOfBlock(cidr string) place {
	at := place{unknown, unknown}
	block, err := netip.ParsePrefix(cidr)
	if err != nil {
		return at
	}
	if node, ok := t.inv.BlockNode(block); ok {
		at.node = node
	}
	for _, p := range t.r.Pools {
		if pool, err := netip.ParsePrefix(p.CIDR); err == nil && pool.Contains(block.Addr()) {
			at.pool = p.Name
		}
	}
	return at
}

const day = 24 * time.Hour

// ages are the classes of the histogram; the last has no end.
var ages = [...]struct {
	name  string
	below time.Duration
}{
	{"under 1 h", time.Hour},
	{"1 h to 1 d", day},
	{"1 to 7 d", 7 * day},
	{"7 to 30 d", 30 * day},
	{"30 to 90 d", 90 * day},
	{"90 to 180 d", 180 * day},
	{"180 d to 1 y", 365 * day},
	{"1 to 2 y", 730 * day},
	{"over 2 y", 0},
}

func ageOf(age time.Duration) int {
	for i, class := range ages[:len(ages)-1] {
		if age < class.below {
			return i
		}
	}
	return len(ages) - 1
}

func (t *tally) finish() {
	r := t.r
	r.Verdicts = []Verdict{}
	for v, n := range t.verdicts {
		v.Handles = n
		r.Verdicts = append(r.Verdicts, v)
	}
	slices.SortFunc(r.Verdicts, func(a, b Verdict) int {
		return cmp.Or(cmp.Compare(b.Handles, a.Handles), cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.Reason, b.Reason))
	})
	r.OwnerKinds, r.OrphansByNode, r.OrphansByPool = counts(t.kinds), counts(t.nodes), counts(t.byPool)
	for i, n := range t.ages {
		r.OrphanAges = append(r.OrphanAges, Count{ages[i].name, n})
	}
}

// counts are sorted, most first.
func counts(of map[string]int) []Count {
	sorted := make([]Count, 0, len(of))
	for name, n := range of {
		sorted = append(sorted, Count{name, n})
	}
	slices.SortFunc(sorted, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Handles, a.Handles), cmp.Compare(a.Name, b.Name))
	})
	return sorted
}
