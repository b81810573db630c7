package explore
import ("testing";"time";"runtime")
func TestSizes(t *testing.T) {
	for _, s := range Scenarios() {
		if s.Name=="everything" {continue}
		x,_ := New(Rules{})
		k := x.walk(s)
		b := time.Now()
		if v := k.breadth(700000); v != nil { t.Errorf("%s\n%s", v.Token(), v) }
		var m runtime.MemStats; runtime.ReadMemStats(&m)
		t.Logf("%-20s %+v %v heap %d MB", s.Name, k.report, time.Since(b), m.HeapSys>>20)
	}
}
