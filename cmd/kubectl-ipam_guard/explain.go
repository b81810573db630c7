package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/access"
	"github.com/ipam-guard/ipam-guard/internal/explain"
	"github.com/ipam-guard/ipam-guard/internal/terminal"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

func newExplain(connection *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	grace := verdict.DefaultGrace
	cmd := &cobra.Command{
		Use:   "explain HANDLE|POD|IP|NODE...",
		Short: "Say what the evidence on a handle, pod, IP or node is, and the verdict",
		Example: `  kubectl ipam-guard explain 10.65.3.7
  kubectl ipam-guard explain pod/shop/cart-0 node/worker-3
  kubectl ipam-guard explain k8s-pod-network.78e0…`,
		Args: cobra.MinimumNArgs(1),
	}
	out := newOutput(cmd, "table")
	cmd.Flags().DurationVar(&grace, "grace", grace, "how long a handle must be unchanged to count as an orphan")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		printer, err := out.printer()
		if err != nil {
			return err
		}
		namespace, _, err := connection.ToRawKubeConfigLoader().Namespace()
		if err != nil {
			return fmt.Errorf("no cluster to work on: %w", err)
		}
		subjects := make([]explain.Subject, len(args))
		for i, text := range args {
			if subjects[i], err = explain.ParseSubject(text, namespace); err != nil {
				return err
			}
		}
		cfg, api, err := cluster(cmd.Context(), connection, access.Reading)
		if err != nil {
			return err
		}
		answer, err := explain.Run(cmd.Context(), cfg, api, clock.RealClock{}, grace, subjects)
		if err != nil {
			return err
		}
		if printer != nil {
			return printObject(printer, streams.Out, answer)
		}
		return answer.Print(streams.Out, terminal.For(streams.Out, os.Getenv))
	}
	return cmd
}
