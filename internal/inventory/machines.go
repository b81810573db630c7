package inventory

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// machines are KubeVirt's virtual machines and their instances.
type machines struct {
	mu sync.RWMutex
	// kinds are VirtualMachines and VirtualMachineInstances.
	kinds [2]named
	// listed is when a kind was first listed, zero before.
	listed [2]time.Time
	// left is when a machine's objects were last seen to go.
	left map[string]time.Time
}

func (m *machines) init() {
	m.kinds = [2]named{{map[string]seen{}}, {map[string]seen{}}}
	m.left = map[string]time.Time{}
}

// kindOf numbers the two resources.
func kindOf(r Resource) int {
	if r == VirtualMachineInstances {
		return 1
	}
	return 0
}

// ApplyMachine adds or updates a virtual machine or an instance of one.
func (i *Inventory) ApplyMachine(r Resource, obj metav1.Object) {
	m := &i.machines
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kinds[kindOf(r)].apply(&i.relists[r], obj.GetNamespace()+"/"+obj.GetName(),
		resourceVersion(obj.GetResourceVersion()), "")
	i.subscribers.notify()
}

// DeleteMachine removes one, unless a newer one of its name is known.
func (i *Inventory) DeleteMachine(r Resource, namespace, name string, rv uint64) {
	m := &i.machines
	m.mu.Lock()
	defer m.mu.Unlock()
	if at := namespace + "/" + name; m.kinds[kindOf(r)].remove(at, rv) {
		m.leave(at, i.clock.Now())
		i.subscribers.notify()
	}
}

func (i *Inventory) retainMachines(r Resource) {
	m := &i.machines
	now, generation := i.clock.Now(), i.relists[r].generation.Load()
	m.mu.Lock()
	defer m.mu.Unlock()
	kind := kindOf(r)
	for at, s := range m.kinds[kind].byName {
		if s.generation != generation {
			delete(m.kinds[kind].byName, at)
			m.leave(at, now)
		}
	}
	if m.listed[kind].IsZero() {
		m.listed[kind] = now
	}
}

func (m *machines) leave(at string, now time.Time) {
	for name, when := range m.left {
		if now.Sub(when) > ownership.VirtualMachineFloor {
			delete(m.left, name)
		}
	}
	m.left[at] = now
}

// VirtualMachine implements ownership.Facts.
func (i *Inventory) VirtualMachine(namespace, name string) ownership.Existence {
	m := &i.machines
	m.mu.RLock()
	defer m.mu.RUnlock()
	at := namespace + "/" + name
	since := m.left[at]
	for kind := range m.kinds {
		if m.listed[kind].IsZero() {
			return ownership.ExistenceUnknown
		}
		if _, ok := m.kinds[kind].byName[at]; ok {
			return ownership.Exists
		}
		if m.listed[kind].After(since) {
			since = m.listed[kind]
		}
	}
	if i.clock.Now().Sub(since) < ownership.VirtualMachineFloor {
		return ownership.JustGone
	}
	return ownership.Gone
}
