package explore

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/ipam-guard/ipam-guard/controllers/sweeper"
	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// Rules wrap what the product is given. Left alone they change nothing; a test
// takes a safety rule away by wrapping what the rule rests on.
type Rules struct {
	API func(effect.API) effect.API
	// Seen is what the caches and a judgement take of a handle.
	Seen func(*calico.IPAMHandle) *calico.IPAMHandle
	// SeenBlock is what the caches take of a block.
	SeenBlock  func(*calico.IPAMBlock) *calico.IPAMBlock
	Evidence   func(effect.Evidence) effect.Evidence
	Alter      func(verdict.Evidence) verdict.Evidence
	Audit      func(audit.Log) audit.Log
	Freshness  func(sweeper.Freshness) sweeper.Freshness
	Gate       func(effect.Gate) effect.Gate
	Mutating   func(admission.Handler) admission.Handler
	Validating func(admission.Handler) admission.Handler
	Grace      time.Duration
}

// complete fills in what changes nothing.
func (r *Rules) complete() {
	keep(&r.API)
	keep(&r.Seen)
	keep(&r.SeenBlock)
	keep(&r.Evidence)
	keep(&r.Alter)
	keep(&r.Audit)
	keep(&r.Freshness)
	keep(&r.Gate)
	keep(&r.Mutating)
	keep(&r.Validating)
	if r.Grace == 0 {
		r.Grace = verdict.MinGrace
	}
}

func keep[T any](wrap *func(T) T) {
	if *wrap == nil {
		*wrap = func(v T) T { return v }
	}
}
