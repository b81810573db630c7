package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

func TestParse(t *testing.T) {
	t.Run("makes the reference cluster by default", func(t *testing.T) {
		var d demo
		if err := d.parse(nil); err != nil {
			t.Fatal(err)
		}
		if d.spec.Handles() != 31_092 || d.spec.Orphans != 30_555 || d.spec.Pods != 531 || d.spec.Nodes != 6 {
			t.Errorf("spec = %+v", d.spec)
		}
	})
	t.Run("sets size, share and group", func(t *testing.T) {
		var d demo
		if err := d.parse([]string{"--handles=1000", "--leaks=0.5", "--nodes=3", "--group=projectcalico.org"}); err != nil {
			t.Fatal(err)
		}
		if d.spec.Handles() != 1000 || d.spec.Orphans != 500 || d.spec.Nodes != 3 || d.spec.API.GroupVersion != calico.GroupV3 {
			t.Errorf("spec = %+v", d.spec)
		}
	})
	for _, wrong := range []string{"--leaks=1.5", "--group=example.org", "--nodes=0", "--no-such-flag"} {
		t.Run("refuses "+wrong, func(t *testing.T) {
			var d demo
			if err := d.parse([]string{wrong}); err == nil {
				t.Error("no error")
			}
		})
	}
}

func handles(names ...string) count {
	c := count{handles: map[string]identity{}, referenced: map[string]bool{"live-1": true, "live-2": true}}
	for _, name := range names {
		c.handles[name] = identity{uid: "u", resourceVersion: "1"}
	}
	return c
}

func TestJudge(t *testing.T) {
	before := handles("live-1", "live-2", "leaked-1", "leaked-2")
	good := outcome{swept: 2, requests: 2, took: time.Second}
	rewritten := handles("live-1", "live-2")
	rewritten.handles["live-1"] = identity{uid: "u", resourceVersion: "2"}
	for name, test := range map[string]struct {
		after count
		o     outcome
		wrong string
	}{
		"accepts a clean sweep":               {handles("live-1", "live-2"), good, ""},
		"sees a live handle that is gone":     {handles("live-1"), good, "handles left"},
		"sees a leaked handle that stayed":    {handles("live-1", "live-2", "leaked-1"), good, "handles left"},
		"sees a live handle that was written": {rewritten, good, "untouched"},
		"sees too few swept":                  {handles("live-1", "live-2"), outcome{swept: 1, requests: 1, took: 1}, "swept in"},
		"sees errors":                         {handles("live-1", "live-2"), outcome{swept: 2, requests: 2, took: 1, errors: 1}, "errors logged"},
		"sees failures":                       {handles("live-1", "live-2"), outcome{swept: 2, requests: 2, took: 1, failures: 1}, "deletes failed"},
	} {
		t.Run(name, func(t *testing.T) {
			err := failed(judge(before, test.after, test.o))
			switch {
			case test.wrong == "" && err != nil:
				t.Errorf("error = %v", err)
			case test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)):
				t.Errorf("error = %v, want it to name %q", err, test.wrong)
			}
		})
	}
}

func TestRequestsCheck(t *testing.T) {
	for name, test := range map[string]struct {
		handles, swept, requests int
		want                     bool
	}{
		"holds a mass sweep to the limit":                   {31_092, 30_555, 31_166, true},
		"sees a mass sweep over the limit":                  {31_092, 30_555, 31_167, false},
		"forgives a small sweep the cost of a start":        {100, 50, 150, true},
		"forgives a sweep of few the reading of many":       {1_000_000, 2_000, 4_000, true},
		"says nothing of requests when there was no handle": {10, 0, 40, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := requestsCheck(test.handles, outcome{swept: test.swept, requests: test.requests})
			if c.ok != test.want {
				t.Errorf("%q is %v, want %v", c.text, c.ok, test.want)
			}
		})
	}
}

func TestOutputFits80Columns(t *testing.T) {
	var out strings.Builder
	p := &printer{Writer: &out, begin: time.Now()}
	million := count{handles: map[string]identity{}, referenced: map[string]bool{}}
	p.report(million, million, judge(million, million, outcome{
		swept: 1_000_000, requests: 1_234_567, took: 1234 * time.Second, errors: 1234, failures: 1234, conflicts: 1234,
	}))
	p.step("start the control plane with %s handles, %s leaked", comma(1_000_000), comma(999_999))
	lines := append(strings.Split(out.String(), "\n"),
		progressLine(1234*time.Second, 999_999, 999_999, 999_999, 1234, true),
		progressLine(1234*time.Second, 999_999, 111, 999_999, 0.5, false))
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestProgressLineTellsTimeLeft(t *testing.T) {
	line := progressLine(10*time.Second, 300, 100, 300, 50, false)
	if want := " 10.0s  found 300, swept 100, 50/s, 4s left"; line != want {
		t.Errorf("line = %q, want %q", line, want)
	}
}

func TestPaceLooksBackFiveSeconds(t *testing.T) {
	var p pace
	if p.rate() != 0 {
		t.Errorf("rate of nothing = %v", p.rate())
	}
	start := time.Unix(0, 0)
	for s := range 21 {
		count := 0
		if s > 10 { // Slow at first, then 100 a second.
			count = (s - 10) * 100
		}
		p.add(start.Add(time.Duration(s)*time.Second), count)
	}
	if p.rate() != 100 {
		t.Errorf("rate = %v, want 100", p.rate())
	}
}

func TestComma(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 31092: "31,092", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		if got := comma(n); got != want {
			t.Errorf("comma(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestSumAddsUpWhatTheLabelsSelect(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write([]byte(`# TYPE ipam_guard_handles gauge
ipam_guard_handles{verdict="Orphaned",reason="PodGone"} 5
ipam_guard_handles{verdict="Orphaned",reason="NodeGone"} 2
ipam_guard_handles{verdict="InUse",reason="Referenced"} 9
`))
		if err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	s, err := scrape(t.Context(), http.DefaultTransport, server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.sum("ipam_guard_handles", "verdict", "Orphaned"); got != 7 {
		t.Errorf("orphaned = %v, want 7", got)
	}
	if got := s.sum("ipam_guard_handles"); got != 16 {
		t.Errorf("all = %v, want 16", got)
	}
	if got := s.sum("no_such_metric"); got != 0 {
		t.Errorf("no metric = %v, want 0", got)
	}
}
