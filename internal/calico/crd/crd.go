// Package crd holds CustomResourceDefinitions for Calico's IPAM kinds, for
// clusters without Calico: tests, demo and benchmarks. They are generated from
// our own types and know no more than those.
package crd

import (
	"embed"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

//go:embed *.yaml
var files embed.FS

// For returns the definitions under the group and version that api names.
func For(api calico.API) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("read embedded definitions: %w", err)
	}
	crds := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(entries))
	for _, entry := range entries {
		data, err := files.ReadFile(entry.Name())
		if err != nil {
			return nil, fmt.Errorf("read embedded definition: %w", err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, crd); err != nil {
			return nil, fmt.Errorf("decode embedded definition %s: %w", entry.Name(), err)
		}
		crd.Spec.Group = api.Group
		crd.Name = crd.Spec.Names.Plural + "." + api.Group
		for i := range crd.Spec.Versions {
			crd.Spec.Versions[i].Name = api.Version
			allowFreeAddresses(&crd.Spec.Versions[i])
		}
		crds = append(crds, crd)
	}
	return crds, nil
}

// allowFreeAddresses lets a block's allocations hold nulls, which markers on
// Go types cannot say of an array's items.
func allowFreeAddresses(v *apiextensionsv1.CustomResourceDefinitionVersion) {
	spec := v.Schema.OpenAPIV3Schema.Properties["spec"]
	if allocations, ok := spec.Properties["allocations"]; ok {
		allocations.Items.Schema.Nullable = true
		spec.Properties["allocations"] = allocations
	}
}
