package explore

import (
	"math/rand/v2"
	"testing"
	"time"
)

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

func hunt(t testing.TB, rules Rules, name string) *Violation {
	t.Helper()
	x, err := New(rules)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	k := x.walk(scenario(t, name))
	v := k.breadth(200_000)
	if v == nil {
		v = k.wander(rand.New(rand.NewPCG(1, 2)), k.report.States+200_000)
	}
	t.Logf("%+v %s", k.report, time.Since(began))
	return v
}

func TestQuick(t *testing.T) {
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			x, err := New(Rules{})
			if err != nil {
				t.Fatal(err)
			}
			k := x.walk(s)
			began := time.Now()
			if v := k.breadth(60000); v != nil {
				t.Errorf("%s\n%s", v.Token(), v)
			}
			t.Logf("%+v %v", k.report, time.Since(began))
			if v := k.wander(rand.New(rand.NewPCG(1, 2)), k.report.States+20000); v != nil {
				t.Errorf("%s\n%s", v.Token(), v)
			}
			t.Logf("%+v %v", k.report, time.Since(began))
		})
	}
}
