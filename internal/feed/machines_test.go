package feed_test

import (
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/ipam-guard/ipam-guard/internal/controlplane"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/kubevirt"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

var machinesAPI = schema.GroupVersion{Group: kubevirt.Group, Version: "v1"}

// definition is one of KubeVirt's, as far as metadata needs it.
func definition(plural, kind string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + machinesAPI.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: machinesAPI.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: machinesAPI.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: ptr.To(true),
				}},
			}},
		},
	}
}

func TestVirtualMachinesOnARealAPIServer(t *testing.T) {
	cp := controlplane.ForTest(t, controlplane.Options{})
	cfg := cp.Config()
	must(t, controlplane.InstallCRDs(t.Context(), cfg, api))
	found, err := kubevirt.Find(t.Context(), cfg)
	must(t, err)
	if !found.Empty() {
		t.Errorf("without KubeVirt, %q is found", found)
	}
	must(t, controlplane.InstallDefinitions(t.Context(), cfg, machinesAPI,
		definition(kubevirt.VirtualMachines, "VirtualMachine"), definition(kubevirt.Instances, "VirtualMachineInstance")))
	eventually(t, "KubeVirt to be found", func() bool {
		found, err = kubevirt.Find(t.Context(), cfg)
		must(t, err)
		return found == machinesAPI
	})

	client, err := dynamic.NewForConfig(cfg)
	must(t, err)
	machines := func(resource string) dynamic.ResourceInterface {
		return client.Resource(machinesAPI.WithResource(resource)).Namespace("default")
	}
	create := func(resource, kind string) {
		t.Helper()
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": machinesAPI.String(), "kind": kind, "metadata": map[string]any{"name": "db"},
		}}
		_, err := machines(resource).Create(t.Context(), o, metav1.CreateOptions{})
		must(t, err)
	}
	create(kubevirt.VirtualMachines, "VirtualMachine")
	create(kubevirt.Instances, "VirtualMachineInstance")

	c := clocktesting.NewFakePassiveClock(time.Now())
	inv := inventory.New(c)
	f := followInto(t, cfg, inv, feed.Options{KubeVirt: found})
	must(t, f.WaitForSync(t.Context()))
	is := func(want ownership.Existence) bool { return inv.VirtualMachine("default", "db") == want }
	if !is(ownership.Exists) {
		t.Error("a machine that runs is not known")
	}
	must(t, f.ProveFresh(t.Context()))

	must(t, machines(kubevirt.VirtualMachines).Delete(t.Context(), "db", metav1.DeleteOptions{}))
	must(t, f.ProveFresh(t.Context()))
	if !is(ownership.Exists) {
		t.Error("an instance without its machine does not count")
	}
	c.SetTime(c.Now().Add(time.Hour))
	must(t, machines(kubevirt.Instances).Delete(t.Context(), "db", metav1.DeleteOptions{}))
	eventually(t, "the instance's end to be seen", func() bool { return is(ownership.JustGone) })
	c.SetTime(c.Now().Add(5 * time.Minute))
	if !is(ownership.Gone) {
		t.Error("five minutes later it is not gone")
	}

	create(kubevirt.Instances, "VirtualMachineInstance")
	once := inventory.New(clock.RealClock{})
	must(t, feed.Once(t.Context(), cfg, api, once, feed.Visitor{}))
	if got := once.VirtualMachine("default", "db"); got != ownership.Exists {
		t.Errorf("one look finds it %v", got)
	}
	if got := once.VirtualMachine("default", "other"); got != ownership.JustGone {
		t.Errorf("one look finds another %v", got)
	}
}
