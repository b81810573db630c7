package inventory_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

// TestInventoryIsExact applies whatever may come, in whatever order, both to
// an inventory and to a model that keeps whole objects and searches them.
func TestInventoryIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		t.Repeat(rapid.StateMachineActions(newMachine()))
	})
}

var (
	now   = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	grace = 15 * time.Minute
)

// The few names that the model's objects have: the fewer, the more they clash.
var (
	serviceHandle = calico.LoadBalancerHandleID("web", "shop", "uid-1")
	handleIDs     = []string{
		"k8s-pod-network." + containerID(1), "k8s-pod-network." + containerID(2), "other.net." + containerID(1),
		"shop.web-0", "vxlan-tunnel-addr-node-1", "net.vmi.shop.db", "default.web\r\neth0", serviceHandle,
	}
	blockCIDRs = []string{"10.0.0.0/30", "10.0.0.4/30", "fd00::/126", "damaged"}
	uids       = []types.UID{"0b7a9a3e-2d0f-4a52-9d3c-6a1d2f3b4c5d", "a0000000-0000-4000-8000-00000000000f", "", "odd", "0B7A9A3E-2D0F-4A52-9D3C-6A1D2F3B4C5D"}
	nodeNames  = []string{"node-1", "node-2"}
)

func containerID(n int) string { return fmt.Sprintf("%064x", n) }

type modelHandle struct {
	inventory.Handle
	observed bool
}

type modelBlock struct {
	rv   uint64
	spec calico.IPAMBlockSpec
	// raised is, by handle, the version in which its count last rose while
	// there was an earlier version to compare with.
	raised map[string]uint64
}

func (b *modelBlock) counts() map[string]int {
	counts := map[string]int{}
	for _, id := range handleIDs {
		if n := len(b.spec.OrdinalsOf(calico.HandleName(id))); n > 0 {
			counts[calico.HandleName(id)] = n
		}
	}
	return counts
}

// ended is what is known of a handle that lost its last reference: whether it
// must or may count as one that was referenced.
type ended struct {
	rv        uint64
	must, may bool
}

type machine struct {
	clock *clocktesting.FakePassiveClock
	inv   *inventory.Inventory

	handles  map[string]modelHandle
	blocks   map[string]*modelBlock
	pods     map[string]*corev1.Pod
	nodes    map[string]uint64
	services map[string]*metav1.PartialObjectMetadata
	ended    map[string]ended
	declared map[string]map[string]int
}

func newMachine() *machine {
	c := clocktesting.NewFakePassiveClock(now)
	return &machine{
		clock: c, inv: inventory.New(c),
		handles: map[string]modelHandle{}, blocks: map[string]*modelBlock{}, pods: map[string]*corev1.Pod{},
		nodes: map[string]uint64{}, services: map[string]*metav1.PartialObjectMetadata{},
		ended: map[string]ended{}, declared: map[string]map[string]int{},
	}
}

func drawRV(t *rapid.T) uint64 { return rapid.Uint64Range(1, 24).Draw(t, "resourceVersion") }

func (m *machine) references(handle string) (refs []verdict.Reference) {
	for _, b := range m.blocks {
		ordinals := b.spec.OrdinalsOf(handle)
		if len(ordinals) == 0 {
			continue
		}
		secondary := b.spec.Attributes[*b.spec.Allocations[ordinals[0]]].Secondary
		refs = append(refs, verdict.Reference{
			Block: b.spec.CIDR, Count: len(ordinals), First: ordinals[0],
			Namespace: secondary["namespace"], Pod: secondary["pod"], Node: secondary["node"],
		})
	}
	return refs
}

// change applies a change of blocks, and notes which handles lost their last
// reference by it.
func (m *machine) change(f func()) {
	before := maps.Clone(m.blocks)
	f()
	for name, h := range m.handles {
		if len(m.references(name)) > 0 {
			delete(m.ended, name)
			continue
		}
		var e ended
		had := false
		e.must = true
		for _, b := range before {
			if b.counts()[name] == 0 {
				continue
			}
			had = true
			after := b.raised[name] > h.ResourceVersion && sandbox(name)
			e.must, e.may = e.must && after, e.may || after
		}
		if had {
			e.rv = h.ResourceVersion
			m.ended[name] = e
		}
	}
}

