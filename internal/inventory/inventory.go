// Package inventory holds what a cluster's objects say of handles and their
// owners, in as few bytes as that takes, and turns it into evidence.
//
// Objects are applied one by one, in any order across resources; within one
// resource an older resource version never replaces a newer one, unless the
// datastore was set back. A relist is Begin or BeginAnew, Apply for each object,
// Commit.
package inventory

import (
	"iter"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// Resource is one kind of object that feeds the inventory.
type Resource uint8

// The resources.
const (
	Handles Resource = iota
	Blocks
	Pods
	Nodes
	Services
	// VirtualMachines and VirtualMachineInstances are KubeVirt's, followed only
	// where that is installed.
	VirtualMachines
	VirtualMachineInstances
	resources
)

var resourceNames = [resources]string{"ipamhandles", "ipamblocks", "pods", "nodes", "services", "virtualmachines", "virtualmachineinstances"}

// String is the resource's plural name.
func (r Resource) String() string { return resourceNames[r] }

// shardCount spreads handles over locks, so that neither a walk over all of
// them nor an event holds up admission. It divides 256.
const shardCount = 64

// Inventory is safe for concurrent use.
type Inventory struct {
	clock    clock.PassiveClock
	names    *names
	shards   [shardCount]shard
	blocks   blocks
	owners   owners
	machines machines

	relists [resources]relist

	subscribers subscribers
}

// New returns an empty inventory. The clock tells when a handle without
// readable times was first seen.
func New(c clock.PassiveClock) *Inventory {
	i := &Inventory{clock: c, names: newNames()}
	for n := range i.shards {
		i.shards[n].init()
	}
	i.blocks.init()
	i.owners.init()
	i.machines.init()
	return i
}

// Commit ends a relist.
func (i *Inventory) Commit(r Resource) {
	anew := i.relists[r].anew.Swap(false)
	generation := i.relists[r].generation.Load()
	switch r {
	case Handles:
		for n := range i.shards {
			i.shards[n].retain(generation)
		}
	case Blocks:
		i.retainBlocks(generation, !anew)
	case Pods:
		i.owners.retainPods(generation)
	case Nodes:
		i.owners.retainNamed(&i.owners.nodes, generation, func(seen) {})
	case Services:
		i.owners.retainNamed(&i.owners.services, generation, func(s seen) { i.owners.unhash(s.value) })
	case VirtualMachines, VirtualMachineInstances:
		i.retainMachines(r)
	}
	i.subscribers.notify()
}

// Handle is what the inventory takes of an IPAMHandle.
type Handle struct {
	Name            string
	UID             types.UID
	ResourceVersion uint64
	// Generation counts changes of the spec, and the deletion.
	Generation int64
	// LastWrite is zero when the object tells no time.
	LastWrite   time.Time
	Terminating bool
	// Held is true while the handle carries our finalizer.
	Held bool
	// StampNode is the node that a readable stamp names; Stamped tells whether
	// there is one, StampComplete whether it names the pod.
	StampNode              string
	Stamped, StampComplete bool
}

// ApplyHandle adds or updates a handle.
func (i *Inventory) ApplyHandle(h Handle) {
	k := i.names.key(h.Name)
	s := i.shard(k)
	s.apply(k, h, &i.relists[Handles], i.names, i.clock.Now())
	i.subscribers.notify()
}

// DeleteHandle removes a handle; a resource version older than the known one
// speaks of an earlier object of the name and is ignored.
func (i *Inventory) DeleteHandle(name string, resourceVersion uint64) {
	k, ok := i.names.find(name)
	if !ok {
		return
	}
	i.shard(k).remove(k, resourceVersion)
	i.subscribers.notify()
}

// Evidence is what the caches alone say of a handle.
func (i *Inventory) Evidence(name string, now time.Time, grace time.Duration) (verdict.Evidence, bool) {
	k, ok := i.names.find(name)
	if !ok {
		return verdict.Evidence{}, false
	}
	r, ok := i.shard(k).get(k)
	if !ok {
		return verdict.Evidence{}, false
	}
	return i.evidence(k, r, now, grace), true
}

// EvidenceFor is what a handle that was read in full says, with what the
// caches say of its references and its owner.
func (i *Inventory) EvidenceFor(h *calico.IPAMHandle, now time.Time, grace time.Duration) verdict.Evidence {
	read := FromObject(h)
	e := verdict.Evidence{
		Handle: verdict.Handle{
			Name: h.Name, UID: h.UID, ResourceVersion: h.ResourceVersion,
			LastWrite: read.LastWrite, SoftDeleted: h.Spec.Deleted,
			Terminating: read.Terminating, Held: read.Held,
		},
		ID:       calico.ParseHandleID(h.Name),
		Declared: h.Spec.Block,
		Now:      now, Grace: grace,
	}
	if e.Declared == nil {
		e.Declared = map[string]int{}
	}
	if stamp, err := ownership.ParseStamp(h.Annotations[ownership.StampAnnotation]); err == nil {
		e.Handle.Stamp = &stamp
	}
	if k, ok := i.names.find(h.Name); ok {
		s := i.shard(k)
		e.References, e.WasReferenced = s.references(k, read.ResourceVersion)
		if r, ok := s.get(k); ok && read.LastWrite.IsZero() && r.rv == read.ResourceVersion {
			e.Handle.LastWrite, e.Handle.LastWriteObserved = r.written(), true
		}
	}
	e.Owner = ownership.Resolve(ownership.Subject{ID: e.ID, Name: h.Name, Stamp: e.Handle.Stamp, Declared: e.Declared}, i)
	return e
}

func (i *Inventory) evidence(k key, r record, now time.Time, grace time.Duration) verdict.Evidence {
	s := i.shard(k)
	name := i.names.name(k)
	uid := s.uidOf(k, r)
	e := verdict.Evidence{
		Handle: verdict.Handle{
			Name: name, UID: uid, ResourceVersion: strconv.FormatUint(r.rv, 10),
			LastWrite: r.written(), LastWriteObserved: r.is(flagObserved),
			Terminating: r.is(flagTerminating), Held: r.is(flagHeld),
			Stamp: i.names.stamp(r),
		},
		ID:  calico.ParseHandleID(name),
		Now: now, Grace: grace,
	}
	e.References, e.WasReferenced = s.references(k, r.rv)
	if len(e.References) == 0 {
		e.Declared = s.declaredOf(k, r.rv)
		e.Owner = ownership.Resolve(ownership.Subject{ID: e.ID, Name: name, Stamp: e.Handle.Stamp, Declared: e.Declared}, i)
	}
	return e
}

// All judges every handle that there is throughout the walk; one that comes
// or goes meanwhile may or may not be among them. A handle that is in use has
// no finding of its owner.
func (i *Inventory) All(now time.Time, grace time.Duration) iter.Seq2[verdict.Evidence, verdict.Verdict] {
	return func(yield func(verdict.Evidence, verdict.Verdict) bool) {
		var copied []entry
		for n := range i.shards {
			copied = i.shards[n].copyInto(copied[:0])
			for _, c := range copied {
				e := i.evidence(c.key, c.record, now, grace)
				if !yield(e, verdict.Judge(e)) {
					return
				}
			}
		}
	}
}

// References are the blocks that reference the handle.
func (i *Inventory) References(name string) []verdict.Reference {
	k, ok := i.names.find(name)
	if !ok {
		return nil
	}
	refs, _ := i.shard(k).references(k, 0)
	return refs
}

// RememberDeclared keeps the blocks that a handle names, until it changes.
func (i *Inventory) RememberDeclared(name, resourceVersion string, declared map[string]int) {
	rv, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return
	}
	if k, ok := i.names.find(name); ok {
		i.shard(k).remember(k, rv, declared)
	}
}

