package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"github.com/go-logr/logr"

	"github.com/ipam-guard/ipam-guard/internal/access"
	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/pace"
)

func newRestore(connection *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var file string
	var dryRun bool
	var rate float64
	var record auditFile
	cmd := &cobra.Command{
		Use:   "restore -f FILE",
		Short: "Bring swept handles back from the manager's audit file or log",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			swept, err := sweptIn(file, streams.In)
			if err != nil {
				return err
			}
			cfg, api, err := cluster(cmd.Context(), connection, func(api calico.API, _ schema.GroupVersion) []access.Permission { return access.Restoring(api) })
			if err != nil {
				return err
			}
			handles, err := effect.NewAPI(cfg, api)
			if err != nil {
				return err
			}
			c := clock.RealClock{}
			limit, err := pace.New(rate, c)
			if err != nil {
				return err
			}
			log := audit.ToLogger(logr.Discard())
			if !dryRun {
				restored, err := record.open(c)
				if err != nil {
					return err
				}
				defer restored.Close()
				log = restored
			}
			effector := effect.New(effect.Options{
				API: handles, Evidence: inventory.New(c), Audit: log, Pace: limit, Clock: c, DryRun: dryRun,
			})
			counts := map[effect.Outcome]int{}
			for _, h := range swept {
				r, err := effector.Restore(cmd.Context(), h)
				if err != nil {
					return err
				}
				counts[r.Outcome]++
				if r.Outcome == effect.Kept {
					fmt.Fprintf(streams.ErrOut, "%s exists now and is left as it is\n", h.Name)
				}
			}
			if dryRun {
				_, err = fmt.Fprintf(streams.Out, "would restore %d handles; %d exist now\n", counts[effect.WouldDo], counts[effect.Kept])
				return err
			}
			_, err = fmt.Fprintf(streams.Out, "restored %d handles; %d exist now and were left\n", counts[effect.Done], counts[effect.Kept])
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "audit file or log of the manager; - for standard input")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be restored, change nothing")
	cmd.Flags().Float64Var(&rate, "rate", 100, "most handles a second; 0 for no limit")
	record.addFlag(cmd.Flags(), "each handle that was brought back")
	if err := cmd.MarkFlagRequired("filename"); err != nil {
		panic(err) // The flag stands above.
	}
	return cmd
}

// sweptIn are the handles that the records say were deleted, in order. A record
// that takes a sweep back counts for its object alone.
func sweptIn(file string, stdin io.Reader) ([]*calico.IPAMHandle, error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	var order []types.UID
	swept := map[types.UID]*calico.IPAMHandle{}
	err := audit.Read(in, func(r audit.Record) error {
		switch r.Action {
		case audit.Sweep:
			if swept[r.Handle.UID] == nil {
				order = append(order, r.Handle.UID)
			}
			swept[r.Handle.UID] = r.Handle
		case audit.Kept:
			delete(swept, r.Handle.UID)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var handles []*calico.IPAMHandle
	for _, uid := range order {
		if h := swept[uid]; h != nil {
			handles = append(handles, h)
			delete(swept, uid)
		}
	}
	if len(handles) == 0 {
		return nil, errors.New("the records name no swept handle")
	}
	return handles, nil
}
