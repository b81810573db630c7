package ownership

import (
	"net/netip"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// Pod is what liveness needs of a pod.
type Pod struct {
	Namespace, Name, UID, Node string
	ContainerID                string
	// Finished is true once the phase is Succeeded or Failed: the pod no
	// longer holds its IP.
	Finished bool
}

// VirtualMachineFloor is how long a virtual machine must have been seen to be
// gone. Its handle outlives restarts and migrations, and a machine that is
// deleted to be made anew comes back to its addresses.
const VirtualMachineFloor = 5 * time.Minute

// Existence tells whether a thing is there. Its zero value claims nothing.
type Existence uint8

// The existences.
const (
	ExistenceUnknown Existence = iota
	Exists
	// JustGone does not exist, but did or may have until a moment ago.
	JustGone
	Gone
)

// Facts is what is known of owners. All methods must speak of one moment no
// earlier than the handle's last write; the inventory implements it.
type Facts interface {
	// PodByContainerID is the pod whose annotation carries this container ID,
	// finished or not.
	PodByContainerID(id string) (Pod, bool)
	PodByName(namespace, name string) (Pod, bool)
	HasNode(name string) bool
	// HasServiceHandle tells whether some Service hashes to this handle name.
	HasServiceHandle(handleName string) bool
	// BarePods counts the pods of BarePodIn.
	BarePods() int
	// BarePodIn is an unfinished pod with an IP in this block, not on the
	// host's network and without a container ID annotation: old CNI versions
	// did not write one.
	BarePodIn(block netip.Prefix) (Pod, bool)
	// BlockNode is the node that the block's affinity names.
	BlockNode(block netip.Prefix) (node string, ok bool)
	VirtualMachine(namespace, name string) Existence
}

// State is what is known of an owner's life.
type State uint8

// The states.
const (
	StateUnknown State = iota
	StateAlive
	StateGone
)

// Reason is a stable code that says why an owner has its state.
type Reason string

// The reasons.
const (
	PodAlive              Reason = "PodAlive"
	PodGone               Reason = "PodGone"
	PodFinished           Reason = "PodFinished"
	PodWithoutContainerID Reason = "PodWithoutContainerID"
	NodeAlive             Reason = "NodeAlive"
	NodeGone              Reason = "NodeGone"
	ServiceAlive          Reason = "ServiceAlive"
	ServiceGone           Reason = "ServiceGone"
	VirtualMachineAlive   Reason = "VirtualMachineAlive"
	VirtualMachineGone    Reason = "VirtualMachineGone"
	VirtualMachineLeft    Reason = "VirtualMachineLeft"
	VirtualMachineUnknown Reason = "VirtualMachineUnknown"
	HashedID              Reason = "HashedID"
	UnknownForm           Reason = "UnknownForm"
	DamagedHandle         Reason = "DamagedHandle"
	ReservedHandle        Reason = "ReservedHandle"
)

// Finding is what is known of a handle's owner, and why.
type Finding struct {
	State  State
	Reason Reason
	// Pod is the pod that the reason speaks of, if any.
	Pod Pod
	// Node is the node that the reason speaks of, if any.
	Node string
	// Provisional marks a StateGone that the handle's spec may still overturn:
	// it was not read, and pods without a container ID exist.
	Provisional bool
}

// Subject is the handle whose owner is sought.
type Subject struct {
	ID calico.HandleID
	// Name is the object's name.
	Name string
	// Stamp is the creation-owner stamp, nil without a readable one.
	Stamp *Stamp
	// Declared is spec.block, nil while it was not read.
	Declared map[string]int
}

// Resolve says whether the subject's owner is alive. It is pure: the same
// subject and facts give the same finding. In doubt it finds StateUnknown.
func Resolve(s Subject, facts Facts) Finding {
	switch s.ID.Kind {
	case calico.KindPodSandbox:
		return resolveSandbox(s, facts)
	case calico.KindLegacyPod:
		return resolveLegacyPod(s.ID, facts)
	case calico.KindNode:
		return resolveNode(s.ID.Name, facts)
	case calico.KindService:
		if facts.HasServiceHandle(s.Name) {
			return Finding{State: StateAlive, Reason: ServiceAlive}
		}
		return Finding{State: StateGone, Reason: ServiceGone}
	case calico.KindVirtualMachine:
		return resolveVirtualMachine(s.ID, facts)
	case calico.KindReserved:
		return Finding{State: StateAlive, Reason: ReservedHandle}
	default:
		return Finding{Reason: UnknownForm}
	}
}

// resolveSandbox tells pods apart by container ID, never by name: a
// StatefulSet's pod is re-created under its old name.
func resolveSandbox(s Subject, facts Facts) Finding {
	if pod, ok := facts.PodByContainerID(s.ID.ContainerID); ok {
		if pod.Finished {
			return Finding{State: StateGone, Reason: PodFinished, Pod: pod}
		}
		return Finding{State: StateAlive, Reason: PodAlive, Pod: pod}
	}
	provisional := false
	if facts.BarePods() > 0 {
		if s.Declared == nil {
			provisional = true
		} else if f, doubt := bareDoubt(s.Declared, facts); doubt {
			return f
		}
	}
	// Only after every live pod is ruled out: a borrowed IP lies in the block
	// of another node than its pod's.
	if node := goneNode(s, facts); node != "" {
		return Finding{State: StateGone, Reason: NodeGone, Node: node, Provisional: provisional}
	}
	return Finding{State: StateGone, Reason: PodGone, Provisional: provisional}
}

// bareDoubt finds a pod that may be the owner although nothing ties the two.
func bareDoubt(declared map[string]int, facts Facts) (Finding, bool) {
	for cidr := range declared {
		block, err := netip.ParsePrefix(cidr)
		if err != nil {
			return Finding{Reason: DamagedHandle}, true
		}
		if pod, ok := facts.BarePodIn(block); ok {
			return Finding{Reason: PodWithoutContainerID, Pod: pod}, true
		}
	}
	return Finding{}, false
}

// goneNode is a node that the stamp or a declared block's affinity names and
// that does not exist, else "".
func goneNode(s Subject, facts Facts) string {
	if s.Stamp != nil && s.Stamp.Node != "" && !facts.HasNode(s.Stamp.Node) {
		return s.Stamp.Node
	}
	gone := ""
	for cidr := range s.Declared {
		block, err := netip.ParsePrefix(cidr)
		if err != nil {
			continue
		}
		// The least name, so that map order does not show.
		if node, ok := facts.BlockNode(block); ok && !facts.HasNode(node) && (gone == "" || node < gone) {
			gone = node
		}
	}
	return gone
}

func resolveLegacyPod(id calico.HandleID, facts Facts) Finding {
	pod, ok := facts.PodByName(id.Namespace, id.Name)
	switch {
	case !ok:
		return Finding{State: StateGone, Reason: PodGone}
	case pod.Finished:
		return Finding{State: StateGone, Reason: PodFinished, Pod: pod}
	default:
		return Finding{State: StateAlive, Reason: PodAlive, Pod: pod}
	}
}

func resolveNode(name string, facts Facts) Finding {
	if facts.HasNode(name) {
		return Finding{State: StateAlive, Reason: NodeAlive, Node: name}
	}
	return Finding{State: StateGone, Reason: NodeGone, Node: name}
}

func resolveVirtualMachine(id calico.HandleID, facts Facts) Finding {
	if id.Name == "" {
		return Finding{Reason: HashedID}
	}
	switch facts.VirtualMachine(id.Namespace, id.Name) {
	case Exists:
		return Finding{State: StateAlive, Reason: VirtualMachineAlive}
	case Gone:
		return Finding{State: StateGone, Reason: VirtualMachineGone}
	case JustGone:
		return Finding{Reason: VirtualMachineLeft}
	default:
		return Finding{Reason: VirtualMachineUnknown}
	}
}
