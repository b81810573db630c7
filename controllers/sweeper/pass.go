package sweeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
)

// pass is one walk over all handles. Reading and proving the next batch goes
// on while the present one is deleted.
type pass struct {
	s *Sweeper

	mu     sync.Mutex
	report Report
	// taken counts the candidates put into batches.
	taken int
}

// batch is candidates that were read in full, and the moment up to which the
// caches are proven fresh.
type batch struct {
	handles []*calico.IPAMHandle
	proven  time.Time
}

// errEnough ends a pass that has taken its fill.
var errEnough = errors.New("enough candidates")

func (p *pass) run(ctx context.Context) error {
	tally, few := p.s.tally()
	p.report.Tally = tally
	p.s.o.Observer.Judged(tally)
	if tally.Candidates == 0 {
		return nil
	}
	if err := p.s.o.Gate(); err != nil {
		return err
	}
	batches := make(chan batch, 1)
	return p.s.together(ctx, func(ctx context.Context) error {
		defer close(batches)
		err := p.produce(ctx, few, batches)
		if errors.Is(err, errEnough) {
			return nil
		}
		return err
	}, func(ctx context.Context) error {
		for b := range batches {
			if err := p.sweep(ctx, b); err != nil {
				return err
			}
		}
		return nil
	})
}

// produce reads candidates and hands them on in batches that are proven fresh.
func (p *pass) produce(ctx context.Context, few []string, out chan<- batch) error {
	pending := p.begin(ctx)
	add := func(read []*calico.IPAMHandle) error {
		pending.handles = append(pending.handles, p.candidates(read)...)
		for size := p.batchSize(); len(pending.handles) >= size; {
			rest := pending.handles[size:]
			pending.handles = pending.handles[:size:size]
			if err := p.hand(ctx, pending, out); err != nil {
				return err
			}
			pending = p.begin(ctx)
			pending.handles = rest
		}
		return nil
	}
	for ; len(few) > 0; few = few[min(pageSize, len(few)):] {
		read, err := p.s.readEach(ctx, few[:min(pageSize, len(few))])
		if err != nil {
			return err
		}
		if err := add(read); err != nil {
			return err
		}
	}
	if p.report.Tally.Paged {
		if err := p.s.readPages(ctx, func(page []calico.IPAMHandle) error {
			read := make([]*calico.IPAMHandle, len(page))
			for i := range page {
				read[i] = &page[i]
			}
			return add(read)
		}); err != nil {
			return err
		}
	}
	return p.hand(ctx, pending, out)
}

// batchSize follows the rate, so that a batch's proof does not grow old.
func (p *pass) batchSize() int {
	size := p.s.o.Rate() * batchSpan.Seconds()
	return int(min(max(size, minBatch), maxBatch))
}

// candidates judges handles that were read in full.
func (p *pass) candidates(read []*calico.IPAMHandle) []*calico.IPAMHandle {
	var found []*calico.IPAMHandle
	for _, h := range read {
		ev, v := p.s.o.Effector.Judge(h)
		if p.s.o.Effector.Sweepable(v) && p.s.selects(ev, v) {
			found = append(found, h)
			continue
		}
		if len(ev.References) == 0 {
			p.s.o.Inventory.RememberDeclared(h.Name, h.ResourceVersion, h.Spec.Block)
		}
	}
	return found
}

// begin starts a batch and, beside the reading of it, its proof. That the
// proof may be a little older than the reading does no harm: a handle that is
// unchanged since the grace period before its reading was not about to be
// referenced after the proof either.
func (p *pass) begin(ctx context.Context) *pending {
	b := &pending{started: p.s.o.Clock.Now(), proof: make(chan error, 1)}
	p.s.beside(func() { b.proof <- p.s.o.Freshness.ProveFresh(ctx) })
	return b
}

// pending is a batch that is being read.
type pending struct {
	handles []*calico.IPAMHandle
	started time.Time
	proof   chan error
}

// hand passes a batch on once the caches are proven fresh.
func (p *pass) hand(ctx context.Context, b *pending, out chan<- batch) error {
	enough := false
	if limit := p.s.o.Max; limit > 0 && p.taken+len(b.handles) >= limit {
		b.handles, enough = b.handles[:limit-p.taken], true
	}
	p.taken += len(b.handles)
	if err := <-b.proof; err != nil {
		return fmt.Errorf("prove that the caches are fresh: %w", err)
	}
	select {
	case out <- batch{b.handles, b.started}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if enough {
		return errEnough
	}
	return nil
}

// sweep deletes one batch. Each handle is judged again by the effector.
func (p *pass) sweep(ctx context.Context, b batch) error {
	if p.s.o.Clock.Since(b.proven) > proofAge {
		if err := p.s.o.Freshness.ProveFresh(ctx); err != nil {
			return fmt.Errorf("prove that the caches are fresh: %w", err)
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	p.s.workers(ctx, p.s.o.Workers, len(b.handles), func(i int) {
		if ctx.Err() != nil {
			return
		}
		result, err := p.s.o.Effector.Sweep(ctx, b.handles[i])
		switch {
		case errors.Is(err, effect.ErrClosed):
			// The gate closes for all.
			stop(err)
			return
		case err != nil && ctx.Err() != nil:
			return
		}
		p.count(b.handles[i], result, err)
	})
	return context.Cause(ctx)
}

func (p *pass) count(h *calico.IPAMHandle, r effect.Result, err error) {
	p.s.o.Observer.Effect(h, r, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.report.Failed++
		return
	}
	switch r.Outcome {
	case effect.Done:
		p.report.Swept++
	case effect.WouldDo:
		p.report.WouldSweep++
	case effect.Kept:
		p.report.Kept++
	case effect.Conflict:
		p.report.Conflicts++
	case effect.Vanished:
		p.report.Vanished++
	case effect.Held:
		p.report.Held++
	}
}
