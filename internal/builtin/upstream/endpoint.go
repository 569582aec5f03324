package upstream

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// Endpoint is a group version at which a kind is served.
type Endpoint struct {
	Kind         *Kind
	GroupVersion schema.GroupVersion
	Type         *resource.GoType // Type.Read makes objects at this version out of JSON

	internal schema.GroupVersion
}

func newEndpoint(k *Kind, gv schema.GroupVersion) *Endpoint {
	types := legacyscheme.Scheme.KnownTypes(gv)
	return &Endpoint{
		Kind: k, GroupVersion: gv,
		Type: &resource.GoType{
			New:     maker(types[k.Names.Kind]),
			NewList: maker(types[k.Names.ListKind]),
		},
		internal: schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal},
	}
}

// maker makes fresh objects of a type of the scheme, all of which are runtime.Objects.
func maker(t reflect.Type) func() runtime.Object {
	return func() runtime.Object { return reflect.New(t).Interface().(runtime.Object) }
}

// Default fills in what obj, which is at this version, leaves out. What is there already it leaves alone, so it
// may be called again after a patch, an apply or an admission plugin.
func (e *Endpoint) Default(obj runtime.Object) { legacyscheme.Scheme.Default(obj) }

// Internal gives the internal form of an object at this version. The two share memory: obj must not be used again.
func (e *Endpoint) Internal(obj runtime.Object) (Object, error) {
	out, err := legacyscheme.Scheme.UnsafeConvertToVersion(obj, e.internal)
	if err != nil {
		return nil, fmt.Errorf("upstream: internal form of %T: %w", obj, err)
	}
	object, ok := out.(Object)
	if !ok {
		return nil, fmt.Errorf("upstream: %T has no metadata", out)
	}
	return object, nil
}

// External gives obj the form that it has at this version, with apiVersion and kind. The two share memory: neither
// may be modified while the other is in use.
func (e *Endpoint) External(obj Object) (runtime.Object, error) {
	out, err := legacyscheme.Scheme.UnsafeConvertToVersion(obj, e.GroupVersion)
	if err != nil {
		return nil, fmt.Errorf("upstream: %T at %s: %w", obj, e.GroupVersion, err)
	}
	return out, nil
}

// Selector translates the names in a field selector that was sent to this endpoint into those of Kind.Fields. The
// error is worded as upstream words the 400 for a field that cannot be selected by.
func (e *Endpoint) Selector(s fields.Selector) (fields.Selector, error) {
	gvk := e.GroupVersion.WithKind(e.Kind.Names.Kind)
	return s.Transform(func(label, value string) (string, string, error) {
		return legacyscheme.Scheme.ConvertFieldLabel(gvk, label, value)
	})
}
