package explore

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// nodeName is the node that comes and goes; the other one, with the pods, stays.
const nodeName, otherNode = "worker-1", "worker-2"

// Scenario is where a walk begins, who takes part, and how often each may act.
type Scenario struct {
	Name string
	// Claim says what it is about.
	Claim string

	handles  []handleSpec
	blocks   []blockSpec
	pods     []podSpec
	agents   []agentSpec
	replicas int
	left     budget
	noNode   bool
	// repairs has what diverges repaired when all come to rest.
	repairs bool
	// begin writes the objects that exist already, an hour ago.
	begin func(*world)
}

type handleSpec struct {
	id, name, container string
	// pod is the owner's place, -1 for a node's tunnel address.
	pod int
}

type blockSpec struct{ cidr, name string }

type podSpec struct{ namespace, name string }

type agentSpec struct {
	name   string
	at     place
	handle int
	blocks []int
	// after is 1 + the agent that must have ended before.
	after int
	// begun agents are under way at the start.
	begun bool
	// mortal agents may be killed between two requests.
	mortal bool
}

func sandbox(pod int) handleSpec {
	container := strings.Repeat(fmt.Sprintf("%02x", 0xa0+pod), 32)
	id := "k8s-pod-network." + container
	return handleSpec{id: id, name: calico.HandleName(id), container: container, pod: pod}
}

func tunnel() handleSpec {
	id := "vxlan-tunnel-addr-" + nodeName
	return handleSpec{id: id, name: calico.HandleName(id), pod: -1}
}

func block(cidr string) blockSpec {
	return blockSpec{cidr: cidr, name: calico.BlockName(netip.MustParsePrefix(cidr))}
}

const (
	v4 = "10.65.0.0/30"
	v6 = "fd00:65::/126"
)

// start is the scenario's first world.
func (s *Scenario) start(x *Explorer) *world {
	w := &world{x: x, s: s, now: -3600, up: true, left: s.left}
	x.admission.w = w
	for r := range s.replicas {
		w.list(r)
	}
	for b := range s.blocks {
		affinity := "host:" + nodeName
		w.setBlock(b, &calico.IPAMBlockSpec{CIDR: s.blocks[b].cidr, Affinity: &affinity, Allocations: make([]*int, 4)})
	}
	for p := range s.pods {
		w.setPod(p, "")
	}
	if !s.noNode {
		w.setNode()
	}
	if s.begin != nil {
		s.begin(w)
	}
	w.now = 0
	w.logs = [streams][]event{}
	for r := range s.replicas {
		w.list(r)
	}
	for n := range s.agents {
		w.agents[n] = agent{at: s.agents[n].at, began: -1}
		if s.agents[n].begun {
			w.agents[n].began = 0
		}
	}
	w.replicas[0].leads = true
	return w
}

// leaked makes a handle that no block references.
func leaked(i int, blocks ...int) func(*world) {
	return func(w *world) {
		spec := calico.IPAMHandleSpec{HandleID: w.s.handles[i].id, Block: map[string]int{}}
		for _, b := range blocks {
			spec.Block[w.s.blocks[b].cidr] = 1
		}
		if err := w.createHandle(i, spec, byCalico); err != nil {
			w.violate("begin: %v", err)
		}
	}
}

// inUse makes the first handle with an address in each block.
func inUse(blocks ...int) func(*world) {
	return func(w *world) {
		const i = 0
		leaked(i, blocks...)(w)
		id := w.s.handles[i].id
		for _, b := range blocks {
			spec := w.blocks[b].object.Spec.DeepCopy()
			attribute := len(spec.Attributes)
			owner := map[string]string{"node": nodeName}
			if p := w.s.handles[i].pod; p >= 0 {
				owner["namespace"], owner["pod"] = w.s.pods[p].namespace, w.s.pods[p].name
			}
			spec.Attributes = append(spec.Attributes, calico.AllocationAttribute{HandleID: &id, Secondary: owner})
			spec.Allocations[slices.Index(spec.Allocations, nil)] = &attribute
			w.setBlock(b, spec)
		}
		if p := w.s.handles[i].pod; p >= 0 {
			w.setPod(p, w.s.handles[i].container)
		}
	}
}

// terminating makes a leaked handle that somebody has deleted; our finalizer
// holds it.
func terminating(i int, blocks ...int) func(*world) {
	return func(w *world) {
		leaked(i, blocks...)(w)
		h := w.handles[i].object.DeepCopy()
		now := metav1.NewTime(at(w.now))
		h.DeletionTimestamp = &now
		h.Generation++
		w.truths[i].doomedBy = byPerson
		if !slices.Contains(h.Finalizers, ownership.Finalizer) {
			w.violate("begin: handle %s is not held", w.s.handles[i].id)
		}
		w.storeHandle(i, h)
	}
}

// spoilt edits the first handle behind everybody's back; nil removes it.
func spoilt(edit func(*calico.IPAMHandle), begin func(*world)) func(*world) {
	return func(w *world) {
		const i = 0
		begin(w)
		if edit == nil {
			w.rv++
			w.handles[i] = nil
			w.truths[i].lostBy, w.truths[i].excused = byPerson, true
			return
		}
		h := w.handles[i].object.DeepCopy()
		edit(h)
		w.storeHandle(i, h)
	}
}

func podless(p int, begin func(*world)) func(*world) {
	return func(w *world) {
		begin(w)
		w.removePod(p)
	}
}
