package explore

import (
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// enough bounds what any one thing takes to come to its end.
const enough = 200

// settle lets everybody finish, with the webhooks up and time passing, until
// nothing changes any more. Then no orphan may be left, nor a handle that our
// finalizer holds for nothing.
func (w *world) settle() (*world, []string) {
	w = w.clone()
	w.left = budget{}
	var trail []string
	trace := func(format string) { trail = append(trail, format) }
	if !w.up {
		w.up = true
		trace("the webhooks come up")
	}
	for quiet, round := 0, 0; quiet < 6 && w.violation == ""; round++ {
		if round == enough {
			w.violate("the cluster does not come to rest")
			break
		}
		before := w.rv
		for r := range w.s.replicas {
			w.syncAll(r)
			w.replicas[r].leads = w.holder == r
			w.finish(r, trace)
		}
		w.finishAgents(trace)
		w.now += tick
		for r := range w.s.replicas {
			if !w.replicas[r].leads {
				continue
			}
			for k := range works {
				if k == repairPasses && !w.s.repairs {
					continue
				}
				w.syncAll(r)
				rep := &w.replicas[r]
				rep.doing = w.run(r, &operation{work: k, began: w.moment(r)}, question{}, false)
				w.finish(r, trace)
			}
		}
		if quiet++; w.rv != before || w.busy() {
			quiet = 0
		}
	}
	w.checkRest()
	return w, trail
}

// finish does all that is left of a replica's work.
func (w *world) finish(r int, trace func(string)) {
	for n := 0; w.replicas[r].doing != nil && w.violation == ""; n++ {
		if n == enough {
			w.violate("IPAM Guard does not come to an end of its %s", w.replicas[r].doing.work)
			return
		}
		w.syncAll(r)
		trace(w.describe(step{workGoesOn, uint8(r), 0})) //nolint:gosec // small
		rep := &w.replicas[r]
		if q := rep.doing.open[0]; rep.doing.work == repairPasses && q.verb == listHandles {
			w.now += tick // Its looks are apart.
			w.syncAll(r)
		}
		rep.doing = w.run(r, rep.doing, rep.doing.open[0], true)
	}
}

func (w *world) finishAgents(trace func(string)) {
	for n := range w.s.agents {
		for k := 0; w.ready(n) && w.violation == ""; k++ {
			if k == enough {
				w.violate("%s does not come to an end", w.s.agents[n].name)
				return
			}
			trace(w.describe(step{agentSteps, uint8(n), 0})) //nolint:gosec // small
			w.stepAgent(n)
		}
	}
}

func (w *world) busy() bool {
	for n := range w.s.agents {
		if w.ready(n) {
			return true
		}
	}
	return false
}

func (w *world) checkRest() {
	for i := range w.s.handles {
		h := w.handles[i]
		if d := w.divergence(i); d != verdict.Agrees && w.s.repairs {
			w.violate("handle %s stays %s, although it is to be repaired", w.s.handles[i].id, d)
		}
		if h == nil || w.referenced(i) {
			continue
		}
		switch {
		case h.object.DeletionTimestamp != nil:
			w.violate("handle %s is stuck: terminating, and nothing references it", w.s.handles[i].id)
		case w.ownerGone(i):
			w.violate("orphaned handle %s is never swept", w.s.handles[i].id)
		}
	}
}

// divergence is how a handle disagrees with the blocks as they are.
func (w *world) divergence(i int) verdict.Divergence {
	counts := map[string]int{}
	for b := range w.s.blocks {
		if w.blocks[b] == nil {
			continue
		}
		if n := len(w.blocks[b].object.Spec.OrdinalsOf(w.s.handles[i].name)); n > 0 {
			counts[w.s.blocks[b].cidr] = n
		}
	}
	if w.handles[i] == nil {
		return verdict.Compare(nil, counts)
	}
	return verdict.Compare(w.handles[i].object, counts)
}

func (w *world) ownerGone(i int) bool {
	s := w.s.handles[i]
	if s.pod < 0 {
		return w.node == nil
	}
	return w.pods[s.pod] == nil || w.pods[s.pod].object.Annotations[calico.ContainerIDAnnotation] != s.container
}
