package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// output is the -o flag of a command: formats of its own, and kubectl's for its
// answer as an object.
type output struct {
	own   []string
	flags *genericclioptions.PrintFlags
}

// newOutput adds the flags to cmd; the first format of its own is the default.
func newOutput(cmd *cobra.Command, own ...string) *output {
	o := &output{own: own, flags: genericclioptions.NewPrintFlags("").WithDefaultOutput(own[0])}
	o.flags.NamePrintFlags = nil // What has a name prints it itself.
	o.flags.JSONYamlPrintFlags.AddFlags(cmd)
	o.flags.TemplatePrinterFlags.AddFlags(cmd)
	// Reports have no managed fields.
	if err := cmd.Flags().MarkHidden("show-managed-fields"); err != nil {
		panic(err) // The flag stands above.
	}
	cmd.Flags().StringVarP(o.flags.OutputFormat, "output", "o", own[0], "Output format. One of: ("+strings.Join(o.formats(), ", ")+").")
	o.flags.OutputFlagSpecified = func() bool { return cmd.Flag("output").Changed }
	completeWith(cmd, "output", o.formats()...)
	return o
}

func (o *output) formats() []string {
	return append(slices.Clone(o.own), o.flags.AllowedFormats()...)
}

// format is one of the command's own formats, or "" for one of kubectl's.
func (o *output) format() string {
	if template := o.flags.TemplatePrinterFlags.TemplateArgument; *template != "" && !o.flags.OutputFlagSpecified() {
		return ""
	}
	if slices.Contains(o.own, *o.flags.OutputFormat) {
		return *o.flags.OutputFormat
	}
	return ""
}

// printer is kubectl's, nil for a format of the command's own.
func (o *output) printer() (printers.ResourcePrinter, error) {
	if o.format() != "" {
		return nil, nil
	}
	p, err := o.flags.ToPrinter()
	switch {
	case genericclioptions.IsNoCompatiblePrinterError(err):
		return nil, fmt.Errorf("-o %s: name one of %s", *o.flags.OutputFormat, strings.Join(o.formats(), ", "))
	case err != nil:
		return nil, fmt.Errorf("-o %s: %w", *o.flags.OutputFormat, err)
	}
	return p, nil
}

// printObject prints what JSON makes of v, which has an apiVersion and a kind.
func printObject(p printers.ResourcePrinter, w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(data); err != nil {
		return err
	}
	return p.PrintObj(object, w)
}
