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
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/admission/attributes"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// requestAttributes implements upstream's Attributes and ObjectInterfaces for a request.
type requestAttributes struct {
	attributes.Attributes
	upstream.ObjectInterfaces
	changed bool // a policy has changed the object
}

// unstructuredAttributes returns attributes with unstructured objects at the version of the request.
func unstructuredAttributes(ctx context.Context, r *admission.Request) (*requestAttributes, error) {
	obj, old, err := attributes.Unstructured(ctx, r, r.Version)
	return &requestAttributes{
		Attributes:       attributes.New(r, obj, old),
		ObjectInterfaces: &converter{ctx: ctx, request: r, obj: obj, old: old},
	}, err
}

var schemeInterfaces = upstream.NewObjectInterfacesFromScheme(legacyscheme.Scheme)

// internalAttributes returns attributes with objects in the internal form for built-in kinds, as in upstream.
// Mutations change the internal form. A result that cannot be decoded into the Go type of the version is rejected.
func internalAttributes(ctx context.Context, r *admission.Request) (*requestAttributes, error) {
	if r.Version.Type == nil || r.Version.Type.Internal == nil {
		return unstructuredAttributes(ctx, r)
	}
	obj, old, err := attributes.Internal(ctx, r)
	return &requestAttributes{Attributes: attributes.New(r, obj, old), ObjectInterfaces: schemeInterfaces}, err
}

// GetReinvocationContext implements upstream's Attributes.
func (a *requestAttributes) GetReinvocationContext() upstream.ReinvocationContext {
	return reinvocation{a}
}

// reinvocation implements upstream's ReinvocationContext. It stores the values of upstream's dispatcher in the
// request. Only the same attempt at the write uses them.
type reinvocation struct{ *requestAttributes }

func (i reinvocation) IsReinvoke() bool     { return i.Request.Reinvoked }
func (i reinvocation) SetIsReinvoke()       {}
func (i reinvocation) ShouldReinvoke() bool { return i.changed }
func (i reinvocation) SetShouldReinvoke()   { i.changed = true }
func (i reinvocation) Value(plugin string) any {
	if !i.Request.Reinvoked {
		return nil
	}
	return i.Request.PluginState[plugin]
}
func (i reinvocation) SetValue(plugin string, v any) {
	if i.Request.PluginState == nil {
		i.Request.PluginState = map[string]any{}
	}
	i.Request.PluginState[plugin] = v
}

// GetEquivalentResourceMapper implements upstream's ObjectInterfaces.
func (a *requestAttributes) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return a.Attributes
}

// converter implements upstream's ObjectInterfaces for unstructured objects. It converts the new and the stored object
// of a request to other versions, as the engine does. If the target of a conversion is the new object itself, the
// source is the result of a mutation and replaces the new object.
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

// GetEquivalentResourceMapper is not called: requestAttributes overrides it.
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
	at := attributes.VersionOf(c.request.Version.Definition, u.GroupVersionKind())
	if at == nil || at.Schema == nil {
		return
	}
	if s, err := at.Schema(); err == nil {
		s.FillDefaults(u.Object)
	}
}

// Convert implements runtime.ObjectConvertor.
func (c *converter) Convert(in, out, _ any) (err error) {
	from, to := in.(*unstructured.Unstructured), out.(*unstructured.Unstructured)
	read := c.request.New
	switch {
	case out == c.obj:
		at := attributes.VersionOf(c.request.Version.Definition, from.GroupVersionKind())
		if at == nil {
			return fmt.Errorf("%s is unstructured and is not suitable for converting to %q",
				from.GroupVersionKind(), c.request.Version.APIVersion)
		}
		if err := c.request.Replace(c.ctx, from.Object, at); err != nil {
			return err
		}
	case in == c.old:
		read = c.request.Old
	case in != c.obj:
		return errors.New("policy: cannot convert an object that is not part of the request")
	}
	at := attributes.VersionOf(c.request.Version.Definition, to.GroupVersionKind())
	if at == nil {
		return fmt.Errorf("policy: %s is not a version of %s", to.GroupVersionKind(), c.request.Resource.Resource)
	}
	to.Object, err = read(c.ctx, at)
	return err
}

// schemaTypes implements patch.TypeConverterManager with the schemas of a kind.
type schemaTypes struct{ *resource.Definition }

// Run implements patch.TypeConverterManager. It does nothing.
func (schemaTypes) Run(context.Context) {}

// GetTypeConverter implements patch.TypeConverterManager.
func (t schemaTypes) GetTypeConverter(gvk schema.GroupVersionKind) managedfields.TypeConverter {
	v := attributes.VersionOf(t.Definition, gvk)
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
func (c typeConverter) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue,
	error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return c.FromUnstructured(u.Object, options...)
	}
	return c.FromStructured(obj, options...)
}

// TypedToObject implements managedfields.TypeConverter.
func (typeConverter) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	t, ok := v.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("policy: got %s, want an object", reflect.TypeOf(v.AsValue().Unstructured()))
	}
	return &unstructured.Unstructured{Object: t}, nil
}
