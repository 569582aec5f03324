package upstream

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/metadata"
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
	counted := &quotaInformers{whole: u.informers, stopWhole: u.stopInformers, client: client,
		names: map[schema.GroupVersionResource]*nameInformer{}}
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
