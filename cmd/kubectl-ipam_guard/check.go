package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/util/jsonpath"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/ipam-guard/ipam-guard/internal/access"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/check"
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
	var output string
	var fail []string
	grace := verdict.DefaultGrace
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Count leaked handles and what else disagrees; changes nothing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, word := range fail {
				if !slices.Contains(failOn, word) {
					return fmt.Errorf("--fail-on=%s: name one or more of %s", word, strings.Join(failOn, ", "))
				}
			}
			write, err := writer(output)
			if err != nil {
				return err
			}
			var names []string
			var each func(verdict.Evidence, verdict.Verdict)
			if output == "name" {
				each = func(e verdict.Evidence, v verdict.Verdict) {
					if v.Outcome == verdict.Orphaned {
						names = append(names, e.Handle.Name)
					}
				}
			}
			cfg, api, err := cluster(cmd.Context(), connection, access.Reading)
			if err != nil {
				return err
			}
			report, err := check.Run(cmd.Context(), cfg, api, clock.RealClock{}, grace, each)
			if err != nil {
				return err
			}
			if output == "name" {
				err = printNames(streams.Out, api, names)
			} else {
				err = write(streams.Out, report)
			}
			if err != nil {
				return err
			}
			return found(report, fail)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, wide, json, yaml, html, name (of each orphan), or jsonpath=TEMPLATE")
	cmd.Flags().StringSliceVar(&fail, "fail-on", nil, "exit with code 2 when any of these is found: "+strings.Join(failOn, ", "))
	cmd.Flags().DurationVar(&grace, "grace", grace, "how long a handle must be unchanged to count as an orphan")
	return cmd
}

// printNames prints orphans as kubectl names objects.
func printNames(out io.Writer, api calico.API, names []string) error {
	slices.Sort(names)
	w := bufio.NewWriter(out)
	for _, name := range names {
		fmt.Fprintf(w, "ipamhandle.%s/%s\n", api.Group, name)
	}
	return w.Flush()
}

func writer(output string) (func(io.Writer, *check.Report) error, error) {
	if template, ok := strings.CutPrefix(output, "jsonpath="); ok {
		return jsonPath(template)
	}
	switch output {
	case "name":
		return nil, nil
	case "table":
		return func(w io.Writer, r *check.Report) error { return r.Print(w, false) }, nil
	case "wide":
		return func(w io.Writer, r *check.Report) error { return r.Print(w, true) }, nil
	case "html":
		return func(w io.Writer, r *check.Report) error { return r.HTML(w) }, nil
	case "json":
		return func(w io.Writer, r *check.Report) error {
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			return enc.Encode(r)
		}, nil
	case "yaml":
		return func(w io.Writer, r *check.Report) error {
			data, err := yaml.Marshal(r)
			if err != nil {
				return err
			}
			_, err = w.Write(data)
			return err
		}, nil
	default:
		return nil, fmt.Errorf("-o %s: name one of table, wide, json, yaml, html, name, jsonpath=TEMPLATE", output)
	}
}

// jsonPath prints what a template takes from the report's JSON.
func jsonPath(template string) (func(io.Writer, *check.Report) error, error) {
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return nil, fmt.Errorf("-o jsonpath: %w", err)
	}
	return func(w io.Writer, r *check.Report) error {
		data, err := json.Marshal(r)
		if err != nil {
			return err
		}
		var object any
		if err := json.Unmarshal(data, &object); err != nil {
			return err
		}
		return path.Execute(w, object)
	}, nil
}

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
