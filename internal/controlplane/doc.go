// Package controlplane runs a real etcd, kube-apiserver and, when asked,
// kube-controller-manager as child processes, for tests, demo and benchmarks.
// Each control plane has its own folder, ports and Service range, so several
// run at once on one machine. On Linux nothing outlives the parent, not even
// when that is killed.
package controlplane
