package verdict

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// Explain is the verdict as a sentence for people, led by its stable code.
func Explain(e Evidence, v Verdict) string {
	parts := []string{referenceClause(e)}
	if v.Outcome != InUse && v.Outcome != Reserved {
		parts = append(parts, ownerClause(e, v), writeClause(e))
	}
	if v.Skewed {
		parts = append(parts, "its counts differ from the blocks'")
	}
	if v.Provisional {
		parts = append(parts, "but its spec is still to be read")
	}
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return fmt.Sprintf("%s/%s: %s", v.Outcome, v.Reason, strings.Join(parts, ", "))
}

func referenceClause(e Evidence) string {
	if e.ID.Kind == calico.KindReserved {
		return "the handle is reserved"
	}
	if len(e.References) == 0 {
		return "no block references it"
	}
	clauses := make([]string, 0, len(e.References))
	for _, r := range e.References {
		clauses = append(clauses, reference(r))
	}
	text := strings.Join(clauses, " and ")
	if e.Handle.SoftDeleted {
		text += ", although it is marked deleted"
	}
	return text
}

func reference(r Reference) string {
	var text string
	switch ip, ok := r.Address(); {
	case !ok:
		text = fmt.Sprintf("block %s gives it %s", r.Block, count(r.Count, "address", "addresses"))
	case r.Count == 1:
		text = fmt.Sprintf("block %s gives it %s", r.Block, ip)
	default:
		text = fmt.Sprintf("block %s gives it %s and %d more", r.Block, ip, r.Count-1)
	}
	if r.Pod != "" {
		text += fmt.Sprintf(" for pod %s/%s", r.Namespace, r.Pod)
	}
	if r.Node != "" {
		text += " on node " + r.Node
	}
	return text
}

// Address is the first address that the handle holds in the block; false when
// the block's CIDR is damaged.
func (r Reference) Address() (netip.Addr, bool) { return Address(r.Block, r.First) }

// Address is the address at this offset from a block's first; false when the
// CIDR is damaged or has no such address.
func Address(block string, ordinal int) (netip.Addr, bool) {
	prefix, err := netip.ParsePrefix(block)
	if err != nil || ordinal < 0 {
		return netip.Addr{}, false
	}
	address := prefix.Masked().Addr()
	bytes := address.AsSlice()
	for i, carry := len(bytes)-1, ordinal; i >= 0 && carry > 0; i-- {
		carry += int(bytes[i])
		bytes[i] = byte(carry) //nolint:gosec // the low byte is what is meant
		carry >>= 8
	}
	address, _ = netip.AddrFromSlice(bytes)
	return address, prefix.Contains(address)
}

func ownerClause(e Evidence, v Verdict) string {
	switch v.Reason {
	case ownership.PodAlive:
		if e.ID.Kind == calico.KindLegacyPod {
			return fmt.Sprintf("pod %s/%s exists", e.ID.Namespace, e.ID.Name)
		}
		return fmt.Sprintf("pod %s/%s still carries container ID %s", e.Owner.Pod.Namespace, e.Owner.Pod.Name, short(e.ID.ContainerID))
	case ownership.PodGone:
		if e.ID.Kind == calico.KindLegacyPod {
			return fmt.Sprintf("there is no pod %s/%s", e.ID.Namespace, e.ID.Name)
		}
		return "no pod has container ID " + short(e.ID.ContainerID)
	case ownership.PodFinished:
		return fmt.Sprintf("pod %s/%s has finished", e.Owner.Pod.Namespace, e.Owner.Pod.Name)
	case ownership.PodWithoutContainerID:
		return fmt.Sprintf("pod %s/%s carries no container ID and has an address in a block that the handle names: it may be the owner",
			e.Owner.Pod.Namespace, e.Owner.Pod.Name)
	case ownership.NodeAlive:
		return fmt.Sprintf("node %s exists", e.Owner.Node)
	case ownership.NodeGone:
		return fmt.Sprintf("node %s does not exist", e.Owner.Node)
	case ownership.ServiceAlive:
		return "a Service hashes to it"
	case ownership.ServiceGone:
		return "no Service hashes to it"
	case ownership.VirtualMachineAlive:
		return fmt.Sprintf("virtual machine %s/%s exists", e.ID.Namespace, e.ID.Name)
	case ownership.VirtualMachineGone:
		return fmt.Sprintf("there is no virtual machine %s/%s", e.ID.Namespace, e.ID.Name)
	case ownership.VirtualMachineLeft:
		return fmt.Sprintf("there is no virtual machine %s/%s, but that is not certain until it was gone for 5 minutes", e.ID.Namespace, e.ID.Name)
	case ownership.VirtualMachineUnknown:
		return fmt.Sprintf("whether virtual machine %s/%s exists is not known", e.ID.Namespace, e.ID.Name)
	case ownership.HashedID:
		return "its ID hides which virtual machine it is for"
	case ownership.UnknownForm:
		return "its ID has no known form, so its owner cannot be told"
	case ownership.DamagedHandle:
		return "it names a block by no valid CIDR, so a pod without a container ID may be the owner"
	default:
		// RecentlyWritten and NoWriteTime speak of the handle itself.
		return ""
	}
}

func writeClause(e Evidence) string {
	switch {
	case e.Handle.LastWrite.IsZero():
		return "when it was last changed is not known"
	case e.Handle.LastWriteObserved:
		return fmt.Sprintf("unchanged for at least %s", Age(e.Now.Sub(e.Handle.LastWrite)))
	case e.Handle.LastWrite.After(e.Now):
		return "last changed in the future, by the API server's clock"
	default:
		return fmt.Sprintf("last changed %s ago", Age(e.Now.Sub(e.Handle.LastWrite)))
	}
}

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// Age is a duration in its two largest units, for people: "2 y 143 d".
func Age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d >= year:
		return fmt.Sprintf("%d y %d d", d/year, d%year/day)
	case d >= day:
		return fmt.Sprintf("%d d %d h", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	default:
		return fmt.Sprintf("%d s", d/time.Second)
	}
}

// short is the head of a container ID, as container tools print it.
func short(containerID string) string {
	const head = 12
	if len(containerID) <= head {
		return containerID
	}
	return containerID[:head] + "…"
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
