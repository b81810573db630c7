package inventory

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// pod is what is kept of a pod.
type pod struct {
	ownership.Pod
	rv         uint64
	generation uint32
	calico     bool
	// bare are the addresses of an unfinished pod on the pod network that
	// carries no container ID.
	bare []netip.Addr
}

type podName struct{ namespace, name string }

// named is a set of names, each with its newest resource version.
type named struct {
	byName map[string]seen
}

type seen struct {
	rv         uint64
	generation uint32
	// value is what else the name stands for.
	value string
}

type owners struct {
	mu          sync.RWMutex
	pods        map[podName]*pod
	byContainer map[string][]*pod
	bare        map[*pod]struct{}
	calicoPods  int
	nodes       named
	services    named
	// serviceHandles counts the services by the handle they hash to.
	serviceHandles map[string]int
}

func (o *owners) init() {
	o.pods = map[podName]*pod{}
	o.byContainer = map[string][]*pod{}
	o.bare = map[*pod]struct{}{}
	o.nodes = named{map[string]seen{}}
	o.services = named{map[string]seen{}}
	o.serviceHandles = map[string]int{}
}

func (o *owners) count(s *Summary) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	s.Pods, s.CalicoPods = len(o.pods), o.calicoPods
	s.Nodes, s.Services = len(o.nodes.byName), len(o.services.byName)
}

// ApplyPod adds or updates a pod.
func (i *Inventory) ApplyPod(obj *corev1.Pod) {
	p := podOf(obj, i.names)
	relist := &i.relists[Pods]
	p.generation = relist.generation.Load()
	o := &i.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	at := podName{p.Namespace, p.Name}
	if old, ok := o.pods[at]; ok {
		if !relist.supersedes(p.rv, old.rv) {
			old.generation = p.generation
			return
		}
		o.dropPod(at, old)
	}
	o.pods[at] = p
	if p.ContainerID != "" {
		o.byContainer[p.ContainerID] = append(o.byContainer[p.ContainerID], p)
	}
	if p.calico {
		o.calicoPods++
	}
	if len(p.bare) > 0 {
		o.bare[p] = struct{}{}
	}
	i.subscribers.notify()
}

func podOf(obj *corev1.Pod, n *names) *pod {
	phase := obj.Status.Phase
	containerID := obj.Annotations[calico.ContainerIDAnnotation]
	_, hasIP := obj.Annotations[calico.PodIPAnnotation]
	p := &pod{
		Pod: ownership.Pod{
			Namespace: n.word(obj.Namespace), Name: strings.Clone(obj.Name),
			UID: strings.Clone(string(obj.UID)), Node: n.word(obj.Spec.NodeName),
			ContainerID: strings.Clone(strings.ToLower(containerID)),
			Finished:    phase == corev1.PodSucceeded || phase == corev1.PodFailed,
		},
		rv:     resourceVersion(obj.ResourceVersion),
		calico: containerID != "" || hasIP,
	}
	if containerID == "" && !p.Finished && !obj.Spec.HostNetwork {
		p.bare = podAddresses(obj)
	}
	return p
}

func podAddresses(obj *corev1.Pod) []netip.Addr {
	texts := []string{obj.Status.PodIP}
	for _, ip := range obj.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	texts = append(texts, strings.Split(obj.Annotations[calico.PodIPAnnotation], ",")...)
	texts = append(texts, strings.Split(obj.Annotations[calico.PodIPsAnnotation], ",")...)
	var addresses []netip.Addr
	for _, text := range texts {
		text, _, _ = strings.Cut(strings.TrimSpace(text), "/")
		if address, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, address.Unmap())
		}
	}
	return addresses
}

// DeletePod removes a pod, unless a newer one of its name is known.
func (i *Inventory) DeletePod(namespace, name string, rv uint64) {
	o := &i.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	at := podName{namespace, name}
	if p, ok := o.pods[at]; ok && p.rv <= rv {
		o.dropPod(at, p)
		i.subscribers.notify()
	}
}

func (o *owners) dropPod(at podName, p *pod) {
	delete(o.pods, at)
	delete(o.bare, p)
	if p.calico {
		o.calicoPods--
	}
	if p.ContainerID == "" {
		return
	}
	kept := o.byContainer[p.ContainerID][:0:0]
	for _, other := range o.byContainer[p.ContainerID] {
		if other != p {
			kept = append(kept, other)
		}
	}
	if len(kept) == 0 {
		delete(o.byContainer, p.ContainerID)
		return
	}
	o.byContainer[p.ContainerID] = kept
}

func (o *owners) retainPods(generation uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for at, p := range o.pods {
		if p.generation != generation {
			o.dropPod(at, p)
		}
	}
}

