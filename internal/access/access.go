// Package access asks the API server whether we may do what we are about to,
// so that a missing permission is one clear line rather than a stuck cache.
package access

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/kubevirt"
)

// Permission is one resource and the verbs wanted on it.
type Permission struct {
	Resource schema.GroupResource
	Verbs    []string
	// Namespace is empty for the whole cluster.
	Namespace string
}

// Watching is what following the cluster's state takes. Machines is the version
// of KubeVirt's API, empty where that is not installed.
func Watching(api calico.API, machines schema.GroupVersion) []Permission {
	follow := []string{"list", "watch"}
	read := append([]string{"get"}, follow...)
	permissions := []Permission{
		{Resource: api.Handles().GroupResource(), Verbs: read},
		{Resource: api.Blocks().GroupResource(), Verbs: read},
		{Resource: api.ClusterInformations().GroupResource(), Verbs: follow},
		{Resource: schema.GroupResource{Resource: "pods"}, Verbs: follow},
		{Resource: schema.GroupResource{Resource: "nodes"}, Verbs: follow},
		{Resource: schema.GroupResource{Resource: "services"}, Verbs: follow},
	}
	return append(permissions, ofMachines(machines, follow)...)
}

func ofMachines(machines schema.GroupVersion, verbs []string) []Permission {
	if machines.Empty() {
		return nil
	}
	return []Permission{
		{Resource: schema.GroupResource{Group: machines.Group, Resource: kubevirt.VirtualMachines}, Verbs: verbs},
		{Resource: schema.GroupResource{Group: machines.Group, Resource: kubevirt.Instances}, Verbs: verbs},
	}
}

// Reading is what one look at the cluster takes; machines as for Watching.
func Reading(api calico.API, machines schema.GroupVersion) []Permission {
	list := []string{"list"}
	permissions := []Permission{
		{Resource: api.Handles().GroupResource(), Verbs: []string{"get", "list"}},
		{Resource: api.Blocks().GroupResource(), Verbs: list},
		{Resource: api.Pools().GroupResource(), Verbs: list},
		{Resource: schema.GroupResource{Resource: "pods"}, Verbs: list},
		{Resource: schema.GroupResource{Resource: "nodes"}, Verbs: list},
		{Resource: schema.GroupResource{Resource: "services"}, Verbs: list},
	}
	return append(permissions, ofMachines(machines, list)...)
}

// Restoring is what bringing swept handles back takes.
func Restoring(api calico.API) []Permission {
	return []Permission{{Resource: api.Handles().GroupResource(), Verbs: []string{"get", "create"}}}
}

// Sweeping is what changing handles takes, beyond Watching.
func Sweeping(api calico.API) []Permission {
	return []Permission{{Resource: api.Handles().GroupResource(), Verbs: []string{"delete", "patch"}}}
}

// Repairing is what repairing divergences takes, beyond Watching.
func Repairing(api calico.API) []Permission {
	return []Permission{{Resource: api.Handles().GroupResource(), Verbs: []string{"create", "update", "delete", "patch"}}}
}

// Require is nil when all permissions are granted. Else its error names each
// missing rule as RBAC spells it.
func Require(ctx context.Context, cfg *rest.Config, wanted ...Permission) error {
	client, err := authorizationclient.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("client for access reviews: %w", err)
	}
	var missing []string
	for _, p := range wanted {
		var verbs []string
		for _, verb := range p.Verbs {
			review, err := client.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: p.Namespace, Verb: verb, Group: p.Resource.Group, Resource: p.Resource.Resource,
					},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("ask for the permission to %s %s: %w", verb, p.Resource, err)
			}
			if !review.Status.Allowed {
				verbs = append(verbs, verb)
			}
		}
		if len(verbs) > 0 {
			missing = append(missing, rule(p, verbs))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing permissions; grant this account: %s", strings.Join(missing, " and "))
	}
	return nil
}

func rule(p Permission, verbs []string) string {
	where := ""
	if p.Namespace != "" {
		where = " in namespace " + p.Namespace
	}
	return fmt.Sprintf("{apiGroups: [%q], resources: [%q], verbs: [%s]}%s",
		p.Resource.Group, p.Resource.Resource, strings.Join(verbs, ", "), where)
}
