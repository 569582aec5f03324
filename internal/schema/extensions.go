package schema

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// ValidateExtensions validates the x-kubernetes extensions in t: embedded resources, list types and rules. It appends
// its errors to errs, which holds the errors of earlier validation. Some of these earlier errors prevent the
// evaluation of rules. status is true for a write of the status subresource. Duplicate list items are allowed in a
// list that has not changed since old. ValidateExtensions calls warn with each failure that ratcheting ignores.
func (s *Schema) ValidateExtensions(ctx context.Context, t, old object.Tree, status bool, warn func(text string),
	errs field.ErrorList) field.ErrorList {
	if !status {
		errs = append(errs, s.validateEmbedded(ctx, t)...)
	}
	repeated := s.duplicates(t, nil)
	if len(repeated) > 0 && old != nil {
		repeated = s.duplicates(t, old)
	}
	errs = append(errs, repeated...)
	switch {
	case s.rules() == nil:
		return errs
	// if maxProblems is reached, other errors may be unreported
	case len(errs) >= maxProblems || slices.ContainsFunc(errs, blocksRules):
		return append(errs, field.Invalid(nil, nil,
			"some validation rules were not checked because the object was invalid; correct the existing errors to "+
				"complete validation"))
	}
	return append(errs, s.evaluate(ctx, t, old, warn)...)
}

// blocksRules reports whether the error e prevents the evaluation of rules, because the value may have a wrong type
// or size.
func blocksRules(e *field.Error) bool {
	switch e.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany,
		field.ErrorTypeTypeInvalid:
		return true
	}
	return false
}
