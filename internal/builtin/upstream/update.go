package upstream

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Update is how a kind's objects, or a subresource of them, are updated, step by step; a write takes the steps in
// the order they stand here. Each wants the context that Request.Context makes. old is never modified.
type Update struct{ strategy rest.RESTUpdateStrategy }

// Update returns how a subresource is written, or with "" the object itself; false where the kind has none of that name.
func (k *Kind) Update(subresource string) (Update, bool) {
	if subresource == "" {
		return Update{k.main}, true
	}
	s, ok := k.subresources[subresource]
	return Update{s}, ok
}

// Subresources are the names that Update knows, besides "".
func (k *Kind) Subresources() []string {
	all := make([]string, 0, len(k.subresources))
	for name := range k.subresources {
		all = append(all, name)
	}
	return all
}

// AllowsCreate: a PUT of a name that does not exist creates it. It does so with the steps of Create.
func (u Update) AllowsCreate(ctx context.Context) bool { return u.strategy.AllowCreateOnUpdate(ctx) }

// AllowsUnconditional: a PUT without resourceVersion is allowed.
func (u Update) AllowsUnconditional(ctx context.Context) bool {
	return u.strategy.AllowUnconditionalUpdate(ctx)
}

// Reset says, by apiVersion, what of an object's fields the writer can come to own: the rest is reset before it is
// stored. A version that is not in it has nothing reset.
func (u Update) Reset() map[fieldpath.APIVersion]fieldpath.Filter {
	switch s := u.strategy.(type) {
	case rest.ResetFieldsFilterStrategy:
		return s.GetResetFieldsFilter()
	case rest.ResetFieldsStrategy:
		return fieldpath.NewExcludeFilterSetMap(s.GetResetFields())
	}
	return nil
}

// Prepare takes from old what clients may not change, of the metadata and of what the strategy knows.
func (u Update) Prepare(ctx context.Context, obj, old Object) {
	obj.SetGeneration(old.GetGeneration()) // the strategy raises it
	u.strategy.PrepareForUpdate(ctx, obj, old)
	if obj.GetUID() == "" {
		obj.SetUID(old.GetUID())
	}
	if made := old.GetCreationTimestamp(); !made.IsZero() {
		obj.SetCreationTimestamp(made)
	}
	if deleted := old.GetDeletionTimestamp(); !deleted.IsZero() {
		obj.SetDeletionTimestamp(deleted)
	}
	if grace := old.GetDeletionGracePeriodSeconds(); grace != nil && obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(grace)
	}
}

// Validate finds what is wrong with obj or with the change from old, metadata included, in upstream's order.
func (u Update) Validate(ctx context.Context, obj, old Object) field.ErrorList {
	return rest.ValidateUpdate(ctx, obj, old, u.strategy)
}

// Warnings are those for the client, once obj is known to be valid.
func (u Update) Warnings(ctx context.Context, obj, old Object) []string {
	return u.strategy.WarningsOnUpdate(ctx, obj, old)
}

// Canonicalize brings a valid object into the form that is stored.
func (u Update) Canonicalize(obj Object) { u.strategy.Canonicalize(obj) }