// Missing are handles that blocks reference and that do not exist.
func (i *Inventory) Missing() []string {
	var missing []string
	for n := range i.shards {
		for _, k := range i.shards[n].missingKeys() {
			missing = append(missing, i.names.name(k))
		}
	}
	return missing
}

// Held are the terminating handles that carry our finalizer.
func (i *Inventory) Held() []string {
	var held []string
	for n := range i.shards {
		for _, k := range i.shards[n].heldKeys() {
			held = append(held, i.names.name(k))
		}
	}
	return held
}

// Leak is a handle that outlived its last reference, and the pod it was for.
type Leak struct {
	Handle                    string
	Namespace, Pod, UID, Node string
}

// Leaks are the handles whose last reference went away at least minAge ago
// while this inventory watched, and whose stamp does not name the pod yet.
func (i *Inventory) Leaks(minAge time.Duration, now time.Time) []Leak {
	var leaks []Leak
	for n := range i.shards {
		for k, l := range i.shards[n].lostBefore(now.Add(-minAge)) {
			// Only a sandbox's stamp lacks the pod: the others' IDs tell the owner.
			if k.network == otherNetwork {
				continue
			}
			leak := Leak{Handle: i.names.name(k), Namespace: l.owner.namespace, Pod: l.owner.pod, UID: l.uid, Node: l.owner.node}
			leaks = append(leaks, leak)
		}
	}
	return leaks
}

// Summary counts what there is.
type Summary struct {
	Handles, ReferencedHandles int
	Blocks                     int
	Nodes, Services            int
	Pods                       int
	// CalicoPods carry an annotation of Calico's CNI plugin.
	CalicoPods int
}

// Summary counts what there is now.
func (i *Inventory) Summary() Summary {
	var s Summary
	for n := range i.shards {
		handles, referenced := i.shards[n].counts()
		s.Handles += handles
		s.ReferencedHandles += referenced
	}
	s.Blocks = i.blocks.count()
	i.owners.count(&s)
	return s
}

// Subscribe returns a channel that receives after anything changed, at most
// one notice behind. It lives as long as the inventory.
func (i *Inventory) Subscribe() <-chan struct{} { return i.subscribers.add() }

func (i *Inventory) shard(k key) *shard { return &i.shards[k.id[0]%shardCount] }

// BlockNode implements ownership.Facts.
func (i *Inventory) BlockNode(block netip.Prefix) (string, bool) { return i.blocks.node(block) }

type subscribers struct {
	mu       sync.RWMutex
	channels []chan struct{}
}

func (s *subscribers) add() <-chan struct{} {
	ch := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channels = append(s.channels, ch)
	return ch
}

func (s *subscribers) notify() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, ch := range s.channels {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
