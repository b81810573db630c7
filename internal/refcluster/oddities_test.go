package refcluster

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// world is the plainest reading of a set of objects.
type world struct {
	handles   []*calico.IPAMHandle
	blocks    []*calico.IPAMBlock
	pods      []*corev1.Pod
	nodes     map[string]bool
	lbHandles map[string]bool
}

func read(t *testing.T, o Oddities) *world {
	t.Helper()
	w := &world{nodes: map[string]bool{}, lbHandles: map[string]bool{}}
	seen := map[string]bool{}
	for object := range o.Objects() {
		key, err := storageKey(object)
		if err != nil {
			t.Fatal(err)
		}
		if seen[key] {
			t.Errorf("%s is there twice", key)
		}
		seen[key] = true
		switch object := object.(type) {
		case *calico.IPAMHandle:
			w.handles = append(w.handles, object)
		case *calico.IPAMBlock:
			w.blocks = append(w.blocks, object)
		case *corev1.Pod:
			w.pods = append(w.pods, object)
		case *corev1.Node:
			w.nodes[object.Name] = true
		case *corev1.Service:
			w.lbHandles[calico.HandleName(calico.LoadBalancerHandleID(object.Name, object.Namespace, string(object.UID)))] = true
		}
	}
	return w
}

func ownershipPod(p *corev1.Pod) ownership.Pod {
	return ownership.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName,
		ContainerID: p.Annotations[calico.ContainerIDAnnotation],
		Finished:    p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
	}
}

func (w *world) find(match func(*corev1.Pod) bool) (ownership.Pod, bool) {
	for _, p := range w.pods {
		if match(p) {
			return ownershipPod(p), true
		}
	}
	return ownership.Pod{}, false
}

func (w *world) PodByContainerID(id string) (ownership.Pod, bool) {
	return w.find(func(p *corev1.Pod) bool { return p.Annotations[calico.ContainerIDAnnotation] == id })
}

func (w *world) PodByName(namespace, name string) (ownership.Pod, bool) {
	return w.find(func(p *corev1.Pod) bool { return p.Namespace == namespace && p.Name == name })
}

func bare(p *corev1.Pod) bool {
	return p.Annotations[calico.ContainerIDAnnotation] == "" && p.Status.Phase == corev1.PodRunning && p.Status.PodIP != ""
}

func (w *world) BarePods() int {
	n := 0
	for _, p := range w.pods {
		if bare(p) {
			n++
		}
	}
	return n
}

func (w *world) BarePodIn(block netip.Prefix) (ownership.Pod, bool) {
	return w.find(func(p *corev1.Pod) bool { return bare(p) && block.Contains(netip.MustParseAddr(p.Status.PodIP)) })
}

func (w *world) BlockNode(block netip.Prefix) (string, bool) {
	for _, b := range w.blocks {
		if b.Spec.CIDR == block.String() && b.Spec.Affinity != nil {
			node := calico.AffinityNode(*b.Spec.Affinity)
			return node, node != ""
		}
	}
	return "", false
}

func (w *world) HasNode(name string) bool                       { return w.nodes[name] }
func (w *world) HasServiceHandle(name string) bool              { return w.lbHandles[name] }
func (w *world) VirtualMachine(_, _ string) ownership.Existence { return ownership.ExistenceUnknown }

func (w *world) judge(h *calico.IPAMHandle) verdict.Verdict {
	id := calico.ParseHandleID(h.Spec.HandleID)
	e := verdict.Evidence{
		Handle:   verdict.Handle{Name: h.Name, LastWrite: h.ManagedFields[0].Time.Time, SoftDeleted: h.Spec.Deleted},
		ID:       id,
		Declared: h.Spec.Block,
		Owner:    ownership.Resolve(ownership.Subject{ID: id, Name: h.Name, Declared: h.Spec.Block}, w),
		Now:      testNow,
		Grace:    verdict.DefaultGrace,
	}
	for _, b := range w.blocks {
		if n := len(b.Spec.OrdinalsOf(h.Name)); n > 0 {
			e.References = append(e.References, verdict.Reference{Block: b.Spec.CIDR, Count: n})
		}
	}
	return verdict.Judge(e)
}

func TestOdditiesAreJudgedAsTheySay(t *testing.T) {
	odd := NewOddities(calico.API{GroupVersion: calico.GroupCRD}, testNow)
	w := read(t, odd)
	for _, c := range odd.Cases {
		t.Run(c.Name, func(t *testing.T) {
			if len(c.Want) == 0 && len(c.Missing) == 0 {
				t.Fatal("the case wants nothing")
			}
			judged := 0
			for _, h := range w.handles {
				want, ok := c.Want[h.Name]
				if !ok {
					continue
				}
				judged++
				v := w.judge(h)
				if got := (Finding{v.Outcome, v.Reason, v.Skewed}); got != want {
					t.Errorf("%s is %+v, want %+v", h.Spec.HandleID, got, want)
				}
				if h.Name != calico.HandleName(h.Spec.HandleID) {
					t.Errorf("handle %q is named %q", h.Spec.HandleID, h.Name)
				}
			}
			if judged != len(c.Want) {
				t.Errorf("%d of %d handles exist", judged, len(c.Want))
			}
			for _, id := range c.Missing {
				for _, h := range w.handles {
					if h.Name == calico.HandleName(id) {
						t.Errorf("%s is not missing", id)
					}
				}
			}
		})
	}
}
