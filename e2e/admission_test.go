package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/kubevirt"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

func TestInstalled(t *testing.T) {
	i := install(t, calico.API{GroupVersion: calico.GroupCRD})

	i.readme(t, "plugin")

	first := i.startAdmission(t, "first")
	t.Run("metrics are for who may read them", func(t *testing.T) { i.metricsAccess(t, first) })
	t.Run("the leaked handles of before are swept", func(t *testing.T) { i.sweptOnly(t) })
	t.Run("stamp and finalizer outlive Calico's updates", i.stampOutlivesUpdates)
	t.Run("a normal release is gone at once and costs no more writes", func(t *testing.T) {
		if with := i.writesOfALife(t); with != i.without {
			t.Errorf("a handle's life takes %d writes with IPAM Guard and %d without", with, i.without)
		}
	})
	t.Run("a raw delete of a handle in use is refused, with what to do", i.rawDeleteRefused)
	t.Run("with the webhook down a raw delete is held until Calico's release", i.rawDeleteHeld(first))
	t.Run("a deleted handle is let go within 2 s once its block is empty", i.emptyLetGo(first))
	t.Run("with the webhook down a handle is made unstamped within 2 s", i.unstamped(first, func() { i.service.set() }))
	t.Run("with the webhook hanging a handle is made unstamped within its timeout", i.unstamped(first, func() { i.service.hang(first.webhook) }))
	t.Run("a stamp may not be tampered with, a finalizer may be taken off", i.tampering)
	t.Run("a malformed handle is made, with a warning", i.malformed)
	t.Run("a renewed certificate fails no admission", i.rotation)
	t.Run("with the leader killed admission goes on and the other sweeps", i.leaderKilled(first))
	t.Run("the API server takes every overlay", i.overlaysAccepted)
	t.Run("RBAC grants what is asked for, and nothing else", i.rbac)
	t.Run("an uninstall leaves nothing behind", func(t *testing.T) {
		i.uninstall(t, func() { i.readme(t, "uninstall") })
	})
}

