package schema

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// ValidateExtensions checks what the x-kubernetes extensions ask for: embedded resources, the items of sets and
// maps, and the rules. It appends to errs, what is known to be wrong with t already: some of that keeps
// rules from being evaluated. status says that t is written through /status. Repeated list items are no error in a list
// that is the same in the old object. warn gets what ratcheting forgives.
func (s *Schema) ValidateExtensions(ctx context.Context, t, old object.Tree, status bool, warn func(text string), errs field.ErrorList) field.ErrorList {
	if !status {
		errs = append(errs, s.validateEmbedded(ctx, t)...)
	}
	twice := s.duplicates(t, nil)
	if len(twice) > 0 && old != nil {
		twice = s.duplicates(t, old)
	}
	errs = append(errs, twice...)
	switch {
	case s.rules() == nil:
		return errs
	case len(errs) >= maxProblems || slices.ContainsFunc(errs, blocksRules): // there may be others that are not told
		return append(errs, field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
	}
	return append(errs, s.evaluate(ctx, t, old, warn)...)
}

// blocksRules tells that an error may leave a value that rules cannot make sense of.
func blocksRules(e *field.Error) bool {
	switch e.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
		return true
	}
	return false
}
