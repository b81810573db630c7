//go:build !linux

package controlplane

import "syscall"

// childAttributes keep a terminal's Ctrl-C for the parent alone, who stops
// children in order. There is no death signal here: a parent that is killed
// leaves its children running.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
