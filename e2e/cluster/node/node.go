//go:build linux

package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/calicoproto"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/controlplane/assets"
)

// Needs are the control plane's binaries that a node takes.
var Needs = []string{
	assets.Etcd, assets.APIServer, assets.ControllerManager, assets.Scheduler, assets.Proxy, assets.Kubelet,
}

const startTimeout = 5 * time.Minute

// Run starts the cluster, marks it ready, and stops it when ctx ends.
func Run(ctx context.Context, dir string) (err error) {
	// No component may hold the outside's socket open.
	syscall.CloseOnExec(Listener)
	l := Layout(dir)
	if err := link(ctx); err != nil {
		return err
	}
	if err := makeCgroup(l); err != nil {
		return err
	}
	paths, err := assets.Ensure(ctx, os.Stderr, Needs...)
	if err != nil {
		return err
	}
	cp, err := controlplane.Start(ctx, controlplane.Options{
		Dir: l.join("controlplane"), ControllerManager: true,
		Address: address, ServiceCIDR: services,
		APIServerFlags: []string{"--authorization-mode=Node", "--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	if err := prepareCalico(ctx, cp); err != nil {
		return err
	}
	components, err := components(l, cp, paths)
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, c := range components {
		if err := c.Start(starting); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Stop()) }()
		if c == components[0] { // containerd; kubelet wants its pods' image.
			if err := importImages(starting, l); err != nil {
				return err
			}
		}
	}
	if err := waitForNode(starting, cp); err != nil {
		return err
	}
	if err := forwardAPI(ctx, cp.Config().Host[len("https://"):]); err != nil {
		return err
	}
	if err := serveDial(ctx, l.DialSocket()); err != nil {
		return err
	}
	if err := os.WriteFile(l.Ready(), nil, 0o600); err != nil {
		return fmt.Errorf("mark the node ready: %w", err)
	}
	<-ctx.Done()
	return nil
}

// link makes the node's network: an interface that leads nowhere carries its
// address, and the route without which nothing is ever sent to a Service.
func link(ctx context.Context) error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "node0", "type", "bridge"},
		{"addr", "add", netip.PrefixFrom(address, 24).String(), "dev", "node0"},
		{"link", "set", "node0", "up"},
		{"route", "add", services.String(), "dev", "node0"},
	} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	return nil
}

// prepareCalico makes what the CNI plugin needs before there is any pod.
func prepareCalico(ctx context.Context, cp *controlplane.ControlPlane) error {
	api := calico.API{GroupVersion: calico.GroupCRD}
	if err := controlplane.InstallCRDs(ctx, cp.Config(), api); err != nil {
		return err
	}
	cni, err := calicoproto.New(cp.Config(), api)
	if err != nil {
		return err
	}
	if err := cni.EnsureBlock(ctx, PodBlock, Name); err != nil {
		return fmt.Errorf("make the pods' block: %w", err)
	}
	client, err := api.NewRESTClient(cp.Config())
	if err != nil {
		return err
	}
	unlocked := &calico.ClusterInformation{
		TypeMeta:   metav1.TypeMeta{APIVersion: api.String(), Kind: "ClusterInformation"},
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       calico.ClusterInformationSpec{DatastoreReady: ptr.To(true)},
	}
	if err := client.Post().Resource("clusterinformations").Body(unlocked).Do(ctx).Error(); err != nil {
		return fmt.Errorf("unlock the datastore: %w", err)
	}
	return nil
}

// components are started in this order and stopped in the other.
func components(l Layout, cp *controlplane.ControlPlane, paths map[string]string) ([]*controlplane.Component, error) {
	kubeconfigs := map[string]string{}
	for component, user := range map[string][]string{
		assets.Scheduler: {"system:kube-scheduler"},
		assets.Proxy:     {"system:kube-proxy"},
		assets.Kubelet:   {"system:node:" + Name, "system:nodes"},
	} {
		cfg, err := cp.ClientConfig(user[0], user[1:]...)
		if err != nil {
			return nil, err
		}
		kubeconfigs[component] = l.join(component, "kubeconfig")
		if err := os.MkdirAll(l.join(component), 0o700); err != nil {
			return nil, fmt.Errorf("make folder of %s: %w", component, err)
		}
		if err := controlplane.WriteKubeconfig(kubeconfigs[component], cfg); err != nil {
			return nil, err
		}
	}
	if err := configure(l, kubeconfigs[assets.Proxy]); err != nil {
		return nil, err
	}
	containerd, err := exec.LookPath("containerd")
	if err != nil {
		return nil, err
	}
	return []*controlplane.Component{
		controlplane.NewComponent("containerd", containerd, l.log("containerd"), "",
			"--config="+l.join("containerd.toml")).ReadyWhen(func(ctx context.Context) error { return ctr(ctx, l, "version") }),
		controlplane.NewComponent(assets.Scheduler, paths[assets.Scheduler], l.log(assets.Scheduler), "",
			"--kubeconfig="+kubeconfigs[assets.Scheduler], "--leader-elect=false",
			"--bind-address=127.0.0.1", "--cert-dir="+l.join(assets.Scheduler)).ReadyWhen(healthy("https://127.0.0.1:10259/healthz")),
		controlplane.NewComponent(assets.Kubelet, paths[assets.Kubelet], l.log(assets.Kubelet), "http://127.0.0.1:10248/healthz",
			"--config="+l.join("kubelet.yaml"), "--kubeconfig="+kubeconfigs[assets.Kubelet],
			"--hostname-override="+Name, "--node-ip="+address.String(),
			"--root-dir=/var/lib/kubelet", "--cert-dir="+l.join(assets.Kubelet)),
		controlplane.NewComponent(assets.Proxy, paths[assets.Proxy], l.log(assets.Proxy), "http://127.0.0.1:10256/livez",
			"--config="+l.join("kube-proxy.yaml")),
	}, nil
}

// healthy asks an endpoint that made its certificate itself.
func healthy(url string) func(context.Context) error {
	client := &http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", url, resp.Status)
		}
		return errors.Join(err, resp.Body.Close())
	}
}

func ctr(ctx context.Context, l Layout, args ...string) error {
	out, err := exec.CommandContext(ctx, "ctr", append([]string{"--address=" + l.containerdSocket(), "--namespace=k8s.io"}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr %v: %w: %s", args, err, out)
	}
	return nil
}

func importImages(ctx context.Context, l Layout) error {
	images, err := filepath.Glob(filepath.Join(l.Images(), "*.tar"))
	if err != nil {
		return err
	}
	slices.Sort(images)
	for _, image := range images {
		if err := ctr(ctx, l, "images", "import", "--snapshotter=native", image); err != nil {
			return err
		}
	}
	return nil
}

func waitForNode(ctx context.Context, cp *controlplane.ControlPlane) error {
	client, err := kubernetes.NewForConfig(cp.Config())
	if err != nil {
		return err
	}
	var last string
	err = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		n, err := client.CoreV1().Nodes().Get(ctx, Name, metav1.GetOptions{})
		if err != nil {
			last = err.Error()
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				last = c.Message
				return c.Status == corev1.ConditionTrue, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the node: %w: %s", err, last)
	}
	return nil
}
