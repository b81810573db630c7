//go:build linux

// Command node is the first process in a node's namespaces, and starts all
// that makes the node. Package cluster runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/ipam-guard/ipam-guard/e2e/cluster/node"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: %s FOLDER", os.Args[0])
	}
	dir := os.Args[1]
	if os.Getpid() == 1 {
		return node.Init(dir)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return node.Run(ctx, dir)
}
