// Package guard lets go of handles that somebody deleted while a block
// referenced them, once no block does.
package guard

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/effect"
)

// Inventory is what the guard asks of the caches.
type Inventory interface {
	// Held are the terminating handles that carry our finalizer.
	Held() []string
	// Subscribe returns a channel that receives after anything changed.
	Subscribe() <-chan struct{}
}

// Observer is told what happens.
type Observer interface {
	// Holding is told how many handles are held.
	Holding(n int)
	// Released is told what came of one held handle.
	Released(name string, r effect.Result, err error)
}

// Options make a Guard. All but Log are required.
type Options struct {
	Inventory Inventory
	Effector  *effect.Effector
	Observer  Observer
	Clock     clock.Clock
	Log       logr.Logger
}

// recheck is how soon held handles are looked at again when nothing changed:
// the time after which no assignment can be under way passes without an event.
const recheck = 10 * time.Second

// Guard releases held handles.
type Guard struct{ o Options }

// New returns a Guard.
func New(o Options) *Guard { return &Guard{o} }

// NeedLeaderElection makes one replica release.
func (g *Guard) NeedLeaderElection() bool { return true }

// Start looks at the held handles whenever something changed, until ctx ends.
func (g *Guard) Start(ctx context.Context) error {
	changed := g.o.Inventory.Subscribe()
	for ctx.Err() == nil {
		var again <-chan time.Time
		if g.Check(ctx) > 0 {
			again = g.o.Clock.After(recheck)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-again:
		}
	}
	return nil
}

// Check looks at each held handle once and tells how many there were.
func (g *Guard) Check(ctx context.Context) int {
	held := g.o.Inventory.Held()
	g.o.Observer.Holding(len(held))
	for _, name := range held {
		if ctx.Err() != nil {
			break
		}
		result, err := g.o.Effector.Release(ctx, name)
		if err != nil && ctx.Err() != nil {
			break
		}
		g.o.Observer.Released(name, result, err)
	}
	return len(held)
}
