package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// shown is what progress shows of four steps, one each six seconds.
func shown(terminal bool) string {
	var out bytes.Buffer
	c := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	p := newProgress(&out, c, "handles")
	p.terminal = terminal
	p.begin(8)
	for i := range 4 {
		c.SetTime(time.Unix(int64(6*(i+1)), 0))
		p.step()
	}
	p.end()
	return out.String()
}

func TestProgressOffATerminalIsPlainLines(t *testing.T) {
	want := "2 of 8 handles, 0/s, 36s left\n4 of 8 handles, 0/s, 24s left\n"
	if got := shown(false); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestProgressOnATerminalIsABarThatLeavesItsLine(t *testing.T) {
	got := shown(true)
	if n := strings.Count(got, "\r\x1b[K["); n != 5 {
		t.Errorf("the bar was drawn %d times, want 5: %q", n, got)
	}
	last := got[strings.LastIndex(got, "\r"):]
	if want := "\r\x1b[K[" + strings.Repeat("#", 15) + strings.Repeat("-", 15) + "] 4 of 8 handles, 0/s, 24s left\n"; last != want {
		t.Errorf("it ends with %q, want %q", last, want)
	}
}
