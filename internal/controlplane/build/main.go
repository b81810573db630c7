// Command build makes sure that the control plane's binaries are there. Its
// arguments name them; without any, those that the tests and the demo need. With
// -kubernetes VERSION it builds those of another release and prints their folder.
package main

import (
	"context"
	"flag"
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

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	flags := flag.NewFlagSet("build", flag.ContinueOnError)
	version := flags.String("kubernetes", "", "build the control plane of this release, such as v1.30.14")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *version != "" {
		folder, err := assets.EnsureVersion(ctx, os.Stderr, *version)
		if err == nil {
			fmt.Println(folder)
		}
		return err
	}
	names := flags.Args()
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
