package repairer_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/controllers/repairer"
	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/calicoproto"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/pace"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

const grace = 3 * time.Second

var (
	api    = calico.API{GroupVersion: calico.GroupCRD}
	v4, v6 = netip.MustParsePrefix("10.65.0.0/24"), netip.MustParsePrefix("fd00:65::/122")
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// observer remembers what the repairer told.
type observer struct {
	mu       sync.Mutex
	diverged map[verdict.Divergence]int
	results  map[string]effect.Result
}

func (o *observer) Diverged(counts map[verdict.Divergence]int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.diverged = counts
}

func (o *observer) Repaired(d effect.Diverged, r effect.Result, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.results[d.Name] = r
}

func (o *observer) result(id string) effect.Outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.results[calico.HandleName(id)].Outcome
}

// records is an audit log.
type records struct {
	mu  sync.Mutex
	all []audit.Record
}

func (r *records) Write(record audit.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, record)
	return nil
}

type stack struct {
	cni      *calicoproto.Client
	server   effect.API
	observed *observer
	audit    *records
	ids      int
}

func newStack(t *testing.T) (*stack, func(dryRun bool)) {
	t.Helper()
	cp := controlplane.ForTest(t, controlplane.Options{})
	cfg := cp.Config()
	must(t, controlplane.InstallCRDs(t.Context(), cfg, api))
	core, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	_, err = core.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, metav1.CreateOptions{})
	must(t, err)
	s := &stack{observed: &observer{results: map[string]effect.Result{}}, audit: &records{}}
	s.cni, err = calicoproto.New(cfg, api)
	must(t, err)
	s.server, err = effect.NewAPI(cfg, api)
	must(t, err)
	for _, cidr := range []netip.Prefix{v4, v6} {
		must(t, s.cni.EnsureBlock(t.Context(), cidr, "node-a"))
	}
	inv := inventory.New(clock.RealClock{})
	caches, err := feed.New(cfg, api, inv, feed.Options{})
	must(t, err)
	limit, err := pace.New(0, clock.RealClock{})
	must(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	running.Go(func() {
		if err := caches.Start(ctx); err != nil {
			t.Errorf("caches: %v", err)
		}
	})
	must(t, caches.WaitForSync(t.Context()))
	return s, func(dryRun bool) {
		r := repairer.New(repairer.Options{
			Inventory: inv, Handles: s.server, Freshness: caches, Observer: s.observed, Clock: clock.RealClock{},
			Log: testr.New(t), Kinds: verdict.Divergences(), Grace: grace,
			Effector: effect.New(effect.Options{
				API: s.server, Evidence: inv, Audit: s.audit, Pace: limit, Clock: clock.RealClock{}, Grace: grace, DryRun: dryRun,
			}),
		})
		running.Go(func() {
			if err := r.Start(ctx); err != nil {
				t.Errorf("repairer: %v", err)
			}
		})
	}
}

func (s *stack) id() string {
	s.ids++
	return fmt.Sprintf("k8s-pod-network.%064x", s.ids)
}

func (s *stack) assign(t testing.TB, id string, cidrs ...netip.Prefix) {
	t.Helper()
	for _, cidr := range cidrs {
		_, err := s.cni.Assign(t.Context(), id, cidr, map[string]string{"namespace": "shop", "pod": "cart-0", "node": "node-a"})
		must(t, err)
	}
}

// edit writes a handle behind Calico's back.
func (s *stack) edit(t testing.TB, id string, change func(*calico.IPAMHandle)) {
	t.Helper()
	h, err := s.server.GetHandle(t.Context(), calico.HandleName(id))
	must(t, err)
	change(h)
	_, err = s.server.UpdateHandle(t.Context(), h)
	must(t, err)
}

func (s *stack) rawDelete(t testing.TB, id string) {
	t.Helper()
	h, err := s.server.GetHandle(t.Context(), calico.HandleName(id))
	must(t, err)
	_, err = s.server.DeleteHandle(t.Context(), h.Name, h.UID, h.ResourceVersion)
	must(t, err)
}

// handle is nil where there is none.
func (s *stack) handle(t testing.TB, id string) *calico.IPAMHandle {
	t.Helper()
	h, err := s.server.GetHandle(t.Context(), calico.HandleName(id))
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(t, err)
	return h
}

// says tells whether the handle is there, unmarked, with these counts.
func (s *stack) says(t testing.TB, id string, counts map[string]int) bool {
	t.Helper()
	h := s.handle(t, id)
	return h != nil && !h.Spec.Deleted && maps.Equal(h.Spec.Block, counts)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * grace); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Errorf("waited in vain for %s", what)
}