// TestInstalledOnTheNewerGroup is what depends on the API group: rules of
// webhooks and RBAC, and the protocol.
func TestInstalledOnTheNewerGroup(t *testing.T) {
	i := install(t, calico.API{GroupVersion: calico.GroupV3})
	i.readme(t, "plugin")
	out, err := i.command(t, "kubectl", "apply", "-k", "config/overlays/repair").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	first := i.startAdmission(t, "first", "--repair=skewed,missing,stuck")
	t.Run("the leaked handles of before are swept", func(t *testing.T) { i.sweptOnly(t) })
	t.Run("stamp and finalizer outlive Calico's updates", i.stampOutlivesUpdates)
	t.Run("a normal release is gone at once and costs no more writes", func(t *testing.T) {
		if with := i.writesOfALife(t); with != i.without {
			t.Errorf("a handle's life takes %d writes with IPAM Guard and %d without", with, i.without)
		}
	})
	t.Run("a raw delete of a handle in use is refused, with what to do", i.rawDeleteRefused)
	t.Run("with the webhook down a raw delete is held until Calico's release", i.rawDeleteHeld(first))
	t.Run("a deleted handle is let go within 2 s once its block is empty", i.emptyLetGo(first))
	missing := i.leaveMissing(t, first)
	t.Run("a leak is swept, finalizer and all, and its owner is noted first", i.leakSwept)
	t.Run("a handle that is missing is made anew, and Calico can release it", func(t *testing.T) {
		eventually(t, 3*time.Minute, "the repair", func() bool { return !i.gone(t, missing) })
		must(t, i.cni.Release(t.Context(), missing))
		if !i.gone(t, missing) || i.referenced(t, missing, v4) {
			t.Error("something is left after its release")
		}
	})
	t.Run("RBAC grants what is asked for, and nothing else", i.rbac)
	t.Run("the plugin's uninstall leaves nothing behind", func(t *testing.T) {
		i.uninstall(t, func() {
			// Before --yes it changes nothing; the webhooks would put all back.
			for _, args := range []string{"", "--yes --audit-file=" + filepath.Join(i.dir, "stripped.jsonl")} {
				out, err := i.command(t, "bash", "-c", "PATH=$PWD/bin:$PATH kubectl ipam-guard uninstall "+args).CombinedOutput()
				if err != nil || !strings.Contains(string(out), "nothing was changed") && !strings.Contains(string(out), "kubectl delete -k config/default") {
					t.Fatalf("uninstall %s: %v\n%s", args, err, out)
				}
			}
			if out, err := i.command(t, "kubectl", "delete", "--ignore-not-found", "-k", "config/default").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	})
}

// startAdmission starts a manager and waits until admission goes through it.
func (i *installation) startAdmission(t *testing.T, name string, extra ...string) *replica {
	t.Helper()
	r := i.start(t, name, extra...)
	i.service.set(r.webhook)
	eventually(t, 30*time.Second, "the webhook to answer", func() bool {
		id := newID()
		i.assign(t, id, v4)
		stamped := i.handle(t, id).Annotations[ownership.StampAnnotation] != ""
		must(t, i.cni.Release(t.Context(), id))
		return stamped
	})
	return r
}

// leaveMissing deletes a handle in use by force, as nobody should.
func (i *installation) leaveMissing(t *testing.T, r *replica) string {
	t.Helper()
	id := newID()
	i.assign(t, id, v4)
	i.service.set()
	defer i.service.set(r.webhook)
	must(t, i.rawDelete(t, id))
	must(t, i.patch(t, id, `{"metadata":{"finalizers":null}}`))
	if !i.gone(t, id) || !i.referenced(t, id, v4) {
		t.Fatal("the handle is not missing")
	}
	return id
}

// leakSwept leaves a handle behind as a killed CNI does, after its address was
// given back.
func (i *installation) leakSwept(t *testing.T) {
	id := newID()
	i.assign(t, id, v4)
	_, err := i.cni.Free(t.Context(), id, v4)
	must(t, err)
	eventually(t, 2*time.Minute, "the owner in the stamp", func() bool {
		stamp, err := ownership.ParseStamp(i.handle(t, id).Annotations[ownership.StampAnnotation])
		must(t, err)
		return stamp.Name == "cart-0"
	})
	eventually(t, 5*time.Minute, "the leak to be swept", func() bool { return i.gone(t, id) })
}

// sweptOnly waits until just the handles that blocks reference are left.
func (i *installation) sweptOnly(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "the orphans to go", func() bool {
		page, _, err := i.handles.ListHandles(t.Context(), 1000, "")
		must(t, err)
		return len(page) == 30
	})
}

// writesOfALife counts the write requests for handles that one dual-stack
// assignment and its release take.
func (i *installation) writesOfALife(t *testing.T) int {
	t.Helper()
	id := newID()
	i.assign(t, id, v4)
	i.assign(t, id, v6)
	must(t, i.cni.Release(t.Context(), id))
	if !i.gone(t, id) {
		t.Error("the handle is still there after its release")
	}
	name := calico.HandleName(id)
	var writes int
	eventually(t, 10*time.Second, "the audit log", func() bool {
		writes = 0
		deleted := false
		for _, e := range i.requests(t) {
			if e.ObjectRef.Resource != "ipamhandles" || e.ObjectRef.Name != name || e.Verb == "get" {
				continue
			}
			writes++
			deleted = deleted || e.Verb == "delete"
		}
		return deleted
	})
	return writes
}

func (i *installation) stampOutlivesUpdates(t *testing.T) {
	id := newID()
	i.assign(t, id, v4)
	stamp := i.handle(t, id).Annotations[ownership.StampAnnotation]
	parsed, err := ownership.ParseStamp(stamp)
	must(t, err)
	if parsed.Kind != "PodSandbox" || parsed.Node != "node-a" || parsed.ContainerID == "" || parsed.User == "" || parsed.Time.IsZero() {
		t.Errorf("the stamp is %s", stamp)
	}
	check := func(when string) {
		t.Helper()
		h := i.handle(t, id)
		if h.Annotations[ownership.StampAnnotation] != stamp {
			t.Errorf("%s the stamp is %q, want %q", when, h.Annotations[ownership.StampAnnotation], stamp)
		}
		if !slices.Contains(h.Finalizers, ownership.Finalizer) {
			t.Errorf("%s the finalizers are %v", when, h.Finalizers)
		}
	}
	check("after creation")
	i.assign(t, id, v6)
	check("after the second address family")
	n, err := i.cni.Free(t.Context(), id, v6)
	must(t, err)
	must(t, i.cni.Decrement(t.Context(), id, v6, n))
	check("after a decrement")
	must(t, i.cni.Release(t.Context(), id))
	if !i.gone(t, id) {
		t.Error("the handle is still there after its release")
	}
}

func (i *installation) rawDeleteRefused(t *testing.T) {
	id := newID()
	address := i.assign(t, id, v4)
	err := i.rawDelete(t, id)
	if err == nil {
		t.Fatal("a handle in use was deleted")
	}
	for _, want := range []string{address.String(), "shop/cart-0", "node-a"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the message does not name %s: %v", want, err)
		}
	}
	if h := i.handle(t, id); h.DeletionTimestamp != nil {
		t.Error("the handle is terminating all the same")
	}
	must(t, i.cni.Release(t.Context(), id))
}

