package controlplane_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ipam-guard/ipam-guard/internal/controlplane"
)

func client(t *testing.T, cfg *rest.Config) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestControlPlane(t *testing.T) {
	var preloaded string
	begin := time.Now()
	cp := controlplane.ForTest(t, controlplane.Options{
		ControllerManager: true,
		BeforeAPIServer: func(_ context.Context, etcd string) error {
			resp, err := http.Get(etcd + "/version")
			if err != nil {
				return err
			}
			preloaded = etcd
			return resp.Body.Close()
		},
	})
	t.Logf("ready in %s", time.Since(begin))
	admin := client(t, cp.Config())
	ctx := t.Context()

	t.Run("calls the hook when etcd serves and the API server does not", func(t *testing.T) {
		if preloaded != cp.EtcdEndpoint() {
			t.Errorf("hook got %q, want %q", preloaded, cp.EtcdEndpoint())
		}
	})

	t.Run("reports the version that it was built from", func(t *testing.T) {
		v, err := admin.Discovery().ServerVersion()
		if err != nil {
			t.Fatal(err)
		}
		if v.Major != "1" || v.Minor == "" || v.GitVersion[:3] != "v1." {
			t.Errorf("version = %+v", v)
		}
	})

	t.Run("makes default ServiceAccounts", func(t *testing.T) {
		eventually(t, func() error {
			_, err := admin.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
			return err
		})
	})

	t.Run("gives ClusterIPs that a process can bind", func(t *testing.T) {
		svc, err := admin.CoreV1().Services("default").Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "x"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		listenOn(t, svc.Spec.ClusterIP)
	})

	t.Run("lets a ServiceAccount do what RBAC says and no more", func(t *testing.T) {
		eventually(t, func() error {
			_, err := cp.UserConfig(ctx, "default", "default")
			return err
		})
		cfg, err := cp.UserConfig(ctx, "default", "default")
		if err != nil {
			t.Fatal(err)
		}
		review, err := client(t, cfg).CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("listing secrets = %v, %v; want forbidden", review, err)
		}
	})

	t.Run("writes a kubeconfig of the admin", func(t *testing.T) {
		cfg, err := clientcmd.BuildConfigFromFlags("", cp.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client(t, cfg).CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})

	t.Run("keeps port, certificates and data over a kill of the API server", func(t *testing.T) {
		old := cp.APIServer.PID()
		if err := cp.APIServer.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Discovery().ServerVersion(); err == nil {
			t.Error("a killed API server answers")
		}
		if err := cp.APIServer.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if pid := cp.APIServer.PID(); pid == old || pid == 0 {
			t.Errorf("PID after restart = %d, before %d", pid, old)
		}
		if _, err := admin.CoreV1().Services("default").Get(ctx, "x", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})

	t.Run("keeps data over a kill of etcd", func(t *testing.T) {
		if err := cp.Etcd.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cp.Etcd.Start(ctx); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			_, err := admin.CoreV1().Services("default").Get(ctx, "x", metav1.GetOptions{ResourceVersion: ""})
			return err
		})
	})

	t.Run("runs beside another one", func(t *testing.T) {
		other := controlplane.ForTest(t, controlplane.Options{})
		if other.ServiceCIDR().Overlaps(cp.ServiceCIDR()) {
			t.Errorf("service ranges overlap: %s, %s", other.ServiceCIDR(), cp.ServiceCIDR())
		}
		if _, err := client(t, other.Config()).CoreV1().Services("default").Get(ctx, "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the other control plane knows this one's Service: %v", err)
		}
	})
}

func TestStopRemovesTheFolder(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	cp, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := cp.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(cp.Kubeconfig()); !os.IsNotExist(err) {
		t.Errorf("after Stop: %v, want not found", err)
	}
	if pid := cp.APIServer.PID(); pid != 0 {
		t.Errorf("API server still runs as %d", pid)
	}
}

// childEnv makes this test binary start a control plane and wait.
const childEnv = "IPAM_GUARD_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	cp, err := controlplane.Start(context.Background(), controlplane.Options{Dir: os.Getenv(childEnv)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(cp.Etcd.PID(), cp.APIServer.PID())
	select {}
}

func TestNothingOutlivesAKilledParent(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a parent death signal")
	}
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), childEnv+"="+t.TempDir())
	parent.Stderr = t.Output()
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pids [2]int
	if _, err := fmt.Fscan(out, &pids[0], &pids[1]); err != nil {
		t.Fatal(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // It was killed: that is its error.
	for _, pid := range pids {
		eventually(t, func() error {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("process %d after its parent was killed: %w", pid, err)
			}
			return nil
		})
	}
}

func TestStartFailureShowsTheLog(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	dir := t.TempDir()
	_, err := controlplane.Start(t.Context(), controlplane.Options{Dir: dir, APIServerFlags: []string{"--no-such-flag"}})
	if err == nil {
		t.Fatal("started with a flag that does not exist")
	}
	if want := "no-such-flag"; !strings.Contains(err.Error(), want) {
		t.Errorf("error = %v, want it to hold %q", err, want)
	}
	if want := "logs are kept in " + dir; !strings.Contains(err.Error(), want) {
		t.Errorf("error = %v, want it to hold %q", err, want)
	}
}