func TestRepair(t *testing.T) {
	s, start := newStack(t)
	both := map[string]int{v4.String(): 1, v6.String(): 1}
	high, low, named, missing, marked, finished, terminating, sound, busy, orphan := s.id(), s.id(), s.id(), s.id(), s.id(), s.id(), s.id(), s.id(), s.id(), s.id()
	for _, id := range []string{high, low, named, missing, marked, terminating, sound} {
		s.assign(t, id, v4, v6)
	}
	s.assign(t, busy, v4)
	s.edit(t, high, func(h *calico.IPAMHandle) { h.Spec.Block[v4.String()] = 3 })
	s.edit(t, low, func(h *calico.IPAMHandle) { delete(h.Spec.Block, v6.String()) })
	s.edit(t, named, func(h *calico.IPAMHandle) { h.Spec.Block["10.66.0.0/26"] = 1 })
	s.rawDelete(t, missing)
	s.edit(t, marked, func(h *calico.IPAMHandle) { h.Spec.Deleted = true })
	must(t, s.cni.Increment(t.Context(), finished, v4, 1))
	s.edit(t, finished, func(h *calico.IPAMHandle) { h.Spec.Deleted, h.Spec.Block = true, map[string]int{} })
	s.edit(t, terminating, func(h *calico.IPAMHandle) {
		h.Spec.Block[v4.String()] = 5
		h.Finalizers = []string{"example.com/hold"}
	})
	s.rawDelete(t, terminating)
	must(t, s.cni.Increment(t.Context(), orphan, v4, 1))
	soundBefore := s.handle(t, sound)

	start(false)
	started := time.Now()
	// A handle that Calico keeps using is never settled.
	ctx, stop := context.WithCancel(t.Context())
	var using sync.WaitGroup
	using.Go(func() {
		for ctx.Err() == nil {
			if err := s.cni.Increment(t.Context(), busy, v4, 1); err != nil {
				t.Errorf("Calico: %v", err)
			}
			time.Sleep(grace / 5)
			if err := s.cni.Decrement(t.Context(), busy, v4, 1); err != nil {
				t.Errorf("Calico: %v", err)
			}
		}
	})
	for what, id := range map[string]string{
		"a count that is too high": high, "a block that is not named": low, "a block that gives nothing": named,
		"a handle that is missing": missing, "a handle marked deleted but in use": marked,
	} {
		eventually(t, what+" to be repaired", func() bool { return s.says(t, id, both) })
	}
	eventually(t, "a delete to be finished", func() bool { return s.handle(t, finished) == nil })
	if took := time.Since(started); took < grace {
		t.Errorf("all was repaired after %s, before the grace period of %s", took, grace)
	}
	stop()
	using.Wait()

	if h := s.handle(t, missing); h.Spec.HandleID != missing {
		t.Errorf("the missing handle came back as %q", h.Spec.HandleID)
	}
	if h := s.handle(t, sound); h.ResourceVersion != soundBefore.ResourceVersion {
		t.Error("a handle that agrees was written")
	}
	if h := s.handle(t, orphan); h == nil || h.Spec.Block[v4.String()] != 1 {
		t.Errorf("an orphan was touched: %+v", h)
	}
	if h := s.handle(t, terminating); h == nil || h.Spec.Block[v4.String()] != 5 {
		t.Errorf("a terminating handle was touched: %+v", h)
	}
	if got := s.observed.result(busy); got != "" {
		t.Errorf("a handle in constant use came to %q", got)
	}
	s.audit.mu.Lock()
	defer s.audit.mu.Unlock()
	var repaired []string
	for _, r := range s.audit.all {
		if r.Action != audit.Repair || r.Reason == "" || r.Detail == "" {
			t.Errorf("recorded is %+v", r)
		}
		repaired = append(repaired, r.Handle.Spec.HandleID)
	}
	slices.Sort(repaired)
	if want := []string{high, low, named, missing, marked, finished}; !slices.Equal(repaired, slices.Sorted(slices.Values(want))) {
		t.Errorf("recorded are repairs of %q, want %q", repaired, want)
	}
	// Calico can release them all.
	for _, id := range []string{high, low, named, missing, marked, sound} {
		must(t, s.cni.Release(t.Context(), id))
		if s.handle(t, id) != nil {
			t.Errorf("%s is still there after its release", id)
		}
	}
}

func TestADryRunRepairsNothing(t *testing.T) {
	s, start := newStack(t)
	skewed, missing := s.id(), s.id()
	s.assign(t, skewed, v4)
	s.assign(t, missing, v4)
	s.edit(t, skewed, func(h *calico.IPAMHandle) { h.Spec.Block[v4.String()] = 2 })
	s.rawDelete(t, missing)
	start(true)
	for _, id := range []string{skewed, missing} {
		eventually(t, "the dry run's verdict", func() bool { return s.observed.result(id) == effect.WouldDo })
	}
	if !s.says(t, skewed, map[string]int{v4.String(): 2}) || s.handle(t, missing) != nil || len(s.audit.all) > 0 {
		t.Error("something was changed")
	}
}
