// Package conversion converts objects between the versions of one Definition. It must not import storage or the
// handling of verbs.
package conversion

import (
	"context"
	"fmt"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Webhook calls the conversion webhook of a custom kind. Each object is at another version of the kind than to.
// Webhook makes as few calls as the limits allow. It does not modify the objects. The results are in the order of
// the objects. They are validated: apiVersion and kind are those of to, and only labels and annotations differ in
// the metadata. They have not been pruned. If one object fails, the whole conversion fails. The error is for
// clients, in upstream's words.
type Webhook func(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error)

// UsesWebhook reports whether a webhook converts the objects of a kind. Such objects are converted in batches, and
// the results are cached.
func UsesWebhook(d *resource.Definition) bool {
	return d.Custom != nil && d.Custom.Conversion.Webhook != ""
}

// Convert converts t from one version of a Definition to another, through the storage version. The kind must not
// use a webhook. from is nil if the version no longer exists; t then differs only in apiVersion. Convert may
// modify t, and the result may share parts with t.
//
// The strategy None only sets apiVersion, unless the CRD declares a conversion. A version with Go functions uses
// these.
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

// Trivial reports whether objects of the two versions differ only in apiVersion, so that no conversion of their
// bytes is necessary.
func Trivial(from, to *resource.Version) bool {
	if from == to {
		return true
	}
	if c := declarationOf(to.Definition); c != nil {
		return c.trivial(from, to)
	}
	return !UsesWebhook(to.Definition) && (from == nil || from.ConvertTo == nil) && to.ConvertFrom == nil
}
