package crd

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/crd/validation"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Validate validates t against the whole schema in upstream's order. old is the object that t replaces, or nil on a
// create. Validate calls warn with each rule failure that ratcheting ignores. warn may be nil. t and old must not
// change during the call.
func (c *Compiled) Validate(ctx context.Context, t, old object.Tree, warn func(text string)) field.ErrorList {
	return c.ValidateExtensions(ctx, t, old, false, warn, c.ValidateValues(ctx, t, old))
}

// ValidateValues is the first part of Validate, the OpenAPI validation. ValidateExtensions is the second part.
func (c *Compiled) ValidateValues(ctx context.Context, t, old object.Tree) field.ErrorList {
	return validation.Values(ctx, c.Schema, t, old)
}

// ValidateStatus validates a write of the status subresource. The OpenAPI validation checks only the values below
// status.
func (c *Compiled) ValidateStatus(ctx context.Context, t, old object.Tree, warn func(text string)) field.ErrorList {
	return c.ValidateExtensions(ctx, t, old, true, warn, c.ValidateStatusValues(ctx, t, old))
}

// ValidateStatusValues is the first part of ValidateStatus, the OpenAPI validation.
func (c *Compiled) ValidateStatusValues(ctx context.Context, t, old object.Tree) field.ErrorList {
	return validation.StatusValues(ctx, c.Schema, t, old)
}

// ValidateExtensions validates the x-kubernetes extensions in t: embedded resources, list types and rules. It appends
// its errors to errs, which holds the errors of earlier validation. Some of these earlier errors prevent the
// evaluation of rules. status is true for a write of the status subresource. Duplicate list items are allowed in a
// list that has not changed since old. ValidateExtensions calls warn with each failure that ratcheting ignores.
func (c *Compiled) ValidateExtensions(ctx context.Context, t, old object.Tree, status bool, warn func(text string),
	errs field.ErrorList) field.ErrorList {
	if !status {
		errs = append(errs, validation.EmbeddedResources(ctx, c.Schema, t)...)
	}
	repeated := validation.Duplicates(c.Schema, t, nil)
	if len(repeated) > 0 && old != nil {
		repeated = validation.Duplicates(c.Schema, t, old)
	}
	errs = append(errs, repeated...)
	switch {
	case c.rules.Empty():
		return errs
	// if maxProblems is reached, other errors may be unreported
	case len(errs) >= schema.MaxProblems || slices.ContainsFunc(errs, blocksRules):
		return append(errs, field.Invalid(nil, nil,
			"some validation rules were not checked because the object was invalid; correct the existing errors to "+
				"complete validation"))
	}
	return append(errs, c.rules.Evaluate(ctx, t, old, warn)...)
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
