//go:build linux

// Command preflight tells whether this machine can run a real node.
package main

import (
	"fmt"
	"os"

	"github.com/ipam-guard/ipam-guard/e2e/cluster/preflight"
)

func main() {
	if err := preflight.Check(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
