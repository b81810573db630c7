package explore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/controllers/guard"
	"github.com/ipam-guard/ipam-guard/controllers/leaks"
	"github.com/ipam-guard/ipam-guard/controllers/repairer"
	"github.com/ipam-guard/ipam-guard/controllers/sweeper"
	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/pace"
	"github.com/ipam-guard/ipam-guard/internal/pause"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// work is what a leading replica does.
type work uint8

const (
	sweepPass work = iota
	guardCheck
	completeStamps
	repairPasses
	works
)

func (k work) String() string { return [works]string{"sweep", "guard", "complete", "repair"}[k] }

// verb is a kind of question that the product asks of what is outside it.
// Between two of them it computes, and nobody can get in between.
type verb uint8

const (
	proveFresh verb = iota
	askGate
	getHandle
	getBlock
	listHandles
	deleteHandle
	patchHandle
	createHandle
	updateHandle
)

func (v verb) String() string {
	return [...]string{"prove fresh", "gate", "get handle", "get block", "list handles", "delete handle", "patch handle", "create handle", "update handle"}[v]
}

// question is the nth of its kind within one operation.
type question struct {
	verb verb
	name string
	nth  uint8
}

func (q question) String() string {
	if q.name == "" {
		return q.verb.String()
	}
	name := q.name
	if len(name) > 24 {
		name = name[:24] + "…"
	}
	return q.verb.String() + " " + name
}

// moment is when an answer came, and what the caches knew then.
type moment struct {
	second int64
	past   *past
	locked bool
}

func (w *world) moment(r int) moment {
	return moment{w.now, w.replicas[r].past, w.replicas[r].knowsLock}
}

type answer struct {
	question
	moment
	handle *calico.IPAMHandle
	list   []calico.IPAMHandle
	block  *calico.IPAMBlock
	err    error
}

// operation is a piece of the product's work under way: all that it was
// answered so far. To go on, it is run again from its beginning, with the same
// answers, up to the question that comes next.
type operation struct {
	work    work
	began   moment
	answers []answer
	open    []question
	// target is what the open proof of freshness waits for.
	target [streams]uint64
	hash   uint64
}

var errNotYet = errors.New("not answered yet")

// halt leaves the product at a question that is still open.
type halt struct{}

// session is one run of an operation. It stands for everything that the
// product asks.
type session struct {
	w       *world
	replica int
	op      *operation
	now     moment
	counts  []question
	// next is the question to answer now, once.
	next     question
	asked    bool
	answered *answer
	open     []question
	ctx      context.Context
	cancel   context.CancelFunc
	recorded []string
}

// run does an operation up to the next open question, with next answered on
// the way. It returns nil when the operation has ended.
func (w *world) run(r int, op *operation, next question, ask bool) *operation {
	s := &session{w: w, replica: r, op: op, now: op.began, next: next, asked: !ask}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	defer s.cancel()
	s.work()
	if len(s.open) == 0 {
		return nil
	}
	out := &operation{work: op.work, began: op.began, answers: op.answers, open: s.open, target: op.target, hash: op.hash}
	if s.answered != nil {
		out.answers = slices.Concat(op.answers, []answer{*s.answered})
		out.hash = mix(mix(op.hash, s.answered.hash()), s.answered.past.objects^s.answered.past.owners)
	}
	for _, q := range out.open {
		// A proof is of the moment when it was asked for.
		if q.verb == proveFresh && !slices.Contains(op.open, q) {
			out.target = [streams]uint64{blockStream: w.newest(blockStream), ownerStream: w.newest(ownerStream)}
		}
	}
	return out
}

func (a *answer) hash() uint64 {
	h := mixString(uint64(a.verb)<<8|uint64(a.nth), a.name)
	h = mix(h, uint64(a.second)) //nolint:gosec // not negative
	if a.handle != nil {
		h = mix(h, hashHandle(a.handle, 1))
	}
	if a.block != nil {
		h = mix(h, hashBlock(&a.block.Spec, 1))
	}
	for i := range a.list {
		h = mix(h, hashHandle(&a.list[i], 1))
	}
	if a.err != nil {
		h = mixString(h, a.err.Error())
	}
	return h
}

