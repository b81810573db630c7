// Package calicoproto writes IPAM objects as Calico does, step by step and in
// Calico's order, so that a test can stop it between any two steps. It is for
// tests, benchmarks and the demo.
package calicoproto

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// Step is one request that changes something.
type Step string

// The steps, in the order of an assignment and then of a release.
const (
	WriteHandle     Step = "write handle"
	WriteBlock      Step = "write block"
	ReleaseBlock    Step = "release from block"
	DecrementHandle Step = "decrement handle"
	SoftDelete      Step = "mark handle deleted"
	DeleteHandle    Step = "delete handle"
)

// retries is how often Calico goes through each of its loops, without a pause.
const retries = 100

// metadataAnnotation is the one annotation that Calico's writes carry.
const metadataAnnotation = "projectcalico.org/metadata"

// ErrFull means that the block has no free address.
var ErrFull = errors.New("block is full")

// Client writes as Calico does.
type Client struct {
	rest rest.Interface
	api  calico.API
	// Before, if set, is called before each step. Its error ends the call
	// there and then, as a kill of the process would: nothing is cleaned up.
	Before func(context.Context, Step) error
}

// New returns a client.
func New(cfg *rest.Config, api calico.API) (*Client, error) {
	c, err := api.NewRESTClient(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{rest: c, api: api}, nil
}

func (c *Client) before(ctx context.Context, s Step) error {
	if c.Before == nil {
		return nil
	}
	return c.Before(ctx, s)
}

// EnsureBlock creates an empty block with an affinity to the node.
func (c *Client) EnsureBlock(ctx context.Context, cidr netip.Prefix, node string) error {
	affinity := "host:" + node
	block := &calico.IPAMBlock{
		TypeMeta:   metav1.TypeMeta{APIVersion: c.api.String(), Kind: "IPAMBlock"},
		ObjectMeta: scratch(calico.BlockName(cidr), nil),
		Spec:       calico.IPAMBlockSpec{CIDR: cidr.String(), Affinity: &affinity, Attributes: []calico.AllocationAttribute{}},
	}
	for n := range 1 << (cidr.Addr().BitLen() - cidr.Bits()) {
		block.Spec.Allocations = append(block.Spec.Allocations, nil)
		block.Spec.Unallocated = append(block.Spec.Unallocated, n)
	}
	err := c.rest.Post().Resource("ipamblocks").Body(block).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// scratch is the metadata of an object that Calico writes: built anew, with
// nothing that others put there.
func scratch(name string, read *metav1.ObjectMeta) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Annotations: map[string]string{metadataAnnotation: `{"creationTimestamp":null}`}}
	if read != nil {
		m.ResourceVersion, m.UID = read.ResourceVersion, read.UID
	}
	return m
}

// GetHandle reads a handle; one that is marked deleted counts as absent.
func (c *Client) GetHandle(ctx context.Context, handleID string) (*calico.IPAMHandle, error) {
	h, err := c.rawHandle(ctx, handleID)
	if err != nil {
		return nil, err
	}
	if h.Spec.Deleted {
		return nil, apierrors.NewNotFound(c.api.Handles().GroupResource(), h.Name)
	}
	return h, nil
}

func (c *Client) rawHandle(ctx context.Context, handleID string) (*calico.IPAMHandle, error) {
	h := &calico.IPAMHandle{}
	return h, c.rest.Get().Resource("ipamhandles").Name(calico.HandleName(handleID)).Do(ctx).Into(h)
}

// GetBlock reads a block.
func (c *Client) GetBlock(ctx context.Context, cidr netip.Prefix) (*calico.IPAMBlock, error) {
	b := &calico.IPAMBlock{}
	return b, c.rest.Get().Resource("ipamblocks").Name(calico.BlockName(cidr)).Do(ctx).Into(b)
}

// Assign gives the handle one address of the block: the handle first, then the
// block. When the block's write fails the handle is decremented again.
func (c *Client) Assign(ctx context.Context, handleID string, cidr netip.Prefix, attributes map[string]string) (netip.Addr, error) {
	if err := c.Increment(ctx, handleID, cidr, 1); err != nil {
		return netip.Addr{}, err
	}
	address, err := c.Allocate(ctx, handleID, cidr, attributes)
	if err != nil && !errors.As(err, new(*stopped)) {
		return address, errors.Join(err, c.Decrement(ctx, handleID, cidr, 1))
	}
	return address, err
}

