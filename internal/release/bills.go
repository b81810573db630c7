package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// allowed are the licences that a release may be made of.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0", "Zlib", "Unlicense", "CC0-1.0", "0BSD"}

// readByHand are licences that the detection does not recognise.
var readByHand = map[string]string{
	"github.com/cenkalti/backoff/v5": "MIT",
	"std":                            "BSD-3-Clause", // Go's own library.
}

// bills write a bill of material for each command, in CycloneDX's form, with
// the licence of each module.
func (r *release) bills(ctx context.Context) error {
	for _, name := range []string{manager, pluginName} {
		i := slices.IndexFunc(r.platforms, func(p platform) bool { return name != manager || p.manager() })
		if i < 0 {
			continue
		}
		if err := r.bill(ctx, r.platforms[i], name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (r *release) bill(ctx context.Context, p platform, name string) error {
	file := filepath.Join(r.work, name+".cdx.json")
	cmd := exec.CommandContext(ctx, filepath.Join(r.root, "bin", "tools", "cyclonedx-gomod"),
		"app", "-json", "-licenses", "-std", "-noserial", "-notimestamp", "-main", "cmd/"+name, "-output", file, r.root)
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS="+p.os, "GOARCH="+p.arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := checkLicences(data); err != nil {
		return err
	}
	return r.write(name+".cdx.json", data)
}

// licence is one that a bill of material names.
type licence struct {
	License struct {
		ID string `json:"id"`
	} `json:"license"`
}

// checkLicences says which modules have a licence that is not allowed, or none
// that could be told.
func checkLicences(bill []byte) error {
	var parsed struct {
		Components []struct {
			Name     string    `json:"name"`
			Licenses []licence `json:"licenses"`
			Evidence struct {
				Licenses []licence `json:"licenses"`
			} `json:"evidence"`
		} `json:"components"`
	}
	if err := json.Unmarshal(bill, &parsed); err != nil {
		return fmt.Errorf("read the bill: %w", err)
	}
	if len(parsed.Components) == 0 {
		return errors.New("the bill names no module")
	}
	var bad []error
	for _, c := range parsed.Components {
		licences := append(c.Licenses, c.Evidence.Licenses...)
		if len(licences) == 0 && readByHand[c.Name] == "" {
			bad = append(bad, fmt.Errorf("%s: its licence cannot be told", c.Name))
		}
		for _, l := range licences {
			if !slices.Contains(allowed, l.License.ID) {
				bad = append(bad, fmt.Errorf("%s: licence %q is not allowed", c.Name, l.License.ID))
			}
		}
	}
	return errors.Join(bad...)
}
