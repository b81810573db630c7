package refcluster

import (
	"encoding/binary"
	"net/netip"
)

// The IPv4 pool: live blocks fill its lower half, blocks that are gone once
// lay in its upper.
var pool = netip.MustParsePrefix("10.128.0.0/9")

const (
	blockBits  = 26
	blockSize  = 1 << (32 - blockBits)
	liveBlocks = 1 << 16
	goneBlocks = 1 << 12
	maxNodes   = 1 << 14
)

// blockCIDR is the i-th block of the pool.
func blockCIDR(i int) netip.Prefix { return netip.PrefixFrom(address(i, 0), blockBits) }

// address is one address of the i-th block.
func address(block, ordinal int) netip.Addr {
	base := pool.Addr().As4()
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(base[:])+uint32(block*blockSize+ordinal))
	return netip.AddrFrom4(a)
}

// layout tells where live addresses lie: pods go round the nodes, and the
// addresses of a node (the tunnel's first) round its blocks.
type layout struct {
	spec Spec
	// first is each node's first block; the last entry is their number.
	first []int
}

// place is an address in a block.
type place struct{ block, ordinal int }

func newLayout(s Spec) layout {
	l := layout{spec: s, first: make([]int, s.Nodes+1)}
	for node := range s.Nodes {
		blocks := (l.addresses(node) + blockSize - 1) / blockSize
		if node == 0 {
			blocks++ // One node has more blocks than it needs, as after a scale-down.
		}
		l.first[node+1] = l.first[node] + blocks
	}
	return l
}

func (l layout) blocks() int { return l.first[l.spec.Nodes] }

// pods is the number of pods on a node.
func (l layout) pods(node int) int { return (l.spec.Pods + l.spec.Nodes - 1 - node) / l.spec.Nodes }

// addresses is the number of addresses on a node.
func (l layout) addresses(node int) int { return l.pods(node) + 1 }

func (l layout) nodeOfPod(pod int) int { return pod % l.spec.Nodes }

// place is where the n-th address of a node lies.
func (l layout) place(node, n int) place {
	blocks := l.first[node+1] - l.first[node]
	return place{block: l.first[node] + n%blocks, ordinal: n / blocks}
}

func (l layout) placeOfTunnel(node int) place { return l.place(node, 0) }

func (l layout) placeOfPod(pod int) place {
	return l.place(l.nodeOfPod(pod), 1+pod/l.spec.Nodes)
}

// owner is what holds an address: a pod, or the node's tunnel when pod is -1.
func (l layout) owner(node int, p place) (pod int, ok bool) {
	blocks := l.first[node+1] - l.first[node]
	n := p.ordinal*blocks + p.block - l.first[node]
	if n >= l.addresses(node) {
		return 0, false
	}
	if n == 0 {
		return -1, true
	}
	return (n-1)*l.spec.Nodes + node, true
}