func (s *session) work() {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(halt); !ok {
				panic(r)
			}
		}
	}()
	rules := s.w.x.rules
	c := s.clock()
	p, err := pace.New(0, c)
	if err != nil {
		s.w.violate("pace: %v", err)
		return
	}
	effector := effect.New(effect.Options{
		API: rules.API(s), Evidence: rules.Evidence(s), Audit: rules.Audit(s), Pace: p, Clock: c,
		Gate: rules.Gate(s.gate), Grace: rules.Grace,
	})
	switch s.op.work {
	case sweepPass:
		sweeper.New(sweeper.Options{
			Inventory: s, API: rules.API(s), Effector: effector, Freshness: rules.Freshness(s),
			Observer: silent{}, Clock: c, Log: logr.Discard(), Gate: rules.Gate(s.pauses), Grace: rules.Grace, Inline: true,
		}).Pass(s.ctx)
	case guardCheck:
		guard.New(guard.Options{Inventory: s, Effector: effector, Observer: silent{}, Clock: c, Log: logr.Discard()}).Check(s.ctx)
	case completeStamps:
		leaks.New(leaks.Options{Inventory: s, Effector: effector, Clock: c, Log: logr.Discard()}).Complete(s.ctx)
	case repairPasses:
		// A repairer remembers what it saw, so that its passes are one operation.
		r := repairer.New(repairer.Options{
			Inventory: s, Handles: rules.API(s), Effector: effector, Freshness: rules.Freshness(s), Observer: silent{},
			Clock: c, Log: logr.Discard(), Kinds: verdict.Divergences(), Gate: rules.Gate(s.pauses), Grace: rules.Grace,
		})
		for range repairLooks {
			if r.Pass(s.ctx) != nil {
				return
			}
		}
	case works:
	}
}

// repairLooks are as many as a repairer needs before it repairs.
const repairLooks = 4

// ask answers a question: as before, or now, or not yet.
func (s *session) ask(v verb, name string, perform func(*answer)) answer {
	q := question{verb: v, name: name}
	for _, c := range s.counts {
		if c.verb == v && c.name == name {
			q.nth++
		}
	}
	s.counts = append(s.counts, q)
	for _, a := range s.op.answers {
		if a.question == q {
			// A proof runs beside the reading of a batch, which goes on as it was.
			if v != proveFresh {
				s.now = a.moment
			}
			return a
		}
	}
	if s.answered == nil && !s.asked && q == s.next {
		s.asked = true
		a := answer{question: q, moment: s.w.moment(s.replica)}
		if !s.w.replicas[s.replica].leads {
			// It has heard that it lost the lease: its manager ends the context.
			s.cancel()
		}
		perform(&a)
		s.answered = &a
		if v != proveFresh {
			s.now = a.moment
		}
		return a
	}
	if s.ctx.Err() != nil && v != askGate {
		// What was started ends with the context, as a request does.
		a := answer{question: q, moment: s.now}
		if perform(&a); a.err != nil {
			return a
		}
	}
	s.open = append(s.open, q)
	if v == proveFresh {
		return answer{err: errNotYet}
	}
	panic(halt{})
}

// request is a question to the API server. As an HTTP client, it sends nothing
// once its context has ended.
func (s *session) request(ctx context.Context, v verb, name string, perform func(*answer)) answer {
	return s.ask(v, name, func(a *answer) {
		if a.err = ctx.Err(); a.err != nil {
			return
		}
		if s.asked && s.answered != nil {
			return // Asked only whether the context has ended.
		}
		if v >= deleteHandle && !s.w.replicas[s.replica].leads {
			s.w.violate("replica %c sends %s although it knows that it lost the lease", 'A'+s.replica, v)
		}
		perform(a)
	})
}

func (s *session) index(name string) int {
	return slices.IndexFunc(s.w.s.handles, func(h handleSpec) bool { return h.name == name })
}

// GetHandle implements effect.API.
func (s *session) GetHandle(ctx context.Context, name string) (*calico.IPAMHandle, error) {
	a := s.request(ctx, getHandle, name, func(a *answer) {
		if h := s.w.handles[s.index(name)]; h != nil {
			a.handle = h.object
			return
		}
		a.err = apierrors.NewNotFound(handleResource, name)
	})
	return a.handle, a.err
}

// ListHandles implements effect.API.
func (s *session) ListHandles(ctx context.Context, _ int64, _ string) ([]calico.IPAMHandle, string, error) {
	a := s.request(ctx, listHandles, "", func(a *answer) {
		for _, h := range s.w.handles {
			if h != nil {
				a.list = append(a.list, *h.object)
			}
		}
	})
	return a.list, "", a.err
}

