package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/access"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/check"
	"github.com/ipam-guard/ipam-guard/internal/terminal"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// failOn are the findings that --fail-on knows.
var failOn = []string{"orphaned", "missing", "skewed", "stuck", "leaked", "unallocated", "invalid"}

// errFound is a finding that --fail-on names.
var errFound = errors.New("found")

// exitCode is 2 for a finding that --fail-on names, and 1 for any other error.
func exitCode(err error) int {
	if errors.Is(err, errFound) {
		return 2
	}
	return 1
}

func newCheck(connection *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var fail []string
	grace := verdict.DefaultGrace
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Count leaked handles and what else disagrees; changes nothing",
		Example: `  # As calicoctl ipam check, and the verdicts
  kubectl ipam-guard check
  # One page to send around
  kubectl ipam-guard check -o html > report.html
  # For scripts: exit code 2 when anything leaks
  kubectl ipam-guard check --fail-on=orphaned,missing -o jsonpath='{.problems}'`,
		Args: cobra.NoArgs,
	}
	out := newOutput(cmd, "table", "wide", "html", "name")
	cmd.Flags().StringSliceVar(&fail, "fail-on", nil, "exit with code 2 when any of these is found: "+strings.Join(failOn, ", "))
	cmd.Flags().DurationVar(&grace, "grace", grace, "how long a handle must be unchanged to count as an orphan")
	completeWith(cmd, "fail-on", failOn...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, word := range fail {
			if !slices.Contains(failOn, word) {
				return fmt.Errorf("--fail-on=%s: name one or more of %s", word, strings.Join(failOn, ", "))
			}
		}
		printer, err := out.printer()
		if err != nil {
			return err
		}
		cfg, api, err := cluster(cmd.Context(), connection, access.Reading)
		if err != nil {
			return err
		}
		var names []string
		var each func(verdict.Evidence, verdict.Verdict)
		if out.format() == "name" {
			each = func(e verdict.Evidence, v verdict.Verdict) {
				if v.Outcome == verdict.Orphaned {
					names = append(names, e.Handle.Name)
				}
			}
		}
		report, err := check.Run(cmd.Context(), cfg, api, clock.RealClock{}, grace, each)
		if err != nil {
			return err
		}
		switch format := out.format(); format {
		case "name":
			err = printNames(streams.Out, api, names)
		case "html":
			err = report.HTML(streams.Out)
		case "":
			err = printObject(printer, streams.Out, report)
		default:
			err = report.Print(streams.Out, terminal.For(streams.Out, os.Getenv), format == "wide")
		}
		if err != nil {
			return err
		}
		return found(report, fail)
	}
	return cmd
}

// printNames prints orphans as kubectl names objects.
func printNames(out io.Writer, api calico.API, names []string) error {
	slices.Sort(names)
	w := bufio.NewWriter(out)
	for _, name := range names {
		fmt.Fprintln(w, resourceName(api, name))
	}
	return w.Flush()
}

// resourceName is a handle as kubectl -o name spells it.
func resourceName(api calico.API, name string) string { return "ipamhandle." + api.Group + "/" + name }

func found(r *check.Report, fail []string) error {
	counts := map[string]int{
		"orphaned": r.Orphans(), "missing": r.HandlesMissing, "skewed": r.HandlesSkewed, "stuck": r.HandlesMarkedDeleted,
		"leaked": len(r.AllocatedNotInUse), "unallocated": len(r.InUseNotAllocated), "invalid": r.BlocksInvalid,
	}
	for _, word := range fail {
		if counts[word] > 0 {
			return fmt.Errorf("%w %d %s at %s", errFound, counts[word], word, r.Time.Format(time.RFC3339))
		}
	}
	return nil
}