func sandbox(name string) bool { return calico.ParseHandleID(name).Kind == calico.KindPodSandbox }

func (m *machine) dropHandle(name string) {
	delete(m.handles, name)
	delete(m.ended, name)
	delete(m.declared, name)
}

func drawHandle(t *rapid.T) inventory.Handle {
	h := inventory.Handle{
		Name:            calico.HandleName(rapid.SampledFrom(handleIDs).Draw(t, "handle")),
		UID:             rapid.SampledFrom(uids).Draw(t, "uid"),
		ResourceVersion: drawRV(t),
		Terminating:     rapid.Bool().Draw(t, "terminating"),
		Held:            rapid.Bool().Draw(t, "held"),
		Stamped:         rapid.Bool().Draw(t, "stamped"),
	}
	if rapid.Bool().Draw(t, "timed") {
		h.LastWrite = now.Add(-time.Duration(rapid.IntRange(-10, 100).Draw(t, "minutes")) * time.Minute)
	}
	if h.Stamped {
		h.StampNode = rapid.SampledFrom(append(nodeNames, "")).Draw(t, "stamp's node")
		h.StampComplete = rapid.Bool().Draw(t, "complete")
	}
	return h
}

func (m *machine) applyHandle(h inventory.Handle) {
	m.inv.ApplyHandle(h)
	old, had := m.handles[h.Name]
	if had && old.ResourceVersion > h.ResourceVersion {
		return
	}
	next := modelHandle{Handle: h}
	if h.LastWrite.IsZero() {
		next.observed, next.LastWrite = true, m.clock.Now()
		if had && old.ResourceVersion == h.ResourceVersion {
			next.observed, next.LastWrite = old.observed, old.LastWrite
		}
	}
	if had && old.ResourceVersion != h.ResourceVersion {
		delete(m.declared, h.Name)
	}
	if had && old.UID != h.UID || h.StampComplete {
		delete(m.ended, h.Name)
	}
	m.handles[h.Name] = next
}

func drawBlock(t *rapid.T) (uint64, calico.IPAMBlockSpec) {
	spec := calico.IPAMBlockSpec{CIDR: rapid.SampledFrom(blockCIDRs).Draw(t, "block"), Deleted: rapid.Bool().Draw(t, "deleted")}
	switch rapid.IntRange(0, 2).Draw(t, "affinity") {
	case 1:
		spec.Affinity = ptr.To("virtual:load-balancer")
	case 2:
		spec.Affinity = ptr.To("host:" + rapid.SampledFrom(nodeNames).Draw(t, "affinity's node"))
	}
	for range rapid.IntRange(0, 3).Draw(t, "attributes") {
		a := calico.AllocationAttribute{}
		if rapid.Bool().Draw(t, "released") {
			a.ReleasedAt = &metav1.Time{Time: now}
		}
		if i := rapid.IntRange(-1, len(handleIDs)-1).Draw(t, "handle_id"); i >= 0 {
			a.HandleID = &handleIDs[i]
			a.Secondary = map[string]string{
				"namespace": "shop", "pod": fmt.Sprintf("pod-%d", rapid.IntRange(0, 2).Draw(t, "pod")), "node": "node-1",
			}
		}
		spec.Attributes = append(spec.Attributes, a)
	}
	for range 4 {
		// -1 and 3 may be out of range, -2 is free.
		if i := rapid.IntRange(-2, 3).Draw(t, "allocation"); i > -2 {
			spec.Allocations = append(spec.Allocations, &i)
		} else {
			spec.Allocations = append(spec.Allocations, nil)
		}
	}
	return drawRV(t), spec
}

