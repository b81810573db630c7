//go:build linux

package cluster

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipam-guard/ipam-guard/e2e/cluster/node"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// webhookTimeout is what the configurations say, and some for a busy machine;
// Kubernetes' default would be 10 s.
const webhookTimeout = 2*time.Second + 3*time.Second

func TestRealCluster(t *testing.T) {
	h := start(t)
	must(t, h.InstallCertManager(t.Context()))
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"without a certificate both replicas run on one node and are not ready", h.withoutCertificate},
		{"handles are made within the timeout while the webhook is configured but down", h.webhookDown},
		{"with the certificate both replicas become available", h.withCertificate},
		{"the API server reaches the webhook through its Service", h.serviceRoute},
		{"the guard's own pods' handles, made before it served, are guarded and stamped later", h.ownHandles},
		{"the namespace enforces the restricted standard", h.restricted},
		{"metrics are for who may read them", h.metrics},
		{"a renewed certificate is served without a restart, and fails no admission", h.renewal},
		{"a rolling update fails no admission", h.rollingUpdate},
		{"a drain leaves one replica serving and fails no admission", h.drain},
		{"handles are made within the timeout while both replicas hang", h.hanging},
		{"another replica leads when the leader's pod goes", h.leaderGone},
		{"requests are as measured", h.usage},
		{"with all replicas gone the next ones get addresses", h.allGone},
		{"a change to the host-network overlay fails no admission", h.hostNetwork},
		{"an uninstall leaves nothing behind", h.uninstall},
	} {
		began := time.Now()
		ok := t.Run(step.name, step.run)
		t.Logf("%s: %s", step.name, time.Since(began).Round(time.Second))
		if !ok && t.Context().Err() != nil {
			return
		}
	}
}

func (h *harness) withoutCertificate(t *testing.T) {
	h.kubectl(t, "-n", "cert-manager", "scale", "--replicas=0", "deployment", "--all")
	h.kubectl(t, "-n", "cert-manager", "wait", "--for=delete", "pod", "--all", "--timeout=2m")
	h.readme(t, "image")
	h.readme(t, "install")
	anonymous := h.client(t, "")
	eventually(t, 2*time.Minute, "two replicas that only lack a certificate", func() bool {
		pods := h.pods(t)
		for _, p := range pods {
			if p.Status.PodIP == "" || p.Spec.NodeName != node.Name || len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Running == nil {
				return false
			}
			code, body := 0, ""
			if answer, err := anonymous.Get("http://" + net.JoinHostPort(p.Status.PodIP, "8081") + "/readyz?verbose"); err == nil { //nolint:noctx // the client has a timeout
				code, body = answer.StatusCode, read(answer)
			}
			if code != http.StatusInternalServerError || !strings.Contains(body, "[+]caches ok") || !strings.Contains(body, "[-]certificate failed") {
				return false
			}
		}
		return len(pods) == 2
	})
	if pods := h.readyPods(t); len(pods) > 0 {
		t.Errorf("%d replicas are ready without a certificate", len(pods))
	}
}

func (h *harness) webhookDown(t *testing.T) {
	for range 3 {
		got, took := h.probe(t)
		if got || took > webhookTimeout {
			t.Errorf("the handle's creation took %s, stamped %v", took, got)
		}
	}
}

func (h *harness) withCertificate(t *testing.T) {
	h.kubectl(t, "-n", "cert-manager", "scale", "--replicas=1", "deployment", "--all")
	h.waitAvailable(t)
	d, err := h.clients.AppsV1().Deployments(namespace).Get(t.Context(), manager, metav1.GetOptions{})
	must(t, err)
	if d.Status.AvailableReplicas != 2 {
		t.Errorf("%d replicas are available, want 2", d.Status.AvailableReplicas)
	}
}

