package feed_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

var api = calico.API{GroupVersion: calico.GroupCRD}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

func follow(t *testing.T, cfg *rest.Config) (*feed.Feed, *inventory.Inventory) {
	t.Helper()
	inv := inventory.New(clock.RealClock{})
	return followInto(t, cfg, inv, feed.Options{}), inv
}

func followInto(t *testing.T, cfg *rest.Config, inv *inventory.Inventory, o feed.Options) *feed.Feed {
	t.Helper()
	f, err := feed.New(cfg, api, inv, o)
	must(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := f.Start(ctx); err != nil {
			t.Errorf("feed: %v", err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return f
}

func TestFeedOnARealAPIServer(t *testing.T) {
	// More than a page of handles, and more pods than one read proves fresh.
	spec := refcluster.Default(time.Now()).Resize(3000, 0.5)
	cp := controlplane.ForTest(t, controlplane.Options{BeforeAPIServer: func(ctx context.Context, etcd string) error {
		return refcluster.Load(ctx, etcd, spec)
	}})
	cfg := cp.Config()
	must(t, controlplane.InstallCRDs(t.Context(), cfg, api))
	core, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	client, err := api.NewRESTClient(cfg)
	must(t, err)

	f, inv := follow(t, cfg)
	syncing, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	must(t, f.WaitForSync(syncing))
	for _, c := range f.Conditions() {
		if !c.Synced {
			t.Errorf("%s is not synced", c.Resource)
		}
	}

	t.Run("holds the cluster", func(t *testing.T) {
		got := inv.Summary()
		if got.Handles != spec.Handles() || got.ReferencedHandles != spec.Live() || got.Nodes != spec.Nodes || got.CalicoPods != spec.Pods {
			t.Errorf("of %d handles, %d live, %d nodes, %d pods it has %+v", spec.Handles(), spec.Live(), spec.Nodes, spec.Pods, got)
		}
		if !inv.HasNode(firstNode(t, core)) {
			t.Error("it lacks a node")
		}
		kubernetesService, err := core.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		must(t, err)
		if !inv.HasServiceHandle(strings.ToLower(calico.LoadBalancerHandleID("kubernetes", "default", string(kubernetesService.UID)))) {
			t.Error("it lacks a Service")
		}
	})

	t.Run("is fresh soon though the cluster is quiet", func(t *testing.T) {
		// The first proof may find out that this API server's bookmarks fall short.
		label(t, core, firstNode(t, core), "first")
		must(t, f.ProveFresh(t.Context()))
		// A node's revision passes, and that of all other resources stays.
		for n := range 3 {
			label(t, core, firstNode(t, core), strconv.Itoa(n))
			begin := time.Now()
			must(t, f.ProveFresh(t.Context()))
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
		}
	})

	t.Run("has what was written before it is proven fresh", func(t *testing.T) {
		name := "k8s-pod-network." + strings.Repeat("ab", 32)
		block := &calico.IPAMBlock{
			ObjectMeta: metav1.ObjectMeta{Name: "192-0-2-0-30"},
			Spec: calico.IPAMBlockSpec{
				CIDR: "192.0.2.0/30", Affinity: ptr.To("host:node-x"), Allocations: make([]*int, 4),
				Attributes: []calico.AllocationAttribute{{HandleID: &name}}, Unallocated: []int{},
			},
		}
		must(t, client.Post().Resource("ipamblocks").Body(block).Do(t.Context()).Into(block))
		for n := range 5 {
			want := (n + 1) % 4
			for ordinal := range block.Spec.Allocations {
				block.Spec.Allocations[ordinal] = nil
				if ordinal < want {
					block.Spec.Allocations[ordinal] = ptr.To(0)
				}
			}
			must(t, client.Put().Resource("ipamblocks").Name(block.Name).Body(block).Do(t.Context()).Into(block))
			must(t, f.ProveFresh(t.Context()))
			got := 0
			for _, r := range inv.References(name) {
				got += r.Count
			}
			if got != want {
				t.Fatalf("the block has %d addresses, the cache %d", want, got)
			}
		}
		must(t, client.Delete().Resource("ipamblocks").Name(block.Name).Do(t.Context()).Error())
		// A proof need not wait for what went: that only keeps handles.
		eventually(t, "the block to go", func() bool { return len(inv.References(name)) == 0 })
	})

	t.Run("proves what came of pods, nodes and Services too", func(t *testing.T) {
		container := strings.Repeat("cd", 32)
		pods, nodes, services := core.CoreV1().Pods("default"), core.CoreV1().Nodes(), core.CoreV1().Services("default")
		for range 2 {
			_, err := pods.Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "late", Annotations: map[string]string{calico.ContainerIDAnnotation: container}},
				Spec:       corev1.PodSpec{NodeName: "late", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}, metav1.CreateOptions{})
			must(t, err)
			_, err = nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
			must(t, err)
			service, err := services.Create(t.Context(), &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
			}, metav1.CreateOptions{})
			must(t, err)
			handle := strings.ToLower(calico.LoadBalancerHandleID("late", "default", string(service.UID)))
			there := func() [3]bool {
				_, pod := inv.PodByContainerID(container)
				return [3]bool{pod, inv.HasNode("late"), inv.HasServiceHandle(handle)}
			}
			must(t, f.ProveFresh(t.Context()))
			if got := there(); got != [3]bool{true, true, true} {
				t.Errorf("pod, node, Service are there: %v", got)
			}
			must(t, pods.Delete(t.Context(), "late", *metav1.NewDeleteOptions(0)))
			must(t, nodes.Delete(t.Context(), "late", metav1.DeleteOptions{}))
			must(t, services.Delete(t.Context(), "late", metav1.DeleteOptions{}))
			eventually(t, "all three to go", func() bool { return there() == [3]bool{} })
		}
	})

	t.Run("takes a handle's change and its end", func(t *testing.T) {
		name := "k8s-pod-network." + strings.Repeat("ef", 32)
		handle := &calico.IPAMHandle{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: calico.IPAMHandleSpec{HandleID: name, Block: map[string]int{}},
		}
		must(t, client.Post().Resource("ipamhandles").Body(handle).Do(t.Context()).Into(handle))
		known := func() string {
			e, ok := inv.Evidence(name, time.Now(), time.Hour)
			if !ok {
				return ""
			}
			if e.Handle.UID != handle.UID || time.Since(e.Handle.LastWrite) > time.Minute || e.Handle.LastWriteObserved {
				t.Errorf("it has %+v of %+v", e.Handle, handle.ObjectMeta)
			}
			return e.Handle.ResourceVersion
		}
		eventually(t, "the handle", func() bool { return known() == handle.ResourceVersion })
		handle.Spec.Block["192.0.2.0/30"] = 1
		must(t, client.Put().Resource("ipamhandles").Name(name).Body(handle).Do(t.Context()).Into(handle))
		eventually(t, "its change", func() bool { return known() == handle.ResourceVersion })
		must(t, client.Delete().Resource("ipamhandles").Name(name).Do(t.Context()).Error())
		eventually(t, "its end", func() bool { return known() == "" })
	})

	t.Run("lists nothing at rest", func(t *testing.T) {
		before := lists(t, core)
		if before == 0 {
			t.Fatal("the API server counts no lists at all")
		}
		time.Sleep(3 * time.Second)
		if after := lists(t, core); after != before {
			t.Errorf("%d lists in 3 s", after-before)
		}
	})

	t.Run("one look sees the same cluster", func(t *testing.T) {
		once := inventory.New(clock.RealClock{})
		handles, blocks, pods, nodes, services := 0, 0, 0, 0, 0
		must(t, feed.Once(t.Context(), cfg, api, once, feed.Visitor{
			Handle: func(h *calico.IPAMHandle) {
				if h.Spec.HandleID == "" {
					t.Errorf("handle %s comes without its spec", h.Name)
				}
				handles++
			},
			Block:   func(*calico.IPAMBlock) { blocks++ },
			Pod:     func(*corev1.Pod) { pods++ },
			Node:    func(metav1.Object) { nodes++ },
			Service: func(metav1.Object) { services++ },
		}))
		got, want := once.Summary(), inv.Summary()
		if got != want {
			t.Errorf("it sees %+v, who follows sees %+v", got, want)
		}
		if handles != got.Handles || blocks != got.Blocks || pods != got.Pods || nodes != got.Nodes || services != got.Services {
			t.Errorf("the visitor sees %d handles, %d blocks, %d pods, %d nodes, %d Services", handles, blocks, pods, nodes, services)
		}
		blind := inventory.New(clock.RealClock{})
		must(t, feed.Once(t.Context(), cfg, api, blind, feed.Visitor{}))
		if blind.Summary() != want {
			t.Errorf("without a visitor it sees %+v", blind.Summary())
		}
	})

	t.Run("tells what it may not do", func(t *testing.T) {
		_, err := core.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "poor"}}, metav1.CreateOptions{})
		must(t, err)
		poor, err := cp.UserConfig(t.Context(), "default", "poor")
		must(t, err)
		err = feed.Once(t.Context(), poor, api, inventory.New(clock.RealClock{}), feed.Visitor{})
		if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "cannot list resource \"ipamhandles\"") {
			t.Errorf("one look says: %v", err)
		}
		denied, _ := follow(t, poor)
		eventually(t, "errors", func() bool {
			for _, c := range denied.Conditions() {
				if !apierrors.IsForbidden(c.Err) || c.Synced {
					return false
				}
			}
			return true
		})
		grant(t, core, "poor")
		allowed, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		must(t, denied.WaitForSync(allowed))
		must(t, denied.ProveFresh(allowed))
	})

	t.Run("tells when the API server is away, and goes on after", func(t *testing.T) {
		must(t, cp.APIServer.Kill())
		eventually(t, "the break to show", func() bool {
			for _, c := range f.Conditions() {
				if c.Connected || c.Lag == 0 {
					return false
				}
			}
			return true
		})
		short, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		if err := f.ProveFresh(short); err == nil {
			t.Error("it is proven fresh without an API server")
		}
		must(t, cp.APIServer.Start(t.Context()))
		label(t, core, firstNode(t, core), "after")
		eventually(t, "a proof", func() bool { return f.ProveFresh(t.Context()) == nil })
		eventually(t, "the watches", func() bool {
			for _, c := range f.Conditions() {
				if !c.Connected || !c.Synced {
					return false
				}
			}
			return true
		})
	})
}

