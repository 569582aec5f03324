package engine

import (
	"context"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

// bounded is the declarative validation of a strategy, for objects of which what is written by hand finds fewer problems than are
// told. Upstream compares the problems that its two validations find, which takes time that grows with their square: 14 seconds
// for 16,000 bad ports.
type bounded struct {
	rest.DeclarativeValidationStrategy
}

// ValidateDeclaratively implements rest.DeclarativeValidationStrategy.
func (b bounded) ValidateDeclaratively(ctx context.Context, obj, old runtime.Object, found field.ErrorList, op operation.Type, config rest.DeclarativeValidationConfig) field.ErrorList {
	if len(found) >= maxProblems {
		return found
	}
	return b.DeclarativeValidationStrategy.ValidateDeclaratively(ctx, obj, old, found, op, config)
}

// validateCreate is rest.ValidateCreate, bounded.
func validateCreate(ctx context.Context, obj runtime.Object, s rest.RESTCreateStrategy) field.ErrorList {
	if d, ok := s.(rest.DeclarativeValidationStrategy); ok {
		s = struct {
			rest.RESTCreateStrategy
			bounded
		}{s, bounded{d}}
	}
	return rest.ValidateCreate(ctx, obj, s)
}

// validateUpdate is rest.ValidateUpdate, bounded.
func validateUpdate(ctx context.Context, obj, old runtime.Object, s rest.RESTUpdateStrategy) field.ErrorList {
	if d, ok := s.(rest.DeclarativeValidationStrategy); ok {
		s = struct {
			rest.RESTUpdateStrategy
			bounded
		}{s, bounded{d}}
	}
	return rest.ValidateUpdate(ctx, obj, old, s)
}
