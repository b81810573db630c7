// Command manager sweeps leaked IPAMHandles and serves IPAM Guard's admission
// webhooks.
package main

import (
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/ipam-guard/ipam-guard/internal/manager"
)

func main() {
	if err := manager.Command().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "ipam-guard: "+err.Error())
		os.Exit(1)
	}
}
