package reference_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/ipam-guard/ipam-guard/internal/controlplane/assets"
	"github.com/ipam-guard/ipam-guard/internal/reference"
)

var update = flag.Bool("update", false, "write the pages rather than compare them")

func root(t *testing.T) string {
	t.Helper()
	dir, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{root(t)}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestPagesSayWhatTheCodeSays(t *testing.T) {
	for page, generate := range map[string]func() (string, error){
		"metrics.md": reference.MetricsPage, "configuration.md": reference.ConfigurationPage,
	} {
		t.Run(page, func(t *testing.T) {
			want, err := generate()
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(filepath.Join(root(t), "docs", page), []byte(want), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if read(t, "docs", page) != want {
				t.Errorf("docs/%s has drifted from the code: run make docs", page)
			}
		})
	}
}

var ours = regexp.MustCompile(`ipam_guard_[a-z_]+`)

// exists tells whether a series of this name comes from one of the metrics.
func exists(all []reference.Metric, series string) bool {
	return slices.ContainsFunc(all, func(m reference.Metric) bool {
		return series == m.Name || m.Type == "histogram" && slices.Contains([]string{m.Name + "_bucket", m.Name + "_sum", m.Name + "_count"}, series)
	})
}

func TestDashboardAndAlertsNameMetricsThatExist(t *testing.T) {
	all, err := reference.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 15 {
		t.Fatalf("only %d metrics are known", len(all))
	}
	for _, file := range []string{"config/grafana/ipam-guard.json", "config/prometheus/rules.yaml", "docs/runbook.md"} {
		named := ours.FindAllString(read(t, file), -1)
		if len(named) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range named {
			if !exists(all, name) {
				t.Errorf("%s names %s, which does not exist", file, name)
			}
		}
	}
}

func TestTheDashboardShowsEveryMetricOfThePage(t *testing.T) {
	var dashboard struct {
		UID    string `json:"uid"`
		Panels []struct {
			ID      int    `json:"id"`
			Title   string `json:"title"`
			Type    string `json:"type"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	text := read(t, "config", "grafana", "ipam-guard.json")
	if err := json.Unmarshal([]byte(text), &dashboard); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] || p.Title == "" || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d %q: its ID is used twice, or it has no title or no target", p.ID, p.Title)
		}
		ids[p.ID] = true
	}
	all, err := reference.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if !strings.Contains(text, m.Name) {
			t.Errorf("no panel shows %s", m.Name)
		}
	}
}

func TestEveryAlertHasARunbook(t *testing.T) {
	var rules struct {
		Spec struct {
			Groups []struct {
				Rules []struct {
					Alert       string            `json:"alert"`
					Expr        string            `json:"expr"`
					For         string            `json:"for"`
					Labels      map[string]string `json:"labels"`
					Annotations map[string]string `json:"annotations"`
				} `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "config", "prometheus", "rules.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	runbook := read(t, "docs", "runbook.md")
	alerts := 0
	for _, g := range rules.Spec.Groups {
		for _, r := range g.Rules {
			alerts++
			if !strings.Contains(runbook, "\n## "+r.Alert+"\n") {
				t.Errorf("docs/runbook.md has no section %s", r.Alert)
			}
			if want := "/docs/runbook.md#" + strings.ToLower(r.Alert); !strings.HasSuffix(r.Annotations["runbook_url"], want) {
				t.Errorf("%s: its runbook is %s, want …%s", r.Alert, r.Annotations["runbook_url"], want)
			}
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s lacks severity, summary or description", r.Alert)
			}
		}
	}
	if n := strings.Count(runbook, "\n## "); n != alerts || n < 6 {
		t.Errorf("the runbook has %d sections for %d alerts", n, alerts)
	}
}