func (h *harness) serviceRoute(t *testing.T) {
	// A Deployment is available before kube-proxy has written the Service's rules.
	err := errors.New("it was not asked")
	var certificate *x509.Certificate
	defer func() {
		if err != nil {
			t.Logf("the Service's last answer: %v", err)
		}
	}()
	eventually(t, time.Minute, "the Service to lead to a server", func() bool {
		certificate, err = h.served(t, h.serviceAddress(t))
		return err == nil
	})
	t.Logf("the Service leads to a server with certificate %x", certificate.SerialNumber)
	h.waitStamping(t)
	h.waitRefusing(t)
	policies, err := h.clients.NetworkingV1().NetworkPolicies(namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(policies.Items) != 1 {
		t.Errorf("there are %d network policies, want 1", len(policies.Items))
	}
}

// waitStamping waits for the CA injector, and for the API server to know.
func (h *harness) waitStamping(t testing.TB) {
	t.Helper()
	eventually(t, time.Minute, "stamps", func() bool {
		got, _ := h.probe(t)
		return got
	})
}

// waitRefusing waits for the same of the validating webhook, which the CA
// injector serves apart.
func (h *harness) waitRefusing(t testing.TB) {
	t.Helper()
	id := idOf(h.readyPods(t)[0])
	eventually(t, time.Minute, "the refusal of a raw delete", func() bool {
		return h.rawDelete(t, id, "--dry-run=server") != nil
	})
}

func (h *harness) ownHandles(t *testing.T) {
	pods := h.readyPods(t)
	id := idOf(pods[0])
	if stamped(h.handle(t, id)) {
		t.Errorf("the handle of the first pod is stamped, though it was made before anything served")
	}
	if err := h.rawDelete(t, id); err == nil || !strings.Contains(err.Error(), pods[0].Name) {
		t.Errorf("a raw delete of the guard's own handle is answered with %v", err)
	}
	// What Calico does when the pod gets an address more.
	must(t, h.cni.Increment(t.Context(), id, block, 1))
	if !stamped(h.handle(t, id)) {
		t.Error("Calico's next write does not stamp the handle")
	}
	must(t, h.cni.Decrement(t.Context(), id, block, 1))
}

func (h *harness) restricted(t *testing.T) {
	cmd := h.Command(t.Context(), "kubectl", "-n", namespace, "run", "root", "--dry-run=server", "--privileged", "--image="+node.PauseImage)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "restricted") {
		t.Errorf("a privileged pod in the namespace: %v\n%s", err, out)
	}
}

func (h *harness) metrics(t *testing.T) {
	const scraper, stranger = "prometheus", "stranger"
	for _, account := range []string{scraper, stranger} {
		h.kubectl(t, "-n", namespace, "create", "serviceaccount", account)
	}
	h.kubectl(t, "create", "clusterrolebinding", scraper, "--clusterrole=ipam-guard-metrics-reader", "--serviceaccount="+namespace+":"+scraper)
	for _, p := range h.readyPods(t) {
		url := "https://" + net.JoinHostPort(p.Status.PodIP, "8443") + "/metrics"
		for _, tc := range []struct {
			account, want string
			code          int
		}{
			{"", "", http.StatusUnauthorized},
			{stranger, "", http.StatusForbidden},
			{scraper, "ipam_guard_certificate_expiry_seconds", http.StatusOK},
		} {
			if code, body := get(t, h.client(t, tc.account), url); code != tc.code || !strings.Contains(body, tc.want) {
				t.Errorf("account %q gets %d, want %d: %s", tc.account, code, tc.code, body)
			}
		}
	}
	h.kubectl(t, "delete", "clusterrolebinding", scraper)
	h.kubectl(t, "-n", namespace, "delete", "serviceaccount", scraper, stranger)
}