func (i *installation) rawDeleteHeld(r *replica) func(t *testing.T) {
	return func(t *testing.T) {
		id := newID()
		i.assign(t, id, v4)
		i.service.set()
		defer i.service.set(r.webhook)
		must(t, i.rawDelete(t, id))
		time.Sleep(3 * time.Second)
		if h := i.handle(t, id); h.DeletionTimestamp == nil {
			t.Fatal("the handle is not terminating")
		}
		if held := r.metric(t, "ipam_guard_finalizers_held"); held != 1 {
			t.Errorf("the metric says that %v handles are held", held)
		}
		must(t, i.cni.Release(t.Context(), id))
		if !i.gone(t, id) {
			t.Error("the handle is still there after Calico's release")
		}
		if i.referenced(t, id, v4) {
			t.Error("the block still references the handle")
		}
	}
}

func (i *installation) emptyLetGo(r *replica) func(t *testing.T) {
	return func(t *testing.T) {
		id := newID()
		i.assign(t, id, v4)
		i.service.set()
		defer i.service.set(r.webhook)
		must(t, i.rawDelete(t, id))
		_, err := i.cni.Free(t.Context(), id, v4)
		must(t, err)
		emptied := time.Now()
		eventually(t, 10*time.Second, "the handle to go", func() bool { return i.gone(t, id) })
		if took := time.Since(emptied); took > 2*time.Second {
			t.Errorf("it took %s, want 2 s at most", took)
		}
	}
}

func (i *installation) unstamped(r *replica, breakIt func()) func(t *testing.T) {
	return func(t *testing.T) {
		breakIt()
		defer i.service.set(r.webhook)
		id := newID()
		start := time.Now()
		must(t, i.cni.Increment(t.Context(), id, v4, 1))
		if took := time.Since(start); took > 5*time.Second {
			// Its own time-out is 2 s, the API server's default 10 s.
			t.Errorf("the creation took %s", took)
		}
		if h := i.handle(t, id); h.Annotations[ownership.StampAnnotation] != "" || len(h.Finalizers) != 0 {
			t.Errorf("the handle has %v and %v", h.Annotations, h.Finalizers)
		}
		leaked := newID()
		must(t, i.cni.Increment(t.Context(), leaked, v4, 1))
		i.leaked = append(i.leaked, leaked)
		i.service.set(r.webhook)
		// The API server may hold on to a connection that hung.
		eventually(t, 40*time.Second, "the webhook to be back", func() bool {
			probe := newID()
			must(t, i.cni.Increment(t.Context(), probe, v4, 1))
			defer func() { must(t, i.cni.Decrement(t.Context(), probe, v4, 1)) }()
			return i.handle(t, probe).Annotations[ownership.StampAnnotation] != ""
		})
		// Adopted with Calico's next write.
		must(t, i.cni.Increment(t.Context(), id, v6, 1))
		if h := i.handle(t, id); h.Annotations[ownership.StampAnnotation] == "" {
			t.Error("the handle is not stamped by its next write")
		}
		must(t, i.cni.Decrement(t.Context(), id, v6, 1))
		must(t, i.cni.Decrement(t.Context(), id, v4, 1))
	}
}

