package webhook

import (
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/json"

	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// handle is the part of an IPAMHandle that admission reads. Decoding no more
// than that is what makes admission cheap.
type handle struct {
	Metadata metadata `json:"metadata"`
	Spec     spec     `json:"spec"`
}

type metadata struct {
	Name              string            `json:"name"`
	Annotations       map[string]string `json:"annotations"`
	Finalizers        []string          `json:"finalizers"`
	DeletionTimestamp *string           `json:"deletionTimestamp"`
}

type spec struct {
	HandleID string           `json:"handleID"`
	Block    map[string]int64 `json:"block"`
	Deleted  bool             `json:"deleted"`
}

// decode reads a handle as the API server sends it. Names of fields are told
// apart by case, as the API server does.
func decode(raw []byte) (*handle, error) {
	if len(raw) == 0 {
		return nil, errors.New("the request carries no handle")
	}
	h := &handle{}
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, h); err != nil {
		return nil, fmt.Errorf("decode handle: %w", err)
	}
	// The API server names every object before admission.
	if h.Metadata.Name == "" {
		return nil, errors.New("the handle has no name")
	}
	return h, nil
}

// stamp is the creation-owner annotation, "" when there is none.
func (h *handle) stamp() string { return h.Metadata.Annotations[ownership.StampAnnotation] }

// held tells whether our finalizer is on the handle.
func (h *handle) held() bool { return slices.Contains(h.Metadata.Finalizers, ownership.Finalizer) }

func (h *handle) terminating() bool { return h.Metadata.DeletionTimestamp != nil }
