package inventory

import (
	"encoding/hex"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

type flags uint8

const (
	flagTerminating flags = 1 << iota
	flagHeld
	flagStamped
	flagStampComplete
	// flagObserved: the last write is when this process first saw the version.
	flagObserved
	// flagAssigned: a block referenced the handle after its last write but the
	// deletion, so that the assignment which wrote it had ended.
	flagAssigned
	// flagOddUID: the UID is no UUID and stands in the shard's odd map.
	flagOddUID
)

// record is one handle, in 40 bytes without pointers.
type record struct {
	uid        [16]byte
	rv         uint64
	lastWrite  uint32 // Unix seconds, 0 for none
	node       uint32 // place of the stamp's node
	generation uint32
	// spec is the low half of the object's own generation.
	spec  uint16
	flags flags
}

func (r record) is(f flags) bool { return r.flags&f != 0 }

func (r record) written() time.Time {
	if r.lastWrite == 0 {
		return time.Time{}
	}
	return time.Unix(int64(r.lastWrite), 0)
}

type entry struct {
	key    key
	record record
}

// ref is one block's reference to a handle.
type ref struct {
	block        *block
	count, first int
	owner        *owner
	// raised is the block's resource version when the count last rose while
	// this process watched; 0 when that was before.
	raised uint64
}

// owner is what a block's attributes say of who holds an address.
type owner struct{ namespace, pod, node string }

// lost remembers the last reference of a handle that has none.
type lost struct {
	at    time.Time
	owner owner
	uid   string
	// rv is the handle's resource version when the reference went away, if the
	// reference had come after that version; else 0.
	rv uint64
}

type declared struct {
	rv     uint64
	blocks map[string]int
}

// shard holds the handles of some keys, and what else is known of these keys.
type shard struct {
	mu       sync.RWMutex
	records  records
	refs     map[key][]ref
	lost     map[key]lost
	declared map[key]declared
	held     map[key]struct{}
	odd      map[key]types.UID
	inUse    int
}

func (s *shard) init() {
	s.records = newRecords()
	s.refs = map[key][]ref{}
	s.lost = map[key]lost{}
	s.declared = map[key]declared{}
	s.held = map[key]struct{}{}
	s.odd = map[key]types.UID{}
}

// apply adds or updates a handle.
func (s *shard) apply(k key, h Handle, relist *relist, n *names, now time.Time) {
	generation := relist.generation.Load()
	//nolint:gosec // the low half is what is meant
	r := record{rv: h.ResourceVersion, generation: generation, spec: uint16(h.Generation)}
	odd := !parseUID(h.UID, &r.uid)
	for _, f := range []struct {
		on   bool
		flag flags
	}{
		{h.Terminating, flagTerminating},
		{h.Held, flagHeld},
		{h.Stamped, flagStamped},
		{h.StampComplete, flagStampComplete},
		{odd, flagOddUID},
	} {
		if f.on {
			r.flags |= f.flag
		}
	}
	if h.StampNode != "" {
		r.node = n.node(h.StampNode)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, had := s.records.get(k)
	if had && !relist.supersedes(r.rv, old.rv) {
		old.generation = generation // An older state proves that it exists all the same.
		s.records.set(k, old)
		return
	}
	switch {
	case !h.LastWrite.IsZero():
		r.lastWrite = seconds(h.LastWrite)
	case had && old.rv == r.rv:
		r.lastWrite = old.lastWrite
		r.flags |= old.flags & flagObserved
	default:
		// Rounded up: in doubt the handle is younger.
		r.lastWrite = seconds(now.Add(time.Second - time.Nanosecond))
		r.flags |= flagObserved
	}
	if !had && len(s.refs[k]) > 0 {
		s.inUse++
	}
	if had && old.rv != r.rv {
		delete(s.declared, k)
	}
	if had && s.uidOfLocked(k, old) != h.UID {
		delete(s.lost, k) // It speaks of an earlier handle of the name.
	} else if had && deletedAlone(old, r) {
		r.flags |= s.carryOver(k, old, r)
	}
	s.records.set(k, r)
	s.mark(k, r, h.UID)
}

// deletedAlone tells whether the deletion is all that lies between two states:
// it counts the object's generation up by one, as would any change of the spec.
func deletedAlone(old, r record) bool {
	return r.rv > old.rv && r.is(flagTerminating) && !old.is(flagTerminating) && r.spec == old.spec+1
}

// carryOver keeps, for a version that only the deletion tells from the one
// before, what was known of that one's assignment.
func (s *shard) carryOver(k key, old, r record) flags {
	if l, ok := s.lost[k]; ok && l.rv == old.rv {
		l.rv = r.rv
		s.lost[k] = l
	}
	for _, reference := range s.refs[k] {
		if reference.raised > old.rv {
			return flagAssigned
		}
	}
	return 0
}

// mark keeps the shard's side maps in step with a record.
func (s *shard) mark(k key, r record, uid types.UID) {
	if r.is(flagTerminating) && r.is(flagHeld) {
		s.held[k] = struct{}{}
	} else {
		delete(s.held, k)
	}
	if r.is(flagOddUID) {
		s.odd[k] = uid
	} else {
		delete(s.odd, k)
	}
	if r.is(flagStampComplete) {
		delete(s.lost, k)
	}
}

func seconds(t time.Time) uint32 {
	unix := t.Unix()
	if unix < 1 {
		return 1
	}
	return uint32(min(unix, 1<<32-1)) //nolint:gosec // clamped
}

func (s *shard) remove(k key, rv uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.records.get(k); ok && r.rv <= rv {
		s.drop(k)
	}
}

// drop forgets a handle; references to it stay, for blocks are the truth.
func (s *shard) drop(k key) {
	s.records.remove(k)
	delete(s.lost, k)
	delete(s.declared, k)
	delete(s.held, k)
	delete(s.odd, k)
	if len(s.refs[k]) > 0 {
		s.inUse--
	}
}

func (s *shard) retain(generation uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// From the end, for what is dropped is replaced by the last.
	for n := s.records.len() - 1; n >= 0; n-- {
		if e := s.records.at(n); e.record.generation != generation {
			s.drop(e.key)
		}
	}
}

func (s *shard) get(k key) (record, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.records.get(k)
}

func (s *shard) copyInto(out []entry) []entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for n := range s.records.len() {
		out = append(out, *s.records.at(n))
	}
	return out
}

func (s *shard) counts() (handles, referenced int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.records.len(), s.inUse
}

func (s *shard) missingKeys() []key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var keys []key
	for k, refs := range s.refs {
		if len(refs) > 0 && !s.records.has(k) {
			keys = append(keys, k)
		}
	}
	return keys
}

