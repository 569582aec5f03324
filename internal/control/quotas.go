package control

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	upstream "k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	"k8s.io/kubernetes/pkg/quota/v1/install"
)

const (
	countQuotas = 5 * time.Minute  // all of them, anew
	lookForNew  = 30 * time.Second // kinds that quotas may be about
)

// openQuotas makes the controller that writes what there is into the status of ResourceQuotas.
func openQuotas(ctx context.Context, u *Upstream) (func(context.Context), error) {
	client, err := metadata.NewForConfig(u.config)
	if err != nil {
		return nil, fmt.Errorf("metadata client: %w", err)
	}
	counted := countedInformers{u.informers, metadatainformer.NewSharedInformerFactoryWithOptions(client, 0, metadatainformer.WithTransform(onlyName))}
	quotas, err := install.NewQuotaConfigurationForControllers(func(r schema.GroupVersionResource) (cache.GenericLister, error) { return counter{u: u, r: r}, nil }, u.informers)
	if err != nil {
		return nil, err
	}
	begun := make(chan struct{})
	close(begun)
	kinds := u.client.Discovery().ServerPreferredNamespacedResources
	c, err := resourcequota.NewController(ctx, &resourcequota.ControllerOptions{
		QuotaClient: u.client.CoreV1(), ResourceQuotaInformer: u.informers.Core().V1().ResourceQuotas(),
		ResyncPeriod: upstream.StaticResyncPeriodFunc(countQuotas), ReplenishmentResyncPeriod: upstream.NoResyncPeriodFunc,
		InformerFactory: counted, InformersStarted: begun, DiscoveryFunc: kinds, IgnoredResourcesFunc: quotas.IgnoredResources,
		Registry: generic.NewRegistry(quotas.Evaluators()), UpdateFilter: install.DefaultUpdateFilter(),
	})
	return func(ctx context.Context) {
		defer counted.names.Shutdown()
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx, workers) })
		running.Go(func() { c.Sync(ctx, kinds, lookForNew) })
		running.Wait()
	}, err
}

// counter lists what quotas count, in a namespace.
type counter struct {
	cache.GenericLister // nil
	u                   *Upstream
	r                   schema.GroupVersionResource
	namespace           string
}

// ByNamespace implements cache.GenericLister.
func (c counter) ByNamespace(namespace string) cache.GenericNamespaceLister {
	c.namespace = namespace
	return c
}

// List implements cache.GenericNamespaceLister.
func (c counter) List(labels.Selector) ([]runtime.Object, error) {
	return c.u.Counted(c.r, c.namespace)
}

// countedInformers keep whole objects of those kinds of which a quota wants to know more than how many there are, of the others
// names.
type countedInformers struct {
	whole informers.SharedInformerFactory
	names metadatainformer.SharedInformerFactory
}

// ForResource implements informerfactory.InformerFactory.
func (f countedInformers) ForResource(r schema.GroupVersionResource) (informers.GenericInformer, error) {
	switch r.GroupResource() {
	case corev1.Resource("pods"), corev1.Resource("services"), corev1.Resource("persistentvolumeclaims"), schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}:
		return f.whole.ForResource(r)
	}
	i := f.names.ForResource(r)
	_ = i.Informer().SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) { // unless it runs and has it
		if !apierrors.IsNotFound(err) { // a kind may go
			cache.DefaultWatchErrorHandler(ctx, r, err)
		}
	})
	return i, nil
}

// Start implements informerfactory.InformerFactory.
func (f countedInformers) Start(stop <-chan struct{}) {
	f.whole.Start(stop)
	f.names.Start(stop)
}

// onlyName lets go of all but the name of an object.
func onlyName(obj any) (any, error) {
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
		m.ObjectMeta = metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion}
	}
	return obj, nil
}
