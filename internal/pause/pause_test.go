package pause

import (
	"errors"
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func healthy() Facts {
	return Facts{
		Caches: []Cache{{Resource: "ipamblocks", Synced: true, Connected: true}, {Resource: "pods", Synced: true, Connected: true}},
		Nodes:  6, Blocks: 13, CalicoPods: 531, InUse: 537,
	}
}

func reasons(pauses []Pause) []Reason {
	var rs []Reason
	for _, p := range pauses {
		rs = append(rs, p.Reason)
	}
	return rs
}

func TestEvaluate(t *testing.T) {
	for name, tc := range map[string]struct {
		change   func(*Facts)
		baseline int
		want     []Reason
	}{
		"allows sweeping in a healthy cluster":            {func(*Facts) {}, 537, nil},
		"pauses while the datastore is locked":            {func(f *Facts) { f.Locked = true }, 537, []Reason{DatastoreLocked}},
		"pauses until every cache is listed":              {func(f *Facts) { f.Caches[1].Synced = false }, 537, []Reason{CacheUnsynced}},
		"pauses while a watch is broken":                  {func(f *Facts) { f.Caches[0].Connected = false }, 537, []Reason{WatchBroken}},
		"pauses when nodes vanish from under pods":        {func(f *Facts) { f.Nodes = 0 }, 537, []Reason{NodesEmpty}},
		"pauses when blocks vanish from under pods":       {func(f *Facts) { f.Blocks = 0 }, 537, []Reason{BlocksEmpty}},
		"allows an empty cluster":                         {func(f *Facts) { *f = Facts{Caches: f.Caches} }, 0, nil},
		"pauses when handles in use fell by over half":    {func(f *Facts) { f.InUse = 268 }, 537, []Reason{InUseFell}},
		"allows a fall by less than half":                 {func(f *Facts) { f.InUse = 269 }, 537, nil},
		"does not see a fall in a handful":                {func(f *Facts) { f.InUse = 1 }, 9, nil},
		"pauses while the API group is not certain":       {func(f *Facts) { f.GroupDetail = "both" }, 537, []Reason{GroupUncertain}},
		"does not judge counts of caches not yet listed":  {func(f *Facts) { f.Caches[0].Synced, f.Blocks = false, 0 }, 537, []Reason{CacheUnsynced}},
		"tells every reason at once, each with a message": {func(f *Facts) { f.Locked, f.Nodes = true, 0 }, 537, []Reason{DatastoreLocked, NodesEmpty}},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			tc.change(&f)
			got := Evaluate(f, tc.baseline)
			if !slices.Equal(reasons(got), tc.want) {
				t.Errorf("got %v, want %v", reasons(got), tc.want)
			}
			for _, p := range got {
				if p.Message == "" {
					t.Errorf("%s has no message", p.Reason)
				}
			}
		})
	}
}

func TestEveryReasonIsListedForMetrics(t *testing.T) {
	all := healthy()
	all.Locked, all.Nodes, all.Blocks, all.InUse, all.GroupDetail = true, 0, 0, 1, "both"
	unsynced := healthy()
	unsynced.Caches[0].Connected, unsynced.Caches[1].Synced = false, false
	seen := append(reasons(Evaluate(all, 537)), reasons(Evaluate(unsynced, 537))...)
	for _, r := range Reasons() {
		if !slices.Contains(seen, r) {
			t.Errorf("no facts pause for %s", r)
		}
	}
	for _, r := range seen {
		if !slices.Contains(Reasons(), r) {
			t.Errorf("%s is not listed", r)
		}
	}
}

func TestMonitorTellsEachChangeOnceAndClearsByItself(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	f := healthy()
	var told []string
	m := NewMonitor(clock, time.Minute, func() Facts { return f }, func(p Pause, active bool) {
		verb := " ends"
		if active {
			verb = " begins"
		}
		told = append(told, string(p.Reason)+verb)
	})
	if err := m.Gate(); err != nil {
		t.Fatalf("a healthy cluster is paused: %v", err)
	}
	f.Locked = true
	for range 3 {
		var paused *PausedError
		if err := m.Gate(); !errors.As(err, &paused) || paused.Pauses[0].Reason != DatastoreLocked {
			t.Fatalf("got %v, want a pause for the lock", err)
		}
	}
	f.Locked = false
	if err := m.Gate(); err != nil {
		t.Fatalf("still paused after the lock is gone: %v", err)
	}
	if want := []string{"DatastoreLocked begins", "DatastoreLocked ends"}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

func TestMonitorWaitsUntilAFallHasHeld(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	f := healthy()
	m := NewMonitor(clock, time.Minute, func() Facts { return f }, func(Pause, bool) {})
	must := func(want bool, when string) {
		t.Helper()
		if open := m.Gate() == nil; open != want {
			t.Fatalf("%s: open is %v, want %v", when, open, want)
		}
	}
	must(true, "at first")
	f.InUse = 100
	must(false, "after the fall")
	clock.Step(59 * time.Second)
	must(false, "before it has held")
	f.InUse = 50
	must(false, "after a further fall")
	clock.Step(59 * time.Second)
	must(false, "for the further fall has not held")
	clock.Step(time.Second)
	must(true, "once it has held")
}

func TestMonitorOpensAtOnceWhenAFallIsUndone(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	f := healthy()
	m := NewMonitor(clock, time.Minute, func() Facts { return f }, func(Pause, bool) {})
	_ = m.Gate()
	f.InUse = 0
	if m.Gate() == nil {
		t.Fatal("open although no handle is in use any more")
	}
	f.InUse = 537
	if err := m.Gate(); err != nil {
		t.Fatalf("still paused: %v", err)
	}
}

func TestMonitorSeesAFallThatCameInSteps(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	f := healthy()
	m := NewMonitor(clock, time.Minute, func() Facts { return f }, func(Pause, bool) {})
	_ = m.Gate()
	for f.InUse = 500; f.InUse > 270; f.InUse -= 40 {
		if err := m.Gate(); err != nil {
			t.Fatalf("paused at %d: %v", f.InUse, err)
		}
		clock.Step(time.Second)
	}
	f.InUse = 200
	if m.Gate() == nil {
		t.Error("a fall from 537 to 200 within seconds was not seen")
	}
}