func (s *shard) heldKeys() []key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	keys := make([]key, 0, len(s.held))
	for k := range s.held {
		keys = append(keys, k)
	}
	return keys
}

// references are the blocks that reference the handle; was tells whether a
// block referenced this very version of it and none does any more.
func (s *shard) references(k key, rv uint64) (refs []verdict.Reference, was bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, r := range s.refs[k] {
		refs = append(refs, verdict.Reference{
			Block: r.block.cidr, Count: r.count, First: r.first,
			Namespace: r.owner.namespace, Pod: r.owner.pod, Node: r.owner.node,
		})
	}
	l, ok := s.lost[k]
	return refs, ok && len(refs) == 0 && rv != 0 && l.rv == rv
}

func (s *shard) remember(k key, rv uint64, blocks map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.records.get(k); ok && r.rv == rv {
		if blocks == nil {
			blocks = map[string]int{}
		}
		s.declared[k] = declared{rv, blocks}
	}
}

func (s *shard) declaredOf(k key, rv uint64) map[string]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if d, ok := s.declared[k]; ok && d.rv == rv {
		return d.blocks
	}
	return nil
}

func (s *shard) lostBefore(at time.Time) map[key]lost {
	s.mu.RLock()
	defer s.mu.RUnlock()
	found := map[key]lost{}
	for k, l := range s.lost {
		r, ok := s.records.get(k)
		if ok && !l.at.After(at) && l.owner.pod != "" && !r.is(flagStampComplete) {
			found[k] = l
		}
	}
	return found
}

// refer sets the block's reference to a handle; a zero count removes it. It
// follows when the block's state before is known.
func (s *shard) refer(k key, r ref, blockRV uint64, follows bool, podUID func() string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	refs := s.refs[k]
	at := -1
	for i := range refs {
		if refs[i].block == r.block {
			at = i
		}
	}
	switch {
	case r.count == 0 && at < 0:
		return
	case r.count == 0:
		s.unrefer(k, refs, at, follows, podUID, now)
		return
	case at < 0:
		if follows {
			r.raised = blockRV
		}
		s.refs[k] = append(refs, r)
		delete(s.lost, k)
		if len(refs) == 0 && s.records.has(k) {
			s.inUse++
		}
	default:
		if follows {
			r.raised = refs[at].raised
			if r.count > refs[at].count {
				r.raised = blockRV
			}
		}
		refs[at] = r
	}
}

func (s *shard) unrefer(k key, refs []ref, at int, follows bool, podUID func() string, now time.Time) {
	gone := refs[at]
	refs = append(refs[:at:at], refs[at+1:]...)
	if len(refs) > 0 {
		s.refs[k] = refs
		return
	}
	delete(s.refs, k)
	r, ok := s.records.get(k)
	if !ok {
		return
	}
	s.inUse--
	l := lost{at: now, owner: *gone.owner}
	// A reference that came after this version of the handle was written ends
	// the assignment that wrote it. Only a sandbox has a single writer: a handle
	// that is reused may be between two assignments.
	if follows && k.network != otherNetwork && (gone.raised > r.rv || r.is(flagAssigned)) {
		l.rv = r.rv
	}
	if !r.is(flagStampComplete) {
		l.uid = podUID()
	}
	s.lost[k] = l
}

// uidOf is the record's UID.
func (s *shard) uidOf(k key, r record) types.UID {
	if r.is(flagOddUID) {
		s.mu.RLock()
		defer s.mu.RUnlock()
	}
	return s.uidOfLocked(k, r)
}

func (s *shard) uidOfLocked(k key, r record) types.UID {
	if r.is(flagOddUID) {
		return s.odd[k]
	}
	return formatUID(r.uid)
}

// uuidDashes are the places of the dashes in a UUID.
var uuidDashes = [...]int{8, 13, 18, 23}

const uuidLen = 36

// parseUID reads a UUID in the lower-case form that the API server writes.
func parseUID(uid types.UID, out *[16]byte) bool {
	if len(uid) != uuidLen {
		return false
	}
	var digits [32]byte
	n, dash := 0, 0
	for i := range len(uid) {
		if dash < len(uuidDashes) && i == uuidDashes[dash] {
			if uid[i] != '-' {
				return false
			}
			dash++
			continue
		}
		if c := uid[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
		digits[n] = uid[i]
		n++
	}
	_, err := hex.Decode(out[:], digits[:])
	return err == nil
}

func formatUID(uid [16]byte) types.UID {
	var digits [32]byte
	hex.Encode(digits[:], uid[:])
	b := make([]byte, 0, uuidLen)
	start := 0
	for _, n := range [...]int{8, 4, 4, 4, 12} {
		if start > 0 {
			b = append(b, '-')
		}
		b = append(b, digits[start:start+n]...)
		start += n
	}
	return types.UID(b)
}