// stopped is a stop that Before asked for.
type stopped struct{ err error }

func (s *stopped) Error() string { return "stopped: " + s.err.Error() }
func (s *stopped) Unwrap() error { return s.err }

// step asks Before; its error is a stop.
func (c *Client) step(ctx context.Context, s Step) error {
	if err := c.before(ctx, s); err != nil {
		return &stopped{err}
	}
	return nil
}

// Increment is the first half of an assignment: it adds to the handle's count,
// and creates the handle when there is none.
func (c *Client) Increment(ctx context.Context, handleID string, cidr netip.Prefix, n int) error {
	var last error
	for range retries {
		h, err := c.GetHandle(ctx, handleID)
		switch {
		case apierrors.IsNotFound(err):
			if err := c.step(ctx, WriteHandle); err != nil {
				return err
			}
			last = c.create(ctx, handleID, map[string]int{cidr.String(): n})
		case err != nil:
			last = err
		default:
			if err := c.step(ctx, WriteHandle); err != nil {
				return err
			}
			if h.Spec.Block == nil {
				h.Spec.Block = map[string]int{}
			}
			h.Spec.Block[cidr.String()] += n
			last = c.put(ctx, h)
		}
		// Calico retries on any error.
		if last == nil || ctx.Err() != nil {
			return last
		}
	}
	return fmt.Errorf("increment handle %s: %w", handleID, last)
}

func (c *Client) create(ctx context.Context, handleID string, blocks map[string]int) error {
	return c.rest.Post().Resource("ipamhandles").Body(&calico.IPAMHandle{
		TypeMeta:   metav1.TypeMeta{APIVersion: c.api.String(), Kind: "IPAMHandle"},
		ObjectMeta: scratch(calico.HandleName(handleID), nil),
		Spec:       calico.IPAMHandleSpec{HandleID: handleID, Block: blocks},
	}).Do(ctx).Error()
}

// put writes the handle's spec with metadata built anew.
func (c *Client) put(ctx context.Context, h *calico.IPAMHandle) error {
	written := &calico.IPAMHandle{
		TypeMeta:   metav1.TypeMeta{APIVersion: c.api.String(), Kind: "IPAMHandle"},
		ObjectMeta: scratch(h.Name, &h.ObjectMeta),
		Spec:       h.Spec,
	}
	err := c.rest.Put().Resource("ipamhandles").Name(h.Name).Body(written).Do(ctx).Into(written)
	if err == nil {
		h.ResourceVersion, h.UID = written.ResourceVersion, written.UID
	}
	return err
}

// Allocate is the second half of an assignment: it writes the block.
func (c *Client) Allocate(ctx context.Context, handleID string, cidr netip.Prefix, attributes map[string]string) (netip.Addr, error) {
	var last error
	for range retries {
		b, err := c.GetBlock(ctx, cidr)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("read block %s: %w", cidr, err)
		}
		if len(b.Spec.Unallocated) == 0 {
			return netip.Addr{}, fmt.Errorf("assign from %s: %w", cidr, ErrFull)
		}
		ordinal, attribute := b.Spec.Unallocated[0], len(b.Spec.Attributes)
		b.Spec.Unallocated = b.Spec.Unallocated[1:]
		b.Spec.Attributes = append(b.Spec.Attributes, calico.AllocationAttribute{HandleID: &handleID, Secondary: attributes})
		b.Spec.Allocations[ordinal] = &attribute
		b.Spec.SequenceNumber++
		if err := c.step(ctx, WriteBlock); err != nil {
			return netip.Addr{}, err
		}
		if last = c.putBlock(ctx, b); last == nil {
			return nth(cidr, ordinal), nil
		}
		if !apierrors.IsConflict(last) {
			break
		}
	}
	return netip.Addr{}, fmt.Errorf("write block %s: %w", cidr, last)
}

func nth(cidr netip.Prefix, ordinal int) netip.Addr {
	address := cidr.Masked().Addr()
	for range ordinal {
		address = address.Next()
	}
	return address
}

