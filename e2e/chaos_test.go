package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/calicoproto"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

var (
	chaosFor  = flag.Duration("chaos", 90*time.Second, "how long TestChaos does harm")
	chaosSeed = flag.Uint64("chaos.seed", 0, "seed of TestChaos; 0 for one of its own")
)

const (
	chaosNodes = 200
	// chaosPods is how many pods live at once, at most.
	chaosPods = 40
	// killed is how likely a CNI plugin is killed before a step of its work.
	killed = 0.04
	// recovery bounds how long all takes to be well again. A leak's owner is noted
	// a minute after its address was given back, which is a write too, and the
	// grace period follows.
	recovery = 6 * time.Minute
)

var errKilled = errors.New("killed")

// chaos is a cluster where much goes wrong.
type chaos struct {
	*installation
	seed uint64

	mu sync.Mutex
	// live are the handle IDs of pods that run, and their blocks.
	live map[string]livePod

	lives, leaks, failed, harms atomic.Int64
}

type livePod struct {
	name  string
	block netip.Prefix
}

// TestChaos lets Calico's protocol assign and release on hundreds of nodes while
// managers, API server and CNI plugins are killed, etcd stalls, watches are cut
// and expire, and the API server turns the managers away. Then all must agree:
// what lives has its handle, and what leaked is gone.
func TestChaos(t *testing.T) {
	c := &chaos{installation: install(t, calico.API{GroupVersion: calico.GroupCRD}), live: map[string]livePod{}, seed: *chaosSeed}
	if c.seed == 0 {
		c.seed = uint64(time.Now().UnixNano()) //nolint:gosec // any will do
	}
	t.Logf("again with -chaos=%s -chaos.seed=%d", *chaosFor, c.seed)
	c.makeNodes(t)
	// The managers come to the API server by a way that can be cut.
	c.apiServer = forwardTo(t, strings.TrimPrefix(c.cfg.Host, "https://"))
	managers := []*replica{
		c.start(t, "first", "--audit-file="+c.record("first")), c.start(t, "second", "--audit-file="+c.record("second")),
	}
	c.service.set(managers[0].webhook, managers[1].webhook)

	ctx, stop := context.WithTimeout(t.Context(), *chaosFor)
	defer stop()
	var running sync.WaitGroup
	for _, m := range managers {
		running.Go(func() { c.supervise(t, ctx, m) })
	}
	for n := range chaosPods {
		running.Go(func() { c.churn(t, ctx, n) })
	}
	c.harm(t, ctx, managers)
	running.Wait()
	c.wellAgain(t, managers)
	t.Logf("%d pods lived, %d CNI plugins were killed, %d requests failed, %d harms were done; %d pods live", c.lives.Load(), c.leaks.Load(), c.failed.Load(), c.harms.Load(), len(c.live))
	if c.lives.Load() < 100 || c.leaks.Load() < 10 || c.harms.Load() < 5 {
		t.Error("that is not chaos")
	}
	c.agrees(t)
	for _, m := range managers {
		must(t, m.Stop())
	}
}

func (c *chaos) random(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(c.seed, stream)) //nolint:gosec // not for secrets
}

func chaosNode(n int) string { return fmt.Sprintf("chaos-%03d", n) }

func chaosBlock(n int) netip.Prefix {
	base := netip.MustParseAddr("10.251.0.0").As4()
	var address [4]byte
	binary.BigEndian.PutUint32(address[:], binary.BigEndian.Uint32(base[:])+uint32(n)*64) //nolint:gosec // a few hundred
	return netip.PrefixFrom(netip.AddrFrom4(address), 26)
}

func (c *chaos) makeNodes(t *testing.T) {
	t.Helper()
	for n := range chaosNodes {
		_, err := c.clients.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: chaosNode(n)}}, metav1.CreateOptions{})
		must(t, err)
		must(t, c.cni.EnsureBlock(t.Context(), chaosBlock(n), chaosNode(n)))
	}
}