func (h *harness) renewal(t *testing.T) {
	serials := func() (all []string) {
		for _, p := range h.readyPods(t) {
			if certificate, err := h.served(t, net.JoinHostPort(p.Status.PodIP, "9443")); err == nil {
				all = append(all, fmt.Sprintf("%s %s %x", p.UID, p.Status.ContainerStatuses[0].ContainerID, certificate.SerialNumber))
			}
		}
		return all
	}
	before := serials()
	if len(before) != 2 {
		t.Fatalf("served: %v", before)
	}
	load := h.startTraffic(t)
	// What cmctl renew does.
	h.kubectl(t, "-n", namespace, "patch", "certificate", webhook, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
		`{"status":{"conditions":[{"type":"Issuing","status":"True","reason":"ManuallyTriggered","message":"test","lastTransitionTime":%q}]}}`,
		time.Now().UTC().Format(time.RFC3339)))
	began := time.Now()
	eventually(t, 3*time.Minute, "kubelet and both replicas to follow", func() bool {
		after := serials()
		return len(after) == 2 && !slices.ContainsFunc(after, func(s string) bool { return slices.Contains(before, s) })
	})
	t.Logf("both replicas serve the renewed certificate after %s", time.Since(began).Round(time.Second))
	time.Sleep(5 * time.Second) // The load must meet the new one too.
	load.end(t)
	for n, after := range serials() {
		if old, now := strings.Fields(before[n]), strings.Fields(after); old[0] != now[0] || old[1] != now[1] {
			t.Errorf("a replica was restarted: %v, then %v", old, now)
		}
	}
}

func (h *harness) rollingUpdate(t *testing.T) {
	load := h.startTraffic(t)
	h.kubectl(t, "-n", namespace, "rollout", "restart", "deployment/"+manager)
	h.waitAvailable(t)
	eventually(t, time.Minute, "the old pods to go", func() bool {
		list, err := h.clients.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
		must(t, err)
		return len(list.Items) == 2
	})
	load.end(t)
	for _, p := range h.readyPods(t) {
		if !stamped(h.handle(t, idOf(p))) {
			t.Errorf("the handle of pod %s, made while the other replica served, is not stamped", p.Name)
		}
	}
}

func (h *harness) drain(t *testing.T) {
	load := h.startTraffic(t)
	cmd := h.Command(t.Context(), "kubectl", "drain", node.Name, "--pod-selector="+selector, "--timeout=30s")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "disruption budget") {
		t.Errorf("a drain of the only node: %v\n%s", err, out)
	}
	if pods := h.readyPods(t); len(pods) != 1 {
		t.Errorf("%d replicas are ready after the drain, want 1", len(pods))
	}
	h.kubectl(t, "uncordon", node.Name)
	h.waitAvailable(t)
	load.end(t)
}

// hanging stops both processes, as a node without CPU or memory would. Until
// their probes have failed the Service goes on sending requests there.
func (h *harness) hanging(t *testing.T) {
	processes := h.managers(t)
	if len(processes) != 2 {
		t.Fatalf("found %v, want two managers", processes)
	}
	send := func(s syscall.Signal) {
		for _, pid := range processes {
			if err := syscall.Kill(pid, s); err != nil {
				t.Errorf("signal %d: %v", pid, err)
			}
		}
	}
	send(syscall.SIGSTOP)
	defer send(syscall.SIGCONT)
	got, took := h.probe(t)
	if got || took > webhookTimeout {
		t.Errorf("the handle's creation took %s, stamped %v", took, got)
	}
	t.Logf("a handle was made in %s", took.Round(time.Millisecond))
	send(syscall.SIGCONT)
	h.waitStamping(t)
	h.waitAvailable(t)
}

// managers are the process IDs of IPAM Guard in this cluster's pods.
func (h *harness) managers(t testing.TB) (found []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	must(t, err)
	for _, file := range files {
		group, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(group), h.layout.Cgroup()+"/") {
			continue // Another's, or it has just ended.
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if err == nil && strings.HasPrefix(string(command), "/manager\x00") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			must(t, err)
			found = append(found, pid)
		}
	}
	return found
}

