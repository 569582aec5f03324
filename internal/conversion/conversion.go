// Package conversion translates objects between the versions of one Definition.
// It knows no storage and no verbs.
package conversion

import (
	"context"
	"fmt"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Webhook asks the webhook of a custom kind to convert objects, none of which is at version to, but each at another
// version of the kind, in as few and as large calls as limits allow. It does not modify the objects; the results come in
// their order, checked: apiVersion and kind are to's, and of metadata only labels and annotations differ. They have not
// been pruned. One object that fails fails all. The error is for clients, worded as upstream's.
type Webhook func(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error)

// UsesWebhook reports whether a kind's objects are converted by a webhook: in batches, and kept once converted.
func UsesWebhook(d *resource.Definition) bool {
	return d.Custom != nil && d.Custom.Conversion.Webhook != ""
}

// Convert translates t from one version of a Definition that is not Remote to another, by way of the
// storage version. from may be nil if the version is no longer known; then t is
// taken for one that differs in apiVersion only. It may modify t, and the result
// may share parts with it.
//
// Strategy None sets apiVersion and nothing else, unless the CRD declares more; a version with Go functions uses
// them.
func Convert(ctx context.Context, t object.Tree, from, to *resource.Version) (object.Tree, error) {
	if from == to {
		return t, nil
	}
	if c := declared(to.Definition); c != nil {
		return c.convert(ctx, t, from, to)
	}
	if from != nil && from.ConvertTo != nil {
		hub, err := from.ConvertTo(t)
		if err != nil {
			return nil, fmt.Errorf("conversion: %s to the storage version: %w", from.APIVersion, err)
		}
		t = hub
	}
	if to.ConvertFrom != nil {
		out, err := to.ConvertFrom(t)
		if err != nil {
			return nil, fmt.Errorf("conversion: the storage version to %s: %w", to.APIVersion, err)
		}
		t = out
	}
	t["apiVersion"] = to.APIVersion
	t["kind"] = to.Definition.Names.Kind
	return t, nil
}

// Trivial reports whether objects of the two versions differ in apiVersion only,
// so that their bytes may be passed on.
func Trivial(from, to *resource.Version) bool {
	if from == to {
		return true
	}
	if c := declared(to.Definition); c != nil {
		return c.trivial(from, to)
	}
	return !UsesWebhook(to.Definition) && (from == nil || from.ConvertTo == nil) && to.ConvertFrom == nil
}
