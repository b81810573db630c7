// Package sweeper deletes orphaned handles, batch by batch.
package sweeper

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// Inventory is what the sweeper asks of the caches.
type Inventory interface {
	// All judges every handle.
	All(now time.Time, grace time.Duration) iter.Seq2[verdict.Evidence, verdict.Verdict]
	// RememberDeclared keeps the blocks that a kept candidate names, so that
	// it is judged right without reading it again.
	RememberDeclared(name, resourceVersion string, declared map[string]int)
	// Subscribe returns a channel that receives after anything changed.
	Subscribe() <-chan struct{}
}

// Freshness proves that the caches have seen all that was written before the
// call.
type Freshness interface {
	ProveFresh(ctx context.Context) error
}

// Observer is told what happens. Its methods may be called concurrently.
type Observer interface {
	// Judged is told the tally that begins a pass.
	Judged(Tally)
	// Effect is told what came of one candidate.
	Effect(h *calico.IPAMHandle, r effect.Result, err error)
	// Passed is told how a pass ended.
	Passed(Report)
}

// Options make a Sweeper. Inventory, API, Effector, Freshness, Clock and
// Observer are required.
type Options struct {
	Inventory Inventory
	API       effect.API
	Effector  *effect.Effector
	Freshness Freshness
	Observer  Observer
	Clock     clock.Clock
	Log       logr.Logger
	// Gate is asked before a pass with candidates; nil allows all. The Effector
	// asks its own before each request.
	Gate effect.Gate
	// Grace is the one that the Effector judges with.
	Grace time.Duration
	// Workers is how many deletes are under way at once; zero means
	// DefaultWorkers.
	Workers int
	// Interval is the most time between two passes when something changed;
	// zero means DefaultInterval.
	Interval time.Duration
	// Rate tells the present limit in effects a second, to size batches.
	Rate func() float64
	// Select narrows what is swept; nil selects all.
	Select func(verdict.Evidence, verdict.Verdict) bool
	// Max bounds the deletes of one pass; zero means no bound.
	Max int
	// Tracer makes a span of each pass; nil makes none.
	Tracer trace.Tracer
	// Inline does all of a pass on the caller's goroutine, in order, so that a
	// test can step through it. A pass is then of one batch.
	Inline bool
}

// Defaults of Options.
const (
	DefaultWorkers  = 32
	DefaultInterval = time.Minute
)

const (
	// pageSize is how many handles one list request reads.
	pageSize = 1000
	// A batch holds as many handles as are deleted in batchSpan, within bounds:
	// the proof of freshness is paid once a batch, and should not grow old.
	batchSpan          = 10 * time.Second
	minBatch, maxBatch = 100, 5000
	// proofAge is how old a batch's proof may be when its deletes begin.
	proofAge = 30 * time.Second
	// pagedShare: reading all pages pays when it costs at most this many
	// requests a candidate.
	pagedShare = 0.015
	// maxFew bounds the candidates that are read each by itself.
	maxFew = 5000
	// readers is how many single reads are under way at once.
	readers = 8
	// retryAfter is the pause after a pass that an error or a pause ended.
	retryAfter = 2 * time.Second
)

// Sweeper deletes orphaned handles.
type Sweeper struct{ o Options }

