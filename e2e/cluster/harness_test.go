//go:build linux

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/e2e/cluster/node"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/calicoproto"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// What the installation calls its things.
const (
	namespace = "ipam-guard-system"
	manager   = "ipam-guard-manager"
	webhook   = "ipam-guard-webhook"
	secret    = "ipam-guard-webhook-cert"
	selector  = "app.kubernetes.io/component=manager"
)

var (
	api = calico.API{GroupVersion: calico.GroupCRD}
	// block gives addresses to what is no pod.
	block = netip.MustParsePrefix("10.250.2.0/26")
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited %s for %s", within, what)
}

// harness is a cluster with clients for it.
type harness struct {
	*Cluster
	cfg      *rest.Config
	clients  *kubernetes.Clientset
	cni      *calicoproto.Client
	handles  effect.API
	checkout string
}

func start(t *testing.T) *harness {
	t.Helper()
	if os.Getenv("IPAM_GUARD_CLUSTER") == "" {
		t.Skip("needs root and what a node is made of: make e2e-cluster")
	}
	dir, err := os.MkdirTemp("", "ipam-guard-cluster-") //nolint:usetesting // its logs are kept when a test failed
	must(t, err)
	began := time.Now()
	c, err := Start(t.Context(), Options{Dir: dir, Log: t.Output()})
	if err != nil {
		t.Fatalf("%v\nlogs are kept in %s", err, dir)
	}
	t.Logf("the node is ready after %s", time.Since(began).Round(time.Second))
	h := &harness{Cluster: c}
	t.Cleanup(func() { h.end(t) })
	h.cfg, err = c.Config()
	must(t, err)
	h.clients, err = kubernetes.NewForConfig(h.cfg)
	must(t, err)
	h.cni, err = calicoproto.New(h.cfg, api)
	must(t, err)
	h.handles, err = effect.NewAPI(h.cfg, api)
	must(t, err)
	must(t, h.cni.EnsureBlock(t.Context(), block, node.Name))
	h.checkout, err = c.Checkout()
	must(t, err)
	return h
}

// end stops the cluster, and sees that nothing of it is left.
func (h *harness) end(t *testing.T) {
	if t.Failed() {
		for _, args := range [][]string{
			{"get", "pods", "-A", "-o", "wide"},
			{"get", "events", "-A", "--sort-by=.lastTimestamp"},
		} {
			out, err := h.Command(context.Background(), "kubectl", args...).CombinedOutput()
			t.Logf("kubectl %v: %v\n%s", args, err, out)
		}
	}
	if err := h.Stop(); err != nil {
		t.Errorf("stop the cluster: %v", err)
	}
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", "/proc/self/mountinfo"} {
		files, err := filepath.Glob(pattern)
		must(t, err)
		for _, file := range files {
			// Others' processes end while this looks.
			if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), h.Dir()) {
				t.Errorf("the cluster is stopped, but %s mentions its folder", file)
			}
		}
	}
	if !t.Failed() {
		must(t, os.RemoveAll(h.Dir()))
		return
	}
	t.Logf("logs are kept in %s", h.layout.Logs())
	entries, err := os.ReadDir(h.Dir())
	must(t, err)
	for _, e := range entries {
		if path := filepath.Join(h.Dir(), e.Name()); path != h.layout.Logs() {
			must(t, os.RemoveAll(path))
		}
	}
}

func (h *harness) readme(t testing.TB, name string) {
	t.Helper()
	must(t, h.Readme(t.Context(), h.checkout, name))
}

