//go:build linux

// Command cluster keeps a real cluster of one node on this machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/ipam-guard/ipam-guard/e2e/cluster"
	"github.com/ipam-guard/ipam-guard/internal/controlplane/assets"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := assets.Root()
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "bin", "cluster")
	if len(args) == 1 {
		switch args[0] {
		case "up":
			return up(ctx, dir)
		case "down":
			return down(dir)
		}
	}
	return errors.New("usage: cluster up|down")
}

func up(ctx context.Context, dir string) error {
	c, err := cluster.Find(dir)
	if err != nil {
		return err
	}
	if c != nil && c.Running() {
		return tell(c)
	}
	if err := down(dir); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "start the node")
	c, err = cluster.Start(ctx, cluster.Options{Dir: dir, Detach: true, Log: os.Stderr})
	if err != nil {
		return err
	}
	for _, step := range []struct {
		what    string
		install func(context.Context) error
	}{
		{"cert-manager", c.InstallCertManager},
		{"IPAM Guard", c.Install},
	} {
		fmt.Fprintln(os.Stderr, "install", step.what)
		if err := step.install(ctx); err != nil {
			return fmt.Errorf("%w\nthe cluster is up all the same: export KUBECONFIG=%s", err, c.Kubeconfig())
		}
	}
	return tell(c)
}

func tell(c *cluster.Cluster) error {
	_, err := fmt.Printf("export KUBECONFIG=%s\n", c.Kubeconfig())
	return err
}

// down ends the cluster in dir, if there is one, and removes it.
func down(dir string) error {
	c, err := cluster.Find(dir)
	if err != nil {
		return err
	}
	if c != nil {
		if err := c.Stop(); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}
