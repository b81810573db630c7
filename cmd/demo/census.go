package main

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// What a census may rest on.
const (
	// newest is all that was written before.
	newest = ""
	// cached is what the API server holds in memory: exact while nobody writes,
	// and by far the cheapest way to read what was loaded into etcd.
	cached = "0"
)

// census reads handles and blocks from the API server, by no code of the
// sweeper's.
func census(ctx context.Context, cfg *rest.Config, api calico.API, resourceVersion string) (count, error) {
	c := count{handles: map[string]identity{}, referenced: map[string]bool{}}
	metadataClient, err := metadata.NewForConfig(cfg)
	if err != nil {
		return c, fmt.Errorf("count handles: %w", err)
	}
	handles, err := metadataClient.Resource(api.Handles()).List(ctx, metav1.ListOptions{ResourceVersion: resourceVersion})
	for apierrors.IsTooManyRequests(err) && ctx.Err() == nil {
		// The server still fills its memory; the client has waited already.
		handles, err = metadataClient.Resource(api.Handles()).List(ctx, metav1.ListOptions{ResourceVersion: resourceVersion})
	}
	if err != nil {
		return c, fmt.Errorf("count handles: %w", err)
	}
	for i := range handles.Items {
		h := &handles.Items[i]
		c.handles[h.Name] = identity{h.UID, h.ResourceVersion}
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
