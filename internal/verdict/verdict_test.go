package verdict_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/calico"
	"github.com/ipam-guard/ipam-guard/internal/ownership"
	"github.com/ipam-guard/ipam-guard/internal/verdict"
)

var (
	now       = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	container = strings.Repeat("78e0", 16)
	sandbox   = "k8s-pod-network." + container
	inBlock   = verdict.Reference{Block: "10.65.0.0/26", Count: 1, First: 5, Namespace: "shop", Pod: "cart-0", Node: "a"}
	podGone   = ownership.Finding{State: ownership.StateGone, Reason: ownership.PodGone}
)

// evidence is of an orphan that was last written two years and 143 days ago.
func evidence(change func(*verdict.Evidence)) verdict.Evidence {
	e := verdict.Evidence{
		Handle: verdict.Handle{Name: sandbox, UID: "u", ResourceVersion: "7", LastWrite: now.Add(-(2*365 + 143) * 24 * time.Hour)},
		ID:     calico.ParseHandleID(sandbox),
		Owner:  podGone,
		Now:    now,
		Grace:  verdict.DefaultGrace,
	}
	if change != nil {
		change(&e)
	}
	return e
}

func owner(f ownership.Finding) func(*verdict.Evidence) {
	return func(e *verdict.Evidence) { e.Owner = f }
}

func written(ago time.Duration) func(*verdict.Evidence) {
	return func(e *verdict.Evidence) { e.Handle.LastWrite = now.Add(-ago) }
}