// New returns a Sweeper.
func New(o Options) *Sweeper {
	if o.Workers == 0 {
		o.Workers = DefaultWorkers
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Gate == nil {
		o.Gate = func() error { return nil }
	}
	if o.Rate == nil {
		o.Rate = func() float64 { return maxBatch }
	}
	if o.Tracer == nil {
		o.Tracer = noop.NewTracerProvider().Tracer("")
	}
	return &Sweeper{o}
}

// NeedLeaderElection makes one replica sweep.
func (s *Sweeper) NeedLeaderElection() bool { return true }

// Tally counts all handles by verdict.
type Tally struct {
	Handles int
	Counts  map[Class]int
	// Candidates is how many the pass would sweep. Paged tells that it reads
	// all handles in pages to find them, rather than each by itself.
	Candidates int
	Paged      bool
	// OldestOrphan is when the oldest orphan was last written; zero for none.
	OldestOrphan time.Time
	// NextSettled is when time alone will have changed the first verdict; zero
	// for none.
	NextSettled time.Time
}

// Class is a verdict's outcome and reason.
type Class struct {
	Outcome verdict.Outcome
	Reason  verdict.Reason
}

// Report tells what a pass did.
type Report struct {
	Started, Ended time.Time
	Tally          Tally
	// Counts of candidates by what came of them.
	Swept, WouldSweep, Kept, Conflicts, Vanished, Held, Failed int
	// Err is what ended the pass early.
	Err error
}

// Start runs passes until ctx ends: at once, then whenever something changed
// or settled, at most once an interval.
func (s *Sweeper) Start(ctx context.Context) error {
	changed := s.o.Inventory.Subscribe()
	for s.sleep(ctx, s.Pass(ctx), changed) {
	}
	return nil
}

// sleep waits until another pass is due; false when ctx ended.
func (s *Sweeper) sleep(ctx context.Context, report Report, changed <-chan struct{}) bool {
	if report.Err != nil || report.Failed+report.Conflicts > 0 {
		return s.wait(ctx, min(retryAfter, s.o.Interval))
	}
	if !s.wait(ctx, s.o.Interval) {
		return false
	}
	var settled <-chan time.Time
	if next := report.Tally.NextSettled; !next.IsZero() {
		timer := s.o.Clock.NewTimer(next.Sub(s.o.Clock.Now()))
		defer timer.Stop()
		settled = timer.C()
	}
	select {
	case <-ctx.Done():
		return false
	case <-settled:
	case <-changed:
	}
	return true
}

func (s *Sweeper) wait(ctx context.Context, d time.Duration) bool {
	timer := s.o.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

// Pass judges every handle and sweeps the orphans.
func (s *Sweeper) Pass(ctx context.Context) Report {
	ctx, span := s.o.Tracer.Start(ctx, "sweep pass")
	defer span.End()
	p := &pass{s: s, report: Report{Started: s.o.Clock.Now()}}
	err := p.run(ctx)
	p.report.Ended = s.o.Clock.Now()
	p.report.Err = err
	span.SetAttributes(
		attribute.Int("ipam_guard.handles", p.report.Tally.Handles),
		attribute.Int("ipam_guard.candidates", p.report.Tally.Candidates),
		attribute.Int("ipam_guard.swept", p.report.Swept),
	)
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	s.o.Observer.Passed(p.report)
	return p.report
}

func (s *Sweeper) selects(ev verdict.Evidence, v verdict.Verdict) bool {
	return s.o.Select == nil || s.o.Select(ev, v)
}

func (t *Tally) settles(due time.Time) {
	if t.NextSettled.IsZero() || due.Before(t.NextSettled) {
		t.NextSettled = due
	}
}

// tally judges every handle from the caches alone. Names of candidates are
// kept only while they are few.
func (s *Sweeper) tally() (Tally, []string) {
	now := s.o.Clock.Now()
	t := Tally{Counts: map[Class]int{}}
	var few []string
	for ev, v := range s.o.Inventory.All(now, s.o.Grace) {
		t.Handles++
		t.Counts[Class{v.Outcome, v.Reason}]++
		switch v.Outcome {
		case verdict.Orphaned:
			if t.OldestOrphan.IsZero() || ev.Handle.LastWrite.Before(t.OldestOrphan) {
				t.OldestOrphan = ev.Handle.LastWrite
			}
		case verdict.Settling:
			t.settles(ev.Handle.LastWrite.Add(s.o.Grace))
		case verdict.OwnerUnknown:
			if v.Reason == ownership.VirtualMachineLeft {
				t.settles(now.Add(ownership.VirtualMachineFloor))
			}
		}
		if v.Provisional {
			// Only the spec can tell; reading it is the next step.
			v.Provisional = false
		}
		if s.o.Effector.Sweepable(v) && s.selects(ev, v) {
			t.Candidates++
			if len(few) < maxFew {
				few = append(few, ev.Handle.Name)
			}
		}
	}
	if t.Paged = paged(t); t.Paged {
		few = nil
	}
	return t, few
}

// paged says whether reading every handle in pages costs few requests beside
// the deletes.
func paged(t Tally) bool {
	pages := t.Handles/pageSize + 1
	return t.Candidates > maxFew || float64(pages) <= pagedShare*float64(t.Candidates)
}

// beside runs fn beside the caller.
func (s *Sweeper) beside(fn func()) {
	if s.o.Inline {
		fn()
		return
	}
	go fn()
}

// together runs fns beside each other until all have ended; the first error
// ends the others' context.
func (s *Sweeper) together(ctx context.Context, fns ...func(context.Context) error) error {
	if s.o.Inline {
		for _, fn := range fns {
			if err := fn(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, fn := range fns {
		group.Go(func() error { return fn(ctx) })
	}
	return group.Wait()
}

// workers runs fn for each of n pieces of work.
func (s *Sweeper) workers(ctx context.Context, workers, n int, fn func(i int)) {
	if s.o.Inline {
		for i := range n {
			fn(i)
		}
		return
	}
	workqueue.ParallelizeUntil(ctx, workers, n, fn)
}

// readPages gives every handle to visit, page by page.
func (s *Sweeper) readPages(ctx context.Context, visit func([]calico.IPAMHandle) error) error {
	cont := ""
	for {
		reading, cancel := context.WithTimeout(ctx, effect.DefaultTimeout)
		page, next, err := s.o.API.ListHandles(reading, pageSize, cont)
		cancel()
		if err != nil {
			if token, ok := freshToken(err); ok {
				cont = token
				continue
			}
			return fmt.Errorf("list handles: %w", err)
		}
		if err := visit(page); err != nil {
			return err
		}
		if next == "" {
			return nil
		}
		cont = next
	}
}

// freshToken is the token to go on with when a page's own has expired: later
// pages are then of a later moment, which every candidate is judged at anyway.
func freshToken(err error) (string, bool) {
	var status apierrors.APIStatus
	if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) {
		return "", false
	}
	token := status.Status().Continue
	return token, token != ""
}

// readEach reads handles one by one; those that are gone are left out.
func (s *Sweeper) readEach(ctx context.Context, names []string) ([]*calico.IPAMHandle, error) {
	handles := make([]*calico.IPAMHandle, len(names))
	errs := make([]error, len(names))
	s.workers(ctx, readers, len(names), func(i int) {
		reading, cancel := context.WithTimeout(ctx, effect.DefaultTimeout)
		defer cancel()
		h, err := s.o.API.GetHandle(reading, names[i])
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			errs[i] = fmt.Errorf("read handle %s: %w", names[i], err)
		default:
			handles[i] = h
		}
	})
	if err := errors.Join(errors.Join(errs...), ctx.Err()); err != nil {
		return nil, err
	}
	found := handles[:0]
	for _, h := range handles {
		if h != nil {
			found = append(found, h)
		}
	}
	return found, nil
}
