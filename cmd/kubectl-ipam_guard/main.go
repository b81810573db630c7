// Command kubectl-ipam_guard is the kubectl plugin: it checks for leaked
// IPAMHandles, explains the verdict on one, sweeps orphans and restores them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/ipam-guard/ipam-guard/internal/version"
)

// gcPercent spends a tenth of a second of CPU on a sixth less of memory: a check
// runs where other things do.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	// A reader that goes away ends the output, not a sweep half-way.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// The first signal ends a sweep between two requests, the second at once.
	context.AfterFunc(ctx, stop)
	err := newCommand(streams).ExecuteContext(ctx)
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		fmt.Fprintln(os.Stderr, "error: "+err.Error())
		os.Exit(exitCode(err))
	}
}

func newCommand(streams genericiooptions.IOStreams) *cobra.Command {
	connection := genericclioptions.NewConfigFlags(true)
	cmd := &cobra.Command{
		Use:           "kubectl-ipam_guard",
		Short:         "Check, explain, sweep and restore Calico IPAMHandles",
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl ipam-guard"},
	}
	connection.AddFlags(cmd.PersistentFlags())
	cmd.SetIn(streams.In)
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.ErrOut)
	cmd.AddCommand(newCheck(connection, streams), newExplain(connection, streams), newRestore(connection, streams),
		newSweep(connection, streams), newUninstall(connection, streams), newStatus(connection, streams))
	return cmd
}
