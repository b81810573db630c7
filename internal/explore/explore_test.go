package explore

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestQuick(t *testing.T) {
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			x, err := New(Rules{})
			if err != nil {
				t.Fatal(err)
			}
			k := x.walk(s)
			began := time.Now()
			if v := k.breadth(150000); v != nil {
				t.Errorf("%s\n%s", v.Token(), v)
			}
			t.Logf("%+v %v", k.report, time.Since(began))
			if v := k.wander(rand.New(rand.NewPCG(1, 2)), k.report.States+50000); v != nil {
				t.Errorf("%s\n%s", v.Token(), v)
			}
			t.Logf("%+v %v", k.report, time.Since(began))
		})
	}
}
