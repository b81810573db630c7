package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/ipam-guard/ipam-guard/e2e/certmanager"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/calicoproto"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/controlplane/assets"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/refcluster"
)

// What the installation calls its things.
const (
	namespace  = "ipam-guard-system"
	account    = "ipam-guard-manager"
	webhook    = "ipam-guard-webhook"
	secret     = "ipam-guard-webhook-cert"
	fieldOwner = "kubectl"
)

var (
	v4 = netip.MustParsePrefix("10.250.0.0/26")
	v6 = netip.MustParsePrefix("fd00:250::/122")
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited %s for %s", within, what)
}

// installation is a control plane on which IPAM Guard is installed as its
// users install it, but for the pods: its managers are processes here, each
// with the ServiceAccount's own token.
type installation struct {
	api     calico.API
	cp      *controlplane.ControlPlane
	cfg     *rest.Config
	clients *kubernetes.Clientset
	dynamic dynamic.Interface
	mapper  meta.RESTMapper
	cni     *calicoproto.Client
	handles effect.API
	binary  string
	dir     string
	audit   string
	certs   string
	service *service
	// apiServer, if set, is the managers' way to the API server.
	apiServer *forwarder
	manifest  []*unstructured.Unstructured
	// without is how many writes a handle's life takes without IPAM Guard.
	without int
	// leaked are unstamped handles that were left to be swept.
	leaked []string
	// scraper may read the managers' metrics.
	scraper *http.Client
}

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

func install(t *testing.T, api calico.API) *installation {
	t.Helper()
	binary, err := assets.Command(t.Context(), t.Output(), "manager")
	must(t, err)
	i := &installation{api: api, binary: binary, dir: t.TempDir()}
	i.audit = filepath.Join(i.dir, "audit.log")
	policy := filepath.Join(i.dir, "audit-policy.yaml")
	must(t, os.WriteFile(policy, []byte(auditPolicy), 0o600))
	spec := refcluster.Default(time.Now()).Resize(60, 0.5)
	spec.API = api
	i.cp = controlplane.ForTest(t, controlplane.Options{
		ControllerManager: true,
		APIServerFlags:    []string{"--audit-policy-file=" + policy, "--audit-log-path=" + i.audit},
		BeforeAPIServer: func(ctx context.Context, etcd string) error {
			return refcluster.Load(ctx, etcd, spec)
		},
	})
	i.cfg = i.cp.Config()
	i.clients, err = kubernetes.NewForConfig(i.cfg)
	must(t, err)
	i.dynamic, err = dynamic.NewForConfig(i.cfg)
	must(t, err)
	d, err := discovery.NewDiscoveryClientForConfig(i.cfg)
	must(t, err)
	cached := memory.NewMemCacheClient(d)
	i.mapper = restmapper.NewDeferredDiscoveryRESTMapper(cached)
	must(t, controlplane.InstallCRDs(t.Context(), i.cfg, api))
	i.cni, err = calicoproto.New(i.cfg, api)
	must(t, err)
	i.handles, err = effect.NewAPI(i.cfg, api)
	must(t, err)
	for _, cidr := range []netip.Prefix{v4, v6} {
		must(t, i.cni.EnsureBlock(t.Context(), cidr, "node-a"))
	}
	i.without = i.writesOfALife(t)
	i.runCertManager(t)
	i.manifest = build(t, "default")
	i.readme(t, "install")
	i.scraper = i.client(t, scraper)
	i.bindScraper(t)
	i.certs = filepath.Join(i.dir, "certs")
	i.followSecret(t)
	i.service = serve(t, i.clusterIP(t))
	eventually(t, time.Minute, "the CA injector", func() bool { return i.trusted(t) })
	return i
}

// root is the repository's.
func root(t testing.TB) string {
	t.Helper()
	dir, err := assets.Root()
	must(t, err)
	return dir
}

