package policy

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	upstream "k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// attributes are a request for upstream's dispatchers, and what they may do to its objects.
type attributes struct {
	upstream.Attributes
	upstream.ObjectInterfaces
	request *admission.Request
	catalog func() *resource.Catalog
	changed bool // by a mutation
}

// trees has the objects as unstructured ones, at the version of the request.
func trees(ctx context.Context, r *admission.Request, catalog func() *resource.Catalog) (*attributes, error) {
	obj, err := tree(ctx, r.Version, r.New)
	if err != nil {
		return nil, err
	}
	old, err := tree(ctx, r.Version, r.Old)
	return newAttributes(r, obj, old, &converter{ctx: ctx, request: r, obj: obj, old: old}, catalog), err
}

// tree is nil, and not a nil pointer, where there is no object.
func tree(ctx context.Context, v *resource.Version, read func(context.Context, *resource.Version) (object.Tree, error)) (runtime.Object, error) {
	t, err := read(ctx, v)
	if err != nil || t == nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: t}, nil
}

var ofScheme = upstream.NewObjectInterfacesFromScheme(legacyscheme.Scheme)

// internal has the objects of built-in kinds in the internal form, as upstream has them: a mutation changes it, and what is of no type of
// its version is refused.
func internal(ctx context.Context, r *admission.Request, catalog func() *resource.Catalog) (*attributes, error) {
	if r.Version.Type == nil || r.Version.Type.Internal == nil {
		return trees(ctx, r, catalog)
	}
	obj, old, err := r.Internal()
	return newAttributes(r, obj, old, ofScheme, catalog), err
}

func newAttributes(r *admission.Request, obj, old runtime.Object, how upstream.ObjectInterfaces, catalog func() *resource.Catalog) *attributes {
	namespace := r.Namespace
	if r.Resource == (schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}) {
		namespace = r.Name // as upstream has it: a Namespace is in itself
	}
	return &attributes{ObjectInterfaces: how, request: r, catalog: catalog,
		Attributes: upstream.NewAttributesRecord(obj, old, r.Version.GroupVersionKind(), namespace, r.Name, r.Resource, r.Subresource,
			upstream.Operation(r.Operation), r.Options(), r.DryRun, r.User)}
}

// AddAnnotation implements upstream's Attributes.
func (a *attributes) AddAnnotation(key, value string) error {
	a.request.Annotate(key, value)
	return nil
}

// AddAnnotationWithLevel implements upstream's Attributes.
func (a *attributes) AddAnnotationWithLevel(key, value string, _ auditinternal.Level) error {
	return a.AddAnnotation(key, value)
}

// AddWarning implements warning.Recorder.
func (a *attributes) AddWarning(_, text string) { a.request.Warn(text) }

// GetReinvocationContext implements upstream's Attributes.
func (a *attributes) GetReinvocationContext() upstream.ReinvocationContext { return reinvocation{a} }

// reinvocation lets the dispatcher remember in the request what it has asked before.
type reinvocation struct{ *attributes }

func (i reinvocation) IsReinvoke() bool        { return i.request.Reinvoked }
func (i reinvocation) SetIsReinvoke()          {}
func (i reinvocation) ShouldReinvoke() bool    { return i.changed }
func (i reinvocation) SetShouldReinvoke()      { i.changed = true }
func (i reinvocation) Value(plugin string) any { return i.request.Kept[plugin] }
func (i reinvocation) SetValue(plugin string, v any) {
	if i.request.Kept == nil {
		i.request.Kept = map[string]any{}
	}
	i.request.Kept[plugin] = v
}

// GetEquivalentResourceMapper implements upstream's ObjectInterfaces.
func (a *attributes) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper { return a }

// EquivalentResourcesFor implements runtime.EquivalentResourceMapper: the other places where the same objects are.
func (a *attributes) EquivalentResourcesFor(gvr schema.GroupVersionResource, _ string) (all []schema.GroupVersionResource) {
	at := a.catalog().Find(gvr.Group, gvr.Version, gvr.Resource)
	if at == nil {
		return nil
	}
	for _, v := range at.Definition.Versions {
		if v.Served {
			all = append(all, v.GroupVersion.WithResource(gvr.Resource))
		}
	}
	return all
}

