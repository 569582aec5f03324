package upstream

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
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	"k8s.io/kubernetes/pkg/quota/v1/install"
)

const (
	quotaResyncPeriod   = 5 * time.Minute  // interval between two counts for all quotas
	rediscoveryInterval = 30 * time.Second // maximum interval between two discoveries
	minSyncInterval     = time.Second      // minimum interval between two discoveries
)

// openQuotas creates the controller that writes the usage into the status of ResourceQuotas.
func openQuotas(ctx context.Context, u *Manager) (func(context.Context), error) {
	client, err := metadata.NewForConfig(u.config)
	if err != nil {
		return nil, fmt.Errorf("create metadata client: %w", err)
	}
	names := metadatainformer.NewSharedInformerFactoryWithOptions(client, 0, metadatainformer.WithTransform(onlyName))
	counted := quotaInformers{u.informers, names, u.stopInformers}
	listers := func(r schema.GroupVersionResource) (cache.GenericLister, error) { return quotaLister{u: u, r: r}, nil }
	quotas, err := install.NewQuotaConfigurationForControllers(listers, u.informers)
	if err != nil {
		return nil, err
	}
	started := make(chan struct{})
	close(started)
	all := u.informers.Core().V1().ResourceQuotas()
	recount := &recounter{
		Registry: generic.NewRegistry(quotas.Evaluators()),

		ResourceQuotaInformer: all, SharedIndexInformer: all.Informer(),
	}
	discover := u.client.Discovery().ServerPreferredNamespacedResources
	c, err := resourcequota.NewController(ctx, &resourcequota.ControllerOptions{
		QuotaClient: u.client.CoreV1(), ResourceQuotaInformer: recount,
		ResyncPeriod:              controller.StaticResyncPeriodFunc(quotaResyncPeriod),
		ReplenishmentResyncPeriod: controller.NoResyncPeriodFunc,
		InformerFactory:           counted, InformersStarted: started,
		DiscoveryFunc: discover, IgnoredResourcesFunc: quotas.IgnoredResources,
		Registry: recount, UpdateFilter: install.DefaultUpdateFilter(),
	})
	return func(ctx context.Context) {
		defer counted.names.Shutdown()
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx, workers) })
		running.Go(func() { c.Sync(ctx, u.rediscoverWhenChanged(ctx, discover), minSyncInterval) })
		running.Wait()
	}, err
}

// rediscoverWhenChanged returns a function that lists resources. The first call lists at once. Each later call blocks
// until a CRD or an APIService has changed, or rediscoveryInterval has passed.
func (u *Manager) rediscoverWhenChanged(
	ctx context.Context, list resourcequota.NamespacedResourcesFunc,
) resourcequota.NamespacedResourcesFunc {
	var last []*metav1.APIResourceList
	return func() (_ []*metav1.APIResourceList, err error) {
		if last != nil {
			timer := time.NewTimer(rediscoveryInterval)
			defer timer.Stop()
			select {
			case <-u.kindsChanged:
			case <-timer.C:
			case <-ctx.Done():
				return last, nil
			}
		}
		last, err = list()
		return last, err
	}
}

// recounter is the registry of evaluators and the informer of ResourceQuotas. A new evaluator triggers a new count for
// the quotas that limit its resources, because a quota may be older than the kind that it limits (kubernetes#67239).
type recounter struct {
	quota.Registry
	corev1informers.ResourceQuotaInformer
	cache.SharedIndexInformer
	handler cache.ResourceEventHandler
}

// Add implements quota.Registry. It calls the event handler for the unchanged quotas that limit a resource of e.
func (r *recounter) Add(e quota.Evaluator) {
	r.Registry.Add(e)
	all, err := r.Lister().List(labels.Everything())
	if err != nil || r.handler == nil {
		return
	}
	for _, q := range all {
		if len(e.MatchingResources(quota.ResourceNames(q.Spec.Hard))) > 0 {
			r.handler.OnAdd(q, false)
		}
	}
}

// Informer implements corev1informers.ResourceQuotaInformer.
func (r *recounter) Informer() cache.SharedIndexInformer { return r }

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer.
func (r *recounter) AddEventHandlerWithResyncPeriod(
	handler cache.ResourceEventHandler, resync time.Duration,
) (cache.ResourceEventHandlerRegistration, error) {
	r.handler = handler
	return r.SharedIndexInformer.AddEventHandlerWithResyncPeriod(handler, resync)
}

// quotaLister lists the objects of a resource through Config.QuotaObjects.
type quotaLister struct {
	cache.GenericLister // nil; only ByNamespace and List are called
	u                   *Manager
	r                   schema.GroupVersionResource
	namespace           string
}

// ByNamespace implements cache.GenericLister.
func (c quotaLister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	c.namespace = namespace
	return c
}

// List implements cache.GenericNamespaceLister.
func (c quotaLister) List(labels.Selector) ([]runtime.Object, error) {
	return c.u.QuotaObjects(c.r, c.namespace)
}

// quotaInformers creates informers for the quota controller. They cache whole objects of the kinds for which a quota
// limits more than the number of objects. For all other kinds they cache only names.
type quotaInformers struct {
	whole     informers.SharedInformerFactory // shared with other controllers
	names     metadatainformer.SharedInformerFactory
	stopWhole <-chan struct{}
}

// ForResource implements informerfactory.InformerFactory.
func (f quotaInformers) ForResource(r schema.GroupVersionResource) (informers.GenericInformer, error) {
	switch r.GroupResource() {
	case corev1.Resource("pods"), corev1.Resource("services"), corev1.Resource("persistentvolumeclaims"),
		schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}:
		return f.whole.ForResource(r)
	}
	i := f.names.ForResource(r)
	// The error is ignored, because it only means that the informer already runs and has the handler.
	_ = i.Informer().SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if !apierrors.IsNotFound(err) { // the kind may have been deleted
			cache.DefaultWatchErrorHandler(ctx, r, err)
		}
	})
	return i, nil
}

// Start implements informerfactory.InformerFactory.
func (f quotaInformers) Start(stop <-chan struct{}) {
	f.whole.Start(f.stopWhole)
	f.names.Start(stop)
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
