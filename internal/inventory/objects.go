package inventory

import (
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// FromObject takes what the inventory needs of a handle's metadata.
func FromObject(obj metav1.Object) Handle {
	h := Handle{
		Name:            strings.Clone(obj.GetName()),
		UID:             obj.GetUID(),
		ResourceVersion: resourceVersion(obj.GetResourceVersion()),
		Generation:      obj.GetGeneration(),
		LastWrite:       obj.GetCreationTimestamp().Time,
		Terminating:     obj.GetDeletionTimestamp() != nil,
		Held:            slices.Contains(obj.GetFinalizers(), ownership.Finalizer),
	}
	// The server sets the time of a field manager whenever it changes a field.
	for _, f := range obj.GetManagedFields() {
		if f.Time != nil && f.Time.After(h.LastWrite) {
			h.LastWrite = f.Time.Time
		}
	}
	if stamp, err := ownership.ParseStamp(obj.GetAnnotations()[ownership.StampAnnotation]); err == nil {
		h.Stamped = true
		h.StampNode = strings.Clone(stamp.Node)
		h.StampComplete = stamp.Complete()
	}
	return h
}

// resourceVersion reads a resource version; one that is no number is older
// than any.
func resourceVersion(s string) uint64 {
	rv, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return rv
}
