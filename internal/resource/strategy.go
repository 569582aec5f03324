package resource

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Internal is an object in upstream's internal form, the one that has no version: what strategies work on.
type Internal interface {
	runtime.Object
	metav1.Object
}

// Strategy is how objects of a built-in kind are written, by the interfaces of k8s.io/apiserver/pkg/registry/rest that
// k8s.io/kubernetes implements for its kinds. What it says does not change.
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
	// Authorize refuses who may not write obj, as it was sent: without a generated name, at whatever resourceVersion. old is nil on
	// a create. nil: whoever may write the kind may write all of it.
	Authorize func(ctx context.Context, obj, old Internal) error
	// Prepare does what strategies leave to a store (the addresses of a Service), before they are asked; old is nil on a create.
	// The error is a StatusError. nil: there is nothing to do.
	Prepare func(ctx context.Context, obj, old Internal) error
	// Ignore reports a problem found by Main or a subresource that is none with the flags of this server; nil: there is none.
	Ignore func(*field.Error) bool

	owned sync.Map // what MayOwn has made, by subresource
}

// ResetFields is what of an object at each version a write through a subresource may own; all of it where there is no filter. It is
// made once, and shared.
func (s *Strategy) ResetFields(subresource string) map[fieldpath.APIVersion]fieldpath.Filter {
	if made, ok := s.owned.Load(subresource); ok {
		return made.(map[fieldpath.APIVersion]fieldpath.Filter)
	}
	var filters map[fieldpath.APIVersion]fieldpath.Filter
	switch update := s.Update(subresource).(type) {
	case rest.ResetFieldsFilterStrategy:
		filters = update.GetResetFieldsFilter()
	case rest.ResetFieldsStrategy:
		filters = fieldpath.NewExcludeFilterSetMap(update.GetResetFields())
	}
	s.owned.Store(subresource, filters)
	return filters
}

// Update returns how a subresource is written, or with "" the object itself; nil where the kind has none of that name.
// /scale is a write of the object.
func (s *Strategy) Update(subresource string) rest.RESTUpdateStrategy {
	if subresource == "" || subresource == "scale" {
		return s.Main
	}
	return s.Subresources[subresource]
}
