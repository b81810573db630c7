// Package leaks writes into a leaked handle's stamp which pod it was for,
// while the memory of it is fresh.
package leaks

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
)

// Inventory is what the completer asks of the caches.
type Inventory interface {
	// Leaks are handles whose last reference went away at least minAge ago.
	Leaks(minAge time.Duration, now time.Time) []inventory.Leak
}

// Options make a Completer. All but Log are required.
type Options struct {
	Inventory Inventory
	Effector  *effect.Effector
	Clock     clock.Clock
	Log       logr.Logger
}

const (
	// outlived is how long a handle must outlive its last reference before it
	// counts as leaked: a normal release takes moments.
	outlived = time.Minute
	interval = 15 * time.Second
)

// Completer completes the stamps of leaked handles.
type Completer struct{ o Options }

// New returns a Completer.
func New(o Options) *Completer { return &Completer{o} }

// NeedLeaderElection makes one replica write.
func (c *Completer) NeedLeaderElection() bool { return true }

// Start completes stamps until ctx ends.
func (c *Completer) Start(ctx context.Context) error {
	timer := c.o.Clock.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C():
		}
		c.Complete(ctx)
		timer.Reset(interval)
	}
}

// Complete completes the stamps of all handles that leaked by now.
func (c *Completer) Complete(ctx context.Context) {
	for _, leak := range c.o.Inventory.Leaks(outlived, c.o.Clock.Now()) {
		result, err := c.o.Effector.Complete(ctx, leak.Handle, leak.Namespace, leak.Pod, leak.UID, leak.Node)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			// The next round tries again.
			c.o.Log.Error(err, "complete the stamp of a leaked handle", "handle", leak.Handle)
		default:
			c.o.Log.V(1).Info("leaked handle", "handle", leak.Handle, "namespace", leak.Namespace,
				"pod", leak.Pod, "uid", leak.UID, "outcome", result.Outcome)
		}
	}
}
