package effect

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// API is what effects ask of the API server. Errors are the API server's own
// (k8s.io/apimachinery/pkg/api/errors), wrapped at most.
type API interface {
	GetHandle(ctx context.Context, name string) (*calico.IPAMHandle, error)
	// ListHandles reads one page of at most limit handles; cont is "" for the
	// first page, next is "" after the last.
	ListHandles(ctx context.Context, limit int64, cont string) (page []calico.IPAMHandle, next string, err error)
	GetBlock(ctx context.Context, name string) (*calico.IPAMBlock, error)
	// DeleteHandle deletes the handle if UID and resourceVersion still match.
	// It returns the object when a finalizer keeps it, else nil.
	DeleteHandle(ctx context.Context, name string, uid types.UID, resourceVersion string) (*calico.IPAMHandle, error)
	// PatchHandle applies a JSON merge patch.
	PatchHandle(ctx context.Context, name string, patch []byte) (*calico.IPAMHandle, error)
	CreateHandle(ctx context.Context, handle *calico.IPAMHandle) (*calico.IPAMHandle, error)
	UpdateHandle(ctx context.Context, handle *calico.IPAMHandle) (*calico.IPAMHandle, error)
}

// client is the API over HTTP.
type client struct {
	rest rest.Interface
	api  calico.API
}

// NewAPI returns the API server's own API. Its client-side rate limit is off:
// pacing is this package's work.
func NewAPI(cfg *rest.Config, api calico.API) (API, error) {
	c, err := api.NewRESTClient(cfg)
	if err != nil {
		return nil, err
	}
	return &client{rest: c, api: api}, nil
}

func (c *client) handles() string { return c.api.Handles().Resource }

func (c *client) GetHandle(ctx context.Context, name string) (*calico.IPAMHandle, error) {
	out := &calico.IPAMHandle{}
	return out, c.rest.Get().Resource(c.handles()).Name(name).Do(ctx).Into(out)
}

func (c *client) ListHandles(ctx context.Context, limit int64, cont string) ([]calico.IPAMHandle, string, error) {
	out := &calico.IPAMHandleList{}
	opts := metav1.ListOptions{Limit: limit, Continue: cont}
	err := c.rest.Get().Resource(c.handles()).VersionedParams(&opts, metav1.ParameterCodec).Do(ctx).Into(out)
	return out.Items, out.Continue, err
}

func (c *client) GetBlock(ctx context.Context, name string) (*calico.IPAMBlock, error) {
	out := &calico.IPAMBlock{}
	return out, c.rest.Get().Resource(c.api.Blocks().Resource).Name(name).Do(ctx).Into(out)
}

func (c *client) DeleteHandle(ctx context.Context, name string, uid types.UID, resourceVersion string) (*calico.IPAMHandle, error) {
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &resourceVersion},
	})
	if err != nil {
		return nil, fmt.Errorf("encode delete options: %w", err)
	}
	answer := c.rest.Delete().Resource(c.handles()).Name(name).Body(body).Do(ctx)
	// Unlike Raw's, this error says what the API server said.
	if err := answer.Error(); err != nil {
		return nil, err
	}
	raw, err := answer.Raw()
	if err != nil {
		return nil, err
	}
	// A Status says that the object is gone; the object itself, that it stays.
	kept := &calico.IPAMHandle{}
	if err := json.Unmarshal(raw, kept); err != nil {
		return nil, fmt.Errorf("decode the answer to a delete: %w", err)
	}
	if kept.Kind == "Status" || len(kept.Finalizers) == 0 {
		return nil, nil
	}
	return kept, nil
}

func (c *client) PatchHandle(ctx context.Context, name string, patch []byte) (*calico.IPAMHandle, error) {
	out := &calico.IPAMHandle{}
	return out, c.rest.Patch(types.MergePatchType).Resource(c.handles()).Name(name).Body(patch).Do(ctx).Into(out)
}

func (c *client) CreateHandle(ctx context.Context, handle *calico.IPAMHandle) (*calico.IPAMHandle, error) {
	out := &calico.IPAMHandle{}
	return out, c.rest.Post().Resource(c.handles()).Body(c.typed(handle)).Do(ctx).Into(out)
}

func (c *client) UpdateHandle(ctx context.Context, handle *calico.IPAMHandle) (*calico.IPAMHandle, error) {
	out := &calico.IPAMHandle{}
	return out, c.rest.Put().Resource(c.handles()).Name(handle.Name).Body(c.typed(handle)).Do(ctx).Into(out)
}

func (c *client) typed(handle *calico.IPAMHandle) *calico.IPAMHandle {
	handle = handle.DeepCopy()
	handle.TypeMeta = metav1.TypeMeta{APIVersion: c.api.String(), Kind: "IPAMHandle"}
	return handle
}
