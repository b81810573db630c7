package controlplane

import "syscall"

// childAttributes make the kernel kill the child when its parent dies, and
// keep a terminal's Ctrl-C for the parent alone, who stops children in order.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
