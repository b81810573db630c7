package explore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/ipam-guard/ipam-guard/internal/inventory"
)

// Explorer walks through scenarios under one set of rules. It is for one
// goroutine.
type Explorer struct {
	rules       Rules
	admission   *webhooks
	inventories map[pastKey]*inventory.Inventory
}

// New returns an explorer of the product under these rules.
func New(rules Rules) (*Explorer, error) {
	rules.complete()
	x := &Explorer{rules: rules, inventories: map[pastKey]*inventory.Inventory{}}
	var err error
	if x.admission, err = newWebhooks(x); err != nil {
		return nil, fmt.Errorf("webhooks: %w", err)
	}
	return x, nil
}

// Report tells how far an exploration came.
type Report struct {
	// States counts different states of the world, Steps the steps between.
	States, Steps int
	// Depth is how many steps long schedules may be, all of which were looked
	// at; with Exhausted there are no longer ones.
	Depth     int
	Exhausted bool
	// Settled counts the states that were left to come to rest.
	Settled int
}

// Violation is a schedule that breaks a promise.
type Violation struct {
	Scenario *Scenario
	// Schedule are the places of the steps taken, among those possible each time.
	Schedule []uint8
	What     string
	// Trail tells the steps in words, with those that let it come to rest.
	Trail []string
}

// Token names the schedule: Replay takes it.
func (v *Violation) Token() string {
	parts := make([]string, len(v.Schedule))
	for i, s := range v.Schedule {
		parts[i] = strconv.Itoa(int(s))
	}
	return v.Scenario.Name + ":" + strings.Join(parts, ".")
}

func (v *Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", v.What)
	for i, line := range v.Trail {
		fmt.Fprintf(&b, "%4d. %s\n", i+1, line)
	}
	return b.String()
}

// Limits say how far an exploration goes.
type Limits struct {
	// States is how many states the walk through every schedule looks at, at
	// the most, and then how many more the walks at random seek.
	States, More int
	// Seed decides on the walks at random.
	Seed uint64
}

// Explore looks at every schedule of a scenario, the shorter ones first, then
// at random ones. It returns the first that breaks a promise, nil for none.
func (x *Explorer) Explore(s *Scenario, l Limits) (Report, *Violation) {
	k := &walk{x: x, s: s, seen: map[uint64]struct{}{}}
	v := k.breadth(l.States)
	if v == nil && !k.report.Exhausted {
		v = k.wander(rand.New(rand.NewPCG(l.Seed, 0)), k.report.States+l.More) //nolint:gosec // it must be the same again
	}
	return k.report, v
}

// Replay takes the schedule that a Token names, and returns what it breaks,
// nil for nothing.
func (x *Explorer) Replay(token string) (*Violation, error) {
	name, places, _ := strings.Cut(token, ":")
	scenario := slices.IndexFunc(Scenarios(), func(s *Scenario) bool { return s.Name == name })
	if scenario < 0 {
		return nil, fmt.Errorf("there is no scenario %q", name)
	}
	var schedule []uint8
	for place := range strings.SplitSeq(places, ".") {
		n, err := strconv.ParseUint(place, 10, 8)
		if err != nil {
			return nil, fmt.Errorf("schedule of %q: %w", name, err)
		}
		schedule = append(schedule, uint8(n))
	}
	return x.explain(Scenarios()[scenario], schedule), nil
}

// settleEvery: of this many states one is left to come to rest, besides those
// from which no step leads on.
const settleEvery = 64

// walk is one exploration's memory.
type walk struct {
	x      *Explorer
	s      *Scenario
	seen   map[uint64]struct{}
	report Report
	steps  []step
}

// visit tells whether a world is new.
func (k *walk) visit(w *world) bool {
	h := w.hash()
	if _, ok := k.seen[h]; ok {
		return false
	}
	k.seen[h] = struct{}{}
	k.report.States++
	return true
}

// came is how a state was first come to.
type came struct {
	from int32
	by   uint8
}

type open struct {
	w  *world
	id int32
}

