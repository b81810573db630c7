package e2e

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// ServiceAccounts that ask for metrics.
const (
	scraper  = "prometheus"
	stranger = "stranger"
)

// client asks managers as a ServiceAccount of the installation's namespace,
// which is made for it. Nobody is asked for when the name is empty.
func (i *installation) client(t testing.TB, name string) *http.Client {
	t.Helper()
	var transport http.RoundTripper = &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // each replica makes the endpoint's certificate itself
	}
	if name == "" {
		return &http.Client{Transport: transport}
	}
	_, err := i.clients.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	cfg, err := i.cp.UserConfig(t.Context(), namespace, name)
	must(t, err)
	transport, err = rest.HTTPWrappersForConfig(&rest.Config{BearerToken: cfg.BearerToken}, transport)
	must(t, err)
	return &http.Client{Transport: transport}
}

// bindScraper grants the scraper what the installation ships for it.
func (i *installation) bindScraper(t testing.TB) {
	t.Helper()
	_, err := i.clients.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: scraper},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "ipam-guard-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: scraper}},
	}, metav1.CreateOptions{})
	must(t, err)
}

func (i *installation) metricsAccess(t *testing.T, r *replica) {
	eventually(t, 20*time.Second, "the metrics endpoint", func() bool {
		answer, err := i.scraper.Get(r.metrics) //nolint:noctx // a test's own loopback
		if err != nil {
			return false
		}
		must(t, answer.Body.Close())
		return true
	})
	for _, tc := range []struct {
		who    string
		client *http.Client
		want   int
	}{
		{"nobody", i.client(t, ""), http.StatusUnauthorized},
		{"an account without the role", i.client(t, stranger), http.StatusForbidden},
		{"an account with the role", i.scraper, http.StatusOK},
	} {
		if code, body := get(t, tc.client, r.metrics); code != tc.want {
			t.Errorf("%s gets %d, want %d: %s", tc.who, code, tc.want, body)
		}
	}
}

func get(t testing.TB, client *http.Client, url string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, url, nil)
	must(t, err)
	answer, err := client.Do(request)
	must(t, err)
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, string(data)
}
