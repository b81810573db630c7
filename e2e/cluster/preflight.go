//go:build linux

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/ipam-guard/ipam-guard/e2e/cluster/node"
)

// ErrMissing means that this machine cannot run a node as it is.
var ErrMissing = errors.New("a real node does not run here")

// Preflight tells what this machine lacks for a node, and how to get it.
func Preflight() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it needs root, for namespaces, mounts and control groups", ErrMissing)
	}
	var missing, packages []string
	want := func(there bool, what, pkg string) {
		if !there {
			missing, packages = append(missing, what), append(packages, pkg)
		}
	}
	for _, c := range [][2]string{
		{"containerd", "containerd"}, {"ctr", "containerd"}, {"containerd-shim-runc-v2", "containerd"},
		{"runc", "runc"}, {"ip", "iproute2"}, {"nft", "nftables"},
	} {
		_, err := exec.LookPath(c[0])
		want(err == nil, c[0], c[1])
	}
	for _, plugin := range []string{"ptp", "loopback"} {
		want(node.FindPlugin(plugin) != "", "the CNI plugin "+plugin, "containernetworking-plugins")
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: missing %s; on Debian: apt-get install --no-install-recommends %s",
		ErrMissing, strings.Join(missing, ", "), strings.Join(unique(packages), " "))
}

func unique(all []string) []string {
	var kept []string
	seen := map[string]bool{}
	for _, s := range all {
		if !seen[s] {
			kept = append(kept, s)
		}
		seen[s] = true
	}
	return kept
}