func (i *installation) patch(t *testing.T, id, patch string) error {
	t.Helper()
	_, err := i.dynamic.Resource(i.api.Handles()).Patch(t.Context(), calico.HandleName(id), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (i *installation) tampering(t *testing.T) {
	id := newID()
	i.assign(t, id, v4)
	for _, patch := range []string{
		`{"metadata":{"annotations":{"ipam-guard.io/creation-owner":"{\"v\":1,\"kind\":\"Node\",\"node\":\"gone\"}"}}}`,
		`{"metadata":{"annotations":{"ipam-guard.io/creation-owner":null}}}`,
	} {
		if err := i.patch(t, id, patch); err == nil || !strings.Contains(err.Error(), ownership.StampAnnotation) {
			t.Errorf("%s: got %v, want a refusal that names the annotation", patch, err)
		}
	}
	must(t, i.patch(t, id, `{"metadata":{"finalizers":null}}`))
	if h := i.handle(t, id); len(h.Finalizers) != 0 {
		t.Errorf("the finalizers are %v after they were taken off on purpose", h.Finalizers)
	}
	must(t, i.cni.Release(t.Context(), id))
}

// warnings keeps what the API server warned of.
type warnings struct {
	mu   sync.Mutex
	told []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, text)
}

func (i *installation) malformed(t *testing.T) {
	heard := &warnings{}
	cfg := rest.CopyConfig(i.cfg)
	cfg.WarningHandler = heard
	c, err := i.api.NewRESTClient(cfg)
	must(t, err)
	h := &calico.IPAMHandle{Spec: calico.IPAMHandleSpec{HandleID: "something.else", Block: map[string]int{"nonsense": -1}}}
	h.APIVersion, h.Kind, h.Name = i.api.String(), "IPAMHandle", "not.its.id"
	must(t, c.Post().Resource("ipamhandles").Body(h).Do(t.Context()).Error())
	if len(heard.told) == 0 {
		t.Error("nobody was warned")
	}
	must(t, i.patch(t, h.Name, `{"metadata":{"finalizers":null}}`))
	must(t, i.rawDelete(t, h.Name))
}

// rotation renews the serving certificate while handles are made all the time.
func (i *installation) rotation(t *testing.T) {
	var made, unstamped atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			for ctx.Err() == nil {
				id := newID()
				if err := i.cni.Increment(t.Context(), id, v4, 1); err != nil {
					t.Errorf("make a handle: %v", err)
					return
				}
				made.Add(1)
				if i.handle(t, id).Annotations[ownership.StampAnnotation] == "" {
					unstamped.Add(1)
				}
				if err := i.cni.Decrement(t.Context(), id, v4, 1); err != nil {
					t.Errorf("release a handle: %v", err)
					return
				}
			}
		})
	}
	secrets := i.clients.CoreV1().Secrets(namespace)
	for range 2 {
		before, err := secrets.Get(t.Context(), secret, metav1.GetOptions{})
		must(t, err)
		// What cmctl renew does.
		certificates := i.dynamic.Resource(schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}).Namespace(namespace)
		_, err = certificates.Patch(t.Context(), webhook, types.MergePatchType,
			fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Issuing","status":"True","reason":"ManuallyTriggered","message":"test","lastTransitionTime":%q}]}}`,
				time.Now().UTC().Format(time.RFC3339)), metav1.PatchOptions{}, "status")
		must(t, err)
		eventually(t, 30*time.Second, "the renewed certificate", func() bool {
			after, err := secrets.Get(t.Context(), secret, metav1.GetOptions{})
			must(t, err)
			return string(after.Data["tls.crt"]) != string(before.Data["tls.crt"])
		})
		time.Sleep(2 * time.Second)
	}
	stop()
	load.Wait()
	t.Logf("%d handles made through two renewals", made.Load())
	if made.Load() == 0 || unstamped.Load() > 0 {
		t.Errorf("%d of %d handles were not stamped", unstamped.Load(), made.Load())
	}
}

func (i *installation) lease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	l, err := i.clients.CoordinationV1().Leases(namespace).Get(t.Context(), account, metav1.GetOptions{})
	must(t, err)
	return l
}

