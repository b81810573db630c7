package sweeper_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/controllers/sweeper"
	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/calicoproto"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/datastore"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/pace"
	"github.com/ipam-guard/ipam-guard/internal/pause"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// scale shortens Calico's and our times alike, so that a test need not wait
// for minutes: grace and deadline keep their proportion.
const (
	scale    = 20
	grace    = verdict.MinGrace / scale
	deadline = verdict.AssignmentDeadline / scale
)

var (
	api   = calico.API{GroupVersion: calico.GroupCRD}
	block = netip.MustParsePrefix("10.65.0.0/24")
)

// stack is the sweeper with all that it needs, on a real API server.

type stack struct {
	inventory *inventory.Inventory
	monitor   *pause.Monitor
	effector  *effect.Effector
	sweeper   *sweeper.Sweeper
	observed  *observer
}

// observer remembers what the sweeper told.
type observer struct {
	mu      sync.Mutex
	results map[string]effect.Result
	tally   sweeper.Tally
	swept   int
}

func (o *observer) Judged(t sweeper.Tally) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tally = t
}

func (o *observer) Effect(h *calico.IPAMHandle, r effect.Result, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.results[h.Name] = r
	if r.Outcome == effect.Done {
		o.swept++
	}
}

func (o *observer) Passed(sweeper.Report) {}

func (o *observer) count(outcome verdict.Outcome, reason verdict.Reason) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tally.Counts[sweeper.Class{Outcome: outcome, Reason: reason}]
}

