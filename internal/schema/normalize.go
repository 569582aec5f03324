package schema

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Normalize applies the schema to an object from a request. The metadata of the object must be valid. Normalize
// prunes, drops nulls, coerces embedded resources and fills in defaults, in upstream's order. unknown lists the paths
// of the dropped unknown fields, as Prune and CoerceEmbedded return them. If a value in an embedded resource cannot
// be coerced, Normalize returns an error and t is only partly normalized.
func (s *Schema) Normalize(t object.Tree) (unknown []string, err *field.Error) {
	if unknown, err = s.PruneAndCoerce(t); err == nil { // an error must quote the value without defaults
		s.FillDefaults(t)
	}
	return unknown, err
}

// PruneAndCoerce does the same as Normalize, except that it fills in no defaults. It is used for converted objects.
func (s *Schema) PruneAndCoerce(t object.Tree) (unknown []string, err *field.Error) {
	p := s.prune(t)
	if p.nulls {
		s.dropNulls(t)
	}
	dropped, err := s.CoerceEmbedded(t)
	return append(p.unknown.all, dropped...), err
}

// NormalizeStored does the same as Normalize for an object from storage. It drops values that cannot be coerced.
func (s *Schema) NormalizeStored(t object.Tree) {
	if s.prune(t).nulls {
		s.dropNulls(t)
	}
	if root := s.structuralRoot(); root.has(embedded) {
		c := coercer{drop: true}
		_ = c.children(t, root, nil) // drop is set: no error
	}
	s.FillDefaults(t)
}

// IsNormalized reports whether NormalizeStored would leave t unchanged. Such an object may be stored with the
// schema's fingerprint. The result may be false although t is normalized. In embedded resources, only the names of
// fields are checked, because Normalize has already checked the values.
func (s *Schema) IsNormalized(t object.Tree) bool {
	root := s.structuralRoot()
	switch {
	case s.preserve:
		return !root.has(defaults)
	case root == nil:
		root = &node{}
	}
	return root.isNormalizedTree(t, true, root.preserve)
}

// isNormalized reports whether the value v below the root is normalized. preserved is true for an item of a list that
// preserves unknown fields.
func (n *node) isNormalized(v any, preserved bool) bool {
	switch v := v.(type) {
	case object.Tree:
		if n == nil {
			return preserved || len(v) == 0
		}
		return n.isNormalizedTree(v, n.embedded, preserved || n.preserve)
	case []any:
		var items *node
		if n != nil {
			items = n.items
			preserved = preserved || n.preserve
		}
		for _, e := range v {
			if e == nil && items != nil && items.fillNull() != nil || !items.isNormalized(e, preserved) {
				return false
			}
		}
	}
	return true
}

func (n *node) isNormalizedTree(t object.Tree, embedded, preserved bool) bool {
	if n.nodeDefaults != nil {
		for _, f := range n.nodeDefaults.properties {
			if _, found := t[f.name]; !found && f.node.defaulted() {
				return false
			}
		}
	}
	for k, v := range t {
		child, known := n.properties[k]
		if !known && n.additional != nil {
			child, known = n.additional.schema, true
		}
		switch {
		case embedded && isTypeOrMeta(k):
			if child.has(defaults) {
				return false
			}
		case !known && !preserved, v == nil && child != nil && !child.nullable:
			return false
		case known && !child.isNormalized(v, false):
			return false
		}
	}
	return true
}