// build is a part of config, as kustomize builds it.
func build(t testing.TB, part string) []*unstructured.Unstructured {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root(t), "bin", "tools", "kustomize"), "build", "config/"+part)
	cmd.Dir = root(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kustomize build %s: %v\n%s", part, err, stderr.String())
	}
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// runCertManager runs cert-manager's controllers until the test ends.
func (i *installation) runCertManager(t *testing.T) {
	t.Helper()
	definitions, err := certmanager.Definitions(t.Context())
	must(t, err)
	definitionClient := i.dynamic.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	})
	for _, d := range definitions {
		o, err := toUnstructured(d)
		must(t, err)
		_, err = definitionClient.Apply(t.Context(), d.Name, o, metav1.ApplyOptions{FieldManager: fieldOwner, Force: true})
		must(t, err)
	}
	for _, d := range definitions {
		eventually(t, 20*time.Second, d.Name, func() bool {
			_, err := i.mapper.RESTMapping(schema.GroupKind{Group: d.Spec.Group, Kind: d.Spec.Names.Kind})
			if err != nil {
				meta.MaybeResetRESTMapper(i.mapper)
			}
			return err == nil
		})
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := certmanager.Run(ctx, i.cp.Kubeconfig(), i.cfg); err != nil && ctx.Err() == nil {
			t.Errorf("cert-manager: %v", err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

// followSecret stands in for kubelet: it mounts the issued Secret as files and
// swaps a symlink when that changes.
func (i *installation) followSecret(t *testing.T) {
	t.Helper()
	must(t, os.MkdirAll(i.certs, 0o700))
	seen := ""
	update := func(ctx context.Context) bool {
		s, err := i.clients.CoreV1().Secrets(namespace).Get(ctx, secret, metav1.GetOptions{})
		if err != nil || len(s.Data["tls.crt"]) == 0 || s.ResourceVersion == seen {
			return err == nil && seen != ""
		}
		seen = s.ResourceVersion
		version := filepath.Join(i.certs, "..data-"+seen)
		if err := mount(i.certs, version, s.Data); err != nil {
			t.Errorf("mount the certificate: %v", err)
		}
		return true
	}
	eventually(t, time.Minute, "the certificate", func() bool { return update(t.Context()) })
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			update(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

// mount writes files into version and points the folder's ..data at it.
func mount(dir, version string, files map[string][]byte) error {
	if err := os.Mkdir(version, 0o700); err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(version, name), data, 0o600); err != nil {
			return err
		}
		link := filepath.Join(dir, name)
		if _, err := os.Lstat(link); errors.Is(err, os.ErrNotExist) {
			if err := os.Symlink(filepath.Join("..data", name), link); err != nil {
				return err
			}
		}
	}
	next := filepath.Join(dir, "..data-next")
	if err := os.Symlink(filepath.Base(version), next); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(dir, "..data"))
}

// trusted tells whether both webhook configurations trust the certificate's
// authority.
func (i *installation) trusted(t testing.TB) bool {
	t.Helper()
	s, err := i.clients.CoreV1().Secrets(namespace).Get(t.Context(), secret, metav1.GetOptions{})
	must(t, err)
	m, err := i.clients.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "ipam-guard", metav1.GetOptions{})
	must(t, err)
	v, err := i.clients.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "ipam-guard", metav1.GetOptions{})
	must(t, err)
	authority := s.Data["ca.crt"]
	return bytes.Equal(m.Webhooks[0].ClientConfig.CABundle, authority) && bytes.Equal(v.Webhooks[0].ClientConfig.CABundle, authority)
}

func (i *installation) clusterIP(t testing.TB) string {
	t.Helper()
	s, err := i.clients.CoreV1().Services(namespace).Get(t.Context(), webhook, metav1.GetOptions{})
	must(t, err)
	return s.Spec.ClusterIP
}

// service stands in for kube-proxy: it binds the Service's address and passes
// connections on to managers that are ready.
type service struct {
	mu       sync.Mutex
	backends []string
	next     int
	open     map[net.Conn]struct{}
	// hanging accepts connections and answers nothing.
	hanging bool
}

func serve(t *testing.T, clusterIP string) *service {
	t.Helper()
	return serveOn(t, net.JoinHostPort(clusterIP, "443")).service
}

// forwarder passes connections on to one address.
type forwarder struct {
	*service
	address string
}

func forwardTo(t *testing.T, backend string) *forwarder {
	t.Helper()
	f := serveOn(t, "127.0.0.1:0")
	f.set(backend)
	return f
}

// cut cuts all connections; new ones are passed on.
func (f *forwarder) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.open {
		_ = conn.Close()
	}
}

func serveOn(t *testing.T, address string) *forwarder {
	t.Helper()
	l, err := net.Listen("tcp", address)
	must(t, err)
	s := &service{open: map[net.Conn]struct{}{}}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { s.forward(ctx, conn) })
		}
	})
	t.Cleanup(func() {
		stop()
		_ = l.Close()
		running.Wait()
	})
	return &forwarder{s, l.Addr().String()}
}

// set makes the backends the only ones, and cuts what is connected to others.
func (s *service) set(backends ...string) { s.change(false, backends) }

// hang keeps the backends but lets no connection come to an answer.
func (s *service) hang(backends ...string) { s.change(true, backends) }

func (s *service) change(hanging bool, backends []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hanging, s.backends = hanging, backends
	for conn := range s.open {
		_ = conn.Close()
	}
}

// enter tells whether a new connection shall hang.
func (s *service) enter(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[conn] = struct{}{}
	return s.hanging
}

func (s *service) leave(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, conn)
	_ = conn.Close()
}

