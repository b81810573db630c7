package explore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// writer is who asks the API server for a change.
type writer uint8

const (
	nobody writer = iota
	byCalico
	byPerson
	byGuard
)

// stream is what one watch brings. Pods and nodes share one: nothing here
// tells them apart.
type stream uint8

const (
	handleStream stream = iota
	blockStream
	ownerStream
	streams
)

func (s stream) String() string { return [streams]string{"handles", "blocks", "owners"}[s] }

// event is one change that a watch brings: the object, or with it gone its
// last name.
type event struct {
	rv    uint64
	hash  uint64
	index uint8
	gone  bool
	// One of these, unless gone.
	handle *calico.IPAMHandle
	block  *calico.IPAMBlock
	pod    *corev1.Pod
	node   *metav1.PartialObjectMetadata
	// isNode tells a node that is gone from a pod that is.
	isNode bool
}

// epoch is second 0 of every world.
var epoch = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

func at(second int64) time.Time { return epoch.Add(time.Duration(second) * time.Second) }

var (
	handleResource = calico.API{GroupVersion: calico.GroupCRD}.Handles().GroupResource()
	blockResource  = calico.API{GroupVersion: calico.GroupCRD}.Blocks().GroupResource()
)

var errChanged = errors.New("the object has been modified")

func conflict(name string) error {
	return apierrors.NewConflict(handleResource, name, errChanged)
}

// version is one state of an object. It never changes once it is stored.
type version[T any] struct {
	object T
	rv     uint64
	hash   uint64
}

func (w *world) next() uint64 {
	w.rv++
	return w.rv
}

func formatRV(rv uint64) string { return strconv.FormatUint(rv, 10) }

func (w *world) tell(s stream, e event) {
	// Copied on growth: other worlds share the beginning.
	log := w.logs[s]
	w.logs[s] = append(log[:len(log):len(log)], e)
}

// storeHandle makes h the handle's next state.
func (w *world) storeHandle(i int, h *calico.IPAMHandle) *calico.IPAMHandle {
	rv := w.next()
	h.ResourceVersion = formatRV(rv)
	w.handles[i] = &version[*calico.IPAMHandle]{h, rv, hashHandle(h, rv)}
	w.tell(handleStream, event{rv: rv, hash: w.handles[i].hash, index: uint8(i), handle: h})
	if h.Spec.Deleted && slices.Contains(h.Finalizers, ownership.Finalizer) {
		w.violate("handle %s is marked deleted and held by us: Calico can neither use it nor make it anew", w.s.handles[i].id)
	}
	return h
}

// createHandle is a POST.
func (w *world) createHandle(i int, spec calico.IPAMHandleSpec, by writer) error {
	name := w.s.handles[i].name
	if w.handles[i] != nil {
		return apierrors.NewAlreadyExists(handleResource, name)
	}
	t := &w.truths[i]
	t.births++
	now := metav1.NewTime(at(w.now))
	h := &calico.IPAMHandle{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: uid(i, t.births), CreationTimestamp: now, Generation: 1,
			Annotations:   map[string]string{"projectcalico.org/metadata": "{}"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "calico", Time: &now}},
		},
		Spec: *spec.DeepCopy(),
	}
	if by != byGuard && w.up {
		h = w.x.admission.create(w, h)
	}
	t.unseen, t.rewritten = !w.up || by == byGuard, by == byGuard
	w.storeHandle(i, h)
	return nil
}

func uid(handle int, birth uint8) types.UID {
	return types.UID(fmt.Sprintf("00000000-0000-4000-8000-00000000%02x%02x", handle, birth))
}