// leader is the pod that leads.
func (h *harness) leader(t testing.TB) string {
	t.Helper()
	lease, err := h.clients.CoordinationV1().Leases(namespace).Get(t.Context(), manager, metav1.GetOptions{})
	must(t, err)
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	pod, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	return pod
}

func (h *harness) leaderGone(t *testing.T) {
	names := func() (all []string) {
		for _, p := range h.readyPods(t) {
			all = append(all, p.Name)
		}
		return all
	}
	eventually(t, time.Minute, "a leader", func() bool { return slices.Contains(names(), h.leader(t)) })
	load := h.startTraffic(t)
	for range 3 {
		first := h.leader(t)
		began := time.Now()
		h.kubectl(t, "-n", namespace, "delete", "pod", first, "--wait=false")
		eventually(t, time.Minute, "another leader", func() bool {
			now := h.leader(t)
			return now != first && slices.Contains(names(), now)
		})
		t.Logf("another replica leads after %s", time.Since(began).Round(time.Millisecond))
		h.waitAvailable(t)
	}
	load.end(t)
}

// allGone is the worst case of a guard in pods: they need addresses, and thus
// handles, while the webhook is configured and they are all that could answer.
func (h *harness) allGone(t *testing.T) {
	before := h.pods(t)
	h.kubectl(t, "-n", namespace, "scale", "--replicas=0", "deployment/"+manager)
	h.kubectl(t, "-n", namespace, "wait", "--for=delete", "pod", "-l", selector, "--timeout=2m")
	for _, p := range before {
		if !h.gone(t, idOf(p)) {
			t.Errorf("the handle of pod %s, which is gone, is still there", p.Name)
		}
	}
	began := time.Now()
	h.kubectl(t, "-n", namespace, "scale", "--replicas=2", "deployment/"+manager)
	h.waitAvailable(t)
	t.Logf("both replicas are back after %s", time.Since(began).Round(time.Second))
	for _, p := range h.pods(t) {
		got := h.handle(t, idOf(p))
		if took := got.CreationTimestamp.Sub(p.CreationTimestamp.Time); stamped(got) || took > 2*webhookTimeout {
			t.Errorf("pod %s had its handle %s after it was made, stamped %v", p.Name, took, stamped(got))
		}
	}
	h.waitStamping(t)
}

func (h *harness) uninstall(t *testing.T) {
	live := newID()
	_, err := h.cni.Assign(t.Context(), live, block, nil)
	must(t, err)
	if !stamped(h.handle(t, live)) {
		t.Error("the handle of before is not stamped")
	}
	h.readme(t, "uninstall")
	page, _, err := h.handles.ListHandles(t.Context(), 1000, "")
	must(t, err)
	for _, got := range page {
		if len(got.Finalizers) > 0 || got.DeletionTimestamp != nil || got.Annotations[ownership.StampAnnotation] != "" {
			t.Errorf("handle %s keeps %v, %v", got.Name, got.Finalizers, got.Annotations)
		}
	}
	must(t, h.cni.Release(t.Context(), live))
	if !h.gone(t, live) {
		t.Error("Calico's release does not work after the uninstall")
	}
	if _, err := h.clients.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is still there: %v", err)
	}
	left := h.kubectl(t, "get", "mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,clusterrolebindings", "-o", "name")
	if strings.Contains(left, "ipam-guard") {
		t.Errorf("there are still:\n%s", left)
	}
}

func (h *harness) hostNetwork(t *testing.T) {
	load := h.startTraffic(t)
	h.kubectl(t, "apply", "-k", "config/overlays/host-network")
	// The node's ports are enough for one.
	eventually(t, 2*time.Minute, "one replica, on the node's own address", func() bool {
		pods := h.readyPods(t)
		return len(pods) == 1 && pods[0].Status.PodIP == pods[0].Status.HostIP
	})
	must(t, h.WaitAvailable(t.Context()))
	load.end(t)
}