func firstNode(t *testing.T, core kubernetes.Interface) string {
	t.Helper()
	list, err := core.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{Limit: 1})
	must(t, err)
	if len(list.Items) == 0 {
		t.Fatal("there is no node")
	}
	return list.Items[0].Name
}

func label(t *testing.T, core kubernetes.Interface, node, value string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"test":%q}}}`, value)
	_, err := core.CoreV1().Nodes().Patch(t.Context(), node, "application/merge-patch+json", patch, metav1.PatchOptions{})
	must(t, err)
}

var listOfIPAM = regexp.MustCompile(`(?m)^apiserver_request_total\{.*resource="ipam(?:handles|blocks)".*verb="LIST".*\} (\d+)$`)

// lists counts the lists of IPAM objects that the API server has answered.
func lists(t *testing.T, core *kubernetes.Clientset) int {
	t.Helper()
	metrics, err := core.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	must(t, err)
	sum := 0
	for _, match := range listOfIPAM.FindAllSubmatch(metrics, -1) {
		n, err := strconv.Atoi(string(match[1]))
		must(t, err)
		sum += n
	}
	return sum
}

// grant gives the ServiceAccount what following needs, and no more.
func grant(t *testing.T, core kubernetes.Interface, name string) {
	t.Helper()
	rbac := core.RbacV1()
	_, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{api.Group}, Resources: []string{"ipamhandles", "ipamblocks"}, Verbs: []string{"list", "watch"}},
			{APIGroups: []string{""}, Resources: []string{"pods", "nodes", "services"}, Verbs: []string{"list", "watch"}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: name}},
	}, metav1.CreateOptions{})
	must(t, err)
}