func newStack(t testing.TB, cfg *rest.Config, perSecond float64) *stack {
	t.Helper()
	log := testr.NewWithInterface(t, testr.Options{})
	c := clock.RealClock{}
	s := &stack{inventory: inventory.New(c), observed: &observer{results: map[string]effect.Result{}}}
	caches, err := feed.New(cfg, api, s.inventory, feed.Options{})
	must(t, err)
	lock, err := datastore.NewLock(cfg, api, log)
	must(t, err)
	server, err := effect.NewAPI(cfg, api)
	must(t, err)
	limit, err := pace.New(perSecond, c)
	must(t, err)
	s.monitor = pause.NewMonitor(c, grace, func() pause.Facts {
		summary := s.inventory.Summary()
		f := pause.Facts{Nodes: summary.Nodes, Blocks: summary.Blocks, CalicoPods: summary.CalicoPods, InUse: summary.ReferencedHandles}
		f.Locked, f.LockDetail = lock.State()
		for _, c := range caches.Conditions() {
			f.Caches = append(f.Caches, pause.Cache{Resource: c.Resource, Synced: c.Synced, Connected: c.Connected})
		}
		return f
	}, func(pause.Pause, bool) {})
	s.effector = effect.New(effect.Options{
		API: server, Evidence: s.inventory, Audit: audit.ToLogger(log.V(9)), Pace: limit, Clock: c,
		Gate: s.monitor.Gate, Grace: grace,
	})
	s.sweeper = sweeper.New(sweeper.Options{
		Inventory: s.inventory, API: server, Effector: s.effector, Freshness: caches, Observer: s.observed,
		Clock: c, Log: log, Gate: s.monitor.Gate, Grace: grace, Interval: 200 * time.Millisecond, Rate: limit.Rate,
	})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	for _, start := range []func(context.Context) error{caches.Start, lock.Start} {
		running.Go(func() {
			if err := start(ctx); err != nil {
				t.Errorf("caches: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	syncing, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	must(t, caches.WaitForSync(syncing))
	// An API server that has just started makes watches wait.
	eventually(t, 30*time.Second, "nothing to pause the sweep", func() bool { return s.monitor.Gate() == nil })
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited %s for %s", within, what)
}

// cluster is a control plane with Calico's definitions, a node and a block.
func cluster(t testing.TB) *controlplane.ControlPlane {
	t.Helper()
	cp := controlplane.ForTest(t, controlplane.Options{})
	must(t, controlplane.InstallCRDs(t.Context(), cp.Config(), api))
	setLocked(t, cp.Config(), false)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	_, err := clients(t, cp.Config()).CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	must(t, err)
	must(t, cni(t, cp.Config()).EnsureBlock(t.Context(), block, "node-a"))
	return cp
}

func clients(t testing.TB, cfg *rest.Config) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	return c
}

func cni(t testing.TB, cfg *rest.Config) *calicoproto.Client {
	t.Helper()
	c, err := calicoproto.New(cfg, api)
	must(t, err)
	return c
}

func setLocked(t testing.TB, cfg *rest.Config, locked bool) {
	t.Helper()
	c, err := api.NewRESTClient(cfg)
	must(t, err)
	info := &calico.ClusterInformation{
		TypeMeta:   metav1.TypeMeta{APIVersion: api.String(), Kind: "ClusterInformation"},
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
	}
	ready := !locked
	info.Spec.DatastoreReady = &ready
	if err := c.Post().Resource("clusterinformations").Body(info).Do(t.Context()).Error(); !apierrors.IsAlreadyExists(err) {
		must(t, err)
		return
	}
	patch := fmt.Appendf(nil, `{"spec":{"datastoreReady":%v}}`, ready)
	must(t, c.Patch(types.MergePatchType).Resource("clusterinformations").Name("default").Body(patch).Do(t.Context()).Error())
}

func sandboxID(n int) string { return fmt.Sprintf("k8s-pod-network.%064x", n) }

func containerID(n int) string { return fmt.Sprintf("%064x", n) }

func exists(t testing.TB, c *calicoproto.Client, id string) bool {
	t.Helper()
	_, err := c.GetHandle(t.Context(), id)
	if !apierrors.IsNotFound(err) {
		must(t, err)
	}
	return err == nil
}

// leak leaves a handle that no block mentions: CNI killed between its writes.
func leak(t testing.TB, c *calicoproto.Client, ids ...string) {
	t.Helper()
	for _, id := range ids {
		must(t, c.Increment(t.Context(), id, block, 1))
	}
}

func runPod(t testing.TB, cfg *rest.Config, name, container string) *corev1.Pod {
	t.Helper()
	pods := clients(t, cfg).CoreV1().Pods("default")
	pod, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{calico.ContainerIDAnnotation: container}},
		Spec: corev1.PodSpec{
			NodeName: "node-a", Containers: []corev1.Container{{Name: "c", Image: "i"}},
			AutomountServiceAccountToken: new(bool),
		},
	}, metav1.CreateOptions{})
	must(t, err)
	pod.Status.Phase = corev1.PodRunning
	pod, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
	return pod
}

func TestSweeperOnARealAPIServer(t *testing.T) {
	cp := cluster(t)
	cfg := cp.Config()
	s := newStack(t, cfg, 0)
	calicoCNI := cni(t, cfg)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.sweeper.Start(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	next := 0
	fresh := func() (id, container string) {
		next++
		return sandboxID(next), containerID(next)
	}

	t.Run("sweeps an orphan once it has settled, and not before", func(t *testing.T) {
		id, _ := fresh()
		leak(t, calicoCNI, id)
		written := time.Now()
		eventually(t, 3*grace, "the orphan to go", func() bool { return !exists(t, calicoCNI, id) })
		// The server's times are whole seconds.
		if age := time.Since(written); age < grace-time.Second {
			t.Errorf("swept after %s, within the grace period of %s", age, grace)
		}
	})

	t.Run("keeps and reports an unreferenced handle whose pod lives", func(t *testing.T) {
		id, container := fresh()
		pod := runPod(t, cfg, "alive", container)
		leak(t, calicoCNI, id)
		eventually(t, 3*grace, "the handle to be reported", func() bool {
			return s.observed.count(verdict.OwnerAlive, ownership.PodAlive) == 1
		})
		if !exists(t, calicoCNI, id) {
			t.Fatal("a live pod's handle was swept")
		}
		must(t, clients(t, cfg).CoreV1().Pods("default").Delete(t.Context(), pod.Name, *metav1.NewDeleteOptions(0)))
		eventually(t, 3*grace, "the handle to go with its pod", func() bool { return !exists(t, calicoCNI, id) })
	})

	t.Run("sweeps the old sandbox of a StatefulSet's pod and keeps the new one's", func(t *testing.T) {
		oldID, oldContainer := fresh()
		newID, newContainer := fresh()
		leak(t, calicoCNI, oldID, newID)
		pods := clients(t, cfg).CoreV1().Pods("default")
		pod := runPod(t, cfg, "db-0", oldContainer)
		must(t, pods.Delete(t.Context(), pod.Name, *metav1.NewDeleteOptions(0)))
		runPod(t, cfg, "db-0", newContainer)
		eventually(t, 3*grace, "the old sandbox's handle to go", func() bool { return !exists(t, calicoCNI, oldID) })
		time.Sleep(grace)
		if !exists(t, calicoCNI, newID) {
			t.Error("the new sandbox's handle was swept")
		}
	})

	t.Run("keeps a handle in use, for however long", func(t *testing.T) {
		id, _ := fresh()
		_, err := calicoCNI.Assign(t.Context(), id, block, map[string]string{"pod": "p", "namespace": "default"})
		must(t, err)
		time.Sleep(2 * grace)
		if !exists(t, calicoCNI, id) {
			t.Fatal("a handle in use was swept")
		}
		must(t, calicoCNI.Release(t.Context(), id))
	})

	t.Run("pauses within 5 s of a lock and goes on after", func(t *testing.T) {
		setLocked(t, cfg, true)
		locked := time.Now()
		eventually(t, 5*time.Second, "the pause", func() bool { return s.monitor.Gate() != nil })
		id, _ := fresh()
		leak(t, calicoCNI, id)
		time.Sleep(2*grace - time.Since(locked))
		if !exists(t, calicoCNI, id) {
			t.Fatal("swept while the datastore was locked")
		}
		setLocked(t, cfg, false)
		eventually(t, 2*grace, "the orphan to go after the unlock", func() bool { return !exists(t, calicoCNI, id) })
	})

	t.Run("pauses while the API server restarts and goes on after", func(t *testing.T) {
		id, _ := fresh()
		leak(t, calicoCNI, id)
		must(t, cp.APIServer.Kill())
		eventually(t, 10*time.Second, "the pause", func() bool { return s.monitor.Gate() != nil })
		must(t, cp.APIServer.Start(t.Context()))
		eventually(t, time.Minute, "the orphan to go", func() bool {
			_, err := calicoCNI.GetHandle(t.Context(), id)
			return apierrors.IsNotFound(err)
		})
	})
}

// TestNoLiveHandleIsSwept races a simulated CNI against the sweeper at the
// least grace period. There are no pods, so that every handle's owner counts
// as gone: the write order and the grace period alone protect it.
func TestNoLiveHandleIsSwept(t *testing.T) {
	cp := cluster(t)
	cfg := cp.Config()
	s := newStack(t, cfg, 0)
	ctx, stop := context.WithCancel(t.Context())
	var sweeping sync.WaitGroup
	sweeping.Go(func() { _ = s.sweeper.Start(ctx) })
	t.Cleanup(func() {
		stop()
		sweeping.Wait()
	})

	killed := errors.New("killed")
	var mu sync.Mutex
	live, crashed := map[string]bool{}, 0
	end := time.Now().Add(25 * time.Second)
	var clientsRunning sync.WaitGroup
	for client := range 12 {
		clientsRunning.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(client))) //nolint:gosec // a seed that can be run again
			c := cni(t, cfg)
			for n := 0; time.Now().Before(end); n++ {
				id := sandboxID(1_000_000*(client+1) + n)
				started := time.Now()
				c.Before = func(_ context.Context, step calicoproto.Step) error {
					switch {
					case random.IntN(8) == 0:
						return killed
					case step == calicoproto.WriteBlock:
						// Up to the deadline: the last moment that CNI may write.
						time.Sleep(time.Duration(random.Int64N(int64(deadline - 200*time.Millisecond))))
						if time.Since(started) > deadline {
							return killed
						}
					}
					return nil
				}
				_, err := c.Assign(t.Context(), id, block, nil)
				if err == nil && random.IntN(2) == 0 {
					mu.Lock()
					live[id] = true
					mu.Unlock()
					continue
				}
				if err == nil {
					err = c.Release(t.Context(), id)
				}
				if err != nil && !errors.Is(err, killed) {
					t.Errorf("CNI: %v", err)
					return
				}
				if err != nil {
					mu.Lock()
					crashed++
					mu.Unlock()
				}
			}
		})
	}
	clientsRunning.Wait()

	truth := cni(t, cfg)
	b, err := truth.GetBlock(t.Context(), block)
	must(t, err)
	referenced := 0
	for _, index := range b.Spec.Allocations {
		if index == nil {
			continue
		}
		referenced++
		if id := *b.Spec.Attributes[*index].HandleID; !exists(t, truth, id) {
			t.Errorf("the block references %s, which was swept", id)
		}
	}
	for id := range live {
		if !exists(t, truth, id) {
			t.Errorf("live handle %s was swept", id)
		}
	}
	eventually(t, 4*grace, "all orphans to go", func() bool {
		return s.inventory.Summary().Handles == s.inventory.Summary().ReferencedHandles
	})
	s.observed.mu.Lock()
	defer s.observed.mu.Unlock()
	t.Logf("%d handles live, %d referenced, CNI killed %d times, %d orphans swept", len(live), referenced, crashed, s.observed.swept)
	if len(live) == 0 || crashed == 0 || s.observed.swept == 0 {
		t.Error("the race did not happen")
	}
}