// ApplyNode adds or updates a node.
func (i *Inventory) ApplyNode(obj metav1.Object) {
	i.owners.mu.Lock()
	defer i.owners.mu.Unlock()
	i.owners.nodes.apply(&i.relists[Nodes], obj.GetName(), resourceVersion(obj.GetResourceVersion()), "")
	i.subscribers.notify()
}

// DeleteNode removes a node, unless a newer one of its name is known.
func (i *Inventory) DeleteNode(name string, rv uint64) {
	i.owners.mu.Lock()
	defer i.owners.mu.Unlock()
	i.owners.nodes.remove(name, rv)
	i.subscribers.notify()
}

// ApplyService adds or updates a Service. Its type does not matter: Calico may
// still hold addresses of one that no longer is a LoadBalancer.
func (i *Inventory) ApplyService(obj metav1.Object) {
	o := &i.owners
	handle := calico.HandleName(calico.LoadBalancerHandleID(obj.GetName(), obj.GetNamespace(), string(obj.GetUID())))
	at := obj.GetNamespace() + "/" + obj.GetName()
	o.mu.Lock()
	defer o.mu.Unlock()
	old, had := o.services.byName[at]
	if !o.services.apply(&i.relists[Services], at, resourceVersion(obj.GetResourceVersion()), handle) {
		return
	}
	if had {
		o.unhash(old.value)
	}
	o.serviceHandles[handle]++
	i.subscribers.notify()
}

// DeleteService removes a Service, unless a newer one of its name is known.
func (i *Inventory) DeleteService(namespace, name string, rv uint64) {
	o := &i.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	at := namespace + "/" + name
	old := o.services.byName[at]
	if o.services.remove(at, rv) {
		o.unhash(old.value)
		i.subscribers.notify()
	}
}

func (o *owners) unhash(handle string) {
	if o.serviceHandles[handle]--; o.serviceHandles[handle] <= 0 {
		delete(o.serviceHandles, handle)
	}
}

func (o *owners) retainNamed(n *named, generation uint32, dropped func(seen)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, s := range n.byName {
		if s.generation != generation {
			delete(n.byName, name)
			dropped(s)
		}
	}
}

func (n *named) apply(r *relist, name string, rv uint64, value string) bool {
	generation := r.generation.Load()
	if old, ok := n.byName[name]; ok && !r.supersedes(rv, old.rv) {
		old.generation = generation
		n.byName[name] = old
		return false
	}
	n.byName[name] = seen{rv, generation, value}
	return true
}

func (n *named) remove(name string, rv uint64) bool {
	if old, ok := n.byName[name]; !ok || old.rv > rv {
		return false
	}
	delete(n.byName, name)
	return true
}

// PodByContainerID implements ownership.Facts. Should two pods carry the same
// container ID, an unfinished one wins.
func (i *Inventory) PodByContainerID(id string) (ownership.Pod, bool) {
	o := &i.owners
	o.mu.RLock()
	defer o.mu.RUnlock()
	pods := o.byContainer[id]
	for _, p := range pods {
		if !p.Finished {
			return p.Pod, true
		}
	}
	if len(pods) > 0 {
		return pods[0].Pod, true
	}
	return ownership.Pod{}, false
}

// PodByName implements ownership.Facts.
func (i *Inventory) PodByName(namespace, name string) (ownership.Pod, bool) {
	i.owners.mu.RLock()
	defer i.owners.mu.RUnlock()
	p, ok := i.owners.pods[podName{namespace, name}]
	if !ok {
		return ownership.Pod{}, false
	}
	return p.Pod, true
}

// HasNode implements ownership.Facts.
func (i *Inventory) HasNode(name string) bool {
	i.owners.mu.RLock()
	defer i.owners.mu.RUnlock()
	_, ok := i.owners.nodes.byName[name]
	return ok
}

// HasServiceHandle implements ownership.Facts.
func (i *Inventory) HasServiceHandle(handleName string) bool {
	i.owners.mu.RLock()
	defer i.owners.mu.RUnlock()
	return i.owners.serviceHandles[handleName] > 0
}

// BarePods implements ownership.Facts.
func (i *Inventory) BarePods() int {
	i.owners.mu.RLock()
	defer i.owners.mu.RUnlock()
	return len(i.owners.bare)
}

// BarePodIn implements ownership.Facts.
func (i *Inventory) BarePodIn(block netip.Prefix) (ownership.Pod, bool) {
	i.owners.mu.RLock()
	defer i.owners.mu.RUnlock()
	for p := range i.owners.bare {
		for _, address := range p.bare {
			if block.Contains(address) {
				return p.Pod, true
			}
		}
	}
	return ownership.Pod{}, false
}

// podUID is the UID of the pod that a sandbox's handle is for, "" if unknown.
func (i *Inventory) podUID(k key) string {
	if k.network == otherNetwork {
		return ""
	}
	p, _ := i.PodByContainerID(hex.EncodeToString(k.id[:]))
	return p.UID
}
