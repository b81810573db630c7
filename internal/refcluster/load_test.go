package refcluster_test

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

func TestLoad(t *testing.T) {
	for _, gv := range []calico.API{{GroupVersion: calico.GroupCRD}, {GroupVersion: calico.GroupV3}} {
		t.Run("an API server of "+gv.String()+" lists exactly what was loaded", func(t *testing.T) { testLoad(t, gv) })
	}
}

func testLoad(t *testing.T, api calico.API) {
	s := refcluster.Default(time.Now())
	s.API = api
	cp := controlplane.ForTest(t, controlplane.Options{BeforeAPIServer: func(ctx context.Context, etcd string) error {
		begin := time.Now()
		err := refcluster.Load(ctx, etcd, s)
		t.Logf("loaded in %s", time.Since(begin))
		return err
	}})
	ctx := t.Context()
	if err := controlplane.InstallCRDs(ctx, cp.Config(), api); err != nil {
		t.Fatal(err)
	}
	client, err := api.NewRESTClient(cp.Config())
	if err != nil {
		t.Fatal(err)
	}

	want := map[string]*calico.IPAMHandle{}
	for h := range s.LiveHandles() {
		want[h.Name] = h
	}
	for h := range s.OrphanHandles() {
		want[h.Name] = h
	}
	var handles calico.IPAMHandleList
	if err := client.Get().Resource("ipamhandles").Do(ctx).Into(&handles); err != nil {
		t.Fatal(err)
	}
	if len(handles.Items) != len(want) {
		t.Errorf("%d handles, want %d", len(handles.Items), len(want))
	}
	for _, got := range handles.Items {
		got.ResourceVersion = ""
		got.TypeMeta = metav1.TypeMeta{}
		w := want[got.Name]
		w.TypeMeta = metav1.TypeMeta{}
		if !apiequality.Semantic.DeepEqual(&got, w) {
			t.Fatalf("handle came back as\n%+v\nwant\n%+v", got, *w)
		}
	}

	var blocks calico.IPAMBlockList
	if err := client.Get().Resource("ipamblocks").Do(ctx).Into(&blocks); err != nil {
		t.Fatal(err)
	}
	allocated := 0
	for _, b := range blocks.Items {
		for _, index := range b.Spec.Allocations {
			if index != nil {
				allocated++
			}
		}
	}
	if len(blocks.Items) != 13 || allocated != 537 {
		t.Errorf("%d blocks with %d allocations, want 13 with 537", len(blocks.Items), allocated)
	}

	var pools calico.IPPoolList
	if err := client.Get().Resource("ippools").Do(ctx).Into(&pools); err != nil || len(pools.Items) != 2 {
		t.Errorf("%d pools, %v", len(pools.Items), err)
	}
	var affinities calico.BlockAffinityList
	if err := client.Get().Resource("blockaffinities").Do(ctx).Into(&affinities); err != nil || len(affinities.Items) != 13 {
		t.Errorf("%d affinities, %v", len(affinities.Items), err)
	}
	var info calico.ClusterInformation
	if err := client.Get().Resource("clusterinformations").Name("default").Do(ctx).Into(&info); err != nil || !*info.Spec.DatastoreReady {
		t.Errorf("cluster information %+v, %v", info.Spec, err)
	}

	core, err := kubernetes.NewForConfig(cp.Config())
	if err != nil {
		t.Fatal(err)
	}
	pods, err := core.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != s.Pods {
		t.Errorf("%d pods, want %d", len(pods.Items), s.Pods)
	}
	loaded := slices.Collect(s.PodObjects())
	for _, p := range pods.Items {
		if !slices.ContainsFunc(loaded, func(l *corev1.Pod) bool {
			return l.UID == p.UID && l.Status.PodIP == p.Status.PodIP && l.Spec.NodeName == p.Spec.NodeName &&
				l.Annotations[calico.ContainerIDAnnotation] == p.Annotations[calico.ContainerIDAnnotation]
		}) {
			t.Fatalf("pod came back as %+v", p)
		}
	}
	nodes, err := core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) != s.Nodes {
		t.Errorf("%d nodes, %v", len(nodes.Items), err)
	}
	// What was loaded can be written too: the server reads its own form.
	pod := pods.Items[0]
	pod.Labels["touched"] = "yes"
	if _, err := core.CoreV1().Pods(pod.Namespace).Update(ctx, &pod, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	if err := client.Delete().Resource("ipamhandles").Name(handles.Items[0].Name).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &handles.Items[0].UID}}).Do(ctx).Error(); err != nil {
		t.Error(err)
	}
}

func TestLoadObjectsOfOddities(t *testing.T) {
	api := calico.API{GroupVersion: calico.GroupCRD}
	odd := refcluster.NewOddities(api, time.Now())
	cp := controlplane.ForTest(t, controlplane.Options{BeforeAPIServer: func(ctx context.Context, etcd string) error {
		return refcluster.LoadObjects(ctx, etcd, odd.Objects())
	}})
	ctx := t.Context()
	if err := controlplane.InstallCRDs(ctx, cp.Config(), api); err != nil {
		t.Fatal(err)
	}
	client, err := api.NewRESTClient(cp.Config())
	if err != nil {
		t.Fatal(err)
	}
	core, err := kubernetes.NewForConfig(cp.Config())
	if err != nil {
		t.Fatal(err)
	}
	for object := range odd.Objects() {
		// An update by the server's own rules proves the object valid.
		var err error
		switch o := object.(type) {
		case *calico.IPAMHandle:
			err = client.Put().Resource("ipamhandles").Name(o.Name).Body(current(t, client, "ipamhandles", o.Name, &calico.IPAMHandle{})).Do(ctx).Error()
		case *calico.IPAMBlock:
			err = client.Put().Resource("ipamblocks").Name(o.Name).Body(current(t, client, "ipamblocks", o.Name, &calico.IPAMBlock{})).Do(ctx).Error()
		case *corev1.Pod:
			got, getErr := core.CoreV1().Pods(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
			if getErr != nil {
				t.Fatal(getErr)
			}
			_, err = core.CoreV1().Pods(o.Namespace).Update(ctx, got, metav1.UpdateOptions{})
		case *corev1.Service:
			// Its ClusterIP comes from no range that this server could know.
			_, err = core.CoreV1().Services(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
		}
		if err != nil {
			t.Errorf("the server refuses %T: %v", object, err)
		}
	}
}

func current[T runtime.Object](t *testing.T, client rest.Interface, resource, name string, into T) T {
	t.Helper()
	if err := client.Get().Resource(resource).Name(name).Do(t.Context()).Into(into); err != nil {
		t.Fatal(err)
	}
	return into
}
