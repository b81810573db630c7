// Command cert-manager is one of cert-manager's own programs, in a pod.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/e2e/certmanager"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if len(args) != 1 {
		args = []string{""}
	}
	switch args[0] {
	case "controller":
		return certmanager.Controllers(ctx, "")
	case "cainjector":
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return err
		}
		return certmanager.Injector(ctx, cfg)
	}
	return fmt.Errorf("usage: %s controller|cainjector", os.Args[0])
}
