package inventory

import "sync/atomic"

// relist is what one resource's lists have in common with its watch.
type relist struct {
	// generation marks what a list saw; Commit drops the rest.
	generation atomic.Uint32
	// older is true once a state came that was older than the known one.
	older atomic.Bool
	// anew is true while what comes replaces even what is newer.
	anew atomic.Bool
}

func (r *relist) begin(anew bool) {
	r.older.Store(false)
	r.anew.Store(anew)
	r.generation.Add(1)
}

// supersedes tells whether a state of resource version rv takes the place of
// the known one.
func (r *relist) supersedes(rv, known uint64) bool {
	if rv >= known {
		return true
	}
	r.older.Store(true)
	return r.anew.Load()
}

// Begin starts a relist: what is not applied before Commit is dropped then.
func (i *Inventory) Begin(r Resource) { i.relists[r].begin(false) }

// BeginAnew starts the relist of a datastore that was set back, as restoring a
// backup does: until Commit, what is applied replaces even what looks newer.
// What was known stays until then, so that nothing seems gone meanwhile.
func (i *Inventory) BeginAnew(r Resource) { i.relists[r].begin(true) }

// SetBack tells whether an applied state was older than the known one since
// the relist began. A list of one moment shows none, unless the datastore was
// set back.
func (i *Inventory) SetBack(r Resource) bool { return i.relists[r].older.Load() }
