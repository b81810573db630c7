// Package conditions gathers what the pause conditions rest on.
package conditions

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// groupInterval is how often the Calico API group is looked for again.
const groupInterval = 20 * time.Second

// Group follows which API group Calico uses.
type Group struct {
	api       calico.API
	detect    func(context.Context) (calico.Detection, error)
	clock     clock.WithTicker
	log       logr.Logger
	uncertain atomic.Pointer[string]
}

// NewGroup follows on from the detection that was found first; detect looks anew.
func NewGroup(found calico.Detection, detect func(context.Context) (calico.Detection, error), c clock.WithTicker, log logr.Logger) *Group {
	g := &Group{api: found.API, detect: detect, clock: c, log: log}
	g.note(found)
	return g
}

// Start looks until ctx ends. Caches follow one group, so that a move of Calico
// to another is an error, and leaves the group uncertain.
func (g *Group) Start(ctx context.Context) error {
	ticker := g.clock.NewTicker(groupInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		if err := g.look(ctx); err != nil {
			detail := err.Error()
			g.uncertain.Store(&detail)
			return err
		}
	}
}

func (g *Group) look(ctx context.Context) error {
	found, err := g.detect(ctx)
	switch {
	case errors.Is(err, calico.ErrNoCalico), errors.Is(err, calico.ErrAggregatedOnly):
		return err
	case err != nil:
		// The watches tell of an API server that is away.
		g.log.V(1).Info("Calico's API group is not known", "error", err.Error())
		return nil
	case found.API != g.api:
		return fmt.Errorf("Calico has moved from %s to %s", g.api, found.API) //nolint:staticcheck // a name
	}
	g.note(found)
	return nil
}

func (g *Group) note(d calico.Detection) {
	detail := ""
	if !d.Certain {
		detail = d.Detail
	}
	g.uncertain.Store(&detail)
}

// Uncertain says why the group is not certain; "" when it is.
func (g *Group) Uncertain() string { return *g.uncertain.Load() }
