package explore

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

const (
	maxHandles  = 2
	maxBlocks   = 2
	maxPods     = 2
	maxAgents   = 4
	maxReplicas = 2
)

// world is one state of everything. A step makes a new one; objects and pasts
// are shared, and never change.
type world struct {
	x *Explorer
	s *Scenario

	now        int64
	rv         uint64
	up, locked bool
	// holder is the replica that holds the lease.
	holder   int
	handles  [maxHandles]*version[*calico.IPAMHandle]
	blocks   [maxBlocks]*version[*calico.IPAMBlock]
	pods     [maxPods]*version[*corev1.Pod]
	node     *version[*metav1.PartialObjectMetadata]
	logs     [streams][]event
	truths   [maxHandles]truth
	agents   [maxAgents]agent
	replicas [maxReplicas]replica
	left     budget

	violation string
}

// truth is what nobody in the world knows of a handle, but an invariant needs.
type truth struct {
	births uint8
	// unseen: Calico's last write of it passed while the webhooks were down.
	unseen bool
	// doomedBy asked for the deletion of a terminating handle.
	doomedBy writer
	// lostBy removed the last handle of the name.
	lostBy  writer
	excused bool
	// rewritten: the last to write its spec was IPAM Guard.
	rewritten bool
}

// budget is how often the surroundings may still act.
type budget struct {
	hours, webhook, crashes, restarts, leases, podsGone, nodes uint8
	work                                                       [works]uint8
}

// tick is one passing of time: less than CNI's deadline, and twice it more
// than the grace period.
const tick = 61

func (w *world) violate(format string, args ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf(format, args...)
	}
}

func (w *world) clone() *world {
	c := *w
	return &c
}

func (w *world) hash() uint64 {
	h := mix(uint64(w.now), w.rv)                                  //nolint:gosec // not negative
	h = mix(mixBool(mixBool(h, w.up), w.locked), uint64(w.holder)) //nolint:gosec // not negative
	for i := range w.s.handles {
		h = mix(h, hashOf(w.handles[i]))
		t := w.truths[i]
		h = mix(h, uint64(t.births)|uint64(t.doomedBy)<<8|uint64(t.lostBy)<<16)
		h = mixBool(mixBool(mixBool(h, t.unseen), t.excused), t.rewritten)
	}
	for b := range w.s.blocks {
		h = mix(h, hashOf(w.blocks[b]))
	}
	for p := range w.s.pods {
		h = mix(h, hashOf(w.pods[p]))
	}
	h = mix(h, hashOf(w.node))
	for n := range w.s.agents {
		h = w.agents[n].hash(h)
	}
	for r := range w.s.replicas {
		rep := &w.replicas[r]
		h = mix(mix(h, rep.past.objects), rep.past.owners)
		h = mixBool(mixBool(h, rep.knowsLock), rep.leads)
		if rep.doing != nil {
			h = mix(mix(h, rep.doing.hash), uint64(rep.doing.work)+1)
			for _, t := range rep.doing.target {
				h = mix(h, t)
			}
		}
	}
	b := w.left
	h = mix(h, uint64(b.hours)|uint64(b.webhook)<<8|uint64(b.crashes)<<16|uint64(b.restarts)<<24|uint64(b.leases)<<32|uint64(b.podsGone)<<40|uint64(b.nodes)<<48)
	return mix(h, uint64(b.work[0])|uint64(b.work[1])<<8|uint64(b.work[2])<<16|uint64(b.work[3])<<24)
}

func hashOf[T any](v *version[T]) uint64 {
	if v == nil {
		return 3
	}
	return v.hash
}

// kind is a kind of step.
type kind uint8

const (
	passTime kind = iota
	turnWebhooks
	podGoes
	nodeComesOrGoes
	agentSteps
	agentDies
	watchBrings
	lockSeen
	workBegins
	workGoesOn
	leaseMoves
	leaseLossSeen
	replicaRestarts
	// noStep marks a step that nothing comes of.
	noStep
)

// step is one thing that may happen next.
type step struct {
	kind kind
	a, b uint8
}

func (w *world) describe(s step) string {
	letter := 'A' + rune(s.a)
	switch s.kind {
	case passTime:
		return fmt.Sprintf("%d s pass", tick)
	case turnWebhooks:
		if w.up {
			return "the webhooks go down"
		}
		return "the webhooks come up"
	case podGoes:
		return "pod " + w.s.pods[s.a].name + " is deleted"
	case nodeComesOrGoes:
		if w.node != nil {
			return "the node is deleted"
		}
		return "the node is created"
	case agentSteps:
		return w.s.agents[s.a].name + ": " + placeNames[w.agents[s.a].at]
	case agentDies:
		return w.s.agents[s.a].name + ": killed"
	case watchBrings:
		return fmt.Sprintf("%c: watch brings %s", letter, stream(s.b))
	case lockSeen:
		return fmt.Sprintf("%c: watch brings the lock", letter)
	case workBegins:
		return fmt.Sprintf("%c: %s begins", letter, work(s.b))
	case workGoesOn:
		doing := w.replicas[s.a].doing
		return fmt.Sprintf("%c: %s: %s", letter, doing.work, doing.open[s.b])
	case leaseMoves:
		return "the lease moves from A to B"
	case leaseLossSeen:
		return fmt.Sprintf("%c: hears that the lease is lost", letter)
	case replicaRestarts:
		return fmt.Sprintf("%c: restarts", letter)
	case noStep:
	}
	return "nothing"
}

