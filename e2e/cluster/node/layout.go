package node

import (
	"net/netip"
	"path/filepath"
)

// What the node is called, and its addresses. They mean something in its own
// network namespace alone.
const (
	Name       = "node-a"
	PauseImage = "ipam-guard.test/pause:1"
)

var (
	address  = netip.MustParseAddr("192.168.250.1")
	services = netip.MustParsePrefix("10.96.0.0/16")
	// PodBlock is the IPAM block that gives pods their addresses.
	PodBlock = netip.MustParsePrefix("10.250.1.0/26")
	pool     = netip.MustParsePrefix("10.250.0.0/16")
	gateway  = netip.MustParseAddr("10.250.255.1")
)

// Listener is the number of the file on which the node gets the socket that
// listens outside and leads to its API server.
const Listener = 3

// Layout says where a cluster's files are. All live under one folder.
type Layout string

func (l Layout) join(parts ...string) string {
	return filepath.Join(append([]string{string(l)}, parts...)...)
}

// Images is the folder of the images that the node imports as it starts.
func (l Layout) Images() string { return l.join("images") }

// Binaries is the folder of what was built for the node.
func (l Layout) Binaries() string { return l.join("bin") }

// Logs is the folder of the components' logs; pods' logs are in its folder pods.
func (l Layout) Logs() string { return l.join("log") }

// DialSocket connects to addresses inside.
func (l Layout) DialSocket() string { return l.join("dial.sock") }

// AdminKubeconfig is an administrator's, for use inside.
func (l Layout) AdminKubeconfig() string { return l.join("controlplane", "admin.kubeconfig") }

// Ready is a file that is there once the node is ready.
func (l Layout) Ready() string { return l.join("ready") }

func (l Layout) containerdSocket() string { return l.join("containerd.sock") }

func (l Layout) log(component string) string { return l.join("log", component+".log") }