// putHandle is Calico's PUT: the spec, and metadata built anew from what was
// read. It returns the object as written.
func (w *world) putHandle(i int, read *calico.IPAMHandle, spec calico.IPAMHandleSpec) (*calico.IPAMHandle, error) {
	name := w.s.handles[i].name
	if w.handles[i] == nil {
		return nil, apierrors.NewNotFound(handleResource, name)
	}
	old := w.handles[i].object
	if old.ResourceVersion != read.ResourceVersion || old.UID != read.UID {
		return nil, conflict(name)
	}
	now := metav1.NewTime(at(w.now))
	h := &calico.IPAMHandle{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: old.UID, ResourceVersion: old.ResourceVersion,
			CreationTimestamp: old.CreationTimestamp, Generation: old.Generation + 1,
			DeletionTimestamp: old.DeletionTimestamp,
			Annotations:       map[string]string{"projectcalico.org/metadata": "{}"},
			ManagedFields:     []metav1.ManagedFieldsEntry{{Manager: "calico", Time: &now}},
		},
		Spec: *spec.DeepCopy(),
	}
	if w.up {
		h = w.x.admission.update(w, old, h)
		if h == nil {
			w.violate("Calico's update of handle %s was refused", w.s.handles[i].id)
			return nil, apierrors.NewForbidden(handleResource, name, errChanged)
		}
	}
	w.truths[i].unseen, w.truths[i].rewritten = !w.up, false
	return w.commit(i, old, h, byCalico)
}

// commit stores an update, or removes the object when that took the last
// finalizer off an object under deletion.
func (w *world) commit(i int, old, h *calico.IPAMHandle, by writer) (*calico.IPAMHandle, error) {
	if h.DeletionTimestamp == nil || len(h.Finalizers) > 0 {
		if h.DeletionTimestamp != nil && len(h.Finalizers) > len(old.Finalizers) {
			w.violate("a finalizer was added to terminating handle %s", w.s.handles[i].id)
		}
		return w.storeHandle(i, h), nil
	}
	h.ResourceVersion = formatRV(w.next())
	switch {
	case by != byCalico:
		w.removeHandle(i, by, false)
	case h.Spec.Deleted:
		w.removeHandle(i, byCalico, false)
	default:
		// Calico takes up a handle that somebody else deleted, and it is gone.
		w.removeHandle(i, w.truths[i].doomedBy, !w.up && w.truths[i].doomedBy == byPerson)
	}
	return h, nil
}

// deleteHandle is a DELETE; empty preconditions match all. It returns the
// object when a finalizer keeps it.
func (w *world) deleteHandle(i int, uid types.UID, rv string, by writer) (*calico.IPAMHandle, error) {
	name := w.s.handles[i].name
	if w.handles[i] == nil {
		return nil, apierrors.NewNotFound(handleResource, name)
	}
	old := w.handles[i].object
	if (uid != "" && old.UID != uid) || (rv != "" && old.ResourceVersion != rv) {
		return nil, conflict(name)
	}
	if len(old.Finalizers) == 0 {
		w.rv++
		// Whoever was never seen by the webhooks, they cannot hold.
		w.removeHandle(i, by, w.truths[i].unseen || old.Spec.Deleted)
		return nil, nil
	}
	if old.DeletionTimestamp != nil {
		return old, nil
	}
	w.truths[i].doomedBy = by
	h := old.DeepCopy()
	now := metav1.NewTime(at(w.now))
	h.DeletionTimestamp = &now
	h.Generation++
	return w.storeHandle(i, h), nil
}

// removeHandle is the end of a handle. Excused means that a person removed
// what IPAM Guard had no chance to hold.
func (w *world) removeHandle(i int, by writer, excused bool) {
	t := &w.truths[i]
	t.lostBy, t.excused, t.doomedBy, t.unseen = by, excused, nobody, false
	w.handles[i] = nil
	w.tell(handleStream, event{rv: w.rv, index: uint8(i), gone: true})
	if w.referenced(i) {
		w.blame(i)
	}
}

// blame finds who made a block reference a handle that is not there.
func (w *world) blame(i int) {
	t := w.truths[i]
	switch {
	case t.lostBy == byGuard:
		w.violate("a block references handle %s, which IPAM Guard has removed: its address can never be released", w.s.handles[i].id)
	case t.lostBy == byPerson && !t.excused:
		w.violate("a block references handle %s, which somebody could delete although the webhooks had seen it: its address can never be released", w.s.handles[i].id)
	}
}

