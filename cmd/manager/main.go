// Command manager sweeps leaked IPAMHandles and serves IPAM Guard's admission
// webhooks.
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/ipam-guard/ipam-guard/internal/manager"
)

// gcPercent keeps the heap within half as much again as is alive: what is alive
// are caches, which change little and are costly to hold twice.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if err := manager.Command().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "ipam-guard: "+err.Error())
		os.Exit(1)
	}
}
