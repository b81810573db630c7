package refcluster

import (
	"errors"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// Spec says what the cluster holds. The same Spec makes the same objects.
type Spec struct {
	// API is the group of Calico's objects.
	API calico.API
	// Pods is the number of live sandboxes, one for each running pod.
	Pods int
	// Nodes is the number of nodes, each with a live VXLAN tunnel address.
	Nodes int
	// Orphans is the number of handles that no block references.
	Orphans int
	// Now is the moment that ages count back from.
	Now time.Time
	// Youngest and Oldest bound the time since an orphan was last written.
	Youngest, Oldest time.Duration
	// Seed makes names, IDs and ages.
	Seed uint64
}

// Default is the reference cluster as of now: 31,092 handles, of which 531 pod
// sandboxes and 6 VXLAN tunnels live in 13 blocks on 6 nodes, and 30,555 are
// orphans, up to two and a half years old.
func Default(now time.Time) Spec {
	const day = 24 * time.Hour
	return Spec{
		API:      calico.API{GroupVersion: calico.GroupCRD},
		Pods:     531,
		Nodes:    6,
		Orphans:  30_555,
		Now:      now,
		Youngest: time.Hour,
		Oldest:   913 * day,
		Seed:     1,
	}
}

// Resize is the Spec with this many handles, of which the share leaks (0 to 1)
// are orphans.
func (s Spec) Resize(handles int, leaks float64) Spec {
	s.Orphans = int(float64(handles)*leaks + 0.5)
	s.Pods = max(0, handles-s.Orphans-s.Nodes)
	return s
}

// Live is the number of handles that blocks reference.
func (s Spec) Live() int { return s.Pods + s.Nodes }

// Handles is the number of handles.
func (s Spec) Handles() int { return s.Live() + s.Orphans }

// Validate says what no cluster can be.
func (s Spec) Validate() error {
	switch {
	case s.API.Empty():
		return errors.New("reference cluster: no API group")
	case s.Nodes < 1:
		return errors.New("reference cluster: it needs a node")
	case s.Nodes > maxNodes:
		return errors.New("reference cluster: too many nodes for its address pool")
	case s.Pods < 0 || s.Orphans < 0:
		return errors.New("reference cluster: negative number of pods or orphans")
	case s.Now.IsZero():
		return errors.New("reference cluster: no time to count ages from")
	case s.Youngest < 0 || s.Oldest < s.Youngest:
		return errors.New("reference cluster: the oldest orphan is younger than the youngest")
	case newLayout(s).blocks() > liveBlocks:
		return errors.New("reference cluster: too many pods for its address pool")
	}
	return nil
}
