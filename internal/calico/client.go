package calico

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// NewRESTClient returns a typed client for this group. Its client-side rate
// limit is off: whoever needs one brings their own.
func (a API) NewRESTClient(cfg *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := a.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register Calico types: %w", err)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion = &a.GroupVersion
	cfg.APIPath = "/apis"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.ContentType = runtime.ContentTypeJSON
	cfg.AcceptContentTypes = runtime.ContentTypeJSON
	cfg.QPS = -1
	c, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", a.GroupVersion, err)
	}
	return c, nil
}
