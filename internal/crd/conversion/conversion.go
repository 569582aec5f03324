// Package conversion converts objects between the versions of one Definition. It must not import storage or the
// handling of verbs.
package conversion

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Webhook converts objects to the version to of their kind, by calls to the conversion webhook of the kind. No object
// may be at that version already. Webhook makes as few calls as the limits allow. It does not modify the objects. The
// results are in the order of the objects. They are validated: apiVersion and kind are correct, and only labels and
// annotations differ in the metadata. They are not pruned. If one object fails, the whole conversion fails. The error
// is for clients, in upstream's words.
type Webhook func(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error)

// Converter converts objects between the versions of their kind.
type Converter struct {
	Webhook Webhook // nil means that objects of kinds with a conversion webhook cannot be converted
}

// Convert replaces the objects, which are of one kind, by their conversions to a version. A webhook receives all of
// them in one call. Unknown fields of custom kinds are pruned, and results of a webhook get defaults. Convert may
// modify the objects. Objects that are already at the version stay unchanged.
func (c Converter) Convert(ctx context.Context, objects []object.Tree, to *resource.Version) (err error) {
	if UsesWebhook(to.Definition) {
		return c.callWebhook(ctx, objects, to)
	}
	for i, t := range objects {
		from := versionOf(t, to.Definition)
		if from == to {
			continue
		}
		if objects[i], err = convert(ctx, t, from, to); err != nil {
			return err
		}
		if err = prune(objects[i], to); err != nil {
			return err
		}
	}
	return nil
}

// callWebhook implements Convert for a kind with a webhook.
func (c Converter) callWebhook(ctx context.Context, objects []object.Tree, to *resource.Version) error {
	var indices []int
	var in []object.Tree
	for i, t := range objects {
		if object.String(t, "apiVersion") != to.APIVersion {
			indices, in = append(indices, i), append(in, withoutResourceVersion(t))
		}
	}
	if len(in) == 0 {
		return nil
	}
	if c.Webhook == nil {
		return errors.New("cannot convert object: this server does not call conversion webhooks")
	}
	out, err := c.Webhook(ctx, to, in)
	if err != nil {
		return err
	}
	s, err := to.Schema()
	if err != nil {
		return err
	}
	for i, at := range indices {
		if err := prune(out[i], to); err != nil {
			return err
		}
		s.FillDefaults(out[i])
		if rv := object.ResourceVersion(objects[at]); rv != "" {
			object.SetResourceVersion(out[i], rv)
		}
		objects[at] = out[i]
	}
	return nil
}

// withoutResourceVersion returns t without its resourceVersion, because webhooks do not receive it. It does not
// modify t.
func withoutResourceVersion(t object.Tree) object.Tree {
	if object.ResourceVersion(t) == "" {
		return t
	}
	t = object.ShallowCopy(t)
	delete(object.Metadata(t), "resourceVersion")
	return t
}

// prune prunes the result of a conversion to a custom version.
func prune(t object.Tree, to *resource.Version) error {
	if to.Schema == nil {
		return nil
	}
	s, err := to.Schema()
	if err != nil {
		return err
	}
	if _, invalid := s.PruneAndCoerce(t); invalid != nil {
		return invalid
	}
	return nil
}

// UsesWebhook reports whether a webhook converts the objects of a kind. Such objects are converted in batches, and
// the results are cached.
func UsesWebhook(d *resource.Definition) bool { return d.Conversion().Webhook != "" }

// versionOf returns the version of the object t, or nil if the kind no longer has it.
func versionOf(t object.Tree, d *resource.Definition) *resource.Version {
	return d.Version(object.String(t, "apiVersion"))
}

// convert converts t from one version of its kind, which does not use a webhook, to another, through the storage
// version. If from is nil, t is converted like an object at the storage version. convert does not modify t, but the
// result may share memory with t.
//
// A version that has Go conversion functions uses them. The strategy None only sets apiVersion, unless the CRD
// declares a conversion in an annotation.
func convert(ctx context.Context, t object.Tree, from, to *resource.Version) (object.Tree, error) {
	if from == to {
		return t, nil
	}
	if c := declarationOf(to.Definition); c != nil {
		return c.convert(ctx, t, from, to)
	}
	if Trivial(from, to) {
		t = maps.Clone(t)
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
