// Package check looks at a cluster once and counts what it finds, in the words
// of calicoctl's check and beyond.
package check

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// The report's type, as JSON and YAML tell it.
const (
	APIVersion = "ipam-guard.io/v1"
	Kind       = "CheckReport"
)

// Report is what one look found.
type Report struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Time       time.Time `json:"time"`
	// Group is Calico's API group.
	Group string `json:"group"`
	// Blocks and Allocations count IPAM blocks and the addresses that they
	// record as allocated.
	Blocks      int `json:"blocks"`
	Allocations int `json:"allocations"`
	// HandlesWithMatches have an address in a block, HandlesWithoutMatches have
	// none. Those marked deleted are among them.
	HandlesWithMatches    int `json:"handlesWithMatches"`
	HandlesWithoutMatches int `json:"handlesWithoutMatches"`
	HandlesMarkedDeleted  int `json:"handlesMarkedDeleted"`
	// HandlesMissing are mentioned in blocks but do not exist, or are marked
	// deleted, which Calico reads as absent; HandlesSkewed
	// exist, but their counts differ from the blocks'.
	HandlesMissing int `json:"handlesMissing"`
	HandlesSkewed  int `json:"handlesSkewed"`
	// Verdicts count all handles.
	Verdicts []Verdict `json:"verdicts"`
	// OldestOrphan is when the oldest orphan was last written.
	OldestOrphan *time.Time `json:"oldestOrphan,omitempty"`
}

// Verdict counts the handles of one outcome and reason.
type Verdict struct {
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
	Handles int    `json:"handles"`
}

// Run looks at the cluster. Lists are read in pages and never held whole.
func Run(ctx context.Context, cfg *rest.Config, api calico.API, c clock.PassiveClock, grace time.Duration) (*Report, error) {
	r := &Report{APIVersion: APIVersion, Kind: Kind, Time: c.Now(), Group: api.String()}
	inv := inventory.New(c)
	mentioned := map[string]map[string]int{} // by handle and block
	declared := map[string]uint64{}          // digests, until the blocks are read
	deleted := map[string]bool{}
	err := feed.Once(ctx, cfg, api, inv, feed.Visitor{
		Handle: func(h *calico.IPAMHandle) {
			if h.Spec.Deleted {
				deleted[h.Name] = true
			}
			declared[h.Name] = digest(h.Spec.Block)
		},
		Block: func(b *calico.IPAMBlock) {
			r.Blocks++
			for _, index := range b.Spec.Allocations {
				if index == nil {
					continue
				}
				r.Allocations++
				if *index < 0 || *index >= len(b.Spec.Attributes) || b.Spec.Attributes[*index].HandleID == nil {
					continue
				}
				name := calico.HandleName(*b.Spec.Attributes[*index].HandleID)
				if mentioned[name] == nil {
					mentioned[name] = map[string]int{}
				}
				mentioned[name][b.Spec.CIDR]++
			}
		},
	})
	if err != nil {
		return nil, err
	}
	r.HandlesMarkedDeleted = len(deleted)
	for name, blocks := range mentioned {
		if _, ok := inv.Evidence(name, r.Time, grace); !ok || deleted[name] {
			r.HandlesMissing++
		} else if declared[name] != digest(blocks) {
			r.HandlesSkewed++
		}
	}
	r.judge(inv, grace)
	return r, nil
}

// digest stands for what a handle declares, in the space of one number.
func digest(blocks map[string]int) uint64 {
	h := fnv.New64a()
	for _, block := range slices.Sorted(maps.Keys(blocks)) {
		fmt.Fprintf(h, "%s=%d;", block, blocks[block])
	}
	return h.Sum64()
}

func (r *Report) judge(inv *inventory.Inventory, grace time.Duration) {
	counts := map[Verdict]int{}
	for e, v := range inv.All(r.Time, grace) {
		counts[Verdict{Outcome: v.Outcome.String(), Reason: string(v.Reason)}]++
		if len(e.References) > 0 {
			r.HandlesWithMatches++
		} else {
			r.HandlesWithoutMatches++
		}
		if v.Outcome == verdict.Orphaned && (r.OldestOrphan == nil || e.Handle.LastWrite.Before(*r.OldestOrphan)) {
			oldest := e.Handle.LastWrite
			r.OldestOrphan = &oldest
		}
	}
	for v, n := range counts {
		v.Handles = n
		r.Verdicts = append(r.Verdicts, v)
	}
	slices.SortFunc(r.Verdicts, func(a, b Verdict) int {
		return cmp.Or(cmp.Compare(b.Handles, a.Handles), cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.Reason, b.Reason))
	})
}

// Orphans is how many handles would be swept.
func (r *Report) Orphans() int {
	n := 0
	for _, v := range r.Verdicts {
		if v.Outcome == verdict.Orphaned.String() {
			n += v.Handles
		}
	}
	return n
}

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	lines := []string{
		fmt.Sprintf("Found %d IPAM blocks.", r.Blocks),
		fmt.Sprintf("IPAM blocks record %d allocations.", r.Allocations),
		fmt.Sprintf("Found %d handles with no matching IPs (and %d handles with matches).", r.HandlesWithoutMatches, r.HandlesWithMatches),
		fmt.Sprintf("Found %d handles mentioned in blocks with no matching handle resource.", r.HandlesMissing),
		fmt.Sprintf("Found %d handles whose counts differ from the blocks'.", r.HandlesSkewed),
		fmt.Sprintf("Found %d handles marked deleted.", r.HandlesMarkedDeleted),
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	table := tabwriter.NewWriter(out, 0, 4, 3, ' ', 0)
	fmt.Fprintln(table, "\nVERDICT\tREASON\tHANDLES")
	for _, v := range r.Verdicts {
		fmt.Fprintf(table, "%s\t%s\t%d\n", v.Outcome, v.Reason, v.Handles)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if r.OldestOrphan != nil {
		_, err := fmt.Fprintf(out, "\nThe oldest orphan was last written %s ago.\n", verdict.Age(r.Time.Sub(*r.OldestOrphan)))
		return err
	}
	return nil
}
