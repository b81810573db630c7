// Command demo leaks handles on a real control plane, lets the manager sweep
// them, and checks what came of it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case err == nil, errors.Is(err, pflag.ErrHelp):
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "demo: interrupted")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	d := demo{out: newPrinter(os.Stdout)}
	if err := d.parse(args); err != nil {
		return err
	}
	return d.run(ctx)
}

// parse reads the command line.
func (d *demo) parse(args []string) error {
	d.spec = refcluster.Default(time.Now())
	var (
		handles = d.spec.Handles()
		leaks   = float64(d.spec.Orphans) / float64(handles)
		group   = d.spec.API.Group
	)
	fs := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	fs.IntVar(&handles, "handles", handles, "number of handles")
	fs.Float64Var(&leaks, "leaks", leaks, "share of the handles that leaked, 0 to 1")
	fs.IntVar(&d.spec.Nodes, "nodes", d.spec.Nodes, "number of nodes")
	fs.Uint64Var(&d.spec.Seed, "seed", d.spec.Seed, "makes names, IDs and ages")
	fs.StringVar(&group, "group", group, "Calico's API group: "+calico.GroupCRD.Group+" or "+calico.GroupV3.Group)
	fs.Float64Var(&d.rate, "rate", 1000, "most deletes a second, 0 for no limit but the API server's")
	fs.BoolVar(&d.keep, "keep", false, "keep the control plane running until Ctrl-C")
	fs.SortFlags = false
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch group {
	case calico.GroupCRD.Group:
		d.spec.API = calico.API{GroupVersion: calico.GroupCRD}
	case calico.GroupV3.Group:
		d.spec.API = calico.API{GroupVersion: calico.GroupV3}
	default:
		return fmt.Errorf("--group is %q: set it to %s or %s", group, calico.GroupCRD.Group, calico.GroupV3.Group)
	}
	if leaks < 0 || leaks > 1 {
		return fmt.Errorf("--leaks is %v: set it between 0 and 1", leaks)
	}
	d.spec = d.spec.Resize(handles, leaks)
	return d.spec.Validate()
}
