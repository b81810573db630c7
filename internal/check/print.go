package check

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/ipam-guard/ipam-guard/internal/terminal"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// topNodes is how many nodes the report for people names.
const topNodes = 20

// Print writes the report for people; wide also names blocks and addresses.
func (r *Report) Print(out io.Writer, colour terminal.Palette, wide bool) error {
	w := bufio.NewWriter(out)
	line := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	// What should be zero is coloured.
	wrong := func(n int, format string, args ...any) { line("%s", colour.Number(n, fmt.Sprintf(format, args...))) }
	line("Found %d IPAM blocks.", r.Blocks)
	if wide {
		for _, b := range r.BlockList {
			line("  IPAM block %s affinity=%s: %d allocations%s", b.CIDR, b.Affinity, b.Allocations, ifSo(b.Invalid, " (invalid)"))
		}
	}
	line("IPAM blocks record %d allocations, %d of them cooling down.", r.Allocations, r.CoolingDown)
	disabled := 0
	for _, p := range r.Pools {
		if p.Disabled {
			disabled++
		}
		if wide {
			line("  IPAM pool %s %s%s", p.Name, p.CIDR, ifSo(p.Disabled, " (disabled)"))
		}
	}
	line("Found %d IP pools, %d of them active.", len(r.Pools), len(r.Pools)-disabled)
	line("Found %d node tunnel IPs.", r.NodeTunnelIPs)
	line("Found %d workload IPs.", r.WorkloadIPs)
	line("Workloads and nodes are using %d IPs.", r.IPsInUse)
	if len(r.Nodes) > 0 {
		line("Top %d nodes by allocations:", min(topNodes, len(r.Nodes)))
		for _, n := range r.Nodes[:min(topNodes, len(r.Nodes))] {
			line("  %s has %d allocations", n.Name, n.Allocations)
		}
		line("Node with most allocations has %d; median is %d.", r.MaxAllocations, r.MedianAllocations)
	}
	wrong(len(r.AllocatedNotInUse), "Found %d IPs that are allocated in IPAM but not actually in use.", len(r.AllocatedNotInUse))
	printAddresses(w, r.AllocatedNotInUse, wide)
	wrong(r.InUseOutsidePools, "Found %d in-use IPs that are not in active IP pools.", r.InUseOutsidePools)
	wrong(len(r.InUseNotAllocated), "Found %d in-use IPs that are in active IP pools but have no corresponding IPAM allocation.", len(r.InUseNotAllocated))
	printAddresses(w, r.InUseNotAllocated, wide)
	wrong(r.HandlesWithoutMatches, "Found %d handles with no matching IPs (and %d handles with matches).", r.HandlesWithoutMatches, r.HandlesWithMatches)
	wrong(r.HandlesMissing, "Found %d handles mentioned in blocks with no matching handle resource.", r.HandlesMissing)
	wrong(r.HandlesSkewed, "Found %d handles whose counts differ from the blocks'.", r.HandlesSkewed)
	wrong(r.HandlesMarkedDeleted, "Found %d handles marked deleted.", r.HandlesMarkedDeleted)
	wrong(r.BlocksInvalid, "Found %d invalid blocks.", r.BlocksInvalid)
	wrong(r.Problems, "Check complete; found %d problems.", r.Problems)
	if err := r.printHandles(w, colour); err != nil {
		return err
	}
	return w.Flush()
}

func (r *Report) printHandles(w io.Writer, colour terminal.Palette) error {
	table := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	fmt.Fprintln(table, "\nVERDICT\tREASON\tHANDLES")
	for _, v := range r.Verdicts {
		// The last column is not padded, so that colour does not shift it.
		fmt.Fprintf(table, "%s\t%s\t%s\n", v.Outcome, v.Reason, colour.Outcome(v.Outcome, strconv.Itoa(v.Handles)))
	}
	for _, part := range []struct {
		title  string
		counts []Count
	}{
		{"OWNER KIND\t\tHANDLES", r.OwnerKinds},
		{"ORPHANS LAST CHANGED AGO\t\tHANDLES", r.OrphanAges},
		{"ORPHANS BY NODE\t\tHANDLES", r.OrphansByNode},
		{"ORPHANS BY POOL\t\tHANDLES", r.OrphansByPool},
	} {
		if r.Orphans() == 0 && strings.HasPrefix(part.title, "ORPHANS") {
			continue
		}
		fmt.Fprintln(table, "\n"+part.title)
		for i, c := range part.counts {
			if i == topNodes {
				fmt.Fprintf(table, "and %d more\t\t\n", len(part.counts)-topNodes)
				break
			}
			fmt.Fprintf(table, "%s\t\t%d\n", c.Name, c.Handles)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if r.OldestOrphan != nil {
		_, err := fmt.Fprintf(w, "\nThe oldest orphan was last written %s ago.\n", verdict.Age(r.Time.Sub(*r.OldestOrphan)))
		return err
	}
	return nil
}

func printAddresses(w io.Writer, list []Address, wide bool) {
	if !wide {
		return
	}
	for _, a := range list {
		fmt.Fprintf(w, "  %s%s%s%s\n", a.IP, ifSo(a.Pod != "", " pod "+a.Pod), ifSo(a.Node != "", " on node "+a.Node), ifSo(a.Handle != "", ", handle "+a.Handle))
	}
}

func ifSo(so bool, text string) string {
	if so {
		return text
	}
	return ""
}
