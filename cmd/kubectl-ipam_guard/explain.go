package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/access"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

func newExplain(connection *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	grace := verdict.DefaultGrace
	cmd := &cobra.Command{
		Use:   "explain HANDLE...",
		Short: "Say what the evidence on a handle is, and the verdict",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			cfg, api, err := cluster(cmd.Context(), connection, access.Reading)
			if err != nil {
				return err
			}
			handles, err := effect.NewAPI(cfg, api)
			if err != nil {
				return err
			}
			// The handles first, then what they are judged by.
			var read []*calico.IPAMHandle
			for _, id := range ids {
				h, err := handles.GetHandle(cmd.Context(), calico.HandleName(id))
				if err != nil {
					return fmt.Errorf("read handle %s: %w", id, err)
				}
				read = append(read, h)
			}
			c := clock.RealClock{}
			inv := inventory.New(c)
			if err := feed.Once(cmd.Context(), cfg, api, inv, feed.Visitor{}); err != nil {
				return err
			}
			for _, h := range read {
				e := inv.EvidenceFor(h, c.Now(), grace)
				if _, err := fmt.Fprintf(streams.Out, "%s\n  %s\n", h.Name, verdict.Explain(e, verdict.Judge(e))); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", grace, "how long a handle must be unchanged to count as an orphan")
	return cmd
}
