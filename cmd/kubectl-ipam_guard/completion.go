package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

const (
	// completionTimeout bounds what a shell waits for.
	completionTimeout = 3 * time.Second
	// completionLimit bounds what a shell is offered.
	completionLimit = 500
)

// completeWith completes a flag's value with these words.
func completeWith(cmd *cobra.Command, flag string, words ...string) {
	register(cmd, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

func register(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // The command has the flag.
	}
}

// completeNames completes with the names of a cluster's objects, or with
// nothing where they cannot be read.
func completeNames(connection *genericclioptions.ConfigFlags, resource func(context.Context, *rest.Config) (schema.GroupVersionResource, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		names, err := list(ctx, connection, resource)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func list(ctx context.Context, connection *genericclioptions.ConfigFlags, resource func(context.Context, *rest.Config) (schema.GroupVersionResource, error)) ([]string, error) {
	cfg, err := connect(connection)
	if err != nil {
		return nil, err
	}
	of, err := resource(ctx, cfg)
	if err != nil {
		return nil, err
	}
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	found, err := client.Resource(of).List(ctx, metav1.ListOptions{Limit: completionLimit})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, o := range found.Items {
		names = append(names, o.Name)
	}
	return names, nil
}

func nodes(context.Context, *rest.Config) (schema.GroupVersionResource, error) {
	return schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, nil
}

func pools(ctx context.Context, cfg *rest.Config) (schema.GroupVersionResource, error) {
	detection, err := calico.Detect(ctx, cfg)
	return detection.API.Pools(), err
}

// selectorTerms are what --selector may say: the reasons of orphans, and the
// kinds of their owners.
func selectorTerms() []string {
	var terms []string
	for _, r := range []verdict.Reason{
		ownership.PodGone, ownership.PodFinished, ownership.NodeGone, ownership.ServiceGone, ownership.VirtualMachineGone,
	} {
		terms = append(terms, "reason="+string(r))
	}
	for _, k := range []calico.OwnerKind{
		calico.KindPodSandbox, calico.KindLegacyPod, calico.KindNode, calico.KindService, calico.KindVirtualMachine,
	} {
		terms = append(terms, "kind="+k.String())
	}
	return append(terms, "namespace=")
}
