// Package monitoring tries the alerts and the dashboard on Prometheus's own
// engine. It is a module of its own, for that brings much along.
package monitoring

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"sigs.k8s.io/yaml"
)

func read(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

// alerts are the expressions of config/prometheus, by name.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	var rules struct {
		Spec struct {
			Groups []struct {
				Rules []struct{ Alert, Expr string }
			}
		}
	}
	read(t, "config/prometheus/rules.yaml", &rules)
	all := map[string]string{}
	for _, g := range rules.Spec.Groups {
		for _, r := range g.Rules {
			all[r.Alert] = r.Expr
		}
	}
	return all
}

// TestAlerts loads series of a sample a minute, and asks after ten hours.
func TestAlerts(t *testing.T) {
	all := alerts(t)
	tried := map[string][2]bool{}
	for name, tc := range map[string]struct {
		alert, series string
		fires         bool
	}{
		"is down when nothing is scraped":         {"IPAMGuardDown", `other 1x600`, true},
		"is up while one replica is scraped":      {"IPAMGuardDown", `ipam_guard_sweep_rate 100x600`, false},
		"orphans that grow":                       {"IPAMGuardOrphansGrowing", `ipam_guard_handles{verdict="Orphaned",reason="PodGone"} 0+1x600`, true},
		"orphans that grow, seen by two replicas": {"IPAMGuardOrphansGrowing", "ipam_guard_handles{verdict=\"Orphaned\",reason=\"PodGone\",pod=\"a\"} 0+1x600\nipam_guard_handles{verdict=\"Orphaned\",reason=\"PodGone\",pod=\"b\"} 0+1x600", true},
		"many orphans that shrink":                {"IPAMGuardOrphansGrowing", `ipam_guard_handles{verdict="Orphaned",reason="PodGone"} 30000-10x600`, false},
		"few orphans that grow":                   {"IPAMGuardOrphansGrowing", `ipam_guard_handles{verdict="Orphaned",reason="PodGone"} 0+0.1x600`, false},
		"handles in use that grow":                {"IPAMGuardOrphansGrowing", `ipam_guard_handles{verdict="InUse",reason="Referenced"} 0+10x600`, false},
		"a pause":                                 {"IPAMGuardSweepPaused", `ipam_guard_sweep_paused{reason="DatastoreLocked"} 1x600`, true},
		"no pause":                                {"IPAMGuardSweepPaused", `ipam_guard_sweep_paused{reason="DatastoreLocked"} 0x600`, false},
		"deletes that fail":                       {"IPAMGuardSweepFailing", `ipam_guard_sweep_failures_total 0+1x600`, true},
		"deletes that failed long ago":            {"IPAMGuardSweepFailing", `ipam_guard_sweep_failures_total 500x600`, false},
		"a certificate with three days left":      {"IPAMGuardCertificateNearExpiry", `ipam_guard_certificate_expiry_seconds 259200x600`, true},
		"a certificate that has ended":            {"IPAMGuardCertificateNearExpiry", `ipam_guard_certificate_expiry_seconds -60x600`, true},
		"a certificate with sixty days left":      {"IPAMGuardCertificateNearExpiry", `ipam_guard_certificate_expiry_seconds 5184000x600`, false},
		"a delete that was refused just now":      {"IPAMGuardDeletesDenied", `ipam_guard_deletes_denied_total 0x590 1x10`, true},
		"a delete that was refused hours ago":     {"IPAMGuardDeletesDenied", `ipam_guard_deletes_denied_total 0x100 1x500`, false},
		"a handle that is held":                   {"IPAMGuardFinalizersHeld", `ipam_guard_finalizers_held 2x600`, true},
		"no handle that is held":                  {"IPAMGuardFinalizersHeld", `ipam_guard_finalizers_held 0x600`, false},
		"requests that cannot be decided":         {"IPAMGuardAdmissionErrors", `ipam_guard_admission_requests_total{op="DELETE",outcome="error"} 0+1x600`, true},
		"requests that can":                       {"IPAMGuardAdmissionErrors", `ipam_guard_admission_requests_total{op="CREATE",outcome="stamped"} 0+100x600`, false},
	} {
		t.Run(name, func(t *testing.T) {
			expr, ok := all[tc.alert]
			if !ok {
				t.Fatalf("there is no alert %s", tc.alert)
			}
			storage := promqltest.LoadedStorage(t, "load 1m\n  "+strings.ReplaceAll(tc.series, "\n", "\n  "))
			defer storage.Close()
			engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
			query, err := engine.NewInstantQuery(t.Context(), storage, nil, expr, time.Unix(0, 0).Add(600*time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			defer query.Close()
			result := query.Exec(t.Context())
			if result.Err != nil {
				t.Fatal(result.Err)
			}
			vector, ok := result.Value.(promql.Vector)
			if !ok {
				t.Fatalf("it gives %T", result.Value)
			}
			if fires := len(vector) > 0; fires != tc.fires {
				t.Errorf("it fires: %v, want %v: %v", fires, tc.fires, vector)
			}
			was := tried[tc.alert]
			tried[tc.alert] = [2]bool{was[0] || tc.fires, was[1] || !tc.fires}
		})
	}
	for alert := range all {
		if tried[alert] != [2]bool{true, true} {
			t.Errorf("%s is not tried both ways", alert)
		}
	}
}

func TestTheDashboardsExpressionsParse(t *testing.T) {
	data, err := os.ReadFile("../../config/grafana/ipam-guard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	// What Grafana fills in.
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*")
	exprs := 0
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			exprs++
			if _, err := parser.NewParser(parser.Options{}).ParseExpr(variables.Replace(target.Expr)); err != nil {
				t.Errorf("%s: %v", p.Title, err)
			}
		}
	}
	if exprs < 15 {
		t.Errorf("only %d expressions", exprs)
	}
}
