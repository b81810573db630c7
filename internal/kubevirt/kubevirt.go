// Package kubevirt finds out whether a cluster runs virtual machines. It knows
// KubeVirt's API by name alone.
package kubevirt

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// Group is KubeVirt's API group.
const Group = "kubevirt.io"

// The resources that tell of a virtual machine: it exists while either does.
const (
	VirtualMachines = "virtualmachines"
	Instances       = "virtualmachineinstances"
)

// Find is the version of KubeVirt's API that the cluster prefers, empty where
// KubeVirt is not installed.
func Find(ctx context.Context, cfg *rest.Config) (schema.GroupVersion, error) {
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return schema.GroupVersion{}, fmt.Errorf("discovery client: %w", err)
	}
	groups, err := client.ServerGroupsWithContext(ctx)
	if err != nil {
		return schema.GroupVersion{}, fmt.Errorf("discover API groups: %w", err)
	}
	for _, g := range groups.Groups {
		if g.Name == Group && g.PreferredVersion.Version != "" {
			return schema.GroupVersion{Group: Group, Version: g.PreferredVersion.Version}, nil
		}
	}
	return schema.GroupVersion{}, nil
}

// interval is how often Watch looks.
const interval = time.Minute

// Watch looks until ctx ends. Caches follow what was found, so that a KubeVirt
// that comes, goes or changes its version is an error.
func Watch(ctx context.Context, found schema.GroupVersion, find func(context.Context) (schema.GroupVersion, error), c clock.WithTicker) error {
	ticker := c.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		// An API server that is away changes nothing.
		if now, err := find(ctx); err == nil && now != found {
			return fmt.Errorf("KubeVirt's API is now %q, was %q", now, found)
		}
	}
}
