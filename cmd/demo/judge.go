package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// check is one thing that must hold at the end.
type check struct {
	ok   bool
	text string
}

func judge(before, after count, o outcome) []check {
	live := len(before.matched())
	untouched := 0
	for _, name := range before.matched() {
		if after.handles[name] == before.handles[name] {
			untouched++
		}
	}
	leaked := len(before.unmatched())
	return []check{
		{
			len(after.handles) == live && len(after.unmatched()) == 0 && len(after.missing()) == 0,
			fmt.Sprintf("%s handles left, %s of them the ones that blocks reference", comma(len(after.handles)), comma(len(after.matched()))),
		},
		{
			untouched == live,
			fmt.Sprintf("%s of %s live handles untouched: same UID and resource version", comma(untouched), comma(live)),
		},
		{
			o.swept == leaked,
			fmt.Sprintf("%s of %s swept in %s, %s a second", comma(o.swept), comma(leaked), o.took.Round(time.Second/10), comma(int(float64(o.swept)/o.took.Seconds()))),
		},
		requestsCheck(len(before.handles), o),
		{
			o.errors+o.failures+o.conflicts == 0,
			fmt.Sprintf("%d errors logged, %d deletes failed, %d conflicts", o.errors, o.failures, o.conflicts),
		},
	}
}

// Sweeping has costs beside the deletes: a start, and reading every handle once
// in pages of a thousand. The limit is for sweeps so large that these fit in.
const (
	startRequests = 200
	handlesAPage  = 1000
)

func requestsCheck(handles int, o outcome) check {
	perHandle := float64(o.requests) / float64(max(1, o.swept))
	c := check{true, fmt.Sprintf("%.3f requests a swept handle: %s at the API server", perHandle, comma(o.requests))}
	if float64(o.swept)*(maxRequests-1) >= float64(startRequests+handles/handlesAPage) {
		c.ok = perHandle <= maxRequests
		c.text += fmt.Sprintf(", limit %v", maxRequests)
	}
	return c
}

// failed is an error that names the checks that do not hold.
func failed(checks []check) error {
	var wrong []string
	for _, c := range checks {
		if !c.ok {
			wrong = append(wrong, c.text)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return errors.New("not as it should be: " + strings.Join(wrong, "; "))
}
