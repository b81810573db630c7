// Package explain tells what the evidence on a handle, pod, IP or node is, and
// what verdict follows from it.
package explain

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// Run looks at the cluster once and answers all subjects. A subject that is
// nothing that exists is an error. Grace is how long a handle must be unchanged
// to count as an orphan.
func Run(ctx context.Context, cfg *rest.Config, api calico.API, c clock.PassiveClock, grace time.Duration, subjects []Subject) (*Explanation, error) {
	handles, err := effect.NewAPI(cfg, api)
	if err != nil {
		return nil, err
	}
	x := &explainer{
		inventory: inventory.New(c), api: handles, clock: c, grace: grace,
		handles: map[string]*calico.IPAMHandle{}, pods: map[string]*Pod{}, users: map[netip.Addr]string{},
		named: map[string]bool{}, ips: map[netip.Addr]bool{}, nodes: map[string]bool{}, containers: map[string]bool{},
		blocks: map[string]map[string]int{},
	}
	if err := x.want(ctx, cfg, subjects); err != nil {
		return nil, err
	}
	if err := feed.Once(ctx, cfg, api, x.inventory, feed.Visitor{Block: x.block, Pod: x.pod}); err != nil {
		return nil, err
	}
	out := &Explanation{APIVersion: APIVersion, Kind: Kind, Time: c.Now()}
	for _, s := range subjects {
		answer, err := x.answer(ctx, s)
		if err != nil {
			return nil, err
		}
		out.Answers = append(out.Answers, answer)
	}
	return out, nil
}

// explainer is one look at the cluster. It keeps of it what the subjects touch.
type explainer struct {
	inventory *inventory.Inventory
	api       effect.API
	clock     clock.PassiveClock
	grace     time.Duration

	// What is asked about: handles by name, addresses, nodes, and the container
	// IDs of pods. Pods asked about are keys of pods, nil until seen.
	named, nodes, containers map[string]bool
	ips                      map[netip.Addr]bool

	// handles that were read; nil is one that does not exist.
	handles     map[string]*calico.IPAMHandle
	allocations []Allocation
	pods        map[string]*Pod
	// users are the pods that have an address of interest.
	users map[netip.Addr]string
	// blocks count allocations by CIDR, for each node asked about.
	blocks map[string]map[string]int
}

// want notes what subjects touch. Handles are read here, before what they are
// judged by, and pods to learn their addresses and container IDs.
func (x *explainer) want(ctx context.Context, cfg *rest.Config, subjects []Subject) error {
	core, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	for _, s := range subjects {
		if s.kind == anIP {
			x.ips[s.ip] = true
		}
		if s.kind == anything || s.kind == aHandle {
			x.named[calico.HandleName(s.name)] = true
			if _, err := x.handle(ctx, s.name); err != nil {
				return err
			}
		}
		if s.kind == anything || s.kind == aNode {
			x.nodes[s.name] = true
		}
		if s.kind == anything || s.kind == aPod {
			x.pods[podName(s.namespace, s.name)] = nil
			// A list of one asks for no permission beyond that of the look.
			found, err := core.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + s.name})
			if err != nil {
				return fmt.Errorf("read pod %s/%s: %w", s.namespace, s.name, err)
			}
			for i := range found.Items {
				x.wantPod(&found.Items[i])
			}
		}
	}
	return nil
}

func (x *explainer) wantPod(p *corev1.Pod) {
	if id := p.Annotations[calico.ContainerIDAnnotation]; id != "" {
		x.containers[strings.ToLower(id)] = true
	}
	if p.Spec.HostNetwork {
		return
	}
	for _, ip := range p.Status.PodIPs {
		if at, err := netip.ParseAddr(ip.IP); err == nil {
			x.ips[at] = true
		}
	}
}

// handle reads a handle once; nil means that there is none.
func (x *explainer) handle(ctx context.Context, id string) (*calico.IPAMHandle, error) {
	name := calico.HandleName(id)
	if h, ok := x.handles[name]; ok {
		return h, nil
	}
	h, err := x.api.GetHandle(ctx, name)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsBadRequest(err), apierrors.IsInvalid(err):
		h = nil
	case err != nil:
		return nil, fmt.Errorf("read handle %s: %w", name, err)
	}
	x.handles[name] = h
	return h, nil
}

func (x *explainer) block(b *calico.IPAMBlock) {
	if b.Spec.Deleted {
		return
	}
	affinity := ""
	if b.Spec.Affinity != nil {
		affinity = *b.Spec.Affinity
	}
	home := calico.AffinityNode(affinity)
	for ordinal, index := range b.Spec.Allocations {
		if index == nil {
			continue
		}
		if x.nodes[home] {
			if x.blocks[home] == nil {
				x.blocks[home] = map[string]int{}
			}
			x.blocks[home][b.Spec.CIDR]++
		}
		a := Allocation{Block: b.Spec.CIDR, Affinity: affinity, Ordinal: ordinal, Attribute: *index}
		ip, ok := verdict.Address(b.Spec.CIDR, ordinal)
		if ok {
			a.IP = ip.String()
		}
		if a.Damaged = *index < 0 || *index >= len(b.Spec.Attributes); !a.Damaged {
			attribute := &b.Spec.Attributes[*index]
			if attribute.HandleID != nil {
				a.Handle = *attribute.HandleID
			}
			a.Attributes = attribute.Secondary
			if attribute.ReleasedAt != nil {
				released := attribute.ReleasedAt.UTC()
				a.ReleasedAt = &released
			}
		}
		if ok && x.ips[ip] || x.touches(a) {
			if ok {
				x.ips[ip] = true
			}
			x.allocations = append(x.allocations, a)
		}
	}
}

// touches tells whether an allocation belongs to a handle, pod or node that is
// asked about.
func (x *explainer) touches(a Allocation) bool {
	if x.named[calico.HandleName(a.Handle)] {
		return true
	}
	if _, asked := x.pods[a.pod()]; asked {
		return true
	}
	id := calico.ParseHandleID(a.Handle)
	return x.containers[id.ContainerID] || x.nodes[a.Attributes["node"]] && a.home() != a.Attributes["node"] ||
		id.Kind == calico.KindNode && x.nodes[id.Name]
}

// pod is the one that Calico noted for the allocation; "" where it noted none.
func (a Allocation) pod() string {
	if a.Attributes["pod"] == "" {
		return ""
	}
	return podName(a.Attributes["namespace"], a.Attributes["pod"])
}

// home is the node that the block is affine to.
func (a Allocation) home() string { return calico.AffinityNode(a.Affinity) }

func podName(namespace, name string) string { return namespace + "/" + name }

// pod comes after all blocks.
func (x *explainer) pod(p *corev1.Pod) {
	if p.Spec.HostNetwork {
		return
	}
	name := podName(p.Namespace, p.Name)
	running := p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
	_, asked := x.pods[name]
	var ips []string
	for _, ip := range p.Status.PodIPs {
		at, err := netip.ParseAddr(ip.IP)
		if err != nil {
			continue
		}
		ips = append(ips, ip.IP)
		if running && x.ips[at] {
			x.users[at] = name
			asked = true // Its container ID and node are compared.
		}
	}
	if !asked {
		return
	}
	x.pods[name] = &Pod{
		Namespace: p.Namespace, Name: p.Name, Node: p.Spec.NodeName, Phase: string(p.Status.Phase),
		ContainerID: strings.ToLower(p.Annotations[calico.ContainerIDAnnotation]), IPs: slices.Clone(ips),
	}
}