func (m *machine) applyBlock(rv uint64, spec calico.IPAMBlockSpec) {
	obj := &calico.IPAMBlock{ObjectMeta: metav1.ObjectMeta{Name: spec.CIDR, ResourceVersion: strconv.FormatUint(rv, 10)}, Spec: spec}
	m.inv.ApplyBlock(obj)
	old, had := m.blocks[spec.CIDR]
	if had && old.rv > rv {
		return
	}
	next := &modelBlock{rv: rv, spec: spec, raised: map[string]uint64{}}
	if had {
		was := old.counts()
		for name, n := range next.counts() {
			next.raised[name] = old.raised[name]
			if n > was[name] {
				next.raised[name] = rv
			}
		}
	}
	m.change(func() { m.blocks[spec.CIDR] = next })
}

func drawPod(t *rapid.T) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: fmt.Sprintf("web-%d", rapid.IntRange(0, 2).Draw(t, "pod")),
			UID: rapid.SampledFrom(uids).Draw(t, "uid"), ResourceVersion: strconv.FormatUint(drawRV(t), 10),
			Annotations: map[string]string{},
		},
		Spec:   corev1.PodSpec{NodeName: "node-1", HostNetwork: rapid.Bool().Draw(t, "hostNetwork")},
		Status: corev1.PodStatus{Phase: rapid.SampledFrom([]corev1.PodPhase{"", corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}).Draw(t, "phase")},
	}
	if n := rapid.IntRange(0, 2).Draw(t, "containerID"); n > 0 {
		p.Annotations[calico.ContainerIDAnnotation] = containerID(n)
	}
	if rapid.Bool().Draw(t, "annotated") {
		p.Annotations[calico.PodIPAnnotation] = "10.0.0.5/32"
	}
	if rapid.Bool().Draw(t, "has an IP") {
		p.Status.PodIP = "10.0.0.1"
		p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
	}
	return p
}

func podRV(p *corev1.Pod) uint64 {
	rv, _ := strconv.ParseUint(p.ResourceVersion, 10, 64)
	return rv
}

func (m *machine) applyPod(p *corev1.Pod) {
	m.inv.ApplyPod(p)
	if old, ok := m.pods[p.Name]; !ok || podRV(old) <= podRV(p) {
		m.pods[p.Name] = p
	}
}

func (m *machine) applyNode(name string, rv uint64) {
	m.inv.ApplyNode(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: strconv.FormatUint(rv, 10)}})
	m.nodes[name] = max(m.nodes[name], rv)
}

func drawService(t *rapid.T) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: rapid.SampledFrom([]string{"web", "db"}).Draw(t, "service"),
		UID:             types.UID(fmt.Sprintf("uid-%d", rapid.IntRange(1, 2).Draw(t, "uid"))),
		ResourceVersion: strconv.FormatUint(drawRV(t), 10),
	}}
}

func serviceRV(s *metav1.PartialObjectMetadata) uint64 {
	rv, _ := strconv.ParseUint(s.ResourceVersion, 10, 64)
	return rv
}

func (m *machine) applyService(s *metav1.PartialObjectMetadata) {
	m.inv.ApplyService(s)
	if old, ok := m.services[s.Name]; !ok || serviceRV(old) <= serviceRV(s) {
		m.services[s.Name] = s
	}
}

// The actions.

func (m *machine) ApplyHandle(t *rapid.T) { m.applyHandle(drawHandle(t)) }

func (m *machine) ApplyBlock(t *rapid.T) { m.applyBlock(drawBlock(t)) }

func (m *machine) ApplyPod(t *rapid.T) { m.applyPod(drawPod(t)) }

func (m *machine) ApplyNode(t *rapid.T) {
	m.applyNode(rapid.SampledFrom(nodeNames).Draw(t, "node"), drawRV(t))
}

func (m *machine) ApplyService(t *rapid.T) { m.applyService(drawService(t)) }

func (m *machine) DeleteHandle(t *rapid.T) {
	name, rv := calico.HandleName(rapid.SampledFrom(handleIDs).Draw(t, "handle")), drawRV(t)
	m.inv.DeleteHandle(name, rv)
	if h, ok := m.handles[name]; ok && h.ResourceVersion <= rv {
		m.dropHandle(name)
	}
}