// KindFor implements runtime.EquivalentResourceMapper.
func (a *attributes) KindFor(gvr schema.GroupVersionResource, _ string) schema.GroupVersionKind {
	if at := a.request.Version; at.Definition.Names.Plural != gvr.Resource {
		return at.GroupVersionKind() // a Scale
	}
	return gvr.GroupVersion().WithKind(a.request.Version.Definition.Names.Kind)
}

// converter is what upstream's code does with unstructured objects. It knows the two of a request, and brings them to another version
// as the engine does; into the first it puts what a mutation has made of it.
type converter struct {
	runtime.ObjectConvertor // nil
	runtime.ObjectCreater
	ctx      context.Context
	request  *admission.Request
	obj, old runtime.Object
}

func (c *converter) GetObjectCreater() runtime.ObjectCreater     { return c }
func (c *converter) GetObjectTyper() runtime.ObjectTyper         { return c }
func (c *converter) GetObjectDefaulter() runtime.ObjectDefaulter { return c }
func (c *converter) GetObjectConvertor() runtime.ObjectConvertor { return c }

// GetEquivalentResourceMapper is that of attributes.
func (c *converter) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper { return nil }

// New implements runtime.ObjectCreater.
func (c *converter) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	out := &unstructured.Unstructured{}
	out.SetGroupVersionKind(gvk)
	return out, nil
}

// ObjectKinds implements runtime.ObjectTyper.
func (c *converter) ObjectKinds(obj runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return []schema.GroupVersionKind{obj.GetObjectKind().GroupVersionKind()}, false, nil
}

// Recognizes implements runtime.ObjectTyper.
func (c *converter) Recognizes(schema.GroupVersionKind) bool { return true }

// Default implements runtime.ObjectDefaulter.
func (c *converter) Default(obj runtime.Object) {
	u := obj.(*unstructured.Unstructured)
	at := atVersion(c.request.Version.Definition, u.GroupVersionKind())
	if at == nil || at.Schema == nil {
		return
	}
	if s, err := at.Schema(); err == nil {
		s.Fill(u.Object)
	}
}

// Convert implements runtime.ObjectConvertor.
func (c *converter) Convert(in, out, _ any) (err error) {
	from, to := in.(*unstructured.Unstructured), out.(*unstructured.Unstructured)
	read := c.request.New
	switch {
	case out == c.obj:
		at := atVersion(c.request.Version.Definition, from.GroupVersionKind())
		if at == nil {
			return fmt.Errorf("%s is unstructured and is not suitable for converting to %q", from.GroupVersionKind(), c.request.Version.APIVersion)
		}
		if err := c.request.Replace(c.ctx, from.Object, at); err != nil {
			return err
		}
	case in == c.old:
		read = c.request.Old
	case in != c.obj:
		return errors.New("policy: an object that is not of the request is not converted")
	}
	at := atVersion(c.request.Version.Definition, to.GroupVersionKind())
	if at == nil {
		return fmt.Errorf("policy: %s is no version of %s", to.GroupVersionKind(), c.request.Resource.Resource)
	}
	to.Object, err = read(c.ctx, at)
	return err
}

func atVersion(d *resource.Definition, gvk schema.GroupVersionKind) *resource.Version {
	for _, v := range d.Versions {
		if v.GroupVersionKind() == gvk {
			return v
		}
	}
	return nil
}

// types are the schemas of one kind, as applying wants them.
type types struct{ *resource.Definition }

// Run implements patch.TypeConverterManager: there is nothing to follow.
func (types) Run(context.Context) {}

// GetTypeConverter implements patch.TypeConverterManager.
func (t types) GetTypeConverter(gvk schema.GroupVersionKind) managedfields.TypeConverter {
	v := atVersion(t.Definition, gvk)
	if v == nil || v.Parseable == nil {
		return nil
	}
	p, err := v.Parseable()
	if err != nil {
		return nil
	}
	return typeConverter{p}
}

type typeConverter struct{ typed.ParseableType }

// ObjectToTyped implements managedfields.TypeConverter.
func (c typeConverter) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return c.FromUnstructured(u.Object, options...)
	}
	return c.FromStructured(obj, options...)
}

// TypedToObject implements managedfields.TypeConverter.
func (typeConverter) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	t, ok := v.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("policy: %s is no object", reflect.TypeOf(v.AsValue().Unstructured()))
	}
	return &unstructured.Unstructured{Object: t}, nil
}
