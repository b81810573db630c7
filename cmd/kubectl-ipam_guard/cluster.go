package main

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/access"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/kubevirt"
	"github.com/ipam-guard/ipam-guard/internal/version"
)

// connect is how to reach the cluster.
func connect(connection *genericclioptions.ConfigFlags) (*rest.Config, error) {
	cfg, err := connection.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster to work on: %w", err)
	}
	cfg.UserAgent = "kubectl-ipam_guard/" + version.String()
	cfg.QPS = -1
	return cfg, nil
}

// cluster finds the cluster and its Calico, and checks that we may do what is
// wanted there. Wanted is told Calico's API and KubeVirt's, which may be empty.
func cluster(ctx context.Context, connection *genericclioptions.ConfigFlags, wanted func(calico.API, schema.GroupVersion) []access.Permission) (*rest.Config, calico.API, error) {
	cfg, err := connect(connection)
	if err != nil {
		return nil, calico.API{}, err
	}
	detection, err := calico.Detect(ctx, cfg)
	if err != nil {
		return nil, calico.API{}, err
	}
	if !detection.Certain {
		return nil, calico.API{}, fmt.Errorf("which Calico API group is in use is not certain: %s", detection.Detail)
	}
	machines, err := kubevirt.Find(ctx, cfg)
	if err != nil {
		return nil, calico.API{}, err
	}
	if err := access.Require(ctx, cfg, wanted(detection.API, machines)...); err != nil {
		return nil, calico.API{}, err
	}
	return cfg, detection.API, nil
}
