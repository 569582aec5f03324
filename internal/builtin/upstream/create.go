package upstream

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Create is how a kind's objects are created, step by step; a write takes the steps in the order they stand here.
// Each wants the context that Request.Context makes.
type Create struct{ strategy rest.RESTCreateStrategy }

// Create returns how objects of the kind are created.
func (k *Kind) Create() Create { return Create{k.main} }

// Name makes a name out of metadata.generateName.
func (c Create) Name(base string) string { return c.strategy.GenerateName(base) }

// Prepare resets what clients may not set. obj has its namespace, name, uid and creationTimestamp.
func (c Create) Prepare(ctx context.Context, obj Object) { c.strategy.PrepareForCreate(ctx, obj) }

// Validate finds what is wrong with obj, its metadata included, in upstream's order.
func (c Create) Validate(ctx context.Context, obj Object) field.ErrorList {
	return rest.ValidateCreate(ctx, obj, c.strategy)
}

// Warnings are those for the client, once obj is known to be valid. Some come out of the other steps
// by way of Request.Warn.
func (c Create) Warnings(ctx context.Context, obj Object) []string {
	return c.strategy.WarningsOnCreate(ctx, obj)
}

// Canonicalize brings a valid object into the form that is stored.
func (c Create) Canonicalize(obj Object) { c.strategy.Canonicalize(obj) }
