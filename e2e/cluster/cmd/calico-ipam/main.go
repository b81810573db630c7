// Command calico-ipam is a CNI plugin that gives pods their addresses by
// Calico's protocol: handle first, then block; and back block first.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/calicoproto"
)

// deadline is Calico's own for one call.
const deadline = 90 * time.Second

// conf is what the runtime hands over on standard input.
type conf struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	IPAM       struct {
		Kubeconfig string       `json:"kubeconfig"`
		Node       string       `json:"node"`
		Block      netip.Prefix `json:"block"`
		// Pool is what the gateway's address is from.
		Pool    netip.Prefix `json:"pool"`
		Gateway string       `json:"gateway"`
	} `json:"ipam"`
}

func main() {
	answer, err := run()
	if err != nil {
		// The protocol wants errors on standard output.
		answer = map[string]any{"cniVersion": "0.4.0", "code": 100, "msg": err.Error()}
	}
	if answer != nil {
		_ = json.NewEncoder(os.Stdout).Encode(answer)
	}
	if err != nil {
		os.Exit(1)
	}
}

func run() (any, error) {
	command := os.Getenv("CNI_COMMAND")
	if command == "VERSION" {
		return map[string]any{"cniVersion": "0.4.0", "supportedVersions": []string{"0.3.1", "0.4.0"}}, nil
	}
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, err
	}
	var c conf
	if err := json.Unmarshal(input, &c); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", c.IPAM.Kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := calicoproto.New(cfg, calico.API{GroupVersion: calico.GroupCRD})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	container := os.Getenv("CNI_CONTAINERID")
	id := c.Name + "." + container
	switch command {
	case "ADD":
		pod := podOf(os.Getenv("CNI_ARGS"))
		address, err := client.Assign(ctx, id, c.IPAM.Block, map[string]string{
			"namespace": pod.Namespace, "pod": pod.Name, "node": c.IPAM.Node, "timestamp": time.Now().UTC().String(),
		})
		if err != nil {
			return nil, err
		}
		if err := annotate(ctx, cfg, pod, container, address); err != nil {
			return nil, err
		}
		return map[string]any{
			"cniVersion": c.CNIVersion,
			"ips": []any{map[string]string{
				"version": "4", "address": netip.PrefixFrom(address, c.IPAM.Pool.Bits()).String(), "gateway": c.IPAM.Gateway,
			}},
			"routes": []any{map[string]string{"dst": "0.0.0.0/0"}},
		}, nil
	case "DEL":
		return nil, client.Release(ctx, id)
	}
	return nil, nil
}

func podOf(args string) types.NamespacedName {
	var pod types.NamespacedName
	for pair := range strings.SplitSeq(args, ";") {
		switch key, value, _ := strings.Cut(pair, "="); key {
		case "K8S_POD_NAMESPACE":
			pod.Namespace = value
		case "K8S_POD_NAME":
			pod.Name = value
		}
	}
	return pod
}

// annotate tells on the pod which container has which address.
func annotate(ctx context.Context, cfg *rest.Config, pod types.NamespacedName, container string, address netip.Addr) error {
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return err
	}
	ip := address.String() + "/32"
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		"cni.projectcalico.org/containerID": container,
		"cni.projectcalico.org/podIP":       ip,
		"cni.projectcalico.org/podIPs":      ip,
	}}})
	if err != nil {
		return err
	}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	if _, err := client.Resource(pods).Namespace(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotate pod %s: %w", pod, err)
	}
	return nil
}
