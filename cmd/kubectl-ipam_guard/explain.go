package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/ipam-guard/ipam-guard/internal/access"
	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/effect"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

func newExplain(connection *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	grace := verdict.DefaultGrace
	cmd := &cobra.Command{
		Use:   "explain HANDLE|POD|IP|NODE...",
		Short: "Say what the evidence on a handle, pod, IP or node is, and the verdict",
		Example: `  kubectl ipam-guard explain 10.65.3.7
  kubectl ipam-guard explain pod/shop/cart-0 node/worker-3
  kubectl ipam-guard explain k8s-pod-network.78e0…`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, _, err := connection.ToRawKubeConfigLoader().Namespace()
			if err != nil {
				return fmt.Errorf("no cluster to work on: %w", err)
			}
			subjects := make([]subject, len(args))
			for i, text := range args {
				if subjects[i], err = parseSubject(text, namespace); err != nil {
					return err
				}
			}
			cfg, api, err := cluster(cmd.Context(), connection, access.Reading)
			if err != nil {
				return err
			}
			x, err := look(cmd.Context(), cfg, api, subjects, grace)
			if err != nil {
				return err
			}
			x.out = bufio.NewWriter(streams.Out)
			for i, s := range subjects {
				if err := x.explain(cmd.Context(), args[i], s); err != nil {
					return err
				}
			}
			return x.out.Flush()
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", grace, "how long a handle must be unchanged to count as an orphan")
	return cmd
}

// explainer is one look at the cluster, and what of it the subjects touch.
type explainer struct {
	inv     *inventory.Inventory
	handles effect.API
	read    map[string]*calico.IPAMHandle
	// slots are the addresses that blocks record.
	slots []slot
	pods  map[string]*podSeen
	users map[netip.Addr]string
	grace time.Duration
	out   *bufio.Writer
}

// slot is one allocation of a block.
type slot struct {
	ip                    netip.Addr
	block, affinity       string
	ordinal, index        int
	handle, pod, node     string
	releasedAt, attribute string
}

type podSeen struct {
	containerID, node, phase string
	ips                      []string
}

func look(ctx context.Context, cfg *rest.Config, api calico.API, subjects []subject, grace time.Duration) (*explainer, error) {
	handles, err := effect.NewAPI(cfg, api)
	if err != nil {
		return nil, err
	}
	x := &explainer{
		inv: inventory.New(clock.RealClock{}), handles: handles, grace: grace,
		read: map[string]*calico.IPAMHandle{}, pods: map[string]*podSeen{}, users: map[netip.Addr]string{},
	}
	// Named handles are read before what they are judged by.
	for _, s := range subjects {
		if s.kind == subjectAny || s.kind == subjectHandle {
			if _, err := x.handle(ctx, s.name); err != nil {
				return nil, err
			}
		}
	}
	return x, feed.Once(ctx, cfg, api, x.inv, feed.Visitor{Block: x.block, Pod: x.pod})
}

func (x *explainer) block(b *calico.IPAMBlock) {
	affinity := ""
	if b.Spec.Affinity != nil {
		affinity = *b.Spec.Affinity
	}
	for ordinal, index := range b.Spec.Allocations {
		if index == nil {
			continue
		}
		s := slot{block: b.Spec.CIDR, affinity: affinity, ordinal: ordinal, index: *index}
		s.ip, _ = verdict.Address(b.Spec.CIDR, ordinal)
		if *index >= 0 && *index < len(b.Spec.Attributes) {
			a := &b.Spec.Attributes[*index]
			if a.HandleID != nil {
				s.handle = *a.HandleID
			}
			if a.Secondary["pod"] != "" {
				s.pod = a.Secondary["namespace"] + "/" + a.Secondary["pod"]
			}
			s.node = a.Secondary["node"]
			if a.ReleasedAt != nil {
				s.releasedAt = a.ReleasedAt.Format(time.RFC3339)
			}
			var words []string
			for _, key := range slices.Sorted(maps.Keys(a.Secondary)) {
				words = append(words, key+"="+a.Secondary[key])
			}
			s.attribute = strings.Join(words, ", ")
		} else {
			s.attribute = fmt.Sprintf("damaged: index %d is out of range", *index)
		}
		x.slots = append(x.slots, s)
	}
}

func (x *explainer) pod(p *corev1.Pod) {
	if p.Spec.HostNetwork {
		return
	}
	name := p.Namespace + "/" + p.Name
	seen := &podSeen{containerID: strings.ToLower(p.Annotations[calico.ContainerIDAnnotation]), node: p.Spec.NodeName, phase: string(p.Status.Phase)}
	for _, ip := range p.Status.PodIPs {
		seen.ips = append(seen.ips, ip.IP)
		if at, err := netip.ParseAddr(ip.IP); err == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			x.users[at] = name
		}
	}
	x.pods[name] = seen
}

