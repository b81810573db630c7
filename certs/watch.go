package certs

import (
	"context"
	"fmt"
	"sync"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// watch follows one cert-manager Certificate. It works, and says so, when
// cert-manager is not installed, and finds it once it is.
type watch struct {
	name     types.NamespacedName
	informer cache.SharedInformer
	changed  func()

	mu  sync.Mutex
	err error
	// read is true once the API server has answered.
	read bool
}

func newWatch(cfg *rest.Config, name types.NamespacedName, changed func()) (*watch, error) {
	scheme := runtime.NewScheme()
	if err := certmanagerv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register cert-manager's types: %w", err)
	}
	cfg = rest.CopyConfig(cfg)
	gv := certmanagerv1.SchemeGroupVersion
	cfg.GroupVersion, cfg.APIPath = &gv, "/apis"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for cert-manager's Certificates: %w", err)
	}
	w := &watch{name: name, changed: changed}
	one := cache.NewListWatchFromClient(client, "certificates", name.Namespace, fields.OneTermEqualSelector("metadata.name", name.Name))
	w.informer = cache.NewSharedInformer(one, &certmanagerv1.Certificate{}, 0)
	if err := w.informer.SetWatchErrorHandlerWithContext(w.failed); err != nil {
		return nil, fmt.Errorf("follow a Certificate: %w", err)
	}
	_, err = w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { w.answered(nil) },
		UpdateFunc: func(_, _ any) { w.answered(nil) },
		DeleteFunc: func(any) { w.answered(nil) },
	})
	if err != nil {
		return nil, fmt.Errorf("follow a Certificate: %w", err)
	}
	return w, nil
}

func (w *watch) run(ctx context.Context) { w.informer.RunWithContext(ctx) }

func (w *watch) failed(_ context.Context, _ *cache.Reflector, err error) {
	// An API server that is away says nothing about the Certificate.
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		w.answered(err)
	}
}

func (w *watch) answered(err error) {
	w.mu.Lock()
	w.err, w.read = err, true
	w.mu.Unlock()
	w.changed()
}

// tell puts what is known of the Certificate into the facts.
func (w *watch) tell(f *Facts) {
	f.Watched = w.name.String()
	w.mu.Lock()
	err, read := w.err, w.read
	w.mu.Unlock()
	f.Unread = !read && !w.informer.HasSynced()
	// A kind that does not exist holds no Certificate.
	if err != nil && !apierrors.IsNotFound(err) {
		f.Unwatched = err
		return
	}
	if err != nil {
		return
	}
	obj, ok, err := w.informer.GetStore().GetByKey(w.name.String())
	if err != nil || !ok {
		return
	}
	if c, ok := obj.(*certmanagerv1.Certificate); ok {
		f.Certificate = c
	}
}