func (c *Client) putBlock(ctx context.Context, b *calico.IPAMBlock) error {
	b.TypeMeta = metav1.TypeMeta{APIVersion: c.api.String(), Kind: "IPAMBlock"}
	b.ObjectMeta = scratch(b.Name, &b.ObjectMeta)
	return c.rest.Put().Resource("ipamblocks").Name(b.Name).Body(b).Do(ctx).Error()
}

// Release gives all addresses of the handle back, as CNI's DEL does: block
// first, then the handle. A handle that does not exist is ignored, and its
// addresses stay in their blocks: that is what Calico does.
func (c *Client) Release(ctx context.Context, handleID string) error {
	h, err := c.GetHandle(ctx, handleID)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for text := range h.Spec.Block {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("release handle %s: %w", handleID, err)
		}
		n, err := c.Free(ctx, handleID, cidr)
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		if err := c.Decrement(ctx, handleID, cidr, n); err != nil {
			return err
		}
	}
	return nil
}

// Free is the first half of a release: it takes the handle's addresses out of
// the block, and tells how many there were.
func (c *Client) Free(ctx context.Context, handleID string, cidr netip.Prefix) (int, error) {
	var last error
	for range retries {
		b, err := c.GetBlock(ctx, cidr)
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("read block %s: %w", cidr, err)
		}
		ordinals := b.Spec.OrdinalsOf(calico.HandleName(handleID))
		if len(ordinals) == 0 {
			return 0, nil
		}
		freeOrdinals(&b.Spec, ordinals)
		if err := c.step(ctx, ReleaseBlock); err != nil {
			return 0, err
		}
		if last = c.putBlock(ctx, b); last == nil {
			return len(ordinals), nil
		}
		if !apierrors.IsConflict(last) {
			break
		}
	}
	return 0, fmt.Errorf("write block %s: %w", cidr, last)
}

// freeOrdinals takes addresses out, and the attributes that nothing points to
// any more.
func freeOrdinals(spec *calico.IPAMBlockSpec, ordinals []int) {
	for _, ordinal := range ordinals {
		spec.Allocations[ordinal] = nil
		spec.Unallocated = append(spec.Unallocated, ordinal)
	}
	place := make(map[int]int, len(spec.Attributes))
	kept := make([]calico.AllocationAttribute, 0, len(spec.Attributes))
	for ordinal, index := range spec.Allocations {
		if index == nil || *index < 0 || *index >= len(spec.Attributes) {
			continue
		}
		at, ok := place[*index]
		if !ok {
			at = len(kept)
			place[*index] = at
			kept = append(kept, spec.Attributes[*index])
		}
		spec.Allocations[ordinal] = &at
	}
	spec.Attributes = kept
	spec.SequenceNumber++
}

// Decrement is the second half of a release: it takes from the handle's count,
// and at zero deletes the handle in two steps.
func (c *Client) Decrement(ctx context.Context, handleID string, cidr netip.Prefix, n int) error {
	var last error
	for range retries {
		h, err := c.GetHandle(ctx, handleID)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read handle %s: %w", handleID, err)
		}
		h.Spec.Block[cidr.String()] -= n
		if h.Spec.Block[cidr.String()] <= 0 {
			delete(h.Spec.Block, cidr.String())
		}
		if len(h.Spec.Block) == 0 {
			last = c.delete(ctx, h)
		} else {
			if err := c.step(ctx, DecrementHandle); err != nil {
				return err
			}
			last = c.put(ctx, h)
		}
		if last == nil || errors.As(last, new(*stopped)) || !apierrors.IsConflict(last) {
			return last
		}
	}
	return fmt.Errorf("decrement handle %s: %w", handleID, last)
}

// delete marks the handle deleted, then deletes it as it was marked.
func (c *Client) delete(ctx context.Context, h *calico.IPAMHandle) error {
	h.Spec.Deleted = true
	if err := c.step(ctx, SoftDelete); err != nil {
		return err
	}
	if err := c.put(ctx, h); apierrors.IsNotFound(err) {
		return nil // Somebody else was there first, and that is as well.
	} else if err != nil {
		return err
	}
	if err := c.step(ctx, DeleteHandle); err != nil {
		return err
	}
	err := c.rest.Delete().Resource("ipamhandles").Name(h.Name).Body(&metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{UID: &h.UID, ResourceVersion: &h.ResourceVersion},
	}).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		// The mark took off the last finalizer of a handle that somebody had
		// deleted already, and it went with the mark.
		return nil
	}
	return err
}
