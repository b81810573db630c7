// Package node is the inside of a real cluster of one node. Its processes live
// in PID, mount and network namespaces of their own: when the first process
// ends so do all others, pods included, and mounts and network go with them.
package node