func (s *service) pick() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	var order []string
	for n := range s.backends {
		order = append(order, s.backends[(s.next+n)%len(s.backends)])
	}
	return order
}

func (s *service) forward(ctx context.Context, conn net.Conn) {
	ended := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer ended()
	hang := s.enter(conn)
	defer s.leave(conn)
	if hang {
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	for _, backend := range s.pick() {
		// As a Service does, this leaves out what does not answer.
		up, err := net.DialTimeout("tcp", backend, time.Second)
		if err != nil {
			continue
		}
		defer up.Close()
		done := make(chan struct{}, 2)
		for _, way := range [][2]net.Conn{{up, conn}, {conn, up}} {
			go func() {
				_, _ = io.Copy(way[0], way[1])
				done <- struct{}{}
			}()
		}
		<-done
		return
	}
}

// replica is one manager.
type replica struct {
	*controlplane.Component
	webhook, metrics string
	scraper          *http.Client
}

// start starts one manager as the shipped ServiceAccount.
func (i *installation) start(t testing.TB, name string, extra ...string) *replica {
	t.Helper()
	cfg, err := i.cp.UserConfig(t.Context(), namespace, account)
	must(t, err)
	if i.apiServer != nil {
		cfg.Host = "https://" + i.apiServer.address
	}
	kubeconfig := filepath.Join(i.dir, name+".kubeconfig")
	must(t, controlplane.WriteKubeconfig(kubeconfig, cfg))
	addresses := make([]string, 3)
	for n := range addresses {
		addresses[n] = freeAddress(t)
	}
	_, port, err := net.SplitHostPort(addresses[0])
	must(t, err)
	r := &replica{webhook: addresses[0], metrics: "https://" + addresses[1] + "/metrics", scraper: i.scraper}
	r.Component = controlplane.NewComponent("manager "+name, i.binary, filepath.Join(i.dir, name+".log"), "http://"+addresses[2]+"/readyz",
		append([]string{
			"--config=" + filepath.Join(root(t), "config", "manager", "config.yaml"),
			"--kubeconfig=" + kubeconfig,
			"--webhook-host=127.0.0.1", "--webhook-port=" + port, "--webhook-cert-dir=" + i.certs,
			"--metrics-bind-address=" + addresses[1],
			"--health-probe-bind-address=" + addresses[2],
			"--leader-election-namespace=" + namespace,
			"--interval=1s", "--grace=2m", "--webhook-linger=0s",
		}, extra...)...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.Start(ctx); err != nil {
		t.Fatalf("%v\n%s", err, r.LogTail())
	}
	t.Cleanup(func() {
		if r.Ended() == nil {
			_ = r.Stop()
		}
		if t.Failed() {
			t.Logf("end of the log of manager %s:\n%s", name, r.LogTail())
		}
	})
	return r
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	return l.Addr().String()
}

// metric sums the samples of a metric whose labels contain all of with.
func (r *replica) metric(t testing.TB, name string, with ...string) float64 {
	t.Helper()
	code, body := get(t, r.scraper, r.metrics)
	if code != http.StatusOK {
		t.Fatalf("the metrics endpoint answers %d: %s", code, body)
	}
	sum := 0.0
lines:
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		for _, label := range with {
			if !strings.Contains(line, label) {
				continue lines
			}
		}
		fields := strings.Fields(line)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		must(t, err)
		sum += value
	}
	return sum
}

var ids atomic.Int64

// newID is the handle ID of a sandbox that there was not before.
func newID() string { return fmt.Sprintf("k8s-pod-network.%064x", 0xe2e0000+ids.Add(1)) }

func (i *installation) handle(t testing.TB, id string) *calico.IPAMHandle {
	t.Helper()
	h, err := i.handles.GetHandle(t.Context(), calico.HandleName(id))
	must(t, err)
	return h
}

func (i *installation) gone(t testing.TB, id string) bool {
	t.Helper()
	_, err := i.handles.GetHandle(t.Context(), calico.HandleName(id))
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err != nil
}

// rawDelete deletes as kubectl does.
func (i *installation) rawDelete(t testing.TB, id string) error {
	t.Helper()
	return i.dynamic.Resource(i.api.Handles()).Delete(t.Context(), calico.HandleName(id), metav1.DeleteOptions{})
}

func (i *installation) assign(t testing.TB, id string, cidr netip.Prefix) netip.Addr {
	t.Helper()
	address, err := i.cni.Assign(t.Context(), id, cidr, map[string]string{"namespace": "shop", "pod": "cart-0", "node": "node-a"})
	must(t, err)
	return address
}

func (i *installation) referenced(t testing.TB, id string, cidr netip.Prefix) bool {
	t.Helper()
	b, err := i.cni.GetBlock(t.Context(), cidr)
	must(t, err)
	return len(b.Spec.OrdinalsOf(calico.HandleName(id))) > 0
}
