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

// counting tells upstream's plugin ResourceQuota what counts.
type counting struct{ quota.Configuration }

// newCounting counts more than the number of objects for what is of the core group, by upstream's evaluators, and for ResourceClaims. Those
// upstream counts by informers that report changes.
func newCounting(from Informers) (counting, error) {
	special := storage.NewResourceConfig()
	special.EnableVersions(corev1.SchemeGroupVersion)
	c, err := install.NewQuotaConfigurationForAdmission(nil, special)
	if err != nil {
		return counting{}, err
	}
	return counting{generic.NewConfiguration(append(c.Evaluators(), newDevices(from)), c.IgnoredResources())}, nil
}

// Initialize implements upstream's PluginInitializer.
func (c counting) Initialize(p upstream.Interface) {
	if p, ok := p.(initializer.WantsQuotaConfiguration); ok {
		p.SetQuotaConfiguration(c)
	}
}

// Quotas keeps the count of ResourceQuotas true: what is charged to one is an object by the time that objects are counted.
type Quotas struct {
	From Informers
	Stop <-chan struct{} // closed when the server begins to end: nobody waits then

	mu      sync.Mutex
	charges map[string]map[*charge]bool // that have not ended, by namespace
}

// charge is an attempt at a write that a quota is charged for.
type charge struct{ ended chan struct{} }

// begin notes that a write is being charged; the function that it returns, that the write has ended.
func (q *Quotas) begin(namespace string) (end func()) {
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

// settle waits for the writes that are being charged now. What is charged later changes the quota, so that its status is not written by
// what has been counted before.
func (q *Quotas) settle(namespace string) error {
	q.mu.Lock()
	now := maps.Clone(q.charges[namespace])
	q.mu.Unlock()
	for c := range now {
		select {
		case <-c.ended:
		case <-q.Stop:
			return errors.New("plugins: the server ends")
		}
	}
	return nil
}

// Objects are the objects of a resource in a namespace, after every write that had been charged has ended. A kind of which a quota wants
// to know no more than how many there are is not read.
func (q *Quotas) Objects(r schema.GroupVersionResource, namespace string) (all []runtime.Object, err error) {
	if err := q.settle(namespace); err != nil {
		return nil, err
	}
	head := q.From.Head()
	v := q.From.Catalog().Find(r.Group, r.Version, r.Resource)
	if v == nil {
		return nil, nil
	}
	prefix := v.Definition.Prefix + namespace + "/"
	if !slices.Contains(read, r.GroupResource()) {
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

// read are the resources that quotas want to know more of.
var read = []schema.GroupResource{
	corev1.Resource("pods"), corev1.Resource("services"), corev1.Resource("persistentvolumeclaims"), resourcev1.Resource("resourceclaims"),
}

// limits is upstream's plugin ResourceQuota, which is asked about writes in namespaces that have a ResourceQuota.
type limits struct {
	*plugin
	quotas *Quotas
	bounds *bounds
}

// Handles implements admission.Plugin.
func (l limits) Handles(r *admission.Request) bool {
	if r.Namespace == "" || !l.bounds.has(r.Namespace) || r.Resource == corev1.SchemeGroupVersion.WithResource("resourcequotas") && r.Operation != admission.Create {
		return false // the last are how it charges
	}
	return l.quotas.From.Catalog().Definition("", "resourcequotas") != nil && l.plugin.Handles(r)
}

// Validate implements admission.Plugin.
func (l limits) Validate(ctx context.Context, r *admission.Request) error {
	r.Ended(l.quotas.begin(r.Namespace))
	if r.Validated && r.Operation == admission.Create {
		return nil // it has been charged
	}
	r.Waits() // for all that are charged in this namespace
	return l.plugin.Validate(ctx, r)
}
