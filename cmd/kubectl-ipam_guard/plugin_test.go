package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/check"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

// run runs the plugin and returns what it printed.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	cmd := newCommand(streams)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestThePluginOnARealAPIServer(t *testing.T) {
	spec := refcluster.Default(time.Now()).Resize(60, 0.5)
	cp := controlplane.ForTest(t, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error { return refcluster.Load(ctx, etcd, spec) },
	})
	api := calico.API{GroupVersion: calico.GroupCRD}
	if err := controlplane.InstallCRDs(t.Context(), cp.Config(), api); err != nil {
		t.Fatal(err)
	}
	connect := "--kubeconfig=" + cp.Kubeconfig()

	t.Run("check counts as JSON", func(t *testing.T) {
		out, err := run(t, connect, "check", "-o", "json")
		if err != nil {
			t.Fatal(err)
		}
		var r check.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		if r.Kind != check.Kind || r.HandlesWithoutMatches != 30 || r.HandlesWithMatches != 30 {
			t.Errorf("got %s", out)
		}
	})
	t.Run("check exits with 2 for what it shall fail on", func(t *testing.T) {
		if _, err := run(t, connect, "check", "--fail-on=missing"); err != nil {
			t.Errorf("nothing is missing, yet: %v", err)
		}
		if _, err := run(t, connect, "check", "--fail-on=missing,orphaned"); !errors.Is(err, errFound) || exitCode(err) != 2 {
			t.Errorf("got %v", err)
		}
		if _, err := run(t, connect, "check", "--fail-on=everything"); err == nil || exitCode(err) != 1 {
			t.Errorf("got %v", err)
		}
	})

	var swept *calico.IPAMHandle
	for h := range spec.OrphanHandles() {
		if !h.Spec.Deleted {
			swept = h
		}
	}
	t.Run("explain tells the verdict", func(t *testing.T) {
		out, err := run(t, connect, "explain", swept.Spec.HandleID)
		if err != nil || !strings.Contains(out, "Orphaned/") || !strings.Contains(out, "no block references it") {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("answers come in kubectl's formats", func(t *testing.T) {
		names, err := run(t, connect, "check", "-o", "name")
		if err != nil || strings.Count(names, "ipamhandle.crd.projectcalico.org/") != 30 {
			t.Fatalf("check -o name: got %q, %v", names, err)
		}
		first, _, _ := strings.Cut(names, "\n")
		for _, tc := range []struct {
			args []string
			want string
		}{
			{[]string{"check", "-o", "jsonpath={.kind} {.problems}"}, "CheckReport 30"},
			{[]string{"check", "-o", "go-template={{.problems}}"}, "30"},
			{[]string{"check", "--template={{.problems}}"}, "30"},
			{[]string{"check", "-o", "yaml"}, "\nproblems: 30\n"},
			{[]string{"explain", first, "-o", "jsonpath={.answers[0].handles[0].outcome}"}, "Orphaned"},
			{[]string{"explain", first, "-o", "json"}, `"kind": "Explanation"`},
			{[]string{"sweep", "-o", "jsonpath={.kind} {.dryRun} {.wouldSweep} {.swept}"}, "SweepReport true 30 0"},
			{[]string{"sweep", "-o", "wide"}, "\twould-do\tOrphaned/"},
			{[]string{"status", "-o", "yaml"}, "kind: ManagerStatus\n"},
		} {
			out, err := run(t, append(tc.args, connect)...)
			if err != nil || !strings.Contains(out, tc.want) {
				t.Errorf("%q: got %q, %v, want %q", tc.args, out, err, tc.want)
			}
		}
		if swept, err := run(t, connect, "sweep", "-o", "name"); err != nil || sorted(swept) != sorted(names) {
			t.Errorf("sweep -o name: got %q, %v, want %q", swept, err, names)
		}
		for _, command := range []string{"check", "explain x", "sweep", "status"} {
			_, err := run(t, append(strings.Fields(command), connect, "-o", "colour")...)
			if err == nil || !strings.Contains(err.Error(), "name one of table") || !strings.Contains(err.Error(), "jsonpath") {
				t.Errorf("%s -o colour: got %v", command, err)
			}
		}
	})
	t.Run("restore brings a swept handle back, and leaves one that exists", func(t *testing.T) {
		server, err := effect.NewAPI(cp.Config(), api)
		if err != nil {
			t.Fatal(err)
		}
		h, err := server.GetHandle(t.Context(), swept.Name)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "audit.jsonl")
		log, err := audit.OpenFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(log.Write(audit.Record{Action: audit.Sweep, Handle: h}), log.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := server.DeleteHandle(t.Context(), h.Name, h.UID, h.ResourceVersion); err != nil {
			t.Fatal(err)
		}
		restored := filepath.Join(t.TempDir(), "restored.jsonl")
		for _, tc := range []struct{ args, want string }{
			{"--dry-run", "would restore 1 handles; 0 exist now\n"},
			{"--rate=0", "restored 1 handles; 0 exist now and were left\n"},
			{"--rate=0", "restored 0 handles; 1 exist now and were left\n"},
		} {
			if out, err := run(t, connect, "restore", "-f", file, "--audit-file="+restored, tc.args); err != nil || out != tc.want {
				t.Errorf("%s: got %q, %v, want %q", tc.args, out, err, tc.want)
			}
		}
		back, err := server.GetHandle(t.Context(), h.Name)
		if err != nil || back.Spec.HandleID != h.Spec.HandleID || len(back.Spec.Block) != len(h.Spec.Block) {
			t.Errorf("it is back as %+v, %v", back, err)
		}
		if actions := actionsIn(t, restored); !slices.Equal(actions, []audit.Action{audit.Restore}) {
			t.Errorf("recorded are %v", actions)
		}
	})
}

func actionsIn(t *testing.T, file string) (actions []audit.Action) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := audit.Read(f, func(r audit.Record) error {
		actions = append(actions, r.Action)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return actions
}

func sorted(lines string) string {
	list := strings.Split(lines, "\n")
	slices.Sort(list)
	return strings.Join(list, "\n")
}

func TestRestoreTakesASweepBackThatDidNotHappen(t *testing.T) {
	h := func(uid string) string {
		return `{"metadata":{"name":"a","uid":"` + uid + `"},"spec":{"handleID":"a","block":{}}}`
	}
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	lines := []string{
		`{"action":"sweep","handle":` + h("1") + `}`,
		`{"action":"sweep","handle":` + h("2") + `}`,
		`{"action":"kept","handle":` + h("1") + `}`,
	}
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := sweptIn(file, nil)
	if err != nil || len(got) != 1 || got[0].UID != "2" {
		t.Errorf("got %v, %v", got, err)
	}
}