func (i *installation) leaderKilled(first *replica) func(t *testing.T) {
	return func(t *testing.T) {
		second := i.start(t, "second")
		i.service.set(first.webhook, second.webhook)
		before := *i.lease(t).Spec.HolderIdentity
		// Each handle is made, and its writer killed, while the leader dies.
		orphan := newID()
		must(t, i.cni.Increment(t.Context(), orphan, v4, 1))
		must(t, first.Kill())
		id := newID()
		i.assign(t, id, v4)
		if i.handle(t, id).Annotations[ownership.StampAnnotation] == "" {
			t.Error("admission stopped with the leader")
		}
		eventually(t, 40*time.Second, "another leader", func() bool {
			holder := i.lease(t).Spec.HolderIdentity
			return holder != nil && *holder != before && *holder != ""
		})
		// From here on nobody but the guard writes: the orphan carries stamp and
		// finalizer, which the sweep takes off before it deletes.
		asked := second.metric(t, "ipam_guard_admission_requests_total")
		eventually(t, 3*time.Minute, "the other to sweep", func() bool { return i.gone(t, orphan) })
		for _, leaked := range i.leaked {
			eventually(t, 30*time.Second, "an unstamped handle to be swept", func() bool { return i.gone(t, leaked) })
		}
		if now := second.metric(t, "ipam_guard_admission_requests_total"); asked == 0 || now != asked {
			t.Errorf("the webhook was asked %v times before the sweep and %v after: the guard's own requests reach it", asked, now)
		}
		i.sweptOnce(t, append(i.leaked, orphan)...)
		i.sweptSparesLive(t, id)
		must(t, i.cni.Release(t.Context(), id))
	}
}

// sweptOnce counts the deletes of each handle by the guard's account.
func (i *installation) sweptOnce(t *testing.T, ids ...string) {
	t.Helper()
	deletes := map[string]int{}
	eventually(t, 10*time.Second, "the audit log", func() bool {
		clear(deletes)
		for _, e := range i.requests(t) {
			if e.Verb == "delete" && e.ObjectRef.Resource == "ipamhandles" && e.User.Username == guardUser && e.ResponseStatus.Code == 200 {
				deletes[e.ObjectRef.Name]++
			}
		}
		for _, id := range ids {
			if deletes[calico.HandleName(id)] == 0 {
				return false
			}
		}
		return true
	})
	for name, n := range deletes {
		if n != 1 {
			t.Errorf("handle %s was deleted %d times", name, n)
		}
	}
}

func (i *installation) sweptSparesLive(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if i.gone(t, id) {
			t.Errorf("live handle %s was swept", id)
		}
	}
}

// guardUser is the shipped ServiceAccount as the API server names it.
const guardUser = "system:serviceaccount:" + namespace + ":" + account

// auditEvent is what is read of a line of the API server's audit log.
type auditEvent struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	RequestURI string `json:"requestURI"`
	ObjectRef  struct {
		Resource  string `json:"resource"`
		APIGroup  string `json:"apiGroup"`
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Stage string `json:"stage"`
}

func (i *installation) requests(t *testing.T) []auditEvent {
	t.Helper()
	f, err := os.Open(i.audit)
	must(t, err)
	defer f.Close()
	var events []auditEvent
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var e auditEvent
		// The last line may be half written.
		if json.Unmarshal(scanner.Bytes(), &e) == nil && (e.Stage == "ResponseComplete" || e.Verb == "watch") {
			events = append(events, e)
		}
	}
	must(t, scanner.Err())
	return events
}

// rbac compares the shipped rules with the requests that were made: none was
// refused, and no rule but those for an API group or an occasion that this
// cluster lacks went unused.
func (i *installation) rbac(t *testing.T) {
	used := map[string]bool{}
	for _, e := range i.requests(t) {
		if e.User.Username != guardUser {
			continue
		}
		if e.ResponseStatus.Code == 403 {
			t.Errorf("refused: %s %s", e.Verb, e.RequestURI)
		}
		used[e.ObjectRef.APIGroup+"/"+e.ObjectRef.Resource+" "+e.Verb] = true
	}
	// Each with why this run cannot use it.
	excused := map[string]string{
		"cert-manager.io/certificates list":       "asked where the API server does not stream lists",
		i.api.Group + "/clusterinformations list": "asked where the API server does not stream lists",
		"/events patch":              "a repeated event",
		"events.k8s.io/events patch": "a repeated event",
	}
	other := calico.GroupV3.Group
	if i.api.GroupVersion == calico.GroupV3 {
		other = calico.GroupCRD.Group
	} else {
		excused["apiextensions.k8s.io/customresourcedefinitions get"] = "asked only where the newer group exists"
	}
	for _, rule := range i.shippedRules(t) {
		group, _, _ := strings.Cut(rule, "/")
		if group == other || group == kubevirt.Group || excused[rule] != "" {
			continue
		}
		if !used[rule] {
			t.Errorf("RBAC grants what nobody asks for: %s", rule)
		}
	}
}

