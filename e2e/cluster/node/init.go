//go:build linux

package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// Init is what the first process in the namespaces does: it prepares mounts,
// starts the node as its child, and reaps whatever is orphaned until the child
// ends. When it returns, the kernel kills all that is left.
func Init(dir string) error {
	if err := mounts(Layout(dir)); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	child := exec.Command(self, dir)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.ExtraFiles = []*os.File{os.NewFile(Listener, "listener")}
	if err := child.Start(); err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	go func() {
		for s := range signals {
			_ = child.Process.Signal(s)
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for processes: %w", err)
		case pid == child.Process.Pid && status.ExitStatus() != 0:
			return fmt.Errorf("the node ended with status %d", status.ExitStatus())
		case pid == child.Process.Pid:
			return nil
		}
	}
}

// mounts keep from the machine what components write to fixed places.
func mounts(l Layout) error {
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		// No mount made here shows outside, but all do to those inside.
		{"", "/", "", syscall.MS_REC | syscall.MS_PRIVATE},
		{"", "/", "", syscall.MS_REC | syscall.MS_SHARED},
		{"proc", "/proc", "proc", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC},
		{"tmpfs", "/run", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV},
		{l.Logs(), "/var/log", "", syscall.MS_BIND},
		{l.join("lib"), "/var/lib", "", syscall.MS_BIND},
	} {
		if err := syscall.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}
