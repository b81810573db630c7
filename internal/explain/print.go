package explain

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/terminal"
)

// Print writes the explanation for people.
func (x *Explanation) Print(out io.Writer, colour terminal.Palette) error {
	w := bufio.NewWriter(out)
	p := printer{w, colour}
	for i, a := range x.Answers {
		if i > 0 {
			p.line("")
		}
		p.answer(a)
	}
	return w.Flush()
}

type printer struct {
	w      *bufio.Writer
	colour terminal.Palette
}

func (p printer) line(format string, args ...any) { fmt.Fprintf(p.w, format+"\n", args...) }

func (p printer) disagrees(list []string) {
	for _, text := range list {
		p.line("  %s: %s", p.colour.Bad("DISAGREES"), text)
	}
}

func (p printer) answer(a Answer) {
	switch {
	case a.IP != nil:
		p.line("%s", p.colour.Bold("IP "+a.IP.Address))
		switch {
		case a.IP.Allocation != nil:
			p.allocation("", *a.IP.Allocation)
		case a.IP.Pod == "":
			p.line("  no block records it, and no pod has it")
		}
		if a.IP.Pod != "" {
			p.line("  pod %s has it", a.IP.Pod)
		}
		p.disagrees(a.IP.Disagrees)
	case a.Pod != nil:
		p.line("%s: %s on node %s, addresses %s, container ID %s", p.colour.Bold("Pod "+podName(a.Pod.Namespace, a.Pod.Name)),
			orNone(a.Pod.Phase), orNone(a.Pod.Node), orNone(strings.Join(a.Pod.IPs, ", ")), orNone(a.Pod.ContainerID))
		if len(a.Handles) == 0 {
			p.line("  no block records an address for it")
		}
		p.disagrees(a.Pod.Disagrees)
	case a.Node != nil:
		exists := "exists"
		if !a.Node.Exists {
			exists = p.colour.Bad("does not exist")
		}
		p.line("%s %s; %d blocks with allocations, %d addresses borrowed from other nodes' blocks",
			p.colour.Bold("Node "+a.Node.Name), exists, len(a.Node.Blocks), a.Node.Borrowed)
		for _, b := range a.Node.Blocks {
			p.line("  block %s records %d allocations", b.CIDR, b.Allocations)
		}
		p.line("  %d orphans are stamped with it", a.Node.StampedOrphans)
	}
	for _, h := range a.Handles {
		p.handle(h)
	}
}

func (p printer) allocation(step string, a Allocation) {
	address := a.IP
	if address == "" {
		address = "no address, for its CIDR is damaged"
	}
	p.line("  %sblock %s gives it: %s (ordinal %d), attribute %d, affinity %s", step, a.Block, address, a.Ordinal, a.Attribute, orNone(a.Affinity))
	indent := strings.Repeat(" ", len(step))
	if a.Damaged {
		p.line("  %s%s: there is no attribute %d", indent, p.colour.Bad("DAMAGED"), a.Attribute)
	}
	for _, key := range slices.Sorted(maps.Keys(a.Attributes)) {
		p.line("  %s  %s=%s", indent, key, a.Attributes[key])
	}
	if a.ReleasedAt != nil {
		p.line("  %s  released at %s, cooling down", indent, a.ReleasedAt.Format(time.RFC3339))
	}
}

// handle is the decision, step by step.
func (p printer) handle(h Handle) {
	p.line("%s", p.colour.Bold("Handle "+h.ID))
	if h.Missing {
		p.line("  %s: blocks mention it, but it does not exist; Calico cannot release its addresses", p.colour.Bad("MISSING"))
		for _, a := range h.References {
			p.allocation("", a)
		}
		return
	}
	p.line("  %s", h.Because)
	p.line("  1. its ID is that of a %s", h.OwnerKind)
	var named []string
	for _, d := range h.Declared {
		named = append(named, fmt.Sprintf("%s (%d)", d.Block, d.Count))
	}
	p.line("  2. it names %s", cmp.Or(strings.Join(named, ", "), "no block"))
	for _, a := range h.References {
		p.allocation("3. ", a)
	}
	if len(h.References) == 0 {
		p.line("  3. no block references it")
	}
	if h.LastWrite != nil {
		p.line("  4. last written %s, settled %s", h.LastWrite.Format(time.RFC3339), h.Settled.Format(time.RFC3339))
	} else {
		p.line("  4. when it was last written cannot be told")
	}
	p.line("  5. its owner: %s", cmp.Or(h.Owner, "not asked for"))
	if h.Stamp != nil {
		p.line("     stamp: %s", h.Stamp.Encode())
	}
	if h.MarkedDeleted {
		p.line("     it is marked deleted: Calico reads it as absent")
	}
	if h.Terminating {
		p.line("     somebody has deleted it, and a finalizer holds it")
	}
	p.line("  6. verdict %s", p.colour.Outcome(h.Outcome, h.Outcome+"/"+h.Reason))
}

func orNone(s string) string { return cmp.Or(s, "none") }
