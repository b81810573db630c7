package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// The paths that are served.
const (
	MutatePath   = "/mutate-ipamhandle"
	ValidatePath = "/validate-ipamhandle"
)

// Mode says what a raw delete of a handle in use meets.
type Mode string

// The modes.
const (
	// Enforce refuses the delete.
	Enforce Mode = "enforce"
	// Warn lets it pass with a warning; the finalizer still holds the handle.
	Warn Mode = "warn"
	// Off lets it pass.
	Off Mode = "off"
)

// Inventory is what admission asks of the caches. The inventory implements it.
type Inventory interface {
	// BlockNode is the node that the block's affinity names.
	BlockNode(block netip.Prefix) (node string, ok bool)
	// References are the blocks that reference the handle.
	References(name string) []verdict.Reference
}

// Blocks reads blocks from the API server.
type Blocks interface {
	GetBlock(ctx context.Context, name string) (*calico.IPAMBlock, error)
}

// Options configure admission.
type Options struct {
	Inventory Inventory
	// Blocks is asked on deletes only.
	Blocks Blocks
	// Mode defaults to Enforce.
	Mode Mode
	// WithoutGuard only stamps: no finalizer is added, no delete is judged.
	WithoutGuard bool
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Registerer gets the metrics.
	Registerer prometheus.Registerer
	Log        logr.Logger
}

func (o *Options) complete() error {
	if o.Mode == "" {
		o.Mode = Enforce
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	switch {
	case o.Mode != Enforce && o.Mode != Warn && o.Mode != Off:
		return fmt.Errorf("admission mode %q is not known", o.Mode)
	case o.Inventory == nil:
		return errors.New("admission needs an inventory")
	case o.Blocks == nil && !o.WithoutGuard && o.Mode != Off:
		return errors.New("admission needs a reader of blocks to judge deletes")
	case o.Registerer == nil:
		return errors.New("admission needs a registerer for its metrics")
	}
	return nil
}

// Register serves both halves on server.
func Register(server ctrlwebhook.Server, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	metrics, err := newMetrics(o.Registerer)
	if err != nil {
		return err
	}
	server.Register(MutatePath, hook(newMutator(o, metrics), o.Log))
	server.Register(ValidatePath, hook(newValidator(o, metrics), o.Log))
	return nil
}

// hook leaves out the values that controller-runtime gives the logger on each
// request: they cost more than all the rest, and are read only on errors.
func hook(h admission.Handler, log logr.Logger) *admission.Webhook {
	return &admission.Webhook{
		Handler:        h,
		LogConstructor: func(logr.Logger, *admission.Request) logr.Logger { return log },
	}
}