// handle reads a handle once; nil means that there is none.
func (x *explainer) handle(ctx context.Context, id string) (*calico.IPAMHandle, error) {
	name := calico.HandleName(id)
	if h, ok := x.read[name]; ok {
		return h, nil
	}
	h, err := x.handles.GetHandle(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		h = nil
	case err != nil:
		return nil, fmt.Errorf("read handle %s: %w", name, err)
	}
	x.read[name] = h
	return h, nil
}

func (x *explainer) explain(ctx context.Context, text string, s subject) error {
	switch s.kind {
	case subjectIP:
		return x.explainIP(ctx, s.ip)
	case subjectPod:
		return x.explainPod(ctx, s.namespace+"/"+s.name)
	case subjectNode:
		return x.explainNode(ctx, s.name)
	}
	h, err := x.handle(ctx, s.name)
	switch {
	case err != nil:
		return err
	case h != nil:
		return x.explainHandle(ctx, h.Name)
	case s.kind == subjectAny && x.inv.HasNode(s.name):
		return x.explainNode(ctx, s.name)
	case s.kind == subjectAny && x.pods[s.namespace+"/"+s.name] != nil:
		return x.explainPod(ctx, s.namespace+"/"+s.name)
	}
	for _, a := range x.slots {
		if strings.EqualFold(a.handle, s.name) {
			return x.explainHandle(ctx, s.name)
		}
	}
	return fmt.Errorf("%s is no handle, no node, and no pod in namespace %s", text, s.namespace)
}

func (x *explainer) line(format string, args ...any) { fmt.Fprintf(x.out, format+"\n", args...) }

// explainHandle is the evidence, step by step, and the verdict.
func (x *explainer) explainHandle(ctx context.Context, id string) error {
	h, err := x.handle(ctx, id)
	if err != nil {
		return err
	}
	x.line("Handle %s", id)
	if h == nil {
		x.line("  MISSING: blocks mention it, but it does not exist; Calico cannot release its addresses")
		return nil
	}
	e := x.inv.EvidenceFor(h, time.Now(), x.grace)
	v := verdict.Judge(e)
	x.line("  %s", verdict.Explain(e, v))
	x.line("  1. its ID is that of a %s", e.ID.Kind)
	x.line("  2. it names %s", declared(h))
	references := 0
	for _, a := range x.slots {
		if strings.EqualFold(a.handle, h.Spec.HandleID) {
			x.line("  3. block %s gives it %s (ordinal %d)%s", a.block, a.ip, a.ordinal, about(a))
			references++
		}
	}
	if references == 0 {
		x.line("  3. no block references it")
	}
	x.line("  4. last written %s, settled %s later", e.Handle.LastWrite.UTC().Format(time.RFC3339), x.grace)
	if e.Owner.Reason != "" {
		x.line("  5. its owner: %s", e.Owner.Reason)
	}
	if e.Handle.Stamp != nil {
		x.line("     stamp: %s", e.Handle.Stamp.Encode())
	}
	if h.Spec.Deleted {
		x.line("     it is marked deleted: Calico reads it as absent")
	}
	x.line("  6. verdict %s/%s", v.Outcome, v.Reason)
	return nil
}

