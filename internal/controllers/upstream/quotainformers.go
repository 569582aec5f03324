package upstream

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

var byNamespace = cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}

// quotaInformers creates informers for the quota controller. They cache whole objects of the kinds for which a quota
// limits more than the number of objects. For all other kinds they cache only names.
type quotaInformers struct {
	whole     informers.SharedInformerFactory // shared with other controllers
	stopWhole <-chan struct{}
	client    metadata.Interface

	mu    sync.Mutex
	names map[schema.GroupVersionResource]*nameInformer // those of monitors
}

// ForResource implements informerfactory.InformerFactory.
func (f *quotaInformers) ForResource(r schema.GroupVersionResource) (informers.GenericInformer, error) {
	switch r.GroupResource() {
	case corev1.Resource("pods"), corev1.Resource("services"), corev1.Resource("persistentvolumeclaims"),
		schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}:
		return f.whole.ForResource(r)
	}
	return &nameInformer{all: f, resource: r}, nil
}

// Start implements informerfactory.InformerFactory. Monitors start the other informers.
func (f *quotaInformers) Start(<-chan struct{}) { f.whole.Start(f.stopWhole) }

// monitored returns the informer of the monitor of a kind, or nil if the kind has no monitor.
func (f *quotaInformers) monitored(r schema.GroupVersionResource) *nameInformer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.names[r]
}

// nameInformer caches the names of a kind's objects. A monitor of the quota controller adds a handler to it, and runs
// it as a controller, so that it ends when the kind is deleted. The informers of a factory do not end
// (kubernetes#79610, kubernetes#142072). An evaluator reads the monitor's cache through another nameInformer.
type nameInformer struct {
	cache.SharedIndexInformer // nil until a handler is added
	lister                    cache.GenericLister
	all                       *quotaInformers
	resource                  schema.GroupVersionResource
}

// Informer implements informers.GenericInformer.
func (n *nameInformer) Informer() cache.SharedIndexInformer { return n }

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer. A monitor calls it once, before Run.
func (n *nameInformer) AddEventHandlerWithResyncPeriod(
	handler cache.ResourceEventHandler, resync time.Duration,
) (cache.ResourceEventHandlerRegistration, error) {
	f := n.all
	g := metadatainformer.NewFilteredMetadataInformer(f.client, n.resource, metav1.NamespaceAll, 0, byNamespace, nil)
	i := g.Informer()
	// The errors are nil, because the informer does not run.
	_ = i.SetTransform(onlyName)
	_ = i.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if !apierrors.IsNotFound(err) { // the kind may have been deleted
			cache.DefaultWatchErrorHandler(ctx, r, err)
		}
	})
	n.SharedIndexInformer, n.lister = i, g.Lister()
	f.mu.Lock()
	f.names[n.resource] = n
	f.mu.Unlock()
	return i.AddEventHandlerWithResyncPeriod(handler, resync)
}

// GetController implements cache.SharedInformer.
func (n *nameInformer) GetController() cache.Controller { return n }

// Run implements cache.Controller. It runs the informer.
func (n *nameInformer) Run(stop <-chan struct{}) {
	n.SharedIndexInformer.Run(stop)
	f := n.all
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.names[n.resource] == n { // the kind has not been created again
		delete(f.names, n.resource)
	}
}

// HasSynced implements cache.SharedInformer. A kind without a monitor has no objects to wait for.
func (n *nameInformer) HasSynced() bool {
	if n.SharedIndexInformer != nil {
		return n.SharedIndexInformer.HasSynced()
	}
	m := n.all.monitored(n.resource)
	return m == nil || m.HasSynced()
}

// Lister implements informers.GenericInformer.
func (n *nameInformer) Lister() cache.GenericLister {
	if m := n.all.monitored(n.resource); m != nil {
		return m.lister
	}
	none := cache.NewIndexer(cache.MetaNamespaceKeyFunc, byNamespace)
	return cache.NewGenericLister(none, n.resource.GroupResource())
}

// onlyName keeps only the identity and the resource version of an object.
func onlyName(obj any) (any, error) {
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
		m.ObjectMeta = metav1.ObjectMeta{
			Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		}
	}
	return obj, nil
}
