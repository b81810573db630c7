package inventory

import "hash/maphash"

const (
	// chunkLen is how many entries are allocated together: 10 KB, in full.
	chunkLen = 128
	// minIndex is the least length of an index, a power of two.
	minIndex = 16
)

// records is a map from keys to records that takes a half of what Go's takes:
// entries lie densely in chunks, which are neither copied as it grows nor kept
// when it shrinks, and only an index of places has gaps. A mass sweep gives its
// memory back.
type records struct {
	seed   maphash.Seed
	chunks []*[chunkLen]entry
	count  int
	// index holds places of entries, from 1 on; 0 is a gap. A key's search
	// begins at its hash and ends at a gap.
	index []uint32
}

func newRecords() records {
	return records{seed: maphash.MakeSeed(), index: make([]uint32, minIndex)}
}

func (r *records) len() int { return r.count }

// at is the nth entry. Removing it puts the last one in its place.
func (r *records) at(n int) *entry { return &r.chunks[n/chunkLen][n%chunkLen] }

func (r *records) home(k key) int {
	hash := maphash.Bytes(r.seed, k.id[:]) + uint64(k.network)
	return int(hash & uint64(len(r.index)-1)) //nolint:gosec // less than the index's length
}

// find is the key's place in the index, or the gap where it would be.
func (r *records) find(k key) (at int, ok bool) {
	for at = r.home(k); ; at = r.next(at) {
		switch place := r.index[at]; {
		case place == 0:
			return at, false
		case r.at(int(place)-1).key == k:
			return at, true
		}
	}
}

func (r *records) next(at int) int { return (at + 1) & (len(r.index) - 1) }

func (r *records) get(k key) (record, bool) {
	at, ok := r.find(k)
	if !ok {
		return record{}, false
	}
	return r.at(int(r.index[at]) - 1).record, true
}

func (r *records) has(k key) bool {
	_, ok := r.find(k)
	return ok
}

func (r *records) set(k key, value record) {
	at, ok := r.find(k)
	if ok {
		r.at(int(r.index[at]) - 1).record = value
		return
	}
	if 4*(r.count+1) > 3*len(r.index) {
		r.grow()
		at, _ = r.find(k)
	}
	if r.count == len(r.chunks)*chunkLen {
		r.chunks = append(r.chunks, new([chunkLen]entry))
	}
	*r.at(r.count) = entry{key: k, record: value}
	r.count++
	r.index[at] = uint32(r.count) //nolint:gosec // 4 G handles do not fit into etcd.
}

func (r *records) grow() {
	r.index = make([]uint32, 2*len(r.index))
	for n := range r.count {
		at, _ := r.find(r.at(n).key)
		r.index[at] = uint32(n + 1) //nolint:gosec // as above
	}
}

func (r *records) remove(k key) {
	at, ok := r.find(k)
	if !ok {
		return
	}
	hole := int(r.index[at]) - 1
	r.unindex(at)
	last := r.count - 1
	if hole != last {
		moved, _ := r.find(r.at(last).key)
		r.index[moved] = uint32(hole + 1) //nolint:gosec // as above
		*r.at(hole) = *r.at(last)
	}
	r.count = last
	if last%chunkLen == 0 {
		r.chunks[last/chunkLen] = nil
		r.chunks = r.chunks[:last/chunkLen]
	}
}

// unindex makes a gap, and moves up those after it whose search would end there.
func (r *records) unindex(gap int) {
	for at := r.next(gap); r.index[at] != 0; at = r.next(at) {
		home := r.home(r.at(int(r.index[at]) - 1).key)
		// Whether home is cyclically after the gap and not after at.
		if (at-home)&(len(r.index)-1) < (at-gap)&(len(r.index)-1) {
			continue
		}
		r.index[gap] = r.index[at]
		gap = at
	}
	r.index[gap] = 0
}