// supervise restarts a manager that ended, as kubelet does.
func (c *chaos) supervise(t *testing.T, ctx context.Context, m *replica) {
	for ctx.Err() == nil {
		if m.Ended() != nil {
			if err := m.Start(ctx); err != nil {
				t.Logf("a manager does not start: %v", err)
			}
		}
		pause(ctx, 500*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// churn lets one pod after another live and die; the last one lives on.
func (c *chaos) churn(t *testing.T, ctx context.Context, stream int) {
	random := c.random(uint64(stream) + 1) //nolint:gosec // a few
	for n := 0; ctx.Err() == nil; n++ {
		node := random.IntN(chaosNodes)
		cni, err := calicoproto.New(c.cfg, c.api)
		if err != nil {
			t.Error(err)
			return
		}
		cni.Before = func(context.Context, calicoproto.Step) error {
			if random.Float64() < killed {
				return errKilled
			}
			return nil
		}
		c.life(t, ctx, cni, random, fmt.Sprintf("pod-%d-%d", stream, n), node)
	}
}

// life is one pod's: made, given an address, and after a while taken down.
func (c *chaos) life(t *testing.T, ctx context.Context, cni *calicoproto.Client, random *rand.Rand, name string, node int) {
	// What has begun goes on when the chaos ends.
	after := context.WithoutCancel(ctx)
	pods := c.clients.CoreV1().Pods("default")
	containerID := fmt.Sprintf("%016x%016x%016x%016x", random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64())
	id := "k8s-pod-network." + containerID
	insist(t, after, "make a pod", &c.failed, func() error {
		_, err := pods.Create(after, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				NodeName: chaosNode(node), Containers: []corev1.Container{{Name: "app", Image: "app"}},
				Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	remove := func() {
		insist(t, after, "delete a pod", &c.failed, func() error {
			err := pods.Delete(after, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	block := chaosBlock(node)
	address, err := cni.Assign(after, id, block, map[string]string{"namespace": "default", "pod": name, "node": chaosNode(node)})
	if err != nil {
		c.failed.Add(1)
		// kubelet takes down what did not come up; a killed plugin does not.
		c.release(t, after, cni, id)
		remove()
		return
	}
	insist(t, after, "tell of the address", &c.failed, func() error {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q,%q:%q}}}`,
			calico.ContainerIDAnnotation, containerID, calico.PodIPAnnotation, address.String()+"/32")
		_, err := pods.Patch(after, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	insist(t, after, "run the pod", &c.failed, func() error {
		patch := fmt.Appendf(nil, `{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}]}}`, address, address)
		_, err := pods.Patch(after, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
	c.mu.Lock()
	c.live[id] = livePod{name, block}
	c.mu.Unlock()
	c.lives.Add(1)
	pause(ctx, time.Duration(200+random.IntN(4000))*time.Millisecond)
	if ctx.Err() != nil {
		return // It lives on.
	}
	c.mu.Lock()
	delete(c.live, id)
	c.mu.Unlock()
	c.release(t, after, cni, id)
	remove()
}

// release is repeated until it works, as kubelet does, or until the plugin is
// killed.
func (c *chaos) release(t *testing.T, ctx context.Context, cni *calicoproto.Client, id string) {
	insist(t, ctx, "release", &c.failed, func() error {
		err := cni.Release(ctx, id)
		if errors.Is(err, errKilled) {
			c.leaks.Add(1)
			return nil
		}
		return err
	})
}

// insist repeats what an API server that is away lets fail.
func insist(t *testing.T, ctx context.Context, what string, failed *atomic.Int64, do func() error) {
	for end := time.Now().Add(2 * time.Minute); ; pause(ctx, 300*time.Millisecond) {
		err := do()
		if err == nil {
			return
		}
		failed.Add(1)
		if time.Now().After(end) {
			t.Errorf("%s: %v", what, err)
			return
		}
	}
}

// harm does one kind of harm after another until ctx ends.
func (c *chaos) harm(t *testing.T, ctx context.Context, managers []*replica) {
	random := c.random(0)
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{c.cp.EtcdEndpoint()}, DialTimeout: 5 * time.Second})
	must(t, err)
	defer etcd.Close()
	restartAPIServer := func() {
		must(t, c.cp.APIServer.Kill())
		if err := c.cp.APIServer.Start(context.WithoutCancel(ctx)); err != nil {
			t.Errorf("the API server does not start again: %v", err)
		}
	}
	harms := []struct {
		what string
		do   func()
	}{
		{"kill a manager", func() { must(t, managers[random.IntN(len(managers))].Kill()) }},
		{"kill the API server", restartAPIServer},
		{"stall etcd", func() {
			must(t, syscall.Kill(c.cp.Etcd.PID(), syscall.SIGSTOP))
			time.Sleep(time.Duration(500+random.IntN(2500)) * time.Millisecond)
			must(t, syscall.Kill(c.cp.Etcd.PID(), syscall.SIGCONT))
		}},
		{"cut the managers' watches", func() { c.apiServer.cut() }},
		{"compact etcd and kill the API server", func() {
			bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			head, err := etcd.Get(bounded, "no such key")
			if err == nil {
				_, err = etcd.Compact(bounded, head.Header.Revision)
			}
			if err != nil {
				t.Logf("etcd is not compacted: %v", err)
			}
			restartAPIServer()
		}},
		{"turn the managers away", func() { c.storm(t, ctx) }},
	}
	// Each once in some order, then at random.
	order := random.Perm(len(harms))
	for n := 0; ctx.Err() == nil; n++ {
		pick := random.IntN(len(harms))
		if n < len(order) {
			pick = order[n]
		}
		t.Logf("%s", harms[pick].what)
		harms[pick].do()
		c.harms.Add(1)
		pause(ctx, time.Duration(2000+random.IntN(4000))*time.Millisecond)
	}
}

// storm makes the API server answer the managers' requests with 429 for a while.
func (c *chaos) storm(t *testing.T, ctx context.Context) {
	flows := c.clients.FlowcontrolV1()
	after := context.WithoutCancel(ctx)
	const name = "turn-away"
	insist(t, after, "a priority level", &c.failed, func() error {
		_, err := flows.PriorityLevelConfigurations().Create(after, &flowcontrolv1.PriorityLevelConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
				Type: flowcontrolv1.PriorityLevelEnablementLimited,
				Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
					NominalConcurrencyShares: ptr.To[int32](0), LendablePercent: ptr.To[int32](0), BorrowingLimitPercent: ptr.To[int32](0),
					LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
				},
			},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	insist(t, after, "a flow schema", &c.failed, func() error {
		_, err := flows.FlowSchemas().Create(after, &flowcontrolv1.FlowSchema{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: flowcontrolv1.FlowSchemaSpec{
				PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: name}, MatchingPrecedence: 2,
				Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
					Subjects:      []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindServiceAccount, ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: namespace, Name: account}}},
					ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true, Namespaces: []string{"*"}}},
				}},
			},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	pause(ctx, 4*time.Second)
	insist(t, after, "no flow schema", &c.failed, func() error {
		err := flows.FlowSchemas().Delete(after, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// wellAgain waits until both managers are up.
func (c *chaos) wellAgain(t *testing.T, managers []*replica) {
	t.Helper()
	for _, m := range managers {
		for end := time.Now().Add(recovery); m.Ended() != nil; {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := m.Start(ctx)
			cancel()
			if err != nil && time.Now().After(end) {
				t.Fatalf("a manager does not come back: %v\n%s", err, m.LogTail())
			}
		}
	}
}

// record is where a manager records what it does.
func (c *chaos) record(name string) string { return filepath.Join(c.dir, name+".audit.jsonl") }

// deleted are the handles that the managers recorded to delete.
func (c *chaos) deleted(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, name := range []string{"first", "second"} {
		f, err := os.Open(c.record(name))
		must(t, err)
		must(t, audit.Read(f, func(r audit.Record) error {
			if r.Action == audit.Sweep || r.Action == audit.Release {
				names[r.Handle.Name] = true
			}
			return nil
		}))
		must(t, f.Close())
	}
	return names
}

// referencesEach gives each allocation of the nodes' blocks to visit.
func (c *chaos) referencesEach(t *testing.T, visit func(block *calico.IPAMBlock, id string)) {
	t.Helper()
	for n := range chaosNodes {
		block, err := c.cni.GetBlock(t.Context(), chaosBlock(n))
		must(t, err)
		for _, index := range block.Spec.Allocations {
			if index != nil {
				visit(block, *block.Spec.Attributes[*index].HandleID)
			}
		}
	}
}

// agrees waits until just what lives has handles, and checks it to a handle.
func (c *chaos) agrees(t *testing.T) {
	t.Helper()
	spared := map[string]bool{}
	for h := range refcluster.Default(time.Now()).Resize(60, 0.5).LiveHandles() {
		spared[h.Name] = true
	}
	// Every live pod has its address and its handle.
	for id, pod := range c.live {
		h, err := c.handles.GetHandle(t.Context(), calico.HandleName(id))
		switch {
		case err != nil:
			t.Errorf("the handle of live pod %s is lost: %v", pod.name, err)
		case h.Spec.Deleted || h.DeletionTimestamp != nil || h.Spec.Block[pod.block.String()] < 1:
			t.Errorf("the handle of live pod %s is %+v", pod.name, h)
		case !c.referenced(t, id, pod.block):
			t.Errorf("the address of live pod %s is lost", pod.name)
		}
		spared[calico.HandleName(id)] = true
	}
	// No block mentions a handle that we deleted, so that Calico can collect the
	// addresses of pods that are gone. It loses a handle itself when an API server
	// dies between a block's write and its answer: it takes that for a failure,
	// and takes the handle back.
	deleted := c.deleted(t)
	collected, lost := 0, 0
	c.referencesEach(t, func(block *calico.IPAMBlock, id string) {
		if spared[calico.HandleName(id)] {
			return
		}
		if c.gone(t, id) {
			if deleted[calico.HandleName(id)] {
				t.Errorf("block %s gives an address to %s, whose handle we deleted", block.Spec.CIDR, id)
			}
			lost++
			spared[calico.HandleName(id)] = true
			return
		}
		must(t, c.cni.Release(t.Context(), id))
		collected++
	})
	t.Logf("Calico collected the addresses of %d pods that are gone, and has lost %d handles itself; %d handles were swept", collected, lost, len(deleted))
	if len(deleted) == 0 {
		t.Error("nothing was swept")
	}
	c.referencesEach(t, func(block *calico.IPAMBlock, id string) {
		if !spared[calico.HandleName(id)] {
			t.Errorf("block %s gives an address to %s, which no pod has", block.Spec.CIDR, id)
		}
	})
	// What leaked goes, and nothing else.
	all := func() []calico.IPAMHandle {
		page, _, err := c.handles.ListHandles(t.Context(), 0, "")
		must(t, err)
		return page
	}
	eventually(t, recovery, "all leaks to be swept", func() bool { return len(all()) == len(spared)-lost })
	for _, h := range all() {
		if !spared[h.Name] {
			t.Errorf("handle %s is left", h.Name)
		}
	}
}
