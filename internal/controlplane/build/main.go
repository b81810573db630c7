// Command build makes sure that the control plane's binaries are there. Its
// arguments name them; without any, those that the tests and the demo need.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/ipam-guard/ipam-guard/internal/controlplane/assets"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(names []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(names) == 0 {
		names = []string{assets.Etcd, assets.APIServer, assets.ControllerManager}
	}
	paths, err := assets.Ensure(ctx, os.Stderr, names...)
	if err != nil {
		return err
	}
	for _, name := range names {
		fmt.Println(paths[name])
	}
	return nil
}