func (h *harness) kubectl(t testing.TB, args ...string) string {
	t.Helper()
	cmd := h.Command(t.Context(), "kubectl", args...)
	cmd.Dir = h.checkout
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func (h *harness) waitAvailable(t testing.TB) {
	t.Helper()
	h.kubectl(t, "-n", namespace, "rollout", "status", "--timeout=4m", "deployment/"+manager)
}

// pods are IPAM Guard's that are not about to go.
func (h *harness) pods(t testing.TB) []corev1.Pod {
	t.Helper()
	list, err := h.clients.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	must(t, err)
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func ready(p corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (h *harness) readyPods(t testing.TB) []corev1.Pod {
	t.Helper()
	return slices.DeleteFunc(h.pods(t), func(p corev1.Pod) bool { return !ready(p) })
}

// client asks endpoints inside as an account of the installation's namespace,
// or as nobody.
func (h *harness) client(t testing.TB, account string) *http.Client {
	t.Helper()
	var transport http.RoundTripper = &http.Transport{
		DialContext:     h.Dial,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // each replica makes the endpoint's certificate itself
	}
	if account != "" {
		token := strings.TrimSpace(h.kubectl(t, "-n", namespace, "create", "token", account))
		var err error
		transport, err = rest.HTTPWrappersForConfig(&rest.Config{BearerToken: token}, transport)
		must(t, err)
	}
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

func get(t testing.TB, client *http.Client, url string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	answer, err := client.Do(request)
	must(t, err)
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, string(data)
}

// served is the certificate that the webhook shows at an address, verified for
// the name by which the API server calls it.
func (h *harness) served(t testing.TB, address string) (*x509.Certificate, error) {
	t.Helper()
	s, err := h.clients.CoreV1().Secrets(namespace).Get(t.Context(), secret, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.Data["ca.crt"]) {
		return nil, errors.New("the Secret has no authority yet")
	}
	raw, err := h.Dial(t.Context(), "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: webhook + "." + namespace + ".svc"})
	defer conn.Close()
	if err := conn.HandshakeContext(t.Context()); err != nil {
		return nil, err
	}
	return conn.ConnectionState().PeerCertificates[0], nil
}

func (h *harness) serviceAddress(t testing.TB) string {
	t.Helper()
	s, err := h.clients.CoreV1().Services(namespace).Get(t.Context(), webhook, metav1.GetOptions{})
	must(t, err)
	return net.JoinHostPort(s.Spec.ClusterIP, "443")
}

var ids atomic.Int64

// newID is the handle ID of a sandbox that there was not before.
func newID() string { return fmt.Sprintf("k8s-pod-network.%064x", 0xe2e0000+ids.Add(1)) }

func (h *harness) handle(t testing.TB, id string) *calico.IPAMHandle {
	t.Helper()
	got, err := h.handles.GetHandle(t.Context(), calico.HandleName(id))
	must(t, err)
	return got
}

func stamped(h *calico.IPAMHandle) bool {
	return h.Annotations[ownership.StampAnnotation] != "" && slices.Contains(h.Finalizers, ownership.Finalizer)
}

// probe makes a handle by Calico's protocol and gives it back. It tells whether
// the handle was stamped, and how long its creation took.
func (h *harness) probe(t testing.TB) (bool, time.Duration) {
	t.Helper()
	id := newID()
	began := time.Now()
	must(t, h.cni.Increment(t.Context(), id, block, 1))
	took := time.Since(began)
	got := stamped(h.handle(t, id))
	must(t, h.cni.Decrement(t.Context(), id, block, 1))
	return got, took
}

// rawDelete deletes a handle as kubectl does.
func (h *harness) rawDelete(t testing.TB, id string, flags ...string) error {
	t.Helper()
	args := append([]string{"delete", "--wait=false", "ipamhandles.crd.projectcalico.org", calico.HandleName(id)}, flags...)
	out, err := h.Command(t.Context(), "kubectl", args...).CombinedOutput()
	if err != nil {
		return errors.New(string(out))
	}
	return nil
}

// idOf is the ID of a pod's handle.
func idOf(p corev1.Pod) string {
	return "k8s-pod-network." + p.Annotations["cni.projectcalico.org/containerID"]
}

func (h *harness) gone(t testing.TB, id string) bool {
	t.Helper()
	_, err := h.handles.GetHandle(t.Context(), calico.HandleName(id))
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err != nil
}
