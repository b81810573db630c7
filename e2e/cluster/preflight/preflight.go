//go:build linux

// Package preflight tells whether this machine can run a real node.
package preflight

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// commands are what a node takes, each with Debian's package of it.
var commands = [][2]string{
	{"containerd", "containerd"},
	{"ctr", "containerd"},
	{"containerd-shim-runc-v2", "containerd"},
	{"runc", "runc"},
	{"ip", "iproute2"},
	{"nft", "nftables"},
}

// Plugins are the CNI plugins that a node takes.
var Plugins = []string{"ptp", "loopback"}

// pluginFolders are where distributions put the CNI plugins.
var pluginFolders = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// Plugin is the path of a CNI plugin, "" when there is none.
func Plugin(name string) string {
	for _, dir := range pluginFolders {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// Check says in one line what this machine lacks for a node, and how to get
// it.
func Check() error {
	var lacks, packages []string
	want := func(there bool, what, pkg string) {
		if there {
			return
		}
		lacks = append(lacks, what)
		if !slices.Contains(packages, pkg) {
			packages = append(packages, pkg)
		}
	}
	for _, c := range commands {
		_, err := exec.LookPath(c[0])
		want(err == nil, c[0], c[1])
	}
	for _, plugin := range Plugins {
		want(Plugin(plugin) != "", "the CNI plugin "+plugin, "containernetworking-plugins")
	}
	var how []string
	if os.Geteuid() != 0 {
		lacks, how = append(lacks, "root"), append(how, "run this as root")
	}
	if len(packages) > 0 {
		how = append(how, "apt-get install --no-install-recommends "+strings.Join(packages, " "))
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("a real node needs %s: %s", strings.Join(lacks, ", "), strings.Join(how, ", after "))
}