// checkNamed looks for a block that references a handle which we have rewritten
// not to name it: Calico would never look there for its addresses.
func (w *world) checkNamed(i int) {
	if w.handles[i] == nil || !w.truths[i].rewritten {
		return
	}
	for b := range w.s.blocks {
		if w.blocks[b] == nil || len(w.blocks[b].object.Spec.OrdinalsOf(w.s.handles[i].name)) == 0 {
			continue
		}
		if w.handles[i].object.Spec.Block[w.s.blocks[b].cidr] == 0 {
			w.violate("a block references handle %s, which IPAM Guard has rewritten not to name it: its address can never be released", w.s.handles[i].id)
		}
	}
}

func (w *world) referenced(i int) bool {
	for b := range w.s.blocks {
		if w.blocks[b] != nil && len(w.blocks[b].object.Spec.OrdinalsOf(w.s.handles[i].name)) > 0 {
			return true
		}
	}
	return false
}

// storeBlock writes a block if nobody else did since it was read.
func (w *world) storeBlock(b int, read uint64, spec *calico.IPAMBlockSpec) error {
	name := w.s.blocks[b].name
	if w.blocks[b] == nil {
		return apierrors.NewNotFound(blockResource, name)
	}
	if w.blocks[b].rv != read {
		return apierrors.NewConflict(blockResource, name, errChanged)
	}
	w.setBlock(b, spec)
	return nil
}

func (w *world) setBlock(b int, spec *calico.IPAMBlockSpec) {
	rv := w.next()
	block := &calico.IPAMBlock{ObjectMeta: metav1.ObjectMeta{Name: w.s.blocks[b].name, ResourceVersion: formatRV(rv)}, Spec: *spec}
	w.blocks[b] = &version[*calico.IPAMBlock]{block, rv, hashBlock(spec, rv)}
	w.tell(blockStream, event{rv: rv, hash: w.blocks[b].hash, index: uint8(b), block: block})
}

func (w *world) removeBlock(b int) {
	w.blocks[b] = nil
	w.tell(blockStream, event{rv: w.next(), index: uint8(b), gone: true})
}

func (w *world) setPod(p int, containerID string) {
	rv := w.next()
	s := w.s.pods[p]
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name, UID: types.UID("pod-" + s.name), ResourceVersion: formatRV(rv)},
		Spec:       corev1.PodSpec{NodeName: "worker-2"},
	}
	if containerID != "" {
		pod.Annotations = map[string]string{calico.ContainerIDAnnotation: containerID, calico.PodIPAnnotation: "10.65.0.1/32"}
	}
	h := mix(rv, uint64(p))
	if containerID != "" {
		h = mix(h, 1)
	}
	w.pods[p] = &version[*corev1.Pod]{pod, rv, h}
	w.tell(ownerStream, event{rv: rv, hash: h, index: uint8(p), pod: pod})
}

func (w *world) removePod(p int) {
	w.pods[p] = nil
	w.tell(ownerStream, event{rv: w.next(), index: uint8(p), gone: true})
}

func (w *world) setNode() {
	rv := w.next()
	node := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: nodeName, ResourceVersion: formatRV(rv)}}
	w.node = &version[*metav1.PartialObjectMetadata]{node, rv, mix(rv, 7)}
	w.tell(ownerStream, event{rv: rv, hash: w.node.hash, node: node, isNode: true})
}

func (w *world) removeNode() {
	w.node = nil
	w.tell(ownerStream, event{rv: w.next(), gone: true, isNode: true})
}

// newest is the newest version among a stream's objects: what a list of them
// tells. Deletions do not show in it.
func (w *world) newest(s stream) uint64 {
	rv := uint64(0)
	switch s {
	case handleStream:
		for _, h := range w.handles {
			if h != nil {
				rv = max(rv, h.rv)
			}
		}
	case blockStream:
		for _, b := range w.blocks {
			if b != nil {
				rv = max(rv, b.rv)
			}
		}
	case ownerStream:
		for _, p := range w.pods {
			if p != nil {
				rv = max(rv, p.rv)
			}
		}
		if w.node != nil {
			rv = max(rv, w.node.rv)
		}
	case streams:
	}
	return rv
}
