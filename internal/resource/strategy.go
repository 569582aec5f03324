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

// Internal is an object in upstream's internal form, which has no version. Strategies use this form.
type Internal interface {
	runtime.Object
	metav1.Object
}

// Strategy defines how objects of a built-in kind are written. It consists of the interfaces in
// k8s.io/apiserver/pkg/registry/rest that k8s.io/kubernetes implements for its kinds. A Strategy does not change
// after its creation.
type Strategy struct {
	// Main is the strategy for writes of the whole object.
	Main interface {
		rest.RESTCreateStrategy
		rest.RESTUpdateStrategy
	}
	// Subresources holds the strategies for writes of a part of the object, by the name of the subresource.
	Subresources map[string]rest.RESTUpdateStrategy
	// ErrorKind is the kind in errors for invalid objects.
	ErrorKind schema.GroupKind
	// Authorize returns an error if the caller may not write obj. obj is the object that the client sent. It has no
	// generated name, but it has the client's resourceVersion. old is nil on a create. A nil Authorize means that
	// permission to write the kind is sufficient.
	Authorize func(ctx context.Context, obj, old Internal) error
	// Prepare does the work that strategies leave to the store, such as the allocation of a Service's addresses. It
	// runs before the strategy. old is nil on a create. The error is a StatusError. A nil Prepare means that there
	// is no such work.
	Prepare func(ctx context.Context, obj, old Internal) error
	// Ignore reports whether to ignore an error that Main or a subresource strategy returns, because a flag of this
	// server allows the value. If Ignore is nil, all errors are reported.
	Ignore func(*field.Error) bool

	filters sync.Map // cached results of ResetFields, by subresource
}

// ResetFields returns filters for the fields that a write through a subresource may own, by version. A write may
// own all fields at a version without a filter. The result is cached and shared.
func (s *Strategy) ResetFields(subresource string) map[fieldpath.APIVersion]fieldpath.Filter {
	if cached, ok := s.filters.Load(subresource); ok {
		return cached.(map[fieldpath.APIVersion]fieldpath.Filter)
	}
	var filters map[fieldpath.APIVersion]fieldpath.Filter
	switch update := s.Update(subresource).(type) {
	case rest.ResetFieldsFilterStrategy:
		filters = update.GetResetFieldsFilter()
	case rest.ResetFieldsStrategy:
		filters = fieldpath.NewExcludeFilterSetMap(update.GetResetFields())
	}
	s.filters.Store(subresource, filters)
	return filters
}

// Update returns the strategy for writes through a subresource, or for the object itself if subresource is "". It
// returns nil if the kind has no such subresource. A write through /scale is a write of the object.
func (s *Strategy) Update(subresource string) rest.RESTUpdateStrategy {
	if subresource == "" || subresource == "scale" {
		return s.Main
	}
	return s.Subresources[subresource]
}
