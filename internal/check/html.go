package check

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

//go:embed report.html
var page string

// HTML writes the report as one page that needs nothing from the network.
func (r *Report) HTML(out io.Writer) error {
	t, err := template.New("report").Funcs(template.FuncMap{"group": group}).Parse(page)
	if err != nil {
		return fmt.Errorf("parse the page: %w", err)
	}
	if err := t.Execute(out, r.view()); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// view is what the page shows.
type view struct {
	*Report
	At, Oldest string
	Orphans    int
	Charts     []chart
	Facts      []fact
}

type chart struct {
	Title, Hint string
	Bars        []bar
}

type bar struct {
	Name, Class string
	Handles     int
	// Percent is the length beside the longest.
	Percent float64
}

type fact struct {
	Name string
	N    int
	// Bad marks a number that should be zero.
	Bad bool
}

// maxBars bounds a chart; what is over it is summed up.
const maxBars = 12

func (r *Report) view() view {
	v := view{Report: r, At: r.Time.UTC().Format(time.RFC1123), Orphans: r.Orphans()}
	if r.OldestOrphan != nil {
		v.Oldest = verdict.Age(r.Time.Sub(*r.OldestOrphan))
	}
	var verdicts []Count
	classes := map[string]string{}
	for _, w := range r.Verdicts {
		name := w.Outcome + " · " + w.Reason
		verdicts = append(verdicts, Count{name, w.Handles})
		classes[name] = w.Outcome
	}
	v.Charts = []chart{
		{"Verdicts", "all handles, by verdict and reason", bars(verdicts, classes)},
		{"Age of orphans", "time since the last write", bars(r.OrphanAges, nil)},
		{"Orphans by node", "by ID, stamp, or the block's affinity", bars(r.OrphansByNode, nil)},
		{"Orphans by pool", "of the block that the handle names", bars(r.OrphansByPool, nil)},
		{"Owner kinds", "all handles, by what their ID says", bars(r.OwnerKinds, nil)},
	}
	v.Facts = []fact{
		{"IPAM blocks", r.Blocks, false},
		{"allocations", r.Allocations, false},
		{"allocations cooling down", r.CoolingDown, false},
		{"node tunnel IPs", r.NodeTunnelIPs, false},
		{"workload IPs", r.WorkloadIPs, false},
		{"IPs allocated but not in use", len(r.AllocatedNotInUse), true},
		{"IPs in use but not allocated", len(r.InUseNotAllocated), true},
		{"IPs in use outside of active pools", r.InUseOutsidePools, true},
		{"handles with no matching IPs", r.HandlesWithoutMatches, true},
		{"handles with matches", r.HandlesWithMatches, false},
		{"handles missing", r.HandlesMissing, true},
		{"handles with wrong counts", r.HandlesSkewed, true},
		{"handles marked deleted", r.HandlesMarkedDeleted, true},
		{"invalid blocks", r.BlocksInvalid, true},
	}
	return v
}

func bars(counts []Count, classes map[string]string) []bar {
	most := 0
	rest := bar{Name: "others"}
	var shown []bar
	for i, c := range counts {
		if i >= maxBars {
			rest.Handles += c.Handles
			continue
		}
		most = max(most, c.Handles)
		shown = append(shown, bar{Name: c.Name, Class: classes[c.Name], Handles: c.Handles})
	}
	if rest.Handles > 0 {
		most = max(most, rest.Handles)
		shown = append(shown, rest)
	}
	for i := range shown {
		if shown[i].Handles > 0 {
			shown[i].Percent = max(0.6, 100*float64(shown[i].Handles)/float64(most))
		}
	}
	return shown
}

// group sets thin spaces between thousands.
func group(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u2009" + s[i:]
	}
	return s
}
