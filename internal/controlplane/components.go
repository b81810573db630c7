package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
)

// quota is the most that etcd accepts: a million handles fit.
const quota = 8 << 30

func newEtcd(c *ControlPlane, path string, peerPort uint16, flags []string) *Component {
	peer := fmt.Sprintf("http://127.0.0.1:%d", peerPort)
	return newComponent("etcd", path, filepath.Join(c.dir, "etcd.log"), probe(http.DefaultTransport, c.etcdURL+"/readyz"),
		append([]string{
			"--data-dir=" + filepath.Join(c.dir, "etcd"),
			"--listen-client-urls=" + c.etcdURL,
			"--advertise-client-urls=" + c.etcdURL,
			"--listen-peer-urls=" + peer,
			"--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=default=" + peer,
			"--unsafe-no-fsync",
			fmt.Sprintf("--quota-backend-bytes=%d", quota),
			"--log-level=warn",
		}, flags...))
}

func newAPIServer(c *ControlPlane, path string, listen netip.AddrPort, o Options) (*Component, error) {
	args := []string{
		"--etcd-servers=" + c.etcdURL,
		"--bind-address=" + listen.Addr().String(),
		fmt.Sprintf("--secure-port=%d", listen.Port()),
		"--tls-cert-file=" + c.pki.file("apiserver.crt"),
		"--tls-private-key-file=" + c.pki.file("apiserver.key"),
		"--client-ca-file=" + c.pki.file("ca.crt"),
		"--kubelet-client-certificate=" + c.pki.file("kubelet-client.crt"),
		"--kubelet-client-key=" + c.pki.file("kubelet-client.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.pki.file("sa.key"),
		"--service-account-signing-key-file=" + c.pki.file("sa.key"),
		"--authorization-mode=RBAC",
		"--service-cluster-ip-range=" + c.serviceCIDR.String(),
		"--advertise-address=" + listen.Addr().String(),
		"--allow-privileged",
	}
	if listen.Addr().IsLoopback() {
		// An Endpoints object may not hold a loopback address.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	if !o.ControllerManager {
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	transport, err := rest.TransportFor(c.config)
	if err != nil {
		return nil, fmt.Errorf("probe the API server: %w", err)
	}
	return newComponent("kube-apiserver", path, filepath.Join(c.dir, "kube-apiserver.log"),
		probe(transport, c.config.Host+"/readyz"), append(args, o.APIServerFlags...)), nil
}

func newControllerManager(c *ControlPlane, path, server string, port uint16, flags []string) (*Component, error) {
	cfg, err := c.pki.clientConfig(server, "system:kube-controller-manager")
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(c.dir, "controller-manager.kubeconfig")
	if err := WriteKubeconfig(kubeconfig, cfg); err != nil {
		return nil, err
	}
	certs := filepath.Join(c.dir, "controller-manager")
	// It makes its own serving certificate; this asks for health alone.
	ready := probe(&http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		fmt.Sprintf("https://127.0.0.1:%d/healthz", port))
	return newComponent("kube-controller-manager", path, filepath.Join(c.dir, "kube-controller-manager.log"), ready,
		append([]string{
			"--kubeconfig=" + kubeconfig,
			"--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", port),
			"--cert-dir=" + certs,
			"--leader-elect=false",
			"--use-service-account-credentials",
			"--service-account-private-key-file=" + c.pki.file("sa.key"),
			"--root-ca-file=" + c.pki.file("ca.crt"),
			"--cluster-signing-cert-file=" + c.pki.file("ca.crt"),
			"--cluster-signing-key-file=" + c.pki.file("ca.key"),
		}, flags...)), nil
}

func probe(transport http.RoundTripper, url string) func(context.Context) error {
	client := &http.Client{Transport: transport, Timeout: 2 * time.Second}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s: %s", url, resp.Status, body)
		}
		return nil
	}
}