// breadth looks at every schedule of one step, then of two, and so on, up to
// about this many states.
func (k *walk) breadth(states int) *Violation {
	first := k.s.start(k.x)
	history := []came{{-1, 0}}
	schedule := func(id int32) []uint8 {
		var out []uint8
		for ; history[id].from >= 0; id = history[id].from {
			out = append([]uint8{history[id].by}, out...)
		}
		return out
	}
	k.visit(first)
	level := []open{{first, 0}}
	for ; len(level) > 0; k.report.Depth++ {
		var next []open
		for n := range level {
			w, id := level[n].w, level[n].id
			level[n].w = nil
			k.steps = w.steps(k.steps[:0])
			last := true
			for i, s := range k.steps {
				child := w.apply(s)
				if child == nil {
					continue
				}
				last = false
				k.report.Steps++
				if child.violation == "" && !k.visit(child) {
					continue
				}
				history = append(history, came{id, uint8(i)})
				at := int32(len(history) - 1) //nolint:gosec // memory would not do
				if child.violation != "" || (child.hash()%settleEvery == 0 && k.unrestful(child)) {
					return k.x.explain(k.s, schedule(at))
				}
				next = append(next, open{child, at})
			}
			if last && k.unrestful(w) {
				return k.x.explain(k.s, schedule(id))
			}
			if len(k.seen) >= states {
				return nil
			}
		}
		level = next
	}
	k.report.Exhausted = true
	return nil
}

// unrestful lets all come to rest, and tells whether that goes wrong.
func (k *walk) unrestful(w *world) bool {
	k.report.Settled++
	rest, _ := w.settle()
	return rest.violation != ""
}

// stepsAState bounds the walks at random where there is little left to see.
const stepsAState = 8

// wander takes steps at random to the end, again and again, until this many
// states were seen in all.
func (k *walk) wander(random *rand.Rand, states int) *Violation {
	for last := k.report.Steps + stepsAState*(states-len(k.seen)); len(k.seen) < states && k.report.Steps < last; {
		w, before := k.s.start(k.x), len(k.seen)
		var schedule []uint8
		for w.violation == "" {
			k.steps = w.steps(k.steps[:0])
			child, i := w.any(k.steps, random)
			if child == nil {
				break
			}
			w, schedule = child, append(schedule, i)
			k.report.Steps++
			k.visit(w)
		}
		if w.violation == "" && len(k.seen) == before {
			continue // It has come to rest before.
		}
		k.report.Settled++
		if rest, _ := w.settle(); rest.violation != "" {
			return k.x.explain(k.s, schedule)
		}
	}
	return nil
}

// any takes one of the steps at random; nil when nothing comes of any.
func (w *world) any(steps []step, random *rand.Rand) (*world, uint8) {
	for left := len(steps); left > 0; {
		i := random.IntN(len(steps))
		if steps[i].kind == noStep {
			continue
		}
		if child := w.apply(steps[i]); child != nil {
			return child, uint8(i) //nolint:gosec // a few dozen
		}
		steps[i].kind = noStep
		left--
	}
	return nil, 0
}

// explain replays a schedule, then lets it come to rest, and tells what
// happens; nil when nothing goes wrong.
func (x *Explorer) explain(s *Scenario, schedule []uint8) *Violation {
	v := &Violation{Scenario: s, Schedule: schedule}
	w := s.start(x)
	for n, i := range schedule {
		steps := w.steps(nil)
		if int(i) >= len(steps) {
			v.What = fmt.Sprintf("step %d of the schedule does not exist: it is of another version", n+1)
			return v
		}
		v.Trail = append(v.Trail, w.describe(steps[i]))
		if w = w.apply(steps[i]); w == nil {
			v.What = fmt.Sprintf("nothing comes of step %d of the schedule: it is of another version", n+1)
			return v
		}
		if w.violation != "" {
			v.What = w.violation
			return v
		}
	}
	rest, trail := w.settle()
	if rest.violation == "" {
		return nil
	}
	v.Trail = append(append(v.Trail, "-- all come to rest --"), trail...)
	v.What = rest.violation
	return v
}
