package plugins

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/quota/v1/install"

	"github.com/trellis-k8s/trellis/internal/admission"
)

// quotaConfiguration configures the evaluators of upstream's plugin ResourceQuota.
type quotaConfiguration struct{ quota.Configuration }

// newQuotaConfiguration returns upstream's evaluators for the core group and a claimEvaluator for ResourceClaims.
// Upstream's evaluator of ResourceClaims cannot be used, because it needs informers with event handlers. Objects of
// all other resources are only counted.
func newQuotaConfiguration(i Informers) (quotaConfiguration, error) {
	resources := storage.NewResourceConfig()
	resources.EnableVersions(corev1.SchemeGroupVersion)
	c, err := install.NewQuotaConfigurationForAdmission(nil, resources)
	if err != nil {
		return quotaConfiguration{}, err
	}
	return quotaConfiguration{generic.NewConfiguration(append(c.Evaluators(), newClaimEvaluator(i)),
		c.IgnoredResources())}, nil
}

// Initialize implements upstream's PluginInitializer.
func (c quotaConfiguration) Initialize(p upstream.Interface) {
	if p, ok := p.(initializer.WantsQuotaConfiguration); ok {
		p.SetQuotaConfiguration(c)
	}
}

// Quotas synchronizes the writes that are charged to ResourceQuotas with the counting of objects. When objects are
// counted, every object that was charged earlier is stored.
type Quotas struct {
	Informers Informers
	Stop      <-chan struct{} // closed when the server begins to stop; waiting calls then return

	mu      sync.Mutex
	charges map[string]map[*charge]bool // the charges in progress, by namespace
}

// charge is a write that is charged to a quota. It lasts until all attempts at the write have ended, because only one
// attempt changes the quota.
type charge struct{ ended chan struct{} }

// beginCharge records that a write is being charged. The caller calls end when the write has ended.
func (q *Quotas) beginCharge(namespace string) (end func()) {
	c := &charge{make(chan struct{})}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.charges == nil {
		q.charges = map[string]map[*charge]bool{}
	}
	if q.charges[namespace] == nil {
		q.charges[namespace] = map[*charge]bool{}
	}
	q.charges[namespace][c] = true
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if delete(q.charges[namespace], c); len(q.charges[namespace]) == 0 {
			delete(q.charges, namespace)
		}
		close(c.ended)
	}
}

// awaitCharges blocks until all current charges have ended. It does not wait for later charges. They change the quota,
// so a status that is based on an earlier count is rejected with a conflict.
func (q *Quotas) awaitCharges(namespace string) error {
	q.mu.Lock()
	current := maps.Clone(q.charges[namespace])
	q.mu.Unlock()
	for c := range current {
		select {
		case <-c.ended:
		case <-q.Stop:
			return errors.New("plugins: the server is stopping")
		}
	}
	return nil
}

// Objects returns the objects of a resource in a namespace after all current charges have ended. If quotas only count
// the objects of a kind, Objects returns empty objects and decodes none.
func (q *Quotas) Objects(r schema.GroupVersionResource, namespace string) (all []runtime.Object, err error) {
	if err := q.awaitCharges(namespace); err != nil {
		return nil, err
	}
	head := q.Informers.Head()
	v := q.Informers.Catalog().Find(r.Group, r.Version, r.Resource)
	if v == nil {
		return nil, nil
	}
	prefix := v.Definition.Prefix + namespace + "/"
	if !slices.Contains(decodedResources, r.GroupResource()) {
		return slices.Repeat([]runtime.Object{&metav1.PartialObjectMetadata{}}, head.Count(prefix, "")), nil
	}
	for rec := range head.Walk(prefix, "") {
		obj, err := load(v, rec)
		if err != nil {
			return nil, err
		}
		all = append(all, obj)
	}
	return all, nil
}

// decodedResources are the resources whose objects are decoded. Quotas only count the objects of other resources.
var decodedResources = []schema.GroupResource{
	corev1.Resource("pods"), corev1.Resource("services"), corev1.Resource("persistentvolumeclaims"),
	resourcev1.Resource("resourceclaims"),
}

// quotaPlugin is upstream's plugin ResourceQuota. It handles only writes in namespaces that have a ResourceQuota.
type quotaPlugin struct {
	*plugin
	quotas *Quotas
	index  *quotaIndex
}

// Handles implements admission.Plugin.
func (l quotaPlugin) Handles(r *admission.Request) bool {
	if r.Namespace == "" || !l.index.has(r.Namespace) {
		return false
	}
	if r.Resource == corev1.SchemeGroupVersion.WithResource("resourcequotas") && r.Operation != admission.Create {
		return false // the plugin itself sends such writes to charge a quota
	}
	return l.quotas.Informers.Catalog().Definition("", "resourcequotas") != nil && l.plugin.Handles(r)
}

// Validate implements admission.Plugin.
func (l quotaPlugin) Validate(ctx context.Context, r *admission.Request) error {
	r.OnEnd(l.quotas.beginCharge(r.Namespace))
	if r.Validated && r.Operation == admission.Create {
		return nil // an earlier attempt has charged the quota
	}
	r.WillBlock() // the plugin may wait for other charges in this namespace
	return l.plugin.Validate(ctx, r)
}
