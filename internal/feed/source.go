package feed

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/kubevirt"
)

// source is how one resource is read, and how its objects go into the
// inventory.
type source struct {
	resource inventory.Resource
	// example is of the type that list and watch bring.
	example  runtime.Object
	list     func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch    func(context.Context, metav1.ListOptions) (watch.Interface, error)
	apply    func(runtime.Object)
	remove   func(namespace, name string, rv uint64)
	metadata metadata.ResourceInterface
}

// sources are all resources, in the order in which one look must read them:
// handles first, then blocks, then owners. Whoever is seen to hold an address
// later was not missed earlier.
type sources struct {
	handles, blocks, nodes, services, pods source
	// machines are none where KubeVirt is not installed.
	machines []source
}

func (s *sources) all() []source {
	return append([]source{s.handles, s.blocks, s.nodes, s.services, s.pods}, s.machines...)
}

func newSources(cfg *rest.Config, api calico.API, machines schema.GroupVersion, inv *inventory.Inventory) (*sources, error) {
	unlimited := rest.CopyConfig(cfg)
	unlimited.QPS = -1
	metadataClient, err := metadata.NewForConfig(unlimited)
	if err != nil {
		return nil, fmt.Errorf("metadata client: %w", err)
	}
	blocks, err := api.NewRESTClient(cfg)
	if err != nil {
		return nil, err
	}
	binary := rest.CopyConfig(unlimited)
	binary.ContentType = runtime.ContentTypeProtobuf
	binary.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	core, err := kubernetes.NewForConfig(binary)
	if err != nil {
		return nil, fmt.Errorf("client for pods: %w", err)
	}

	core1 := schema.GroupVersion{Version: "v1"}
	s := &sources{
		handles:  ofMetadata(inventory.Handles, metadataClient.Resource(api.Handles())),
		nodes:    ofMetadata(inventory.Nodes, metadataClient.Resource(core1.WithResource("nodes"))),
		services: ofMetadata(inventory.Services, metadataClient.Resource(core1.WithResource("services"))),
		blocks: source{
			resource: inventory.Blocks, example: &calico.IPAMBlock{},
			metadata: metadataClient.Resource(api.Blocks()),
		},
		// A pod's phase, its host network and its addresses lie outside its
		// metadata, and liveness needs all three.
		pods: source{
			resource: inventory.Pods, example: &corev1.Pod{},
			metadata: metadataClient.Resource(core1.WithResource("pods")),
		},
	}
	s.handles.apply = shown(func(o metav1.Object) { inv.ApplyHandle(inventory.FromObject(o)) })
	s.handles.remove = func(_, name string, rv uint64) { inv.DeleteHandle(name, rv) }
	s.nodes.apply = shown(inv.ApplyNode)
	s.nodes.remove = func(_, name string, rv uint64) { inv.DeleteNode(name, rv) }
	s.services.apply = shown(inv.ApplyService)
	s.services.remove = inv.DeleteService
	s.blocks.apply = shown(inv.ApplyBlock)
	s.blocks.remove = func(_, name string, rv uint64) { inv.DeleteBlock(name, rv) }
	s.blocks.list, s.blocks.watch = ofREST(blocks, api.Blocks().Resource, func() runtime.Object { return &calico.IPAMBlockList{} })
	s.pods.apply = shown(inv.ApplyPod)
	s.pods.remove = inv.DeletePod
	s.pods.list = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return core.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
	}
	s.pods.watch = core.CoreV1().Pods(metav1.NamespaceAll).Watch
	if !machines.Empty() {
		for r, name := range map[inventory.Resource]string{
			inventory.VirtualMachines: kubevirt.VirtualMachines, inventory.VirtualMachineInstances: kubevirt.Instances,
		} {
			machine := ofMetadata(r, metadataClient.Resource(machines.WithResource(name)))
			machine.apply = shown(func(o metav1.Object) { inv.ApplyMachine(r, o) })
			machine.remove = func(namespace, name string, rv uint64) { inv.DeleteMachine(r, namespace, name, rv) }
			s.machines = append(s.machines, machine)
		}
	}
	return s, nil
}

func ofMetadata(r inventory.Resource, client metadata.ResourceInterface) source {
	return source{
		resource: r, example: &metav1.PartialObjectMetadata{}, metadata: client,
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, o)
		},
		watch: client.Watch,
	}
}

func ofREST(client rest.Interface, resource string, empty func() runtime.Object) (
	func(context.Context, metav1.ListOptions) (runtime.Object, error),
	func(context.Context, metav1.ListOptions) (watch.Interface, error),
) {
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		out := empty()
		err := client.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(out)
		return out, err
	}
	follow := func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.Watch = true
		return client.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
	}
	return list, follow
}

// pages lists page by page, and gives each object to visit. It returns the
// resource version of the list.
//
// A long list's moment may expire midway. That is an error, unless the caller
// needs no single moment: then the rest is as of a later one.
func (s *source) pages(ctx context.Context, eventual bool, visit func(runtime.Object)) (string, error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := s.list(ctx, options)
		if rest := tokenForRest(err); eventual && rest != "" && rest != options.Continue {
			options.Continue = rest
			continue
		}
		if err != nil {
			return "", fmt.Errorf("list %s: %w", s.resource, err)
		}
		if err := meta.EachListItem(page, func(o runtime.Object) error {
			visit(o)
			return nil
		}); err != nil {
			return "", fmt.Errorf("list %s: %w", s.resource, err)
		}
		list, err := meta.ListAccessor(page)
		if err != nil {
			return "", fmt.Errorf("list %s: %w", s.resource, err)
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return list.GetResourceVersion(), nil
		}
	}
}

// tokenForRest is what the API server's answer to an expired list offers to go
// on with, "" for any other answer.
func tokenForRest(err error) string {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) {
		return ""
	}
	return status.Status().Continue
}