func (m *machine) DeleteBlock(t *rapid.T) {
	name, rv := rapid.SampledFrom(blockCIDRs).Draw(t, "block"), drawRV(t)
	m.inv.DeleteBlock(name, rv)
	if b, ok := m.blocks[name]; ok && b.rv <= rv {
		m.change(func() { delete(m.blocks, name) })
	}
}

func (m *machine) DeletePod(t *rapid.T) {
	p := drawPod(t)
	m.inv.DeletePod(p.Namespace, p.Name, podRV(p))
	if old, ok := m.pods[p.Name]; ok && podRV(old) <= podRV(p) {
		delete(m.pods, p.Name)
	}
}

func (m *machine) DeleteNode(t *rapid.T) {
	name, rv := rapid.SampledFrom(nodeNames).Draw(t, "node"), drawRV(t)
	m.inv.DeleteNode(name, rv)
	if old, ok := m.nodes[name]; ok && old <= rv {
		delete(m.nodes, name)
	}
}

func (m *machine) DeleteService(t *rapid.T) {
	s := drawService(t)
	m.inv.DeleteService(s.Namespace, s.Name, serviceRV(s))
	if old, ok := m.services[s.Name]; ok && serviceRV(old) <= serviceRV(s) {
		delete(m.services, s.Name)
	}
}

// RelistHandles lists anew; the relist before it may have broken off.
func (m *machine) RelistHandles(t *rapid.T) {
	listed := map[string]bool{}
	if rapid.Bool().Draw(t, "breaks off") {
		m.inv.Begin(inventory.Handles)
		m.applyHandle(drawHandle(t))
	}
	m.inv.Begin(inventory.Handles)
	for range rapid.IntRange(0, 3).Draw(t, "listed") {
		h := drawHandle(t)
		m.applyHandle(h)
		listed[h.Name] = true
	}
	for _, h := range slices.Collect(maps.Values(m.handles)) {
		if !listed[h.Name] && rapid.Bool().Draw(t, "is still there") {
			m.applyHandle(h.Handle)
			listed[h.Name] = true
		}
	}
	m.inv.Commit(inventory.Handles)
	for name := range m.handles {
		if !listed[name] {
			m.dropHandle(name)
		}
	}
}

func (m *machine) RelistBlocks(t *rapid.T) {
	listed := map[string]bool{}
	m.inv.Begin(inventory.Blocks)
	for range rapid.IntRange(0, 3).Draw(t, "listed") {
		rv, spec := drawBlock(t)
		m.applyBlock(rv, spec)
		listed[spec.CIDR] = true
	}
	m.inv.Commit(inventory.Blocks)
	m.change(func() { maps.DeleteFunc(m.blocks, func(name string, _ *modelBlock) bool { return !listed[name] }) })
}

func (m *machine) RelistPods(t *rapid.T) {
	p := drawPod(t)
	m.inv.Begin(inventory.Pods)
	m.applyPod(p)
	m.inv.Commit(inventory.Pods)
	maps.DeleteFunc(m.pods, func(name string, _ *corev1.Pod) bool { return name != p.Name })
}

func (m *machine) RelistNodes(t *rapid.T) {
	name := rapid.SampledFrom(nodeNames).Draw(t, "node")
	m.inv.Begin(inventory.Nodes)
	m.applyNode(name, drawRV(t))
	m.inv.Commit(inventory.Nodes)
	maps.DeleteFunc(m.nodes, func(other string, _ uint64) bool { return other != name })
}

func (m *machine) RelistServices(t *rapid.T) {
	s := drawService(t)
	m.inv.Begin(inventory.Services)
	m.applyService(s)
	m.inv.Commit(inventory.Services)
	maps.DeleteFunc(m.services, func(name string, _ *metav1.PartialObjectMetadata) bool { return name != s.Name })
}

func (m *machine) RememberDeclared(t *rapid.T) {
	name, rv := calico.HandleName(rapid.SampledFrom(handleIDs).Draw(t, "handle")), drawRV(t)
	declared := map[string]int{rapid.SampledFrom(blockCIDRs).Draw(t, "declared"): 1}
	m.inv.RememberDeclared(name, strconv.FormatUint(rv, 10), declared)
	if h, ok := m.handles[name]; ok && h.ResourceVersion == rv {
		m.declared[name] = declared
	}
}

