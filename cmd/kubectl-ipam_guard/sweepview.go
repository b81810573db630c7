package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/controllers/sweeper"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/terminal"
)

// sweepReport is what a sweep did, as JSON and YAML spell it.
type sweepReport struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Started    time.Time `json:"started"`
	Ended      time.Time `json:"ended"`
	// DryRun is true when nothing was deleted; then WouldSweep counts what
	// would have been, and Swept is 0.
	DryRun     bool `json:"dryRun"`
	Swept      int  `json:"swept"`
	WouldSweep int  `json:"wouldSweep"`
	// Kept were judged anew and are no orphans; Conflicts were changed by
	// somebody meanwhile; Vanished were gone; Held carry a finalizer of
	// somebody else's and are left.
	Kept      int `json:"kept"`
	Conflicts int `json:"conflicts"`
	Vanished  int `json:"vanished"`
	Held      int `json:"held"`
	Failed    int `json:"failed"`
	// Verdicts count what was or would be swept.
	Verdicts []sweptVerdict `json:"verdicts"`
	// AuditFile holds a record of each deletion, for restore.
	AuditFile string `json:"auditFile,omitempty"`
}

type sweptVerdict struct {
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
	Handles int    `json:"handles"`
}

// sweepView shows a sweep; it is a sweeper.Observer.
type sweepView struct {
	out, errOut io.Writer
	api         calico.API
	format      string
	printer     printers.ResourcePrinter
	colour      terminal.Palette
	progress    *progress

	mu       sync.Mutex
	verdicts map[sweeper.Class]int
	firstErr error
}

func newSweepView(streams genericiooptions.IOStreams, c clock.PassiveClock, api calico.API, format string, printer printers.ResourcePrinter) *sweepView {
	return &sweepView{
		out: streams.Out, errOut: streams.ErrOut, api: api, format: format, printer: printer,
		colour: terminal.For(streams.Out, os.Getenv), verdicts: map[sweeper.Class]int{},
		progress: newProgress(streams.ErrOut, c, "handles"),
	}
}

// Judged implements sweeper.Observer.
func (v *sweepView) Judged(t sweeper.Tally) { v.progress.begin(t.Candidates) }

// Effect implements sweeper.Observer.
func (v *sweepView) Effect(h *calico.IPAMHandle, r effect.Result, err error) {
	v.progress.step()
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		if v.firstErr == nil {
			v.firstErr = err
		}
		return
	}
	swept := r.Outcome == effect.Done || r.Outcome == effect.WouldDo
	if swept {
		v.verdicts[sweeper.Class{Outcome: r.Verdict.Outcome, Reason: r.Verdict.Reason}]++
	}
	switch {
	case v.format == "name" && swept:
		fmt.Fprintln(v.out, resourceName(v.api, h.Name))
	case v.format == "wide":
		fmt.Fprintf(v.out, "%s\t%s\t%s/%s\n", h.Name, r.Outcome, r.Verdict.Outcome, r.Verdict.Reason)
	}
}

// Passed implements sweeper.Observer.
func (v *sweepView) Passed(sweeper.Report) {}

// conclude tells what came of the sweep.
func (v *sweepView) conclude(r sweeper.Report, deleted bool, audited string) error {
	v.progress.end()
	v.mu.Lock()
	defer v.mu.Unlock()
	report := v.report(r, deleted, audited)
	if v.printer != nil {
		return printObject(v.printer, v.out, report)
	}
	out := v.out
	if v.format == "name" {
		out = v.errOut // Names alone go where a pipe reads them.
	}
	return report.print(out, v.colour)
}

func (v *sweepView) report(r sweeper.Report, deleted bool, audited string) *sweepReport {
	report := &sweepReport{
		APIVersion: "ipam-guard.io/v1", Kind: "SweepReport", Started: r.Started, Ended: r.Ended, DryRun: !deleted,
		Swept: r.Swept, WouldSweep: r.WouldSweep, Kept: r.Kept, Conflicts: r.Conflicts, Vanished: r.Vanished, Held: r.Held, Failed: r.Failed,
		Verdicts: []sweptVerdict{}, AuditFile: audited,
	}
	for class, n := range v.verdicts {
		report.Verdicts = append(report.Verdicts, sweptVerdict{class.Outcome.String(), string(class.Reason), n})
	}
	slices.SortFunc(report.Verdicts, func(a, b sweptVerdict) int {
		return cmp.Or(cmp.Compare(b.Handles, a.Handles), cmp.Compare(a.Reason, b.Reason))
	})
	return report
}

func (r *sweepReport) print(out io.Writer, colour terminal.Palette) error {
	for _, v := range r.Verdicts {
		fmt.Fprintf(out, "%8d  %s\n", v.Handles, colour.Outcome(v.Outcome, v.Outcome+"/"+v.Reason))
	}
	if r.DryRun {
		_, err := fmt.Fprintf(out, "Would delete %d handles; nothing was changed. Add --yes to delete them.\n", r.WouldSweep)
		return err
	}
	_, err := fmt.Fprintf(out, "Deleted %d handles in %s; %d kept, %d changed meanwhile, %d gone already, %d held by a finalizer, %d failed.\nUndo with: kubectl ipam-guard restore -f %s\n",
		r.Swept, r.Ended.Sub(r.Started).Round(time.Millisecond), r.Kept, r.Conflicts, r.Vanished, r.Held, r.Failed, r.AuditFile)
	return err
}
