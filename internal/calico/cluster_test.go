package calico_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/controlplane"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestDetectOnARealAPIServer goes through the life of a cluster: each step
// builds on the one before.
func TestDetectOnARealAPIServer(t *testing.T) {
	cp := controlplane.ForTest(t, controlplane.Options{})
	cfg := cp.Config()
	anything, err := dynamic.NewForConfig(cfg)
	must(t, err)
	services := anything.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	poor := poorUser(t, cp)

	wants := func(t *testing.T, who *rest.Config, check func(calico.Detection, error) bool) {
		t.Helper()
		var got calico.Detection
		var err error
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if got, err = calico.Detect(t.Context(), who); check(got, err) {
				if err != nil && strings.Contains(err.Error(), "\n") {
					t.Errorf("the error is more than a line: %q", err)
				}
				return
			}
		}
		t.Fatalf("it still finds %+v, error %v", got, err)
	}
	finds := func(gv schema.GroupVersion, certain bool) func(calico.Detection, error) bool {
		return func(d calico.Detection, err error) bool {
			return err == nil && d.API.GroupVersion == gv && d.Certain == certain
		}
	}
	fails := func(want error) func(calico.Detection, error) bool {
		return func(_ calico.Detection, err error) bool { return errors.Is(err, want) }
	}
	says := func(words ...string) func(calico.Detection, error) bool {
		return func(_ calico.Detection, err error) bool {
			for _, word := range words {
				if err == nil || !strings.Contains(err.Error(), word) {
					return false
				}
			}
			return true
		}
	}
	older, newer := calico.API{GroupVersion: calico.GroupCRD}, calico.API{GroupVersion: calico.GroupV3}

	t.Run("refuses a cluster without Calico", func(t *testing.T) {
		wants(t, cfg, fails(calico.ErrNoCalico))
		wants(t, poor, fails(calico.ErrNoCalico))
	})
	t.Run("tells when there is no API server", func(t *testing.T) {
		wants(t, &rest.Config{Host: "https://127.0.0.1:1"}, says("ask the API server", "127.0.0.1:1"))
	})
	t.Run("refuses an aggregated group alone", func(t *testing.T) {
		_, err := services.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v3.projectcalico.org"},
			"spec": map[string]any{
				"group": "projectcalico.org", "version": "v3", "groupPriorityMinimum": int64(1000), "versionPriority": int64(10),
				"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": "calico-system", "name": "calico-api"},
			},
		}}, metav1.CreateOptions{})
		must(t, err)
		wants(t, cfg, fails(calico.ErrAggregatedOnly))
		wants(t, poor, says("cannot tell whether projectcalico.org/v3 is aggregated", "customresourcedefinitions", "ipamhandles.projectcalico.org"))
	})
	t.Run("takes the older group beside an aggregated one, also when that is away", func(t *testing.T) {
		must(t, controlplane.InstallCRDs(t.Context(), cfg, older))
		wants(t, cfg, finds(older.GroupVersion, true))
	})
	t.Run("takes the older group alone, with no permission but discovery", func(t *testing.T) {
		must(t, services.Delete(t.Context(), "v3.projectcalico.org", metav1.DeleteOptions{}))
		wants(t, cfg, finds(older.GroupVersion, true))
		wants(t, poor, finds(older.GroupVersion, true))
	})
	t.Run("takes the newer group when the older is empty", func(t *testing.T) {
		must(t, controlplane.InstallCRDs(t.Context(), cfg, newer))
		wants(t, cfg, finds(newer.GroupVersion, true))
		wants(t, poor, says("customresourcedefinitions"))
		allow(t, cfg, "definitions", rbacv1.PolicyRule{
			APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"},
			ResourceNames: []string{"ipamhandles.projectcalico.org"}, Verbs: []string{"get"},
		})
		wants(t, poor, says("which Calico API group is in use", "crd.projectcalico.org", "ipamblocks"))
		allow(t, cfg, "blocks", rbacv1.PolicyRule{
			APIGroups: []string{"crd.projectcalico.org"}, Resources: []string{"ipamblocks"}, Verbs: []string{"list"},
		})
		wants(t, poor, finds(newer.GroupVersion, true))
	})
	t.Run("is not certain when the older group still holds blocks", func(t *testing.T) {
		client, err := older.NewRESTClient(cfg)
		must(t, err)
		block := &calico.IPAMBlock{
			ObjectMeta: metav1.ObjectMeta{Name: "10-0-0-0-30"},
			Spec: calico.IPAMBlockSpec{
				CIDR: "10.0.0.0/30", Allocations: make([]*int, 4), Attributes: []calico.AllocationAttribute{}, Unallocated: []int{},
			},
		}
		must(t, client.Post().Resource("ipamblocks").Body(block).Do(t.Context()).Error())
		wants(t, cfg, finds(newer.GroupVersion, false))
		wants(t, poor, finds(newer.GroupVersion, false))
	})
}

// poorUser may do nothing that RBAC does not allow to every ServiceAccount.
func poorUser(t *testing.T, cp *controlplane.ControlPlane) *rest.Config {
	t.Helper()
	core, err := kubernetes.NewForConfig(cp.Config())
	must(t, err)
	_, err = core.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "poor"}}, metav1.CreateOptions{})
	must(t, err)
	cfg, err := cp.UserConfig(context.WithoutCancel(t.Context()), "default", "poor")
	must(t, err)
	return cfg
}

func allow(t *testing.T, cfg *rest.Config, name string, rule rbacv1.PolicyRule) {
	t.Helper()
	core, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	_, err = core.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = core.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "poor"}},
	}, metav1.CreateOptions{})
	must(t, err)
}
