//go:build linux

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ipam-guard/ipam-guard/e2e/cluster/preflight"
)

const containerdConfig = `version = 2
root = "DIR/containerd"
state = "/run/containerd"

[grpc]
address = "SOCKET"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "PAUSE"
# A process in a container may not be ranked below its parent here.
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".containerd]
# Works whatever the folder's file system.
snapshotter = "native"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "DIR/cni/bin"
conf_dir = "DIR/cni/net.d"
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: ADDRESS
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: "DIR/controlplane/pki/ca.crt"}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /CGROUP
failCgroupV1: false
containerRuntimeEndpoint: "unix://SOCKET"
enforceNodeAllocatable: []
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
failSwapOn: false
# How soon a changed Secret reaches its mount.
syncFrequency: 20s
`

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: NODE
clientConnection: {kubeconfig: "KUBECONFIG"}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
# The machine's own limit is not ours to change.
conntrack: {maxPerCore: 0, min: 0}
`

// ptp gives each pod a link and a route of its own, as Calico does.
const networkConfig = `{
  "cniVersion": "0.4.0",
  "name": "k8s-pod-network",
  "plugins": [{
    "type": "ptp",
    "ipam": {"type": "calico-ipam", "kubeconfig": "DIR/controlplane/admin.kubeconfig", "node": "NODE",
      "block": "BLOCK", "pool": "POOL", "gateway": "GATEWAY"}
  }]
}
`

// configure writes the components' configuration files.
func configure(l Layout, proxyKubeconfig string) error {
	fill := strings.NewReplacer("DIR", string(l), "SOCKET", l.containerdSocket(), "PAUSE", PauseImage,
		"ADDRESS", address.String(), "CGROUP", l.Cgroup(), "NODE", Name, "KUBECONFIG", proxyKubeconfig, "BLOCK", PodBlock.String(),
		"POOL", pool.String(), "GATEWAY", gateway.String())
	for _, dir := range []string{l.join("cni", "bin"), l.join("cni", "net.d")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make folder of CNI: %w", err)
		}
	}
	for path, text := range map[string]string{
		l.join("containerd.toml"):                  containerdConfig,
		l.join("kubelet.yaml"):                     kubeletConfig,
		l.join("kube-proxy.yaml"):                  proxyConfig,
		l.join("cni", "net.d", "10-pods.conflist"): networkConfig,
	} {
		if err := os.WriteFile(path, []byte(fill.Replace(text)), 0o600); err != nil {
			return fmt.Errorf("configure: %w", err)
		}
	}
	plugins := map[string]string{"calico-ipam": filepath.Join(l.Binaries(), "calico-ipam")}
	for _, name := range preflight.Plugins {
		plugins[name] = preflight.Plugin(name)
	}
	for name, path := range plugins {
		if err := os.Symlink(path, l.join("cni", "bin", name)); err != nil {
			return fmt.Errorf("link CNI plugin: %w", err)
		}
	}
	return nil
}
