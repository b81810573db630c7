// Package pause decides when nothing may be swept, and says so once per change.
package pause

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Reason is a stable code.
type Reason string

// The reasons.
const (
	// DatastoreLocked: ClusterInformation says that nobody may write IPAM.
	DatastoreLocked Reason = "DatastoreLocked"
	// CacheUnsynced: a cache has not yet seen the whole of its resource.
	CacheUnsynced Reason = "CacheUnsynced"
	// WatchBroken: a cache is not being updated.
	WatchBroken Reason = "WatchBroken"
	// NodesEmpty: no nodes, yet pods with Calico IPs.
	NodesEmpty Reason = "NodesEmpty"
	// BlocksEmpty: no blocks, yet pods with Calico IPs.
	BlocksEmpty Reason = "BlocksEmpty"
	// InUseFell: the handles in use fell by more than half.
	InUseFell Reason = "InUseFell"
	// GroupUncertain: both Calico API groups answer, and which is in use is
	// not certain.
	GroupUncertain Reason = "GroupUncertain"
)

// Reasons are all reasons, for metrics that show each.
func Reasons() []Reason {
	return []Reason{DatastoreLocked, CacheUnsynced, WatchBroken, NodesEmpty, BlocksEmpty, InUseFell, GroupUncertain}
}

// Pause is one active condition.
type Pause struct {
	Reason Reason
	// Message is for people and says what would clear it.
	Message string
}

// Cache is the state of one resource's cache.
type Cache struct {
	Resource          string
	Synced, Connected bool
	// Detail is the last error, if any.
	Detail string
}

// Facts are what the pause conditions rest on.
type Facts struct {
	// Locked is true while the datastore is locked or its lock is not known;
	// LockDetail says which.
	Locked     bool
	LockDetail string
	Caches     []Cache
	// Counts of the synced caches.
	Nodes, Blocks, CalicoPods, InUse int
	// GroupDetail says why the Calico API group is not certain; "" when it is.
	GroupDetail string
}

// minBaseline is the least number of handles in use whose halving means
// something is wrong rather than that a few pods went away.
const minBaseline = 10

// Evaluate is pure. Baseline is the number of handles in use that was last
// believed, 0 for none.
func Evaluate(f Facts, baseline int) []Pause {
	var active []Pause
	add := func(r Reason, format string, args ...any) {
		active = append(active, Pause{r, fmt.Sprintf(format, args...)})
	}
	if f.Locked {
		add(DatastoreLocked, "the Calico datastore is locked (%s); sweeping goes on once it is unlocked", f.LockDetail)
	}
	synced := true
	for _, c := range f.Caches {
		switch {
		case !c.Synced:
			synced = false
			add(CacheUnsynced, "%s are not listed yet%s", c.Resource, suffix(c.Detail))
		case !c.Connected:
			add(WatchBroken, "the watch of %s is broken%s", c.Resource, suffix(c.Detail))
		}
	}
	if f.GroupDetail != "" {
		add(GroupUncertain, "which Calico API group is in use is not certain: %s", f.GroupDetail)
	}
	if !synced {
		return active
	}
	if f.CalicoPods > 0 && f.Nodes == 0 {
		add(NodesEmpty, "no nodes, yet %d pods have Calico IPs", f.CalicoPods)
	}
	if f.CalicoPods > 0 && f.Blocks == 0 {
		add(BlocksEmpty, "no IPAM blocks, yet %d pods have Calico IPs", f.CalicoPods)
	}
	if fell(f.InUse, baseline) {
		add(InUseFell, "handles in use fell from %d to %d; sweeping goes on once the number has held for the grace period", baseline, f.InUse)
	}
	return active
}

func fell(inUse, baseline int) bool { return baseline >= minBaseline && 2*inUse < baseline }

func suffix(detail string) string {
	if detail == "" {
		return ""
	}
	return ": " + detail
}

// Monitor evaluates the conditions and remembers what it must: the number of
// handles in use, and which pauses were told. It is safe for concurrent use.
type Monitor struct {
	clock   clock.PassiveClock
	facts   func() Facts
	settle  time.Duration
	changed func(p Pause, active bool)

	mu       sync.Mutex
	active   map[Reason]Pause
	baseline int
	// fallen is the low number of handles in use that must hold, since when.
	fallen      int
	fallenSince time.Time
}

// NewMonitor returns a monitor of facts. After a fall of the handles in use,
// the new number must hold for settle. Changed is told of each pause that
// begins or ends, under the monitor's lock.
func NewMonitor(c clock.PassiveClock, settle time.Duration, facts func() Facts, changed func(p Pause, active bool)) *Monitor {
	return &Monitor{clock: c, facts: facts, settle: settle, changed: changed, active: map[Reason]Pause{}}
}

// PausedError is what Gate returns while anything pauses.
type PausedError struct{ Pauses []Pause }

// Error names the first pause.
func (e *PausedError) Error() string {
	return fmt.Sprintf("paused (%s): %s", e.Pauses[0].Reason, e.Pauses[0].Message)
}

// Gate evaluates the conditions; it is nil when effects are allowed and else a
// *PausedError.
func (m *Monitor) Gate() error {
	if pauses := m.Active(); len(pauses) > 0 {
		return &PausedError{pauses}
	}
	return nil
}

// Active evaluates the conditions now.
func (m *Monitor) Active() []Pause {
	f := m.facts()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.learn(f)
	pauses := Evaluate(f, m.baseline)
	now := make(map[Reason]Pause, len(pauses))
	for _, p := range pauses {
		if _, dup := now[p.Reason]; dup {
			continue
		}
		now[p.Reason] = p
		if _, was := m.active[p.Reason]; !was {
			m.changed(p, true)
		}
	}
	for reason, p := range m.active {
		if _, still := now[reason]; !still {
			m.changed(p, false)
		}
	}
	m.active = now
	return pauses
}

// learn keeps the baseline: it follows every number but a fall, which must
// hold for the settle time first.
func (m *Monitor) learn(f Facts) {
	for _, c := range f.Caches {
		if !c.Synced {
			return
		}
	}
	if !fell(f.InUse, m.baseline) {
		// A slow decline within the bound must not add up to a fall unseen:
		// the baseline sinks only by what has held for the settle time.
		if f.InUse >= m.baseline {
			m.baseline, m.fallenSince = f.InUse, time.Time{}
			return
		}
	}
	now := m.clock.Now()
	if m.fallenSince.IsZero() || f.InUse < m.fallen {
		m.fallen, m.fallenSince = f.InUse, now
		return
	}
	if now.Sub(m.fallenSince) >= m.settle {
		m.baseline, m.fallenSince = m.fallen, time.Time{}
	}
}