func (m *machine) TimePasses(t *rapid.T) {
	m.clock.SetTime(m.clock.Now().Add(time.Duration(rapid.IntRange(1, 600).Draw(t, "seconds")) * time.Second))
}

// The model as ownership.Facts, by search.

func (m *machine) toPod(p *corev1.Pod) ownership.Pod {
	return ownership.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName,
		ContainerID: p.Annotations[calico.ContainerIDAnnotation],
		Finished:    p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
	}
}

// bare is whether the pod may hold any handle's address, and where.
func (m *machine) bare(p *corev1.Pod) (addresses []netip.Addr) {
	if m.toPod(p).Finished || p.Spec.HostNetwork || p.Annotations[calico.ContainerIDAnnotation] != "" {
		return nil
	}
	if p.Status.PodIP != "" {
		addresses = append(addresses, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"))
	}
	if p.Annotations[calico.PodIPAnnotation] != "" {
		addresses = append(addresses, netip.MustParseAddr("10.0.0.5"))
	}
	return addresses
}

func (m *machine) bareIn(block netip.Prefix) map[string]bool {
	found := map[string]bool{}
	for name, p := range m.pods {
		for _, a := range m.bare(p) {
			if block.Contains(a) {
				found[name] = true
			}
		}
	}
	return found
}

// Check compares all that can be asked.
func (m *machine) Check(t *rapid.T) {
	m.checkSummary(t)
	m.checkOwners(t)
	var held, leaks []string
	for _, id := range handleIDs {
		name := calico.HandleName(id)
		m.checkReferences(t, name)
		m.checkEvidence(t, name)
		h, ok := m.handles[name]
		if ok && h.Held && h.Terminating {
			held = append(held, name)
		}
		if _, lost := m.ended[name]; ok && lost && sandbox(name) && !h.StampComplete {
			leaks = append(leaks, name)
		}
	}
	same(t, "held", sorted(m.inv.Held()), sorted(held))
	var gotLeaks []string
	for _, l := range m.inv.Leaks(0, m.clock.Now()) {
		gotLeaks = append(gotLeaks, l.Handle)
		if l.Namespace != "shop" || !strings.HasPrefix(l.Pod, "pod-") || l.Node != "node-1" {
			t.Errorf("leak %+v lacks its pod", l)
		}
	}
	same(t, "leaks", sorted(gotLeaks), sorted(leaks))
	var all []string
	for e, v := range m.inv.All(m.clock.Now(), grace) {
		all = append(all, e.Handle.Name)
		if judged := verdict.Judge(e); judged != v {
			t.Errorf("%q comes with verdict %+v, its evidence says %+v", e.Handle.Name, v, judged)
		}
	}
	same(t, "all", sorted(all), slices.Sorted(maps.Keys(m.handles)))
}

func (m *machine) checkSummary(t *rapid.T) {
	want := inventory.Summary{
		Handles: len(m.handles), Blocks: len(m.blocks), Nodes: len(m.nodes), Services: len(m.services), Pods: len(m.pods),
	}
	for name := range m.handles {
		if len(m.references(name)) > 0 {
			want.ReferencedHandles++
		}
	}
	for _, p := range m.pods {
		if len(p.Annotations) > 0 {
			want.CalicoPods++
		}
	}
	same(t, "summary", m.inv.Summary(), want)
}

func (m *machine) checkOwners(t *rapid.T) {
	for _, name := range nodeNames {
		_, want := m.nodes[name]
		same(t, "has node "+name, m.inv.HasNode(name), want)
	}
	hashed := false
	for _, s := range m.services {
		hashed = hashed || calico.LoadBalancerHandleID(s.Name, s.Namespace, string(s.UID)) == serviceHandle
	}
	same(t, "has service", m.inv.HasServiceHandle(calico.HandleName(serviceHandle)), hashed)
	same(t, "virtual machine", m.inv.VirtualMachine("shop", "db"), ownership.ExistenceUnknown)

	bare := 0
	for n := range 3 {
		name := fmt.Sprintf("web-%d", n)
		got, ok := m.inv.PodByName("shop", name)
		p, there := m.pods[name]
		same(t, "has pod "+name, ok, there)
		if there {
			same(t, "pod "+name, got, m.toPod(p))
			if len(m.bare(p)) > 0 {
				bare++
			}
		}
	}
	same(t, "bare pods", m.inv.BarePods(), bare)
	for n := range 3 {
		alive, found := false, false
		for _, p := range m.pods {
			if p.Annotations[calico.ContainerIDAnnotation] == containerID(n) {
				found, alive = true, alive || !m.toPod(p).Finished
			}
		}
		got, ok := m.inv.PodByContainerID(containerID(n))
		same(t, "finds container "+containerID(n), ok, found)
		if ok {
			same(t, "container's pod", got.ContainerID, containerID(n))
			same(t, "finished", got.Finished, !alive)
		}
	}
	for _, cidr := range blockCIDRs {
		block, err := netip.ParsePrefix(cidr)
		if err != nil {
			continue
		}
		candidates := m.bareIn(block)
		got, ok := m.inv.BarePodIn(block)
		same(t, "bare pod in "+cidr, ok, len(candidates) > 0)
		if ok && !candidates[got.Name] {
			t.Errorf("pod %q is not in %s", got.Name, cidr)
		}
		want := ""
		if b, ok := m.blocks[cidr]; ok && b.spec.Affinity != nil {
			want = calico.AffinityNode(*b.spec.Affinity)
		}
		node, named := m.inv.BlockNode(block)
		same(t, "node of "+cidr, node, want)
		same(t, "names a node: "+cidr, named, want != "")
	}
}

func (m *machine) checkReferences(t *rapid.T, name string) {
	order := func(a, b verdict.Reference) int { return strings.Compare(a.Block, b.Block) }
	got, want := m.inv.References(name), m.references(name)
	slices.SortFunc(got, order)
	slices.SortFunc(want, order)
	same(t, "references of "+name, got, want)
}

func (m *machine) checkEvidence(t *rapid.T, name string) {
	got, ok := m.inv.Evidence(name, m.clock.Now(), grace)
	h, there := m.handles[name]
	same(t, "has "+name, ok, there)
	if !ok || !there {
		return
	}
	want := verdict.Handle{
		Name: name, UID: h.UID, ResourceVersion: strconv.FormatUint(h.ResourceVersion, 10),
		LastWrite: h.LastWrite, LastWriteObserved: h.observed, Terminating: h.Terminating, Held: h.Held,
	}
	if h.Stamped {
		want.Stamp = &ownership.Stamp{Node: h.StampNode}
	}
	got.Handle.LastWrite = got.Handle.LastWrite.UTC()
	same(t, "handle", got.Handle, want)
	same(t, "ID", got.ID, calico.ParseHandleID(name))

	e, lost := m.ended[name]
	lost = lost && e.rv == h.ResourceVersion
	if got.WasReferenced && (!lost || !e.may) {
		t.Errorf("%q counts as one that was referenced after its version %d", name, h.ResourceVersion)
	}
	if !got.WasReferenced && lost && e.must {
		t.Errorf("%q does not count as one that was referenced after its version %d", name, h.ResourceVersion)
	}
	if len(m.references(name)) == 0 {
		same(t, "declared", got.Declared, m.declared[name])
		same(t, "owner's state", got.Owner.State, ownership.Resolve(ownership.Subject{
			ID: got.ID, Name: name, Stamp: want.Stamp, Declared: m.declared[name],
		}, m.inv).State)
	}
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}

// same compares by JSON, for the sake of readable failures; a list is the same
// whether empty or nil.
func same(t *rapid.T, what string, got, want any) {
	t.Helper()
	if g, w := text(t, got), text(t, want); g != w {
		t.Errorf("%s: got %s, want %s", what, g, w)
	}
}

func text(t *rapid.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if string(b) == "[]" {
		return "null"
	}
	return string(b)
}