func declared(h *calico.IPAMHandle) string {
	var words []string
	for _, cidr := range slices.Sorted(maps.Keys(h.Spec.Block)) {
		words = append(words, fmt.Sprintf("%s (%d)", cidr, h.Spec.Block[cidr]))
	}
	if len(words) == 0 {
		return "no block"
	}
	return "block " + strings.Join(words, ", ")
}

func about(a slot) string {
	if a.attribute == "" {
		return ""
	}
	return ": " + a.attribute
}

func (x *explainer) explainIP(ctx context.Context, ip netip.Addr) error {
	x.line("IP %s", ip)
	user := x.users[ip]
	for _, a := range x.slots {
		if a.ip != ip {
			continue
		}
		x.line("  block %s, affinity %s, ordinal %d, attribute %d%s", a.block, a.affinity, a.ordinal, a.index, about(a))
		switch {
		case a.releasedAt != "":
			x.line("  released at %s, cooling down", a.releasedAt)
		case a.handle == "":
			x.line("  DISAGREES: it is allocated to no handle")
		case a.pod != "" && user == "":
			x.line("  DISAGREES: the block says pod %s, but no running pod has the address", a.pod)
		case a.pod != "" && user != a.pod:
			x.line("  DISAGREES: the block says pod %s, but pod %s has the address", a.pod, user)
		}
		if user != "" {
			x.line("  pod %s has it", user)
		}
		if a.handle != "" {
			return x.explainHandle(ctx, a.handle)
		}
		return nil
	}
	if user != "" {
		x.line("  DISAGREES: pod %s has it, but no block records it", user)
	} else {
		x.line("  no block records it, and no pod has it")
	}
	return nil
}

func (x *explainer) explainPod(ctx context.Context, name string) error {
	p := x.pods[name]
	if p == nil {
		return fmt.Errorf("there is no pod %s on the pod network", name)
	}
	x.line("Pod %s: %s on node %s, addresses %s, container ID %s", name, p.phase, p.node, orNone(strings.Join(p.ips, ", ")), orNone(p.containerID))
	ids := map[string]bool{}
	for _, a := range x.slots {
		if a.handle != "" && (a.pod == name || p.containerID != "" && strings.HasSuffix(a.handle, "."+p.containerID)) {
			ids[a.handle] = true
		}
	}
	if len(ids) == 0 {
		x.line("  no block records an address for it")
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		if err := x.explainHandle(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func (x *explainer) explainNode(ctx context.Context, name string) error {
	exists := "exists"
	if !x.inv.HasNode(name) {
		exists = "does not exist"
	}
	blocks := map[string]int{}
	tunnels := map[string]bool{}
	borrowed := 0
	for _, a := range x.slots {
		home := calico.AffinityNode(a.affinity)
		if home == name {
			blocks[a.block]++
		} else if a.node == name {
			borrowed++
		}
		if id := calico.ParseHandleID(a.handle); id.Kind == calico.KindNode && id.Name == name {
			tunnels[a.handle] = true
		}
	}
	x.line("Node %s %s; %d blocks with allocations, %d addresses borrowed from other nodes' blocks", name, exists, len(blocks), borrowed)
	for _, cidr := range slices.Sorted(maps.Keys(blocks)) {
		x.line("  block %s records %d allocations", cidr, blocks[cidr])
	}
	orphans := 0
	for e, v := range x.inv.All(time.Now(), x.grace) {
		if e.ID.Kind == calico.KindNode && e.ID.Name == name && !tunnels[e.Handle.Name] {
			tunnels[e.Handle.Name] = true
		}
		if v.Outcome == verdict.Orphaned && e.Handle.Stamp != nil && e.Handle.Stamp.Node == name {
			orphans++
		}
	}
	x.line("  %d orphans are stamped with it", orphans)
	for _, id := range slices.Sorted(maps.Keys(tunnels)) {
		if err := x.explainHandle(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
