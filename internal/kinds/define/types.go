package define

import (
	"fmt"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// typeAt returns the Go type of a kind at a group version.
func typeAt(gv schema.GroupVersion, names resource.Names) *resource.GoType {
	types := legacyscheme.Scheme.KnownTypes(gv)
	internal := schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}
	return &resource.GoType{
		OpenAPI: openapi.GetOpenAPIDefinitions,
		New:     Constructor(types[names.Kind]),
		NewList: Constructor(types[names.ListKind]), // nil for a review
		Default: func(obj runtime.Object) { legacyscheme.Scheme.Default(obj) },
		Internal: func(obj runtime.Object) (resource.Internal, error) {
			out, err := legacyscheme.Scheme.UnsafeConvertToVersion(obj, internal)
			if err != nil {
				return nil, fmt.Errorf("convert %T to the internal version: %w", obj, err)
			}
			return out.(resource.Internal), nil // the internal types of all built-in kinds implement this interface
		},
		External: func(obj resource.Internal) (runtime.Object, error) {
			out, err := legacyscheme.Scheme.UnsafeConvertToVersion(obj, gv)
			if err != nil {
				return nil, fmt.Errorf("convert %T to %s: %w", obj, gv, err)
			}
			return out, nil
		},
	}
}

// Constructor returns a function that allocates objects of a type of the scheme. It returns nil for a nil type.
func Constructor(t reflect.Type) func() runtime.Object {
	if t == nil {
		return nil
	}
	return func() runtime.Object { return reflect.New(t).Interface().(runtime.Object) }
}

// PostOnly returns the version of a namespaced kind whose only verb is create.
func PostOnly(gv schema.GroupVersion, names resource.Names) *resource.Version {
	d := &resource.Definition{Group: gv.Group, Names: names, Namespaced: true, Verbs: []string{"create"}}
	v := &resource.Version{Definition: d, GroupVersion: gv, APIVersion: gv.String(), Type: typeAt(gv, names)}
	d.Storage, d.Versions = v, []*resource.Version{v}
	v.Parseable = sync.OnceValues(v.Type.Parseable)
	return v
}
