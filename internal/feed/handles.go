package feed

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// handlePage is a page of handles without what nobody here reads: most of a
// handle's JSON tells which fields its writers manage.
type handlePage struct {
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []struct {
		Metadata struct {
			Name              string            `json:"name"`
			UID               types.UID         `json:"uid"`
			ResourceVersion   string            `json:"resourceVersion"`
			Generation        int64             `json:"generation"`
			CreationTimestamp metav1.Time       `json:"creationTimestamp"`
			DeletionTimestamp *metav1.Time      `json:"deletionTimestamp"`
			Annotations       map[string]string `json:"annotations"`
			Finalizers        []string          `json:"finalizers"`
			ManagedFields     []struct {
				Time *metav1.Time `json:"time"`
			} `json:"managedFields"`
		} `json:"metadata"`
		Spec calico.IPAMHandleSpec `json:"spec"`
	} `json:"items"`
}

// listHandles lists handles with their specs. Of managed fields it brings the
// times alone.
func listHandles(client rest.Interface, resource string) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		result := client.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec).Do(ctx)
		// Unlike Raw, Error keeps what the server says of an expired list.
		if err := result.Error(); err != nil {
			return nil, err
		}
		body, err := result.Raw()
		if err != nil {
			return nil, err
		}
		var page handlePage
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, fmt.Errorf("decode: %w", err)
		}
		list := &calico.IPAMHandleList{ListMeta: page.Metadata, Items: make([]calico.IPAMHandle, len(page.Items))}
		for i := range page.Items {
			m, h := &page.Items[i].Metadata, &list.Items[i]
			h.Name, h.UID, h.ResourceVersion, h.Generation = m.Name, m.UID, m.ResourceVersion, m.Generation
			h.CreationTimestamp, h.DeletionTimestamp = m.CreationTimestamp, m.DeletionTimestamp
			h.Annotations, h.Finalizers = m.Annotations, m.Finalizers
			for _, f := range m.ManagedFields {
				h.ManagedFields = append(h.ManagedFields, metav1.ManagedFieldsEntry{Time: f.Time})
			}
			h.Spec = page.Items[i].Spec
		}
		return list, nil
	}
}
