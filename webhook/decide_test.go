package webhook

import (
	"testing"

	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// with builds the decoded form of a handle.
func with(edits ...func(*handle)) *handle {
	h := &handle{Metadata: metadata{Name: handleID}, Spec: spec{HandleID: handleID, Block: map[string]int64{blockCIDR: 1}}}
	for _, edit := range edits {
		edit(h)
	}
	return h
}

func aStamp(value string) func(*handle) {
	return func(h *handle) { h.Metadata.Annotations = map[string]string{ownership.StampAnnotation: value} }
}

func aHold(h *handle) { h.Metadata.Finalizers = append(h.Metadata.Finalizers, ownership.Finalizer) }

func otherHold(h *handle) { h.Metadata.Finalizers = append(h.Metadata.Finalizers, "example.com/other") }
func aMark(h *handle)     { h.Spec.Deleted = true }
func anEnd(h *handle)     { at := "2026-12-01T09:30:00Z"; h.Metadata.DeletionTimestamp = &at }

func TestDecideCreate(t *testing.T) {
	for name, c := range map[string]struct {
		handle  *handle
		without bool
		want    change
	}{
		"stamps and holds a new handle":                            {handle: with(), want: change{"fresh", true, outcomeStamped}},
		"replaces a stamp that the client brought":                 {handle: with(aStamp("forged")), want: change{"fresh", true, outcomeStamped}},
		"does not add the finalizer twice":                         {handle: with(aHold), want: change{"fresh", false, outcomeStamped}},
		"adds the finalizer beside another one":                    {handle: with(otherHold), want: change{"fresh", true, outcomeStamped}},
		"does not hold a handle that comes with the deletion mark": {handle: with(aMark), want: change{"fresh", false, outcomeStamped}},
		"only stamps without the guard":                            {handle: with(), without: true, want: change{"fresh", false, outcomeStamped}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decideCreate(c.handle, "fresh", !c.without); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestDecideUpdate(t *testing.T) {
	for name, c := range map[string]struct {
		old, updated *handle
		without      bool
		want         change
	}{
		"gives a metadata-blind writer both back": {
			old: with(aStamp("was"), aHold), updated: with(),
			want: change{"was", true, outcomeRestored},
		},
		"gives both back beside a foreign finalizer": {
			old: with(aStamp("was"), aHold, otherHold), updated: with(otherHold),
			want: change{"was", true, outcomeRestored},
		},
		"gives the stamp alone back when the handle is marked as deleted": {
			old: with(aStamp("was"), aHold), updated: with(aMark),
			want: change{"was", false, outcomeRestored},
		},
		"gives the finalizer back when the deletion mark is taken back": {
			old: with(aStamp("was"), aMark), updated: with(),
			want: change{"was", true, outcomeRestored},
		},
		"adds no finalizer to a terminating handle whose mark is taken back": {
			old: with(aStamp("was"), aMark, anEnd, otherHold), updated: with(anEnd, otherHold),
			want: change{"was", false, outcomeRestored},
		},
		"keeps the finalizer that a terminating handle had": {
			old: with(aStamp("was"), aHold, anEnd), updated: with(anEnd),
			want: change{"was", true, outcomeRestored},
		},
		"lets a terminating handle go once it is marked as deleted": {
			old: with(aStamp("was"), aHold, anEnd), updated: with(anEnd, aMark),
			want: change{"was", false, outcomeRestored},
		},
		"holds a handle anew that Calico takes up after its finalizer was taken off": {
			old: with(aStamp("was")), updated: with(),
			want: change{"was", true, outcomeRestored},
		},
		"adds no finalizer to a terminating handle that had none of ours": {
			old: with(aStamp("was"), anEnd, otherHold), updated: with(anEnd, otherHold),
			want: change{"was", false, outcomeRestored},
		},
		"lets the finalizer alone be taken off": {
			old: with(aStamp("was"), aHold), updated: with(aStamp("was")),
			want: change{"", false, outcomeUnchanged},
		},
		"changes nothing for a writer that keeps both": {
			old: with(aStamp("was"), aHold), updated: with(aStamp("was"), aHold),
			want: change{"", false, outcomeUnchanged},
		},
		"leaves a changed stamp for the validating half to refuse": {
			old: with(aStamp("was"), aHold), updated: with(aStamp("is"), aHold),
			want: change{"", false, outcomeUnchanged},
		},
		"leaves a removed stamp for the validating half to refuse": {
			old: with(aStamp("was"), aHold), updated: with(aHold),
			want: change{"", false, outcomeUnchanged},
		},
		"stamps and holds an existing handle that has no stamp": {
			old: with(), updated: with(),
			want: change{"fresh", true, outcomeStamped},
		},
		"replaces a stamp that a client brings to an existing handle": {
			old: with(), updated: with(aStamp("forged")),
			want: change{"fresh", true, outcomeStamped},
		},
		"stamps a terminating handle without holding it": {
			old: with(anEnd, otherHold), updated: with(anEnd, otherHold),
			want: change{"fresh", false, outcomeStamped},
		},
		"stamps a handle at its deletion mark without holding it": {
			old: with(), updated: with(aMark),
			want: change{"fresh", false, outcomeStamped},
		},
		"restores only the stamp without the guard": {
			old: with(aStamp("was"), aHold), updated: with(), without: true,
			want: change{"was", false, outcomeRestored},
		},
		"stamps an existing handle without the guard": {
			old: with(), updated: with(), without: true,
			want: change{"fresh", false, outcomeStamped},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := decideUpdate(c.old, c.updated, func() string { return "fresh" }, !c.without)
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestTampered(t *testing.T) {
	for name, c := range map[string]struct {
		old, updated *handle
		want         bool
	}{
		"refuses a changed stamp":                                      {with(aStamp("was"), aHold), with(aStamp("is"), aHold), true},
		"refuses a changed stamp even when the finalizer goes too":     {with(aStamp("was"), aHold), with(aStamp("is")), true},
		"refuses a removed stamp":                                      {with(aStamp("was"), aHold), with(aHold), true},
		"allows the same stamp":                                        {with(aStamp("was"), aHold), with(aStamp("was"), aHold), false},
		"allows the finalizer alone to go":                             {with(aStamp("was"), aHold), with(aStamp("was")), false},
		"allows a first stamp":                                         {with(), with(aStamp("is"), aHold), false},
		"allows a metadata-blind writer whom the mutating half missed": {with(aStamp("was"), aHold), with(), false},
		"allows a blind writer to mark the handle as deleted":          {with(aStamp("was"), aHold), with(aMark), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tampered(c.old, c.updated); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
