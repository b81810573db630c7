package refcluster

import (
	"fmt"
	"iter"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

var namespaces = []string{"default", "shop", "payments", "monitoring", "batch"}

func nodeName(n int) string { return fmt.Sprintf("worker-%d", n+1) }

// podName reads like the name of a Deployment's pod.
func podName(pod int, c chance) (namespace, name string) {
	id := c.containerID()
	return namespaces[pod%len(namespaces)], fmt.Sprintf("app-%d-%s-%s", pod%40, id[:10], id[10:15])
}

// Namespaces are the namespaces of the pods.
func (s Spec) Namespaces() []*corev1.Namespace {
	list := make([]*corev1.Namespace, len(namespaces))
	for i, name := range namespaces {
		list[i] = &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: s.meta(name, s.chance("namespace", i), s.nodeCreated()),
			Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		}
		list[i].Labels = map[string]string{corev1.LabelMetadataName: name}
		list[i].Generation = 0
	}
	return list
}

// NodeObjects are the nodes.
func (s Spec) NodeObjects() iter.Seq[*corev1.Node] {
	return func(yield func(*corev1.Node) bool) {
		l := newLayout(s)
		for n := range s.Nodes {
			tunnel := l.placeOfTunnel(n)
			node := &corev1.Node{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
				ObjectMeta: s.meta(nodeName(n), s.chance("node", n), s.nodeCreated()),
				Status: corev1.NodeStatus{
					Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress(n)}},
					Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				},
			}
			node.Generation = 0
			node.Annotations = map[string]string{"projectcalico.org/IPv4VXLANTunnelAddr": address(tunnel.block, tunnel.ordinal).String()}
			node.Labels = map[string]string{corev1.LabelHostname: nodeName(n), corev1.LabelOSStable: "linux"}
			if !yield(node) {
				return
			}
		}
	}
}

func nodeAddress(n int) string { return fmt.Sprintf("172.20.%d.%d", n>>8, n&0xff) }

// PodObjects are the running pods. They tolerate every taint, for no kubelet
// reports their nodes as alive.
func (s Spec) PodObjects() iter.Seq[*corev1.Pod] {
	return func(yield func(*corev1.Pod) bool) {
		l := newLayout(s)
		for n := range s.Pods {
			if !yield(s.pod(l, n)) {
				return
			}
		}
	}
}

func (s Spec) pod(l layout, n int) *corev1.Pod {
	c := s.chance("pod", n)
	namespace, name := podName(n, c)
	created := s.podCreated(c.rand())
	at := l.placeOfPod(n)
	ip := address(at.block, at.ordinal).String()
	node := l.nodeOfPod(n)
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: s.meta(name, s.chance("pod object", n), created),
		Spec: corev1.PodSpec{
			NodeName:           nodeName(node),
			ServiceAccountName: "default",
			Containers:         []corev1.Container{{Name: "app", Image: "registry.example/app:1"}},
			Tolerations:        []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			HostIP:     nodeAddress(node),
			PodIP:      ip,
			PodIPs:     []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			StartTime:  &metav1.Time{Time: created},
		},
	}
	pod.Namespace = namespace
	pod.Labels = map[string]string{"app": fmt.Sprintf("app-%d", n%40)}
	pod.Annotations = map[string]string{
		calico.ContainerIDAnnotation: c.containerID(),
		calico.PodIPAnnotation:       ip + "/32",
		calico.PodIPsAnnotation:      ip + "/32",
	}
	return pod
}
