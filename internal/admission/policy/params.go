package policy

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// params returns an informer that reads the latest stored objects of a policy's paramKind, and the scope of that kind.
// If untyped, objects of built-in kinds have no apiVersion and kind, as in upstream's mutating policies.
func (c *Config) params(
	ctx context.Context, kind *admissionregistrationv1.ParamKind, untyped bool,
) (informers.GenericInformer, meta.RESTScope, error) {
	if kind == nil {
		return nil, nil, nil
	}
	gvk := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind)
	v := versionOf(c.Catalog(), gvk)
	if v == nil {
		return nil, nil, fmt.Errorf("failed to find resource referenced by paramKind: '%v'", gvk)
	}
	scope := meta.RESTScopeRoot
	if v.Definition.Namespaced {
		scope = meta.RESTScopeNamespace
	}
	return lister{ctx, c, v, "", untyped && v.Type != nil}, scope, nil
}

// versionOf returns the served version of a stored kind, or nil.
func versionOf(c *catalog.Catalog, gvk schema.GroupVersionKind) *resource.Version {
	for h := range c.NameOwners(gvk.Group) {
		if h.Kind != gvk.Kind {
			continue
		}
		if v := c.Find(gvk.Group, gvk.Version, h.Plural); v != nil && v.Definition.Stored() {
			return v
		}
	}
	return nil
}

// lister reads objects of one version in a namespace, or in all namespaces if namespace is "".
type lister struct {
	ctx       context.Context
	config    *Config
	version   *resource.Version
	namespace string
	untyped   bool
}

// Lister implements informers.GenericInformer.
func (l lister) Lister() cache.GenericLister { return l }

// Informer implements informers.GenericInformer. Only HasSynced of the result is implemented.
func (l lister) Informer() cache.SharedIndexInformer { return synced{} }

type synced struct{ cache.SharedIndexInformer }

// HasSynced implements cache.SharedIndexInformer.
func (synced) HasSynced() bool { return true }

// ByNamespace implements cache.GenericLister.
func (l lister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	l.namespace = namespace
	return l
}

// Get implements cache.GenericNamespaceLister.
func (l lister) Get(name string) (runtime.Object, error) {
	o, err := l.config.Objects.Get(l.ctx, l.version, l.namespace, name)
	if err != nil {
		return nil, err
	}
	return l.param(o)
}

// List implements cache.GenericNamespaceLister.
func (l lister) List(selector labels.Selector) (found []runtime.Object, err error) {
	all, err := l.config.Objects.List(l.ctx, l.version, l.namespace, selector)
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		p, err := l.param(o)
		if err != nil {
			return nil, err
		}
		found = append(found, p)
	}
	return found, nil
}

func (l lister) param(o Object) (runtime.Object, error) {
	at := l.version.APIVersion
	if l.untyped {
		at = ""
	}
	return l.config.paramCache.get(o.Record, at, func() (*unstructured.Unstructured, error) {
		t, err := o.Tree()
		if l.untyped {
			delete(t, "apiVersion")
			delete(t, "kind")
		}
		return &unstructured.Unstructured{Object: t}, err
	})
}
