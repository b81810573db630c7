package inventory

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"sync"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// key is a handle's name in 36 bytes: a sandbox's network and container ID, or
// for any other name its place in the table of names.
type key struct {
	network uint32
	id      [32]byte
}

// otherNetwork marks a key whose ID is a place in the table of names.
const otherNetwork = ^uint32(0)

// names turns names into keys and back, and keeps the few strings that many
// handles share.
type names struct {
	mu       sync.RWMutex
	networks table
	others   table
	nodes    table
	// words are namespaces and nodes, of which many objects name the same.
	words map[string]string
	// stamps holds, by place of the node, the stamp that names just it.
	stamps []*ownership.Stamp
}

// table numbers strings. Places are never reused: one that still lay in a
// caller's hands would then stand for another handle. What grows are names of
// other than sandboxes, a few for each node, Service or virtual machine.
type table struct {
	places map[string]uint32
	values []string
}

func (t *table) add(s string) uint32 {
	if place, ok := t.places[s]; ok {
		return place
	}
	place := uint32(len(t.values)) //nolint:gosec // 4 G names do not fit into etcd.
	t.values = append(t.values, s)
	t.places[s] = place
	return place
}

func newNames() *names {
	n := &names{
		networks: table{places: map[string]uint32{}},
		others:   table{places: map[string]uint32{}},
		nodes:    table{places: map[string]uint32{}},
		words:    map[string]string{},
	}
	n.nodes.add("") // Place 0 is no node.
	n.stamps = []*ownership.Stamp{{}}
	return n
}

// sandbox splits a sandbox's name; ok is false for any other.
func sandbox(name string) (network string, id [32]byte, ok bool) {
	parsed := calico.ParseHandleID(name)
	if parsed.Kind != calico.KindPodSandbox {
		return "", id, false
	}
	if _, err := hex.Decode(id[:], []byte(parsed.ContainerID)); err != nil {
		return "", id, false
	}
	return parsed.Network, id, true
}

// key is the name's key, made when there is none.
func (n *names) key(name string) key {
	if k, ok := n.find(name); ok {
		return k
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if network, id, ok := sandbox(name); ok {
		return key{n.networks.add(network), id}
	}
	return otherKey(n.others.add(name))
}

// find is the key of a name that was added before.
func (n *names) find(name string) (key, bool) {
	network, id, ok := sandbox(name)
	n.mu.RLock()
	defer n.mu.RUnlock()
	if ok {
		place, known := n.networks.places[network]
		return key{place, id}, known
	}
	place, known := n.others.places[name]
	return otherKey(place), known
}

func otherKey(place uint32) key {
	k := key{network: otherNetwork}
	binary.LittleEndian.PutUint32(k.id[:], place)
	return k
}

func (k key) place() uint32 { return binary.LittleEndian.Uint32(k.id[:]) }

// name is the key's name.
func (n *names) name(k key) string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if k.network == otherNetwork {
		return n.others.values[k.place()]
	}
	network := n.networks.values[k.network]
	b := make([]byte, 0, len(network)+1+hex.EncodedLen(len(k.id)))
	b = append(b, network...)
	b = append(b, '.')
	return string(hex.AppendEncode(b, k.id[:]))
}

func (n *names) node(name string) uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	place := n.nodes.add(name)
	if int(place) == len(n.stamps) {
		n.stamps = append(n.stamps, &ownership.Stamp{Node: name})
	}
	return place
}

// stamp is what the record kept of its stamp, nil without one.
func (n *names) stamp(r record) *ownership.Stamp {
	if !r.is(flagStamped) {
		return nil
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.stamps[r.node]
}

// word is the one copy of a namespace's or a node's name.
func (n *names) word(s string) string {
	if s == "" {
		return ""
	}
	n.mu.RLock()
	kept, ok := n.words[s]
	n.mu.RUnlock()
	if ok {
		return kept
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if kept, ok = n.words[s]; !ok {
		kept = strings.Clone(s)
		n.words[kept] = kept
	}
	return kept
}