// GetBlock implements effect.API.
func (s *session) GetBlock(ctx context.Context, name string) (*calico.IPAMBlock, error) {
	a := s.request(ctx, getBlock, name, func(a *answer) { a.block, a.err = s.w.getBlock(name) })
	return a.block, a.err
}

// DeleteHandle implements effect.API.
func (s *session) DeleteHandle(ctx context.Context, name string, uid types.UID, rv string) (*calico.IPAMHandle, error) {
	a := s.request(ctx, deleteHandle, name, func(a *answer) {
		if !slices.Contains(s.recorded, name) {
			s.w.violate("handle %s is deleted without a record", name)
		}
		a.handle, a.err = s.w.deleteHandle(s.index(name), uid, rv, byGuard)
	})
	return a.handle, a.err
}

// PatchHandle implements effect.API: it applies a merge patch of metadata.
func (s *session) PatchHandle(ctx context.Context, name string, patch []byte) (*calico.IPAMHandle, error) {
	a := s.request(ctx, patchHandle, name, func(a *answer) {
		a.handle, a.err = s.w.patchHandle(s.index(name), patch)
	})
	return a.handle, a.err
}

func (w *world) patchHandle(i int, patch []byte) (*calico.IPAMHandle, error) {
	var p struct {
		Metadata struct {
			UID             types.UID          `json:"uid"`
			ResourceVersion string             `json:"resourceVersion"`
			Finalizers      *[]string          `json:"finalizers"`
			Annotations     map[string]*string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, fmt.Errorf("merge patch: %w", err)
	}
	if w.handles[i] == nil {
		return nil, apierrors.NewNotFound(handleResource, w.s.handles[i].name)
	}
	old := w.handles[i].object
	if m := p.Metadata; (m.UID != "" && m.UID != old.UID) || (m.ResourceVersion != "" && m.ResourceVersion != old.ResourceVersion) {
		return nil, conflict(old.Name)
	}
	h := old.DeepCopy()
	if p.Metadata.Finalizers != nil {
		h.Finalizers = *p.Metadata.Finalizers
	}
	for key, value := range p.Metadata.Annotations {
		if value == nil {
			delete(h.Annotations, key)
			continue
		}
		metav1.SetMetaDataAnnotation(&h.ObjectMeta, key, *value)
		now := metav1.NewTime(at(w.now))
		h.ManagedFields = append(h.ManagedFields, metav1.ManagedFieldsEntry{Manager: "ipam-guard", Time: &now})
	}
	return w.commit(i, old, h, byGuard)
}

// CreateHandle implements effect.API.
func (s *session) CreateHandle(ctx context.Context, h *calico.IPAMHandle) (*calico.IPAMHandle, error) {
	a := s.request(ctx, createHandle, h.Name, func(a *answer) { //nolint:contextcheck // Admission is the API server's business.
		a.err = s.w.createHandle(s.index(h.Name), h.Spec, byGuard)
	})
	return h, a.err
}

// UpdateHandle implements effect.API.
func (s *session) UpdateHandle(ctx context.Context, h *calico.IPAMHandle) (*calico.IPAMHandle, error) {
	a := s.request(ctx, updateHandle, h.Name, func(a *answer) {
		a.handle, a.err = s.w.updateHandle(s.index(h.Name), h)
	})
	return a.handle, a.err
}

// updateHandle is IPAM Guard's PUT, which no webhook sees.
func (w *world) updateHandle(i int, h *calico.IPAMHandle) (*calico.IPAMHandle, error) {
	if w.handles[i] == nil {
		return nil, apierrors.NewNotFound(handleResource, w.s.handles[i].name)
	}
	old := w.handles[i].object
	if (h.UID != "" && h.UID != old.UID) || (h.ResourceVersion != "" && h.ResourceVersion != old.ResourceVersion) {
		return nil, conflict(old.Name)
	}
	h = h.DeepCopy()
	h.UID, h.DeletionTimestamp, h.Generation = old.UID, old.DeletionTimestamp, old.Generation+1
	now := metav1.NewTime(at(w.now))
	h.ManagedFields = append(h.ManagedFields, metav1.ManagedFieldsEntry{Manager: "ipam-guard", Time: &now})
	w.truths[i].rewritten = true
	h, err := w.commit(i, old, h, byGuard)
	w.checkNamed(i)
	return h, err
}

// ProveFresh implements sweeper.Freshness.
func (s *session) ProveFresh(context.Context) error {
	return s.ask(proveFresh, "", func(a *answer) { a.err = s.ctx.Err() }).err
}

// gate is the product's gate, with the lock as this replica's watch tells it.
// An effect waits for its turn before it, so much may happen meanwhile.
func (s *session) gate() error {
	return s.ask(askGate, "", func(a *answer) { a.err = s.pausesAt(a.moment) }).err
}

// pauses is the gate before a pass, asked in the same breath as the tally.
func (s *session) pauses() error { return s.pausesAt(s.now) }

func (s *session) pausesAt(m moment) error {
	sum := s.w.x.inventory(s.w.s, m.past).Summary()
	active := pause.Evaluate(pause.Facts{
		Locked: m.locked, Nodes: sum.Nodes, Blocks: sum.Blocks,
		CalicoPods: sum.CalicoPods, InUse: sum.ReferencedHandles,
	}, 0)
	if len(active) > 0 {
		return &pause.PausedError{Pauses: active}
	}
	return nil
}

func (s *session) inventory() *inventory.Inventory { return s.w.x.inventory(s.w.s, s.now.past) }

// EvidenceFor implements effect.Evidence.
func (s *session) EvidenceFor(h *calico.IPAMHandle, now time.Time, grace time.Duration) verdict.Evidence {
	return s.w.x.rules.Alter(s.inventory().EvidenceFor(s.w.x.rules.Seen(h), now, grace))
}

// All implements sweeper.Inventory.
func (s *session) All(now time.Time, grace time.Duration) iter.Seq2[verdict.Evidence, verdict.Verdict] {
	return func(yield func(verdict.Evidence, verdict.Verdict) bool) {
		for ev := range s.inventory().All(now, grace) {
			ev = s.w.x.rules.Alter(ev)
			if !yield(ev, verdict.Judge(ev)) {
				return
			}
		}
	}
}

// RememberDeclared implements sweeper.Inventory. It only spares reads.
func (s *session) RememberDeclared(string, string, map[string]int) {}

// References implements repairer.Inventory.
func (s *session) References(name string) []verdict.Reference { return s.inventory().References(name) }

// Missing implements repairer.Inventory.
func (s *session) Missing() []string {
	missing := s.inventory().Missing()
	slices.Sort(missing)
	return missing
}

// Held implements guard.Inventory.
func (s *session) Held() []string {
	held := s.inventory().Held()
	slices.Sort(held)
	return held
}

// Leaks implements leaks.Inventory.
func (s *session) Leaks(minAge time.Duration, now time.Time) []inventory.Leak {
	found := s.inventory().Leaks(minAge, now)
	slices.SortFunc(found, func(a, b inventory.Leak) int { return strings.Compare(a.Handle, b.Handle) })
	return found
}

// Subscribe implements the controllers' inventories; nothing waits here.
func (s *session) Subscribe() <-chan struct{} { return nil }

// Write implements audit.Log.
func (s *session) Write(r audit.Record) error {
	if r.Action == audit.Sweep || r.Action == audit.Repair {
		s.recorded = append(s.recorded, r.Handle.Name)
	}
	return nil
}

func (s *session) clock() clock.WithTicker { return sessionClock{clock.RealClock{}, s} }

// sessionClock tells the time of the last answer. Its timers have always run
// out: that time passes is another step.
type sessionClock struct {
	clock.WithTicker
	s *session
}

func (c sessionClock) Now() time.Time                  { return at(c.s.now.second) }
func (c sessionClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
func (c sessionClock) NewTimer(time.Duration) clock.Timer {
	return c.WithTicker.NewTimer(0)
}

// silent is told what happens, and does not care.
type silent struct{}

func (silent) Judged(sweeper.Tally)                            {}
func (silent) Effect(*calico.IPAMHandle, effect.Result, error) {}
func (silent) Passed(sweeper.Report)                           {}
func (silent) Holding(int)                                     {}
func (silent) Released(string, effect.Result, error)           {}
func (silent) Diverged(map[verdict.Divergence]int)             {}
func (silent) Repaired(effect.Diverged, effect.Result, error)  {}
