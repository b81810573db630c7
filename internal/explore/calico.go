package explore

import (
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

func sortedKeys(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }

func lastWrite(h *calico.IPAMHandle) time.Time {
	last := h.CreationTimestamp.Time
	for _, f := range h.ManagedFields {
		if f.Time.After(last) {
			last = f.Time.Time
		}
	}
	return last
}

// place is where an agent stands: what its next request is.
type place uint8

const (
	// An assignment, for each block in turn.
	readForIncrement place = iota
	increment
	readForAllocate
	allocate
	annotate
	// A release, for each block that the handle names.
	readForRelease
	readForFree
	free
	readForDecrement
	decrement
	deleteMarked
	// A collection by Calico's controller begins at a block.
	collect
	// A raw delete: admission, then the removal.
	admitDelete
	rawDelete
	// An operator who takes a block away and puts it back, under the lock.
	lock
	takeBlock
	putBlockBack
	unlock
	ended
)

var placeNames = [...]string{
	"read handle", "write handle", "read block", "write block", "annotate pod",
	"read handle to release", "read block to free", "free in block", "read handle to decrement", "decrement handle", "delete marked handle",
	"look for leaked addresses", "ask to delete", "delete", "lock datastore", "take block away", "put block back", "unlock datastore", "ended",
}

// maxTries stands for Calico's hundred: nothing here can get in its way as
// often as that, unless something is wrong.
const maxTries = 6

// deadline is CNI's.
const deadline = int64(verdict.AssignmentDeadline / time.Second)

// agent is one client that is not IPAM Guard, between two requests.
type agent struct {
	at     place
	leg    uint8
	tries  uint8
	began  int64
	handle *version[*calico.IPAMHandle]
	block  *version[*calico.IPAMBlock]
	// plan are the blocks that a release has still to go through, as bits.
	plan uint8
	// cleanup marks the decrement after a failed assignment.
	cleanup bool
	// spun counts the tries that met a handle marked deleted.
	spun uint8
}

func (a *agent) hash(h uint64) uint64 {
	h = mix(h, uint64(a.at)|uint64(a.leg)<<8|uint64(a.tries)<<16|uint64(a.plan)<<24|uint64(a.spun)<<32)
	if a.at == ended {
		return h
	}
	h = mixBool(mix(h, uint64(a.began)), a.cleanup) //nolint:gosec // not negative
	if a.handle != nil {
		h = mix(h, a.handle.hash)
	}
	if a.block != nil {
		h = mix(h, ^a.block.hash)
	}
	return h
}

// step does the agent's next request. Each is one place; the answer decides on
// the next place.
func (w *world) stepAgent(n int) {
	a, spec := &w.agents[n], &w.s.agents[n]
	if a.began < 0 {
		a.began = w.now
	}
	i, b := spec.handle, 0
	if int(a.leg) < len(spec.blocks) {
		b = spec.blocks[a.leg]
	}
	if a.at <= allocate && w.now-a.began > deadline {
		w.giveUp(a, b)
		return
	}
	switch a.at {
	case readForIncrement:
		a.handle = w.readHandle(i)
		a.at = increment
	case increment:
		w.agentIncrement(a, i, b)
	case readForAllocate:
		a.block = w.blocks[b]
		a.at = allocate
		if a.block == nil {
			w.giveUp(a, b)
		}
	case allocate:
		w.agentAllocate(a, spec, b)
	case annotate:
		if p := w.s.handles[i].pod; p >= 0 && w.pods[p] != nil {
			w.setPod(p, w.s.handles[i].container)
		}
		a.end()
	case readForRelease:
		a.handle = w.readHandle(i)
		if a.handle == nil {
			a.end() // "Asked to release address but it doesn't exist. Ignoring."
			return
		}
		a.plan = 0
		for b := range w.s.blocks {
			if _, named := a.handle.object.Spec.Block[w.s.blocks[b].cidr]; named {
				a.plan |= 1 << b
			}
		}
		a.nextBlock(w)
	case readForFree:
		a.block = w.blocks[a.leg]
		a.at = free
		if a.block == nil || len(a.block.object.Spec.OrdinalsOf(w.s.handles[i].name)) == 0 {
			a.nextBlock(w)
		}
	case free:
		err := w.storeBlock(int(a.leg), a.block.rv, withoutHandle(&a.block.object.Spec, w.s.handles[i].name))
		switch {
		case err == nil:
			a.at, a.tries = readForDecrement, 0
		case apierrors.IsConflict(err):
			a.retry(w, readForFree)
		default:
			a.nextBlock(w)
		}
	case readForDecrement:
		a.handle = w.readHandle(i)
		a.at = decrement
		if a.handle == nil {
			a.nextBlock(w)
		}
	case decrement:
		w.agentDecrement(a, i)
	case deleteMarked:
		h := a.handle.object
		kept, err := w.deleteHandle(i, h.UID, h.ResourceVersion, byCalico)
		switch {
		case kept != nil:
			w.violate("Calico's own delete of handle %s does not remove it at once", w.s.handles[i].id)
			a.nextBlock(w)
		case apierrors.IsConflict(err):
			a.retry(w, readForDecrement)
		default:
			a.nextBlock(w)
		}
	case collect:
		a.leg = uint8(spec.blocks[0]) //nolint:gosec // small
		a.at = readForFree
		w.stepAgent(n)
	case admitDelete:
		a.handle = w.handles[i]
		switch {
		case a.handle == nil:
			a.end()
		case w.up && !w.x.admission.delete(w, a.handle.object):
			a.end() // Refused.
		default:
			a.at = rawDelete
		}
	case rawDelete:
		// The API server admits again when the object has changed.
		if w.handles[i] != a.handle {
			a.retry(w, admitDelete)
			return
		}
		if _, err := w.deleteHandle(i, "", "", byPerson); err != nil {
			w.violate("raw delete of handle %s: %v", w.s.handles[i].id, err)
		}
		a.end()
	case lock:
		w.locked = true
		a.at = takeBlock
	case takeBlock:
		a.block = w.blocks[b]
		w.removeBlock(b)
		a.at = putBlockBack
	case putBlockBack:
		spec := a.block.object.Spec
		w.setBlock(b, &spec)
		w.checkBlock(b)
		a.at = unlock
	case unlock:
		w.locked = false
		a.end()
	case ended:
	}
}

func (a *agent) end() { *a = agent{at: ended, began: a.began} }

// readHandle reads as Calico does: what is marked deleted is not there.
func (w *world) readHandle(i int) *version[*calico.IPAMHandle] {
	if h := w.handles[i]; h != nil && !h.object.Spec.Deleted {
		return h
	}
	return nil
}

func (a *agent) retry(w *world, from place) {
	a.tries++
	a.at = from
	if a.tries < maxTries {
		return
	}
	if a.spun == 0 {
		w.violate("Calico lost a compare-and-swap %d times in a row", maxTries)
	}
	a.end()
}

func (w *world) agentIncrement(a *agent, i, b int) {
	cidr := w.s.blocks[b].cidr
	var err error
	if a.handle == nil {
		err = w.createHandle(i, calico.IPAMHandleSpec{HandleID: w.s.handles[i].id, Block: map[string]int{cidr: 1}}, byCalico)
		if apierrors.IsAlreadyExists(err) && w.handles[i].object.Spec.Deleted {
			a.spun++
		}
	} else {
		spec := a.handle.object.Spec.DeepCopy()
		if spec.Block == nil {
			spec.Block = map[string]int{}
		}
		spec.Block[cidr]++
		_, err = w.putHandle(i, a.handle.object, *spec)
	}
	if err != nil {
		a.retry(w, readForIncrement) // On any error.
		return
	}
	a.at, a.tries, a.handle = readForAllocate, 0, nil
}

func (w *world) agentAllocate(a *agent, s *agentSpec, b int) {
	spec := a.block.object.Spec.DeepCopy()
	free := slices.Index(spec.Allocations, nil)
	if free < 0 {
		w.giveUp(a, b)
		return
	}
	attribute, id := len(spec.Attributes), w.s.handles[s.handle].id
	owner := map[string]string{"node": nodeName}
	if p := w.s.handles[s.handle].pod; p >= 0 {
		owner["namespace"], owner["pod"] = w.s.pods[p].namespace, w.s.pods[p].name
	}
	spec.Attributes = append(spec.Attributes, calico.AllocationAttribute{HandleID: &id, Secondary: owner})
	spec.Allocations[free] = &attribute
	if err := w.storeBlock(b, a.block.rv, spec); err != nil {
		a.retry(w, readForAllocate)
		return
	}
	w.checkBlock(b)
	a.block, a.tries = nil, 0
	if a.leg++; int(a.leg) < len(s.blocks) {
		a.at = readForIncrement
		return
	}
	a.at = annotate
}

// checkBlock looks for references to handles that are not there.
func (w *world) checkBlock(b int) {
	for i := range w.s.handles {
		if w.readHandle(i) == nil && len(w.blocks[b].object.Spec.OrdinalsOf(w.s.handles[i].name)) > 0 {
			w.blame(i)
		}
		w.checkNamed(i)
	}
}

// giveUp ends an assignment: when the handle was written and the block was
// not, Calico takes the handle's count back.
func (w *world) giveUp(a *agent, b int) {
	if a.at < readForAllocate {
		a.end()
		return
	}
	*a = agent{at: readForDecrement, leg: uint8(b), began: a.began, cleanup: true} //nolint:gosec // small
}

func (w *world) agentDecrement(a *agent, i int) {
	spec := a.handle.object.Spec.DeepCopy()
	cidr := w.s.blocks[a.leg].cidr
	if spec.Block[cidr]--; spec.Block[cidr] <= 0 {
		delete(spec.Block, cidr)
	}
	spec.Deleted = len(spec.Block) == 0
	h, err := w.putHandle(i, a.handle.object, *spec)
	switch {
	case apierrors.IsConflict(err):
		a.retry(w, readForDecrement)
	case err != nil, !spec.Deleted:
		a.nextBlock(w)
	default:
		a.handle = &version[*calico.IPAMHandle]{object: h, hash: mixString(1, h.ResourceVersion)}
		a.at, a.tries = deleteMarked, 0
	}
}

// nextBlock goes on with the next block of a release's plan.
func (a *agent) nextBlock(w *world) {
	for b := range w.s.blocks {
		if !a.cleanup && a.plan&(1<<b) != 0 {
			a.plan &^= 1 << b
			a.leg, a.at, a.tries = uint8(b), readForFree, 0 //nolint:gosec // small
			a.handle, a.block = nil, nil
			return
		}
	}
	a.end()
}

// withoutHandle is the block without the handle's addresses.
func withoutHandle(old *calico.IPAMBlockSpec, name string) *calico.IPAMBlockSpec {
	spec := *old
	spec.Allocations, spec.Attributes = make([]*int, len(old.Allocations)), nil
	for ordinal, index := range old.Allocations {
		if index == nil || calico.HandleName(*old.Attributes[*index].HandleID) == name {
			continue
		}
		n := len(spec.Attributes)
		spec.Attributes = append(spec.Attributes, old.Attributes[*index])
		spec.Allocations[ordinal] = &n
	}
	return &spec
}
