package controlplane

import (
	"context"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/calico/crd"
)

// establishTimeout bounds the wait for definitions to be served.
const establishTimeout = 30 * time.Second

// InstallCRDs creates the definitions of Calico's kinds under api's group, if
// they are not there, and returns when the API server serves and discovers
// them.
func InstallCRDs(ctx context.Context, cfg *rest.Config, api calico.API) error {
	crds, err := crd.For(api)
	if err != nil {
		return err
	}
	return InstallDefinitions(ctx, cfg, api.GroupVersion, crds...)
}

// InstallDefinitions installs all definitions of a group and waits until they
// are served.
func InstallDefinitions(ctx context.Context, cfg *rest.Config, of schema.GroupVersion, crds ...*apiextensionsv1.CustomResourceDefinition) error {
	client, err := clientset.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("client for definitions: %w", err)
	}
	core, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("client for discovery: %w", err)
	}
	for _, c := range crds {
		_, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, c, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create definition %s: %w", c.Name, err)
		}
	}
	for _, c := range crds {
		if err := waitUntil(ctx, func(ctx context.Context) (bool, error) {
			got, err := client.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, c.Name, metav1.GetOptions{})
			return err == nil && established(got), nil
		}); err != nil {
			return fmt.Errorf("wait for definition %s to be established: %w", c.Name, err)
		}
	}
	// Discovery follows a moment later, of the group after that of its resources.
	err = waitUntil(ctx, func(context.Context) (bool, error) {
		// Partial: another group may be broken for good.
		_, lists, _ := core.Discovery().ServerGroupsAndResources()
		for _, list := range lists {
			if list.GroupVersion == of.String() {
				return len(list.APIResources) >= len(crds), nil
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("wait for discovery of %s: %w", of, err)
	}
	return nil
}

func waitUntil(ctx context.Context, condition wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextTimeout(ctx, readyPoll, establishTimeout, true, condition)
}

func established(c *apiextensionsv1.CustomResourceDefinition) bool {
	for _, condition := range c.Status.Conditions {
		if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
			return true
		}
	}
	return false
}
