package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/audit"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/check"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
	"github.com/ipam-guard/ipam-guard/internal/status"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// limited are the flags that make a command act as a service account that may
// do what rules say.
func limited(t *testing.T, cp *controlplane.ControlPlane, name string, rules ...rbacv1.PolicyRule) []string {
	t.Helper()
	ctx := t.Context()
	core, err := kubernetes.NewForConfig(cp.Config())
	if err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := core.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cfg, err := cp.UserConfig(ctx, "default", name)
	if err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	if _, err := core.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: name}},
	}
	if _, err := core.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, cfg.CAData, 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--kubeconfig=" + os.DevNull, "--server=" + cfg.Host, "--certificate-authority=" + ca, "--token=" + cfg.BearerToken}
}

func TestTheLifeOfASweepOnARealAPIServer(t *testing.T) {
	spec := refcluster.Default(time.Now()).Resize(600, 0.5)
	cp := controlplane.ForTest(t, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error { return refcluster.Load(ctx, etcd, spec) },
	})
	api := calico.API{GroupVersion: calico.GroupCRD}
	if err := controlplane.InstallCRDs(t.Context(), cp.Config(), api); err != nil {
		t.Fatal(err)
	}
	connect := "--kubeconfig=" + cp.Kubeconfig()
	server, err := effect.NewAPI(cp.Config(), api)
	if err != nil {
		t.Fatal(err)
	}
	handles := func() []calico.IPAMHandle {
		page, _, err := server.ListHandles(t.Context(), 0, "")
		if err != nil {
			t.Fatal(err)
		}
		return page
	}

	t.Run("a dry run changes nothing", func(t *testing.T) {
		out, err := run(t, connect, "sweep")
		if err != nil || !strings.Contains(out, "Would delete 300 handles; nothing was changed.") || len(handles()) != 600 {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("a selector narrows what is swept", func(t *testing.T) {
		none, err := run(t, connect, "sweep", "-l", "reason=ServiceGone")
		if err != nil || !strings.Contains(none, "Would delete 0 handles") {
			t.Errorf("got %q, %v", none, err)
		}
		if _, err := run(t, connect, "sweep", "-l", "colour=red"); err == nil {
			t.Error("an unknown key is taken for a selector")
		}
	})
	t.Run("--node and --pool narrow what is swept", func(t *testing.T) {
		report, err := check.Run(t.Context(), cp.Config(), api, clock.RealClock{}, verdict.DefaultGrace, nil)
		if err != nil {
			t.Fatal(err)
		}
		wouldSweep := func(flag string) int {
			t.Helper()
			out, err := run(t, connect, "sweep", flag, "-o", "jsonpath={.wouldSweep}")
			n, bad := strconv.Atoi(out)
			if err != nil || bad != nil {
				t.Fatalf("%s: got %q, %v", flag, out, err)
			}
			return n
		}
		total := 0
		for _, n := range report.OrphansByNode {
			total += n.Handles
			if n.Name == "unknown" {
				continue // Their blocks are gone, and with them the affinity.
			}
			if got := wouldSweep("--node=" + n.Name); got != n.Handles {
				t.Errorf("of node %s %d would be swept, want %d", n.Name, got, n.Handles)
			}
		}
		if total != 300 || len(report.OrphansByNode) < 2 {
			t.Errorf("orphans by node: %v", report.OrphansByNode)
		}
		for _, p := range report.OrphansByPool {
			if got := wouldSweep("--pool=" + p.Name); got != p.Handles || got == 0 {
				t.Errorf("of pool %s %d would be swept, want %d", p.Name, got, p.Handles)
			}
		}
		if got := wouldSweep("--node=no-such-node"); got != 0 {
			t.Errorf("of a node that left nothing %d would be swept", got)
		}
		if _, err := run(t, connect, "sweep", "--pool=no-such-pool"); err == nil || !strings.Contains(err.Error(), "no-such-pool") {
			t.Errorf("a pool that does not exist: got %v", err)
		}
	})
	t.Run("a grace below Calico's deadline is refused", func(t *testing.T) {
		if _, err := run(t, connect, "sweep", "--grace=10s"); err == nil {
			t.Error("accepted")
		}
	})
	t.Run("who may only read is told the rule that is missing", func(t *testing.T) {
		read := []string{"get", "list", "watch"}
		reader := limited(t, cp, "reader",
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "nodes", "services"}, Verbs: read},
			rbacv1.PolicyRule{APIGroups: []string{api.Group}, Resources: []string{"ipamhandles", "ipamblocks", "ippools", "clusterinformations"}, Verbs: read},
		)
		if out, err := run(t, append(reader, "check")...); err != nil {
			t.Errorf("check: %v, %s", err, out)
		}
		if out, err := run(t, append(reader, "sweep")...); err != nil {
			t.Errorf("dry run: %v, %s", err, out)
		}
		_, err := run(t, append(reader, "sweep", "--yes", "--audit-file="+filepath.Join(t.TempDir(), "a"))...)
		if err == nil || !strings.Contains(err.Error(), `resources: ["ipamhandles"], verbs: [delete, patch]`) {
			t.Errorf("got %v", err)
		}
		out, err := run(t, append(reader, "status")...)
		if err != nil || !strings.Contains(out, `resources: ["deployments"], verbs: [get]`) {
			t.Errorf("status: %v, %s", err, out)
		}
	})

	t.Run("a locked datastore stops a sweep", func(t *testing.T) {
		client, err := api.NewRESTClient(cp.Config())
		if err != nil {
			t.Fatal(err)
		}
		ready := func(value string) {
			t.Helper()
			if err := client.Patch(types.MergePatchType).Resource(api.ClusterInformations().Resource).Name("default").
				Body([]byte(`{"spec":{"datastoreReady":` + value + `}}`)).Do(t.Context()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		ready("false")
		defer ready("true")
		_, err = run(t, connect, "sweep", "--yes", "--audit-file="+filepath.Join(t.TempDir(), "a"))
		if err == nil || !strings.Contains(err.Error(), "DatastoreLocked") || len(handles()) != 600 {
			t.Errorf("got %v", err)
		}
	})

	file := filepath.Join(t.TempDir(), "swept.jsonl")
	t.Run("--yes deletes the orphans alone, at most as many as --max says", func(t *testing.T) {
		out, err := run(t, connect, "sweep", "--yes", "--rate=0", "--max=100", "--audit-file="+file)
		if err != nil || !strings.Contains(out, "Deleted 100 handles") || len(handles()) != 500 {
			t.Fatalf("got %q, %v", out, err)
		}
		if out, err = run(t, connect, "sweep", "--yes", "--rate=0", "--audit-file="+file); err != nil || !strings.Contains(out, "Deleted 200 handles") {
			t.Fatalf("got %q, %v", out, err)
		}
		live := map[string]bool{}
		for h := range spec.LiveHandles() {
			live[h.Name] = true
		}
		left := handles()
		if len(left) != len(live) {
			t.Errorf("%d handles are left, want %d", len(left), len(live))
		}
		for _, h := range left {
			if !live[h.Name] {
				t.Errorf("%s is left", h.Name)
			}
		}
	})
	t.Run("restore brings all of them back", func(t *testing.T) {
		out, err := run(t, connect, "restore", "-f", file, "--rate=0", "--audit-file="+file+".restored")
		if err != nil || !strings.HasPrefix(out, "restored 300 handles") || len(handles()) != 600 {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("uninstall takes stamps and finalizers off, and changes nothing before --yes", func(t *testing.T) {
		marked := handles()[:5]
		stamp := ownership.NewStamp(calico.ParseHandleID(marked[0].Name)).Encode()
		for _, h := range marked {
			h.Finalizers = []string{ownership.Finalizer}
			h.Annotations = map[string]string{ownership.StampAnnotation: stamp}
			if _, err := server.UpdateHandle(t.Context(), &h); err != nil {
				t.Fatal(err)
			}
		}
		count := func() (n int) {
			for _, h := range handles() {
				if isMarked(&h) {
					n++
				}
			}
			return n
		}
		out, err := run(t, connect, "uninstall")
		if err != nil || !strings.Contains(out, "off 5 of 600 handles; nothing was changed") || count() != 5 {
			t.Errorf("got %q, %v", out, err)
		}
		record := filepath.Join(t.TempDir(), "stripped.jsonl")
		out, err = run(t, connect, "uninstall", "--yes", "--audit-file="+record)
		if err != nil || !strings.Contains(out, "off 5 handles; 0 are left") || !strings.Contains(out, "kubectl delete -k") || count() != 0 {
			t.Errorf("got %q, %v", out, err)
		}
		if actions := actionsIn(t, record); !slices.Equal(actions, slices.Repeat([]audit.Action{audit.Strip}, 5)) {
			t.Errorf("recorded are %v", actions)
		}
	})
	t.Run("status tells what the manager wrote", func(t *testing.T) {
		core, err := kubernetes.NewForConfig(cp.Config())
		if err != nil {
			t.Fatal(err)
		}
		told := status.Status{
			Updated: time.Now(), Version: "v9", Sweep: "on", Guard: "enforce",
			Paused: []status.Pause{{Reason: "DatastoreLocked", Message: "it is locked", Since: time.Now().Add(-time.Hour)}},
		}
		if err := status.Write(t.Context(), core.CoreV1().ConfigMaps("default"), told); err != nil {
			t.Fatal(err)
		}
		out, err := run(t, connect, "--namespace=default", "status")
		for _, want := range []string{"down, 0 of 0", "v9", "sweep on, guard enforce", "DatastoreLocked since 1 h 0 min: it is locked"} {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("no %q in %q, %v", want, out, err)
			}
		}
	})
}

func TestSelection(t *testing.T) {
	now := time.Now()
	e := verdict.Evidence{
		ID:  calico.ParseHandleID("vxlan-tunnel-addr-a"),
		Now: now, Handle: verdict.Handle{LastWrite: now.Add(-time.Hour)},
	}
	v := verdict.Verdict{Outcome: verdict.Orphaned, Reason: ownership.NodeGone}
	for name, tc := range map[string]struct {
		selector string
		s        selection
		want     bool
	}{
		"takes all without terms":       {"", selection{}, true},
		"takes a reason that matches":   {"reason=NodeGone,kind=Node", selection{}, true},
		"leaves another reason":         {"reason=PodGone", selection{}, false},
		"leaves what a term negates":    {"reason!=NodeGone", selection{}, false},
		"takes a node by the handle ID": {"", selection{node: "a"}, true},
		"leaves another node":           {"", selection{node: "b"}, false},
		"leaves a handle too young":     {"", selection{olderThan: 2 * time.Hour}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			if tc.s.matches, err = parseSelector(tc.selector); err != nil {
				t.Fatal(err)
			}
			if got := tc.s.selects(e, v); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