// steps are all that may happen next, in an order that only the world decides.
func (w *world) steps(out []step) []step {
	for n := range w.s.agents {
		if !w.ready(n) {
			continue
		}
		out = append(out, step{agentSteps, uint8(n), 0})
		if w.left.crashes > 0 && w.agents[n].began >= 0 && w.s.agents[n].mortal {
			out = append(out, step{agentDies, uint8(n), 0})
		}
	}
	for r := range w.s.replicas {
		out = w.replicaSteps(r, out)
	}
	if w.left.hours > 0 {
		out = append(out, step{kind: passTime})
	}
	if w.left.webhook > 0 {
		out = append(out, step{kind: turnWebhooks})
	}
	if w.left.podsGone > 0 {
		for p := range w.s.pods {
			if w.pods[p] != nil {
				out = append(out, step{podGoes, uint8(p), 0})
			}
		}
	}
	if w.left.nodes > 0 {
		out = append(out, step{kind: nodeComesOrGoes})
	}
	if w.left.leases > 0 && w.holder == 0 && w.s.replicas > 1 {
		out = append(out, step{kind: leaseMoves})
	}
	return out
}

func (w *world) replicaSteps(r int, out []step) []step {
	rep, a := &w.replicas[r], uint8(r) //nolint:gosec // small
	for s := range streams {
		if int(rep.seen[s]) < len(w.logs[s]) {
			out = append(out, step{watchBrings, a, uint8(s)})
		}
	}
	if rep.knowsLock != w.locked {
		out = append(out, step{lockSeen, a, 0})
	}
	switch {
	case rep.doing != nil:
		for k, q := range rep.doing.open {
			if q.verb == proveFresh && !w.reached(r, rep.doing.target) {
				continue
			}
			out = append(out, step{workGoesOn, a, uint8(k)}) //nolint:gosec // small
		}
	case rep.leads:
		for k := range works {
			if w.left.work[k] > 0 {
				out = append(out, step{workBegins, a, uint8(k)})
			}
		}
	}
	if rep.leads && w.holder != r {
		out = append(out, step{leaseLossSeen, a, 0})
	}
	if w.left.restarts > 0 {
		out = append(out, step{replicaRestarts, a, 0})
	}
	return out
}

// ready tells whether an agent's next step may happen.
func (w *world) ready(n int) bool {
	a, s := &w.agents[n], &w.s.agents[n]
	if a.at == ended {
		return false
	}
	if a.began < 0 && s.after > 0 && w.agents[s.after-1].at != ended {
		return false
	}
	switch a.at {
	case readForIncrement:
		// A kubelet sets up only pods that it knows of.
		return a.leg > 0 || a.began >= 0 || w.s.handles[s.handle].pod < 0 || w.pods[w.s.handles[s.handle].pod] != nil
	case collect:
		return w.pods[w.s.handles[s.handle].pod] == nil
	case takeBlock:
		// An operator lets a lock sink in.
		for r := range w.s.replicas {
			if !w.replicas[r].knowsLock {
				return false
			}
		}
	case admitDelete:
		return w.handles[s.handle] != nil || a.began >= 0
	}
	return true
}

// apply takes a step; nil when nothing comes of it.
func (w *world) apply(s step) *world {
	w = w.clone()
	rep := &w.replicas[min(int(s.a), maxReplicas-1)]
	switch s.kind {
	case passTime:
		w.left.hours--
		w.now += tick
	case turnWebhooks:
		w.left.webhook--
		w.up = !w.up
	case podGoes:
		w.left.podsGone--
		w.removePod(int(s.a))
	case nodeComesOrGoes:
		w.left.nodes--
		if w.node != nil {
			w.removeNode()
		} else {
			w.setNode()
		}
	case agentSteps:
		w.stepAgent(int(s.a))
	case agentDies:
		w.left.crashes--
		w.agents[s.a].end()
	case watchBrings:
		w.sync(int(s.a), stream(s.b))
	case lockSeen:
		rep.knowsLock = w.locked
	case workBegins:
		w.left.work[s.b]--
		rep.doing = w.run(int(s.a), &operation{work: work(s.b), began: w.moment(int(s.a)), hash: mix(rep.past.objects, rep.past.owners)}, question{}, false)
		if rep.doing == nil && w.violation == "" {
			return nil
		}
	case workGoesOn:
		rep.doing = w.run(int(s.a), rep.doing, rep.doing.open[s.b], true)
	case leaseMoves:
		w.left.leases--
		w.holder = 1
		w.replicas[1].leads = true
	case leaseLossSeen:
		rep.leads = false
	case replicaRestarts:
		w.left.restarts--
		w.list(int(s.a))
		rep.leads = w.holder == int(s.a)
	case noStep:
		return nil
	}
	return w
}
