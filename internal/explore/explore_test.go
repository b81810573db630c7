package explore

import (
	"flag"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var (
	statesFlag = flag.Int("explore.states", defaultStates, "states of each scenario to look at, in order, before walks at random seek a quarter as many more; with -short a hundredth")
	seedFlag   = flag.Uint64("explore.seed", 1, "seed of the walks at random")
	replayFlag = flag.String("explore.replay", "", "schedule for TestReplay, as a failure tells it")
)

// A full run must have seen enough states in all.
const (
	enoughStates  = 1_000_000
	defaultStates = 120_000
)

func limits() Limits {
	l := Limits{States: *statesFlag, More: *statesFlag / 4, Seed: *seedFlag}
	if testing.Short() {
		l.States, l.More = l.States/100, l.More/100
	}
	return l
}

func explorer(t testing.TB, rules Rules) *Explorer {
	t.Helper()
	x, err := New(rules)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func scenario(t testing.TB, name string) *Scenario {
	t.Helper()
	for _, s := range Scenarios() {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("there is no scenario %q", name)
	return nil
}

// hunt seeks a violation under rules that lack something.
func hunt(t testing.TB, rules Rules, name string) *Violation {
	t.Helper()
	l := Limits{States: 120_000, More: 30_000, Seed: 1}
	if testing.Short() {
		l.States, l.More = 6_000, 0
	}
	report, v := explorer(t, rules).Explore(scenario(t, name), l)
	if v != nil {
		t.Logf("of %d states one breaks, after %d steps: %s", report.States, len(v.Schedule), v.What)
	} else {
		t.Logf("%d states, all schedules of %d steps, and none breaks", report.States, report.Depth)
	}
	return v
}

// TestExplore breaks no promise in any interleaving that it comes by.
func TestExplore(t *testing.T) {
	began := time.Now()
	var states, scenarios atomic.Int64
	t.Run("scenarios", func(t *testing.T) {
		for _, s := range Scenarios() {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				report, v := explorer(t, Rules{}).Explore(s, limits())
				states.Add(int64(report.States))
				scenarios.Add(1)
				if v != nil {
					t.Fatalf("%s\nTo see it again:\ngo test ./internal/explore -run TestReplay -v -explore.replay='%s'\n%s", v.What, v.Token(), v)
				}
				extent := "all schedules"
				if !report.Exhausted {
					extent = fmt.Sprintf("all schedules of up to %d steps, and longer ones by seed %d", report.Depth, *seedFlag)
				}
				t.Logf("%s: %d states, %d steps, %d left to come to rest, in %s: %s",
					s.Claim, report.States, report.Steps, report.Settled, time.Since(began).Round(time.Millisecond), extent)
			})
		}
	})
	t.Logf("%d states in %s", states.Load(), time.Since(began).Round(time.Millisecond))
	// -run may have chosen a few scenarios.
	full := !testing.Short() && *statesFlag >= defaultStates && scenarios.Load() == int64(len(Scenarios()))
	if full && !t.Failed() && states.Load() < enoughStates {
		t.Errorf("only %d states were seen, want %d", states.Load(), enoughStates)
	}
}

// TestReplay takes one schedule again and tells it step by step.
func TestReplay(t *testing.T) {
	if *replayFlag == "" {
		t.Skip("no -explore.replay")
	}
	v, err := explorer(t, Rules{}).Replay(*replayFlag)
	switch {
	case err != nil:
		t.Fatal(err)
	case v != nil:
		t.Fatal(v)
	}
	t.Log("nothing breaks")
}

// TestSchedulesAreReplayed finds a violation and comes by it again, in another
// explorer, by its token.
func TestSchedulesAreReplayed(t *testing.T) {
	for range 2 {
		_, found := explorer(t, withoutFreshness).Explore(scenario(t, "assign"), Limits{States: 10_000})
		if found == nil {
			t.Fatal("found nothing")
		}
		again, err := explorer(t, withoutFreshness).Replay(found.Token())
		if err != nil {
			t.Fatal(err)
		}
		if again == nil || again.String() != found.String() {
			t.Fatalf("found\n%s\nand then\n%v", found, again)
		}
		if right, err := explorer(t, Rules{}).Replay(found.Token()); err == nil && right != nil && !strings.Contains(right.What, "another version") {
			t.Fatalf("the product itself breaks:\n%s", right)
		}
	}
}

// TestWalksAreTheSameEachTime walks twice by the same seed.
func TestWalksAreTheSameEachTime(t *testing.T) {
	l := Limits{States: 200, More: 300, Seed: 7}
	for _, name := range []string{"release", "dual stack", "two replicas", "everything"} {
		s := scenario(t, name)
		one, _ := explorer(t, Rules{}).Explore(s, l)
		other, _ := explorer(t, Rules{}).Explore(s, l)
		if one != other {
			t.Errorf("%s: %+v, and then %+v", s.Name, one, other)
		}
	}
}