func TestJudge(t *testing.T) {
	for name, tc := range map[string]struct {
		evidence verdict.Evidence
		want     verdict.Verdict
	}{
		"an unreferenced, settled handle whose pod is gone is an orphan": {
			evidence(nil), verdict.Verdict{Outcome: verdict.Orphaned, Reason: ownership.PodGone},
		},
		"a referenced handle is in use, whatever its owner": {
			evidence(func(e *verdict.Evidence) { e.References = []verdict.Reference{inBlock} }),
			verdict.Verdict{Outcome: verdict.InUse, Reason: verdict.Referenced},
		},
		"a referenced handle that is marked deleted is in use": {
			evidence(func(e *verdict.Evidence) {
				e.References = []verdict.Reference{inBlock}
				e.Handle.SoftDeleted = true
			}),
			verdict.Verdict{Outcome: verdict.InUse, Reason: verdict.ReferencedSoftDeleted},
		},
		"counts that agree are not skewed": {
			evidence(func(e *verdict.Evidence) {
				e.References = []verdict.Reference{inBlock}
				e.Declared = map[string]int{"10.65.0.0/26": 1}
			}),
			verdict.Verdict{Outcome: verdict.InUse, Reason: verdict.Referenced},
		},
		"counts that differ are skewed": {
			evidence(func(e *verdict.Evidence) {
				e.References = []verdict.Reference{inBlock}
				e.Declared = map[string]int{"10.65.0.0/26": 2}
			}),
			verdict.Verdict{Outcome: verdict.InUse, Reason: verdict.Referenced, Skewed: true},
		},
		"a block too many is skewed": {
			evidence(func(e *verdict.Evidence) {
				e.References = []verdict.Reference{inBlock}
				e.Declared = map[string]int{"10.65.0.0/26": 1, "10.65.0.64/26": 1}
			}),
			verdict.Verdict{Outcome: verdict.InUse, Reason: verdict.Referenced, Skewed: true},
		},
		"a handle written a moment before the grace period ends is settling": {
			evidence(written(verdict.DefaultGrace - time.Nanosecond)),
			verdict.Verdict{Outcome: verdict.Settling, Reason: verdict.RecentlyWritten},
		},
		"a handle written a grace period ago has settled": {
			evidence(written(verdict.DefaultGrace)), verdict.Verdict{Outcome: verdict.Orphaned, Reason: ownership.PodGone},
		},
		"a handle written in the future is settling": {
			evidence(written(-time.Hour)), verdict.Verdict{Outcome: verdict.Settling, Reason: verdict.RecentlyWritten},
		},
		"a handle that tells no time is settling": {
			evidence(func(e *verdict.Evidence) { e.Handle.LastWrite = time.Time{} }),
			verdict.Verdict{Outcome: verdict.Settling, Reason: verdict.NoWriteTime},
		},
		"an owner that lives keeps its handle": {
			evidence(owner(ownership.Finding{State: ownership.StateAlive, Reason: ownership.PodAlive})),
			verdict.Verdict{Outcome: verdict.OwnerAlive, Reason: ownership.PodAlive},
		},
		"an owner that cannot be told keeps its handle": {
			evidence(owner(ownership.Finding{Reason: ownership.UnknownForm})),
			verdict.Verdict{Outcome: verdict.OwnerUnknown, Reason: ownership.UnknownForm},
		},
		"a provisional finding makes a provisional orphan": {
			evidence(owner(ownership.Finding{State: ownership.StateGone, Reason: ownership.PodGone, Provisional: true})),
			verdict.Verdict{Outcome: verdict.Orphaned, Reason: ownership.PodGone, Provisional: true},
		},
		"an unreferenced handle that is marked deleted is an orphan": {
			evidence(func(e *verdict.Evidence) { e.Handle.SoftDeleted = true }),
			verdict.Verdict{Outcome: verdict.Orphaned, Reason: ownership.PodGone},
		},
		"the reserved handle is reserved, referenced or not": {
			evidence(func(e *verdict.Evidence) { e.ID = calico.ParseHandleID(calico.ReservedHandleID) }),
			verdict.Verdict{Outcome: verdict.Reserved, Reason: ownership.ReservedHandle},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := verdict.Judge(tc.evidence); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestReleasable(t *testing.T) {
	terminating := func(change func(*verdict.Evidence)) verdict.Evidence {
		e := evidence(func(e *verdict.Evidence) { e.Handle.Terminating = true })
		if change != nil {
			change(&e)
		}
		return e
	}
	for name, tc := range map[string]struct {
		evidence verdict.Evidence
		want     bool
	}{
		"a deleted, settled, unreferenced handle may go": {terminating(nil), true},
		"one that nobody deleted may not":                {evidence(nil), false},
		"one that a block references may not": {
			terminating(func(e *verdict.Evidence) { e.References = []verdict.Reference{inBlock} }), false,
		},
		"one whose assignment may be under way may not": {terminating(written(time.Minute)), false},
		"one whose assignment has ended may": {
			terminating(func(e *verdict.Evidence) {
				e.Handle.LastWrite, e.WasReferenced = now.Add(-time.Second), true
			}), true,
		},
		"one whose owner lives may, for somebody chose to delete it": {
			terminating(owner(ownership.Finding{State: ownership.StateAlive, Reason: ownership.PodAlive})), true,
		},
		"one that tells no time may not": {
			terminating(func(e *verdict.Evidence) { e.Handle.LastWrite = time.Time{} }), false,
		},
		"the wait is the least grace period, not a longer one": {
			terminating(func(e *verdict.Evidence) {
				e.Handle.LastWrite, e.Grace = now.Add(-verdict.MinGrace), time.Hour
			}), true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := verdict.Releasable(tc.evidence); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestExplain(t *testing.T) {
	alive := func(r ownership.Reason) ownership.Finding {
		return ownership.Finding{State: ownership.StateAlive, Reason: r, Pod: ownership.Pod{Namespace: "shop", Name: "cart-0"}, Node: "a"}
	}
	gone := func(r ownership.Reason) ownership.Finding {
		f := alive(r)
		f.State = ownership.StateGone
		return f
	}
	unknown := func(r ownership.Reason) ownership.Finding {
		f := alive(r)
		f.State = ownership.StateUnknown
		return f
	}
	of := func(id string, f ownership.Finding) verdict.Evidence {
		return evidence(func(e *verdict.Evidence) { e.ID, e.Owner = calico.ParseHandleID(id), f })
	}
	const age = ", last changed 2 y 143 d ago"
	for want, e := range map[string]verdict.Evidence{
		"Orphaned/PodGone: no block references it, no pod has container ID 78e078e078e0…" + age:                                                                                              evidence(nil),
		"Orphaned/PodGone: no block references it, there is no pod shop/cart-0" + age:                                                                                                        of("shop.cart-0", gone(ownership.PodGone)),
		"Orphaned/PodFinished: no block references it, pod shop/cart-0 has finished" + age:                                                                                                   of(sandbox, gone(ownership.PodFinished)),
		"Orphaned/NodeGone: no block references it, node a does not exist" + age:                                                                                                             of("ipip-tunnel-addr-a", gone(ownership.NodeGone)),
		"Orphaned/ServiceGone: no block references it, no Service hashes to it" + age:                                                                                                        of("lb-"+strings.Repeat("a", 43), gone(ownership.ServiceGone)),
		"Orphaned/VirtualMachineGone: no block references it, there is no virtual machine shop/db" + age:                                                                                     of("net.vmi.shop.db", gone(ownership.VirtualMachineGone)),
		"OwnerAlive/PodAlive: no block references it, pod shop/cart-0 still carries container ID 78e078e078e0…" + age:                                                                        of(sandbox, alive(ownership.PodAlive)),
		"OwnerAlive/PodAlive: no block references it, pod shop/cart-0 exists" + age:                                                                                                          of("shop.cart-0", alive(ownership.PodAlive)),
		"OwnerAlive/NodeAlive: no block references it, node a exists" + age:                                                                                                                  of("ipip-tunnel-addr-a", alive(ownership.NodeAlive)),
		"OwnerAlive/ServiceAlive: no block references it, a Service hashes to it" + age:                                                                                                      of("lb-"+strings.Repeat("a", 43), alive(ownership.ServiceAlive)),
		"OwnerAlive/VirtualMachineAlive: no block references it, virtual machine shop/db exists" + age:                                                                                       of("net.vmi.shop.db", alive(ownership.VirtualMachineAlive)),
		"OwnerUnknown/VirtualMachineLeft: no block references it, there is no virtual machine shop/db, but that is not certain until it was gone for 5 minutes" + age:                        of("net.vmi.shop.db", unknown(ownership.VirtualMachineLeft)),
		"OwnerUnknown/VirtualMachineUnknown: no block references it, whether virtual machine shop/db exists is not known" + age:                                                              of("net.vmi.shop.db", unknown(ownership.VirtualMachineUnknown)),
		"OwnerUnknown/HashedID: no block references it, its ID hides which virtual machine it is for" + age:                                                                                  of("net.vmi._0a", unknown(ownership.HashedID)),
		"OwnerUnknown/UnknownForm: no block references it, its ID has no known form, so its owner cannot be told" + age:                                                                      of("openstack", unknown(ownership.UnknownForm)),
		"OwnerUnknown/PodWithoutContainerID: no block references it, pod shop/cart-0 carries no container ID and has an address in a block that the handle names: it may be the owner" + age: of(sandbox, unknown(ownership.PodWithoutContainerID)),
		"OwnerUnknown/DamagedHandle: no block references it, it names a block by no valid CIDR, so a pod without a container ID may be the owner" + age:                                      of(sandbox, unknown(ownership.DamagedHandle)),
		"Settling/RecentlyWritten: no block references it, last changed 5 min 0 s ago":                                                                                                       evidence(written(5 * time.Minute)),
		"Settling/RecentlyWritten: no block references it, last changed in the future, by the API server's clock":                                                                            evidence(written(-time.Minute)),
		"Settling/NoWriteTime: no block references it, when it was last changed is not known":                                                                                                evidence(func(e *verdict.Evidence) { e.Handle.LastWrite = time.Time{} }),
		"Reserved/ReservedHandle: the handle is reserved":                                                                                                                                    of(calico.ReservedHandleID, ownership.Finding{}),
		"InUse/Referenced: block 10.65.0.0/26 gives it 10.65.0.5 for pod shop/cart-0 on node a":                                                                                              evidence(func(e *verdict.Evidence) { e.References = []verdict.Reference{inBlock} }),
		"InUse/ReferencedSoftDeleted: block 10.65.0.0/26 gives it 10.65.0.5 for pod shop/cart-0 on node a, although it is marked deleted": evidence(func(e *verdict.Evidence) {
			e.References, e.Handle.SoftDeleted = []verdict.Reference{inBlock}, true
		}),
		"InUse/Referenced: block fd00::/122 gives it fd00::3f and 1 more and block nonsense gives it 1 address, its counts differ from the blocks'": evidence(func(e *verdict.Evidence) {
			e.References = []verdict.Reference{{Block: "fd00::/122", Count: 2, First: 63}, {Block: "nonsense", Count: 1}}
			e.Declared = map[string]int{}
		}),
		"Orphaned/PodGone: no block references it, no pod has container ID 78e078e078e0…, unchanged for at least 1 h 0 min, but its spec is still to be read": evidence(func(e *verdict.Evidence) {
			e.Handle.LastWrite, e.Handle.LastWriteObserved = now.Add(-time.Hour), true
			e.Owner.Provisional = true
		}),
	} {
		t.Run(want, func(t *testing.T) {
			if got := verdict.Explain(e, verdict.Judge(e)); got != want {
				t.Errorf("got  %s", got)
			}
		})
	}
}

func TestAddress(t *testing.T) {
	for name, tc := range map[string]struct {
		block   string
		ordinal int
		want    string
	}{
		"the first of a block":             {"10.65.0.0/26", 0, "10.65.0.0"},
		"the last of a block":              {"10.65.0.64/26", 63, "10.65.0.127"},
		"across a byte":                    {"10.65.0.0/22", 300, "10.65.1.44"},
		"of IPv6":                          {"fd00:65::40/122", 10, "fd00:65::4a"},
		"none beyond the block":            {"10.65.0.0/26", 64, ""},
		"none before the block":            {"10.65.0.0/26", -1, ""},
		"none of a block of no valid CIDR": {"10.65.0.0", 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := verdict.Address(tc.block, tc.ordinal)
			if ok != (tc.want != "") || ok && got.String() != tc.want {
				t.Errorf("got %s, %v, want %q", got, ok, tc.want)
			}
		})
	}
}
