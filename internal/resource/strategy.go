package resource

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Internal is an object in upstream's internal form, the one that has no version: what strategies work on.
type Internal interface {
	runtime.Object
	metav1.Object
}

// Strategy is how objects of a built-in kind are written, by the interfaces of k8s.io/apiserver/pkg/registry/rest that
// k8s.io/kubernetes implements for its kinds. It is immutable.
type Strategy struct {
	// Main is for the object as a whole.
	Main interface {
		rest.RESTCreateStrategy
		rest.RESTUpdateStrategy
	}
	// Subresources are for writes of a part of the object, by the name of the subresource.
	Subresources map[string]rest.RESTUpdateStrategy
	// ErrorKind is what a refused object is said to be.
	ErrorKind schema.GroupKind
	// Begin does what strategies leave to a store (the addresses of a Service), before they are asked; old is nil on a create.
	// The error is a StatusError. nil: there is nothing to do.
	Begin func(ctx context.Context, obj, old Internal) error
}

// Update returns how a subresource is written, or with "" the object itself; nil where the kind has none of that name.
// /scale is a write of the object.
func (s *Strategy) Update(subresource string) rest.RESTUpdateStrategy {
	if subresource == "" || subresource == "scale" {
		return s.Main
	}
	return s.Subresources[subresource]
}

// Dependents is what becomes of an object's dependents where neither the options of a delete nor the object's
// finalizers say it.
func (d *Definition) Dependents(ctx context.Context) rest.GarbageCollectionPolicy {
	if d.Strategy != nil {
		if s, ok := d.Strategy.Main.(rest.GarbageCollectionDeleteStrategy); ok {
			return s.DefaultGarbageCollectionPolicy(ctx)
		}
	}
	return rest.DeleteDependents
}
