// Package defaulting brings objects into the form that a schema defines: it removes unknown fields, fills in defaults,
// and gives the metadata of embedded resources its types.
package defaulting

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Normalizer prunes, coerces and defaults the objects of one schema. It is safe for concurrent use.
type Normalizer struct {
	Schema       *schema.Schema
	defaultsOnce sync.Once
}

// Normalize applies the schema to an object from a request. The metadata of the object must be valid. Normalize
// prunes, drops nulls, coerces embedded resources and fills in defaults, in upstream's order. unknown lists the paths
// of the dropped unknown fields, as Prune and CoerceEmbedded return them. If a value in an embedded resource cannot
// be coerced, Normalize returns an error and t is only partly normalized.
func (z *Normalizer) Normalize(t object.Tree) (unknown []string, err *field.Error) {
	if unknown, err = z.PruneAndCoerce(t); err == nil { // an error must quote the value without defaults
		z.FillDefaults(t)
	}
	return unknown, err
}

// PruneAndCoerce does the same as Normalize, except that it fills in no defaults. It is used for converted objects.
func (z *Normalizer) PruneAndCoerce(t object.Tree) (unknown []string, err *field.Error) {
	p := z.prune(t)
	if p.nulls {
		z.dropNulls(t)
	}
	dropped, err := z.CoerceEmbedded(t)
	return append(p.unknown.all, dropped...), err
}

// NormalizeStored does the same as Normalize for an object from storage. It drops values that cannot be coerced.
func (z *Normalizer) NormalizeStored(t object.Tree) {
	if z.prune(t).nulls {
		z.dropNulls(t)
	}
	if root := z.root(); root.Has(schema.EmbeddedResources) {
		c := coercer{drop: true}
		_ = c.children(t, root, nil) // drop is set: no error
	}
	z.FillDefaults(t)
}

// IsNormalized reports whether NormalizeStored would leave t unchanged. Such an object may be stored with the
// schema's fingerprint. The result may be false although t is normalized. In embedded resources, only the names of
// fields are checked, because Normalize has already checked the values.
func (z *Normalizer) IsNormalized(t object.Tree) bool {
	root := z.root()
	switch {
	case z.Schema.Preserve:
		return !root.Has(schema.Defaults)
	case root == nil:
		root = &schema.Node{}
	}
	return isNormalizedTree(root, t, true, root.Preserve)
}

// isNormalized reports whether the value v below the root is normalized. preserved is true for an item of a list that
// preserves unknown fields.
func isNormalized(n *schema.Node, v any, preserved bool) bool {
	switch v := v.(type) {
	case object.Tree:
		if n == nil {
			return preserved || len(v) == 0
		}
		return isNormalizedTree(n, v, n.Embedded, preserved || n.Preserve)
	case []any:
		var items *schema.Node
		if n != nil {
			items = n.Items
			preserved = preserved || n.Preserve
		}
		for _, e := range v {
			if e == nil && items != nil && fillNull(items) != nil || !isNormalized(items, e, preserved) {
				return false
			}
		}
	}
	return true
}

func isNormalizedTree(n *schema.Node, t object.Tree, embedded, preserved bool) bool {
	if n.Defaults != nil {
		for _, f := range n.Defaults.Properties {
			if _, found := t[f.Name]; !found && defaulted(f.Node) {
				return false
			}
		}
	}
	for k, v := range t {
		child, known := n.Properties[k]
		if !known && n.Additional != nil {
			child, known = n.Additional.Schema, true
		}
		switch {
		case embedded && schema.IsTypeOrMeta(k):
			if child.Has(schema.Defaults) {
				return false
			}
		case !known && !preserved, v == nil && child != nil && !child.Nullable:
			return false
		case known && !isNormalized(child, v, false):
			return false
		}
	}
	return true
}
