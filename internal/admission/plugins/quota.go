package plugins

import (
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/quota/v1/install"

	"github.com/trellis-k8s/trellis/internal/admission"
	store "github.com/trellis-k8s/trellis/internal/storage"
)

// counting tells upstream's plugin ResourceQuota what counts.
type counting struct{ quota.Configuration }

// newCounting counts more than the number of objects for what is of the core group: upstream counts the devices of ResourceClaims by
// informers that tell of changes.
func newCounting() (counting, error) {
	special := storage.NewResourceConfig()
	special.EnableVersions(corev1.SchemeGroupVersion)
	c, err := install.NewQuotaConfigurationForAdmission(nil, special)
	return counting{c}, err
}

// Initialize implements upstream's PluginInitializer.
func (c counting) Initialize(p upstream.Interface) {
	if p, ok := p.(initializer.WantsQuotaConfiguration); ok {
		p.SetQuotaConfiguration(c)
	}
}

// Quotas keeps the count of ResourceQuotas true: what is charged to one is an object by the time that objects are counted.
type Quotas struct {
	From    Informers
	charges sync.Map // by namespace, a *sync.RWMutex: writes that are charged hold it for reading until they have ended
}

func (q *Quotas) of(namespace string) *sync.RWMutex {
	if m, ok := q.charges.Load(namespace); ok {
		return m.(*sync.RWMutex)
	}
	m, _ := q.charges.LoadOrStore(namespace, new(sync.RWMutex))
	return m.(*sync.RWMutex)
}

// Counted are the objects of a resource in a namespace, after every write that had been charged has ended. A kind of which a quota wants
// to know no more than how many there are is not read.
func (q *Quotas) Counted(r schema.GroupVersionResource, namespace string) (all []runtime.Object, err error) {
	m := q.of(namespace)
	m.Lock()
	head := q.From.Head() // a quota that is charged from here on changes, and its status is not written by what was counted now
	m.Unlock()
	v := q.From.Catalog().Find(r.Group, r.Version, r.Resource)
	if v == nil {
		return nil, nil
	}
	prefix := v.Definition.Prefix + namespace + "/"
	if r.Group != corev1.GroupName || !slices.Contains(read, r.Resource) {
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
var read = []string{"pods", "services", "persistentvolumeclaims"}

// limits is upstream's plugin ResourceQuota, which is asked about writes in namespaces that have a ResourceQuota.
type limits struct {
	*plugin
	quotas *Quotas
}

// Handles implements admission.Plugin.
func (l limits) Handles(r *admission.Request) bool {
	d := l.quotas.From.Catalog().Definition("", "resourcequotas")
	if d == nil || r.Namespace == "" || r.Resource == corev1.SchemeGroupVersion.WithResource("resourcequotas") && r.Operation != admission.Create {
		return false // the last are how it charges
	}
	head := l.quotas.From.Head()
	return found(head, d.Prefix) && found(head, d.Prefix+r.Namespace+"/") && l.plugin.Handles(r)
}

// Validate implements admission.Plugin.
func (l limits) Validate(ctx context.Context, r *admission.Request) error {
	m := l.quotas.of(r.Namespace)
	m.RLock()
	r.Ended(m.RUnlock)
	return l.plugin.Validate(ctx, r)
}

// found is whether there is a key with a prefix.
func found(head *store.Snapshot, prefix string) bool {
	for range head.Walk(prefix, "") {
		return true
	}
	return false
}
