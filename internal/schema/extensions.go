package schema

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// ValidateExtensions checks what the x-kubernetes extensions ask for: embedded resources, the items of sets and
// maps, and the rules. It appends to errs, what is known to be wrong with t already: some of that keeps
// rules from being evaluated. status says that t is written through /status. List items that are there
// twice are an error only where the old object had none such.
func (s *Schema) ValidateExtensions(ctx context.Context, t, old object.Tree, status bool, errs field.ErrorList) field.ErrorList {
	if !status {
		errs = append(errs, s.validateEmbedded(ctx, t)...)
	}
	if twice := s.duplicates(t); len(twice) > 0 && (old == nil || len(s.duplicates(old)) == 0) {
		errs = append(errs, twice...)
	}
	return errs
}
