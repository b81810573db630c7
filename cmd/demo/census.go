package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// count is the state of handles and blocks at one moment.
type count struct {
	// handles are by object name.
	handles map[string]identity
	// referenced are the object names of handles that allocations reference.
	referenced map[string]bool
}

// identity changes with every write of an object.
type identity struct {
	uid             types.UID
	resourceVersion string
}

const pageSize = 5000

// census reads handles and blocks from the API server, by no code of the
// sweeper's.
func census(ctx context.Context, cfg *rest.Config, api calico.API) (count, error) {
	c := count{handles: map[string]identity{}, referenced: map[string]bool{}}
	handles, err := metadata.NewForConfig(cfg)
	if err != nil {
		return c, fmt.Errorf("count handles: %w", err)
	}
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := handles.Resource(api.Handles()).List(ctx, options)
		if err != nil {
			return c, fmt.Errorf("count handles: %w", err)
		}
		for i := range page.Items {
			h := &page.Items[i]
			c.handles[h.Name] = identity{h.UID, h.ResourceVersion}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	client, err := api.NewRESTClient(cfg)
	if err != nil {
		return c, err
	}
	var blocks calico.IPAMBlockList
	if err := client.Get().Resource(api.Blocks().Resource).Do(ctx).Into(&blocks); err != nil {
		return c, fmt.Errorf("count blocks: %w", err)
	}
	for i := range blocks.Items {
		spec := &blocks.Items[i].Spec
		for _, index := range spec.Allocations {
			if index != nil && *index >= 0 && *index < len(spec.Attributes) && spec.Attributes[*index].HandleID != nil {
				c.referenced[calico.HandleName(*spec.Attributes[*index].HandleID)] = true
			}
		}
	}
	return c, nil
}

// unmatched are the handles with no matching IPs.
func (c count) unmatched() []string { return c.names(false) }

// matched are the handles with matches.
func (c count) matched() []string { return c.names(true) }

func (c count) names(referenced bool) []string {
	var names []string
	for name := range c.handles {
		if c.referenced[name] == referenced {
			names = append(names, name)
		}
	}
	return names
}

// missing are the handles that blocks mention and that do not exist.
func (c count) missing() []string {
	var names []string
	for name := range c.referenced {
		if _, ok := c.handles[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}
