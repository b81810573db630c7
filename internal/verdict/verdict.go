// Package verdict judges handles: evidence in, verdict out. It does no I/O and
// has no clock but the time in the evidence.
package verdict

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// Outcome is what a handle is judged to be.
type Outcome uint8

// The outcomes. Only Orphaned is ever swept.
const (
	// Unjudged is the zero value; Judge never returns it.
	Unjudged Outcome = iota
	// InUse: a block allocation references the handle.
	InUse
	// Settling: unreferenced, changed less than the grace period ago.
	Settling
	// OwnerAlive: unreferenced, but the owner lives. Kept and reported.
	OwnerAlive
	// OwnerUnknown: unreferenced, and the owner cannot be told. Kept and reported.
	OwnerUnknown
	// Orphaned: unreferenced, settled, owner gone.
	Orphaned
	// Reserved: never touched.
	Reserved
)

var outcomeNames = [...]string{"Unjudged", "InUse", "Settling", "OwnerAlive", "OwnerUnknown", "Orphaned", "Reserved"}

// String is the outcome's stable name, as metrics and reports spell it.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return outcomeNames[Unjudged]
}

// Outcomes are all outcomes that Judge can return.
func Outcomes() []Outcome {
	return []Outcome{InUse, Settling, OwnerAlive, OwnerUnknown, Orphaned, Reserved}
}

// Reason is a stable code that says why. Besides the constants here it is an
// ownership.Reason.
type Reason = ownership.Reason

// Reasons that do not come from the owner.
const (
	Referenced            Reason = "Referenced"
	ReferencedSoftDeleted Reason = "ReferencedSoftDeleted"
	RecentlyWritten       Reason = "RecentlyWritten"
	NoWriteTime           Reason = "NoWriteTime"
)

// AssignmentDeadline bounds how long after a handle's write Calico's CNI may
// still write the block that references it.
const AssignmentDeadline = 90 * time.Second

// MinGrace is the least grace period that may be configured.
const MinGrace = 2 * time.Minute

// DefaultGrace is the grace period unless configured.
const DefaultGrace = 15 * time.Minute

// Handle is what is known of the handle itself.
type Handle struct {
	// Name is the object's name.
	Name            string
	UID             types.UID
	ResourceVersion string
	// LastWrite is when anyone last changed the handle. Zero: not known.
	LastWrite time.Time
	// LastWriteObserved is true when the object told no time, and LastWrite is
	// when this process first saw its resource version.
	LastWriteObserved bool
	// SoftDeleted is spec.deleted; false while the spec was not read.
	SoftDeleted bool
	// Terminating is true once a deletionTimestamp is set.
	Terminating bool
	// Held is true while the handle carries our finalizer.
	Held bool
	// Stamp is the creation owner, nil without a readable one.
	Stamp *ownership.Stamp
}

// Reference is one block whose allocations reference the handle.
type Reference struct {
	// Block is its CIDR.
	Block string
	// Count is the number of its addresses that the handle holds.
	Count int
	// First is the ordinal of the first of them.
	First int
	// Namespace, Pod and Node are what the block's attributes say of the owner.
	Namespace, Pod, Node string
}

// Evidence is all that a verdict rests on.
type Evidence struct {
	Handle Handle
	ID     calico.HandleID
	// References are the blocks that reference the handle.
	References []Reference
	// WasReferenced is true when a block referenced the handle after its last
	// write and no longer does: the assignment that wrote it has ended.
	WasReferenced bool
	// Declared is spec.block, nil while it was not read.
	Declared map[string]int
	// Owner is what is known of the owner.
	Owner ownership.Finding
	Now   time.Time
	// Grace is how long a handle must be unchanged before it may be an orphan.
	Grace time.Duration
}

// Verdict is the judgement of one handle.
type Verdict struct {
	Outcome Outcome
	Reason  Reason
	// Skewed is true when the handle's counts differ from the blocks'. It is
	// known only where the spec was read.
	Skewed bool
	// Provisional marks an Orphaned that the handle's spec may still overturn.
	// It is never swept; read the spec and judge again.
	Provisional bool
}

// Judge is a pure function of the evidence.
func Judge(e Evidence) Verdict {
	if e.ID.Kind == calico.KindReserved {
		return Verdict{Outcome: Reserved, Reason: ownership.ReservedHandle}
	}
	if len(e.References) > 0 {
		v := Verdict{Outcome: InUse, Reason: Referenced, Skewed: skewed(e)}
		if e.Handle.SoftDeleted {
			v.Reason = ReferencedSoftDeleted
		}
		return v
	}
	if e.Handle.LastWrite.IsZero() {
		return Verdict{Outcome: Settling, Reason: NoWriteTime}
	}
	// A last write in the future, from a skewed clock, is recent too.
	if e.Now.Sub(e.Handle.LastWrite) < e.Grace {
		return Verdict{Outcome: Settling, Reason: RecentlyWritten}
	}
	switch e.Owner.State {
	case ownership.StateAlive:
		return Verdict{Outcome: OwnerAlive, Reason: e.Owner.Reason}
	case ownership.StateGone:
		return Verdict{Outcome: Orphaned, Reason: e.Owner.Reason, Provisional: e.Owner.Provisional}
	default:
		return Verdict{Outcome: OwnerUnknown, Reason: e.Owner.Reason}
	}
}

func skewed(e Evidence) bool {
	if e.Declared == nil {
		return false
	}
	if len(e.Declared) != len(e.References) {
		return true
	}
	for _, r := range e.References {
		if e.Declared[r.Block] != r.Count {
			return true
		}
	}
	return false
}

// Releasable says whether our finalizer may be taken off a terminating
// handle: nothing references it, and no assignment can be under way. The owner
// does not matter: whoever asked for the delete has decided that.
func Releasable(e Evidence) bool {
	if !e.Handle.Terminating || len(e.References) > 0 {
		return false
	}
	if e.WasReferenced {
		return true
	}
	return !e.Handle.LastWrite.IsZero() && e.Now.Sub(e.Handle.LastWrite) >= min(e.Grace, MinGrace)
}