func (i *installation) shippedRules(t *testing.T) []string {
	t.Helper()
	var rules []string
	for _, o := range i.manifest {
		if (o.GetKind() != "ClusterRole" && o.GetKind() != "Role") || o.GetName() != account {
			continue
		}
		data, err := json.Marshal(o.Object["rules"])
		must(t, err)
		var typed []struct {
			APIGroups, Resources, Verbs []string
		}
		must(t, json.Unmarshal(data, &typed))
		for _, r := range typed {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, verb := range r.Verbs {
						rules = append(rules, group+"/"+resource+" "+verb)
					}
				}
			}
		}
	}
	if len(rules) == 0 {
		t.Fatal("no rules are shipped")
	}
	return rules
}

// uninstall checks what a way to uninstall leaves.
func (i *installation) uninstall(t *testing.T, run func()) {
	live := newID()
	i.assign(t, live, v4)
	run()
	page, _, err := i.handles.ListHandles(t.Context(), 1000, "")
	must(t, err)
	for _, h := range page {
		if len(h.Finalizers) > 0 || h.DeletionTimestamp != nil || h.Annotations[ownership.StampAnnotation] != "" {
			t.Errorf("handle %s keeps %v, %v", h.Name, h.Finalizers, h.Annotations)
		}
	}
	must(t, i.cni.Release(t.Context(), live))
	if !i.gone(t, live) {
		t.Error("Calico's release does not work after the uninstall")
	}
	_, err = i.clients.RbacV1().ClusterRoles().Get(t.Context(), account, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the ClusterRole is still there: %v", err)
	}
}

// overlaysAccepted asks the API server, which validates all and keeps nothing.
func (i *installation) overlaysAccepted(t *testing.T) {
	overlays, err := os.ReadDir(filepath.Join(root(t), "config", "overlays"))
	must(t, err)
	for _, overlay := range overlays {
		out, err := i.command(t, "kubectl", "apply", "--dry-run=server", "-k", "config/overlays/"+overlay.Name()).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "deployment.apps/"+account) {
			t.Errorf("overlay %s: %v\n%s", overlay.Name(), err, out)
		}
	}
}

func TestOverlays(t *testing.T) {
	text := func(objects []*unstructured.Unstructured, kind string) string {
		for _, o := range objects {
			if o.GetKind() == kind {
				data, err := json.Marshal(o)
				must(t, err)
				return string(data)
			}
		}
		t.Fatalf("there is no %s", kind)
		return ""
	}
	for _, tc := range []struct{ overlay, kind, want string }{
		{"overlays/dry-run", "Deployment", `"--dry-run"`},
		{"overlays/dry-run", "Deployment", `"--guard=warn"`},
		{"overlays/host-network", "Deployment", `"hostNetwork":true`},
		{"overlays/host-network", "Deployment", `"--webhook-port=10943"`},
		{"overlays/host-network", "Namespace", `"pod-security.kubernetes.io/enforce":"privileged"`},
		{"overlays/without-guard", "Deployment", `"--guard=off"`},
		{"overlays/without-guard", "ValidatingWebhookConfiguration", `"operations":["UPDATE"]`},
		{"overlays/openshift", "Deployment", `"securityContext":{"runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}}`},
		{"overlays/repair", "Deployment", `"--repair=skewed,missing,stuck"`},
		{"overlays/repair", "ClusterRole", `"verbs":["create","update"]`},
		{"default", "Namespace", `"pod-security.kubernetes.io/enforce":"restricted"`},
		{"default", "ValidatingWebhookConfiguration", `"operations":["UPDATE","DELETE"]`},
		{"prometheus", "ServiceMonitor", `"scheme":"https"`},
	} {
		t.Run(tc.overlay+" "+tc.kind, func(t *testing.T) {
			if got := text(build(t, tc.overlay), tc.kind); !strings.Contains(got, tc.want) {
				t.Errorf("it lacks %s: %s", tc.want, got)
			}
		})
	}
}
