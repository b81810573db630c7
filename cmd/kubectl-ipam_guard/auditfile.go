package main

import (
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/audit"
)

// auditFile is where a command records what it does.
type auditFile struct{ path string }

func (a *auditFile) addFlag(flags *pflag.FlagSet, what string) {
	flags.StringVar(&a.path, "audit-file", "", "where to record "+what+" (default ipam-guard-audit-<time>.jsonl)")
}

// open opens the file, in the current folder unless the user named one.
func (a *auditFile) open(c clock.PassiveClock) (*audit.File, error) {
	if a.path == "" {
		a.path = "ipam-guard-audit-" + c.Now().UTC().Format("20060102T150405Z") + ".jsonl"
	}
	return audit.OpenFile(a.path)
}
