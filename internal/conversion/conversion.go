// Package conversion converts objects between the versions of one Definition. It must not import storage or the
// handling of verbs.
package conversion

import (
	"context"
	"fmt"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Webhook converts objects to the version to of their kind, by calls to the conversion webhook of the kind. No object
// may be at that version already. Webhook makes as few calls as the limits allow. It does not modify the objects. The
// results are in the order of the objects. They are validated: apiVersion and kind are correct, and only labels and
// annotations differ in the metadata. They are not pruned. If one object fails, the whole conversion fails. The error
// is for clients, in upstream's words.
type Webhook func(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error)

// UsesWebhook reports whether a webhook converts the objects of a kind. Such objects are converted in batches, and
// the results are cached.
func UsesWebhook(d *resource.Definition) bool {
	return d.Custom != nil && d.Custom.Conversion.Webhook != ""
}

// Convert converts t from one version of a Definition to another, through the storage version. The kind must not use
// a webhook. If the version of t no longer exists, from is nil, and t is converted like an object at the storage
// version. Convert may modify t, and the result may share memory with t.
//
// A version that has Go conversion functions uses them. The strategy None only sets apiVersion, unless the CRD
// declares a conversion in an annotation.
func Convert(ctx context.Context, t object.Tree, from, to *resource.Version) (object.Tree, error) {
	if from == to {
		return t, nil
	}
	if c := declarationOf(to.Definition); c != nil {
		return c.convert(ctx, t, from, to)
	}
	if from != nil && from.ConvertTo != nil {
		out, err := from.ConvertTo(t)
		if err != nil {
			return nil, fmt.Errorf("convert %s to the storage version: %w", from.APIVersion, err)
		}
		t = out
	}
	if to.ConvertFrom != nil {
		out, err := to.ConvertFrom(t)
		if err != nil {
			return nil, fmt.Errorf("convert the storage version to %s: %w", to.APIVersion, err)
		}
		t = out
	}
	t["apiVersion"] = to.APIVersion
	t["kind"] = to.Definition.Names.Kind
	return t, nil
}

// Trivial reports whether a conversion from one version to the other changes only apiVersion. The stored bytes of
// such objects need no conversion.
func Trivial(from, to *resource.Version) bool {
	if from == to {
		return true
	}
	if c := declarationOf(to.Definition); c != nil {
		return c.trivial(from, to)
	}
	return !UsesWebhook(to.Definition) && (from == nil || from.ConvertTo == nil) && to.ConvertFrom == nil
}
