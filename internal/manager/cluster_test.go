package manager_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/controlplane/assets"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

var (
	older = calico.API{GroupVersion: calico.GroupCRD}
	newer = calico.API{GroupVersion: calico.GroupV3}
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func build(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	path, err := assets.Command(t.Context(), t.Output(), "manager")
	must(t, err)
	return path
}

// sweepOnly are the flags of a manager without admission and metrics.
func sweepOnly(kubeconfig, health string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--webhook=false", "--guard=off",
		"--metrics-bind-address=0", "--health-probe-bind-address=" + health, "--interval=1s",
	}
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	return l.Addr().String()
}

func TestTheManagerSaysInOneLineWhyItCannotGoOn(t *testing.T) {
	manager := build(t)
	cp := controlplane.ForTest(t, controlplane.Options{})
	refused := func(t *testing.T, kubeconfig, want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var stdout, stderr strings.Builder
		cmd := exec.CommandContext(ctx, manager, append(sweepOnly(kubeconfig, "0"), "--log-level=error")...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		var exit *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("ended with %v, want exit code 1", err)
		}
		if line := strings.TrimSpace(stderr.String()); strings.Contains(line, "\n") || !strings.Contains(line, want) {
			t.Errorf("said %q, want one line with %q", line, want)
		}
	}
	kubeconfigOf := func(t *testing.T, cfg *rest.Config) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "kubeconfig")
		must(t, controlplane.WriteKubeconfig(path, cfg))
		return path
	}

	t.Run("no kubeconfig", func(t *testing.T) {
		refused(t, filepath.Join(t.TempDir(), "none"), "no such file")
	})
	t.Run("no API server", func(t *testing.T) {
		cfg := rest.CopyConfig(cp.Config())
		cfg.Host = "https://" + freeAddress(t)
		refused(t, kubeconfigOf(t, cfg), "connection refused")
	})
	t.Run("no Calico", func(t *testing.T) {
		refused(t, cp.Kubeconfig(), "no IPAMHandle definition")
	})
	t.Run("no permissions", func(t *testing.T) {
		must(t, controlplane.InstallCRDs(t.Context(), cp.Config(), older))
		clients, err := kubernetes.NewForConfig(cp.Config())
		must(t, err)
		_, err = clients.CoreV1().ServiceAccounts("default").Create(t.Context(),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "nobody"}}, metav1.CreateOptions{})
		must(t, err)
		cfg, err := cp.UserConfig(t.Context(), "default", "nobody")
		must(t, err)
		refused(t, kubeconfigOf(t, cfg), `resources: ["ipamhandles"], verbs: [get, list, watch]`)
	})
}

func TestBothGroupsPauseTheSweepUntilOneIsCertain(t *testing.T) {
	manager := build(t)
	spec := refcluster.Default(time.Now()).Resize(200, 0.5)
	cp := controlplane.ForTest(t, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error { return refcluster.Load(ctx, etcd, spec) },
	})
	for _, api := range []calico.API{older, newer} {
		must(t, controlplane.InstallCRDs(t.Context(), cp.Config(), api))
	}
	process := start(t, cp, manager)
	time.Sleep(5 * time.Second)
	if process.Ended() != nil {
		t.Fatalf("the manager ended:\n%s", process.LogTail())
	}
	if got := handlesOf(t, cp.Config()); len(got) != spec.Handles() {
		t.Errorf("%d handles are left of %d although the group is not certain", len(got), spec.Handles())
	}
	if log := process.LogTail(); !strings.Contains(log, "both groups are defined") {
		t.Errorf("the log does not say that both groups are defined:\n%s", log)
	}

	// Calico's migration ends: the older group's blocks go.
	client, err := older.NewRESTClient(cp.Config())
	must(t, err)
	must(t, client.Delete().Resource("ipamblocks").Do(t.Context()).Error())
	cleared := func() bool {
		log, err := os.ReadFile(process.LogFile())
		must(t, err)
		return strings.Contains(string(log), "GroupUncertain") && strings.Contains(string(log), "sweeping may go on")
	}
	for end := time.Now().Add(time.Minute); !cleared(); time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("the pause did not clear by itself:\n%s", process.LogTail())
		}
	}
}

func start(t testing.TB, cp *controlplane.ControlPlane, path string, extra ...string) *controlplane.Component {
	t.Helper()
	health := freeAddress(t)
	process := controlplane.NewComponent("manager", path, filepath.Join(t.TempDir(), "manager.log"),
		"http://"+health+"/readyz", append(sweepOnly(cp.Kubeconfig(), health), extra...)...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, process.Start(ctx))
	t.Cleanup(func() {
		if process.Ended() == nil {
			if err := process.Stop(); err != nil {
				t.Errorf("stop the manager: %v", err)
			}
		}
	})
	return process
}

func handlesOf(t *testing.T, cfg *rest.Config) map[string]string {
	t.Helper()
	server, err := effect.NewAPI(cfg, older)
	must(t, err)
	handles := map[string]string{}
	cont := ""
	for {
		page, next, err := server.ListHandles(t.Context(), 1000, cont)
		must(t, err)
		for _, h := range page {
			handles[h.Name] = fmt.Sprint(h.UID, "/", h.ResourceVersion)
		}
		if cont = next; cont == "" {
			return handles
		}
	}
}

// TestAKilledManagerDoesNoHarm kills the manager at moments of its work. What
// it left goes on, and no live handle is touched.
func TestAKilledManagerDoesNoHarm(t *testing.T) {
	manager := build(t)
	spec := refcluster.Default(time.Now()).Resize(2500, 0.8)
	cp := controlplane.ForTest(t, controlplane.Options{
		BeforeAPIServer: func(ctx context.Context, etcd string) error { return refcluster.Load(ctx, etcd, spec) },
	})
	must(t, controlplane.InstallCRDs(t.Context(), cp.Config(), older))
	before := handlesOf(t, cp.Config())

	for n := range 4 {
		process := start(t, cp, manager, "--rate=200")
		time.Sleep(time.Duration(n) * 700 * time.Millisecond)
		must(t, process.Kill())
	}
	midway := len(handlesOf(t, cp.Config()))
	if midway == len(before) || midway == spec.Live() {
		t.Logf("killed at no moment of a sweep: %d handles of %d are left", midway, len(before))
	}
	process := start(t, cp, manager, "--rate=0")
	for end := time.Now().Add(time.Minute); len(handlesOf(t, cp.Config())) > spec.Live() && time.Now().Before(end); {
		time.Sleep(time.Second)
	}
	must(t, process.Stop())
	if ended := process.Ended(); !errors.Is(ended, controlplane.ErrExitZero) {
		t.Errorf("the manager's end is %v:\n%s", ended, process.LogTail())
	}

	after := handlesOf(t, cp.Config())
	for h := range spec.LiveHandles() {
		if after[h.Name] != before[h.Name] {
			t.Errorf("live handle %s was %s and is %s", h.Name, before[h.Name], after[h.Name])
		}
	}
	if len(after) != spec.Live() {
		t.Errorf("%d handles are left, want the %d that live", len(after), spec.Live())
	}
}
