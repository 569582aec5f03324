package schema

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Normalize makes of the object in a request, whose own metadata is in order, what its schema lets it be: it
// prunes, drops nulls, coerces embedded resources and fills in defaults, in upstream's order. unknown are
// the paths of what was dropped for being unknown, as Prune and CoerceEmbedded give them. An error is a
// value in an embedded resource that cannot be coerced; t is then half done.
func (s *Schema) Normalize(t object.Tree) (unknown []string, err *field.Error) {
	if unknown, err = s.PruneAndCoerce(t); err == nil { // else it names the value as it was sent
		s.FillDefaults(t)
	}
	return unknown, err
}

// PruneAndCoerce is Shape without defaults: what conversion has made of an object goes through it.
func (s *Schema) PruneAndCoerce(t object.Tree) (unknown []string, err *field.Error) {
	p := s.prune(t)
	if p.nulls {
		s.dropNulls(t)
	}
	dropped, err := s.CoerceEmbedded(t)
	return append(p.unknown.all, dropped...), err
}

// NormalizeStored is Shape for an object from storage: what cannot be coerced is dropped.
func (s *Schema) NormalizeStored(t object.Tree) {
	if s.prune(t).nulls {
		s.dropNulls(t)
	}
	if root := s.shaping(); root.has(embedded) {
		c := coercer{drop: true}
		_ = c.children(t, root, nil) // it drops
	}
	s.FillDefaults(t)
}

// IsNormalized reports that Restore would leave t as it is: it may be stored with the schema's fingerprint.
// false is always safe. Of embedded resources only the fields are looked at, for those of a t that
// Shape has seen are in order.
func (s *Schema) IsNormalized(t object.Tree) bool {
	root := s.shaping()
	switch {
	case s.preserve:
		return !root.has(defaults)
	case root == nil:
		root = &node{}
	}
	return root.settledTree(t, true, root.preserve)
}

// settled is Settled for a value below; kept says that the list around it preserves unknown fields.
func (n *node) settled(v any, kept bool) bool {
	switch v := v.(type) {
	case object.Tree:
		if n == nil {
			return kept || len(v) == 0
		}
		return n.settledTree(v, n.embedded, kept || n.preserve)
	case []any:
		var items *node
		if n != nil {
			items = n.items
			kept = kept || n.preserve
		}
		for _, e := range v {
			if e == nil && items != nil && items.fillNull() != nil || !items.settled(e, kept) {
				return false
			}
		}
	}
	return true
}

func (n *node) settledTree(t object.Tree, embeds, kept bool) bool {
	if n.filling != nil {
		for _, f := range n.filling.below {
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
		case embeds && isTypeOrMeta(k):
			if child.has(defaults) {
				return false
			}
		case !known && !kept, v == nil && child != nil && !child.nullable:
			return false
		case known && !child.settled(v, false):
			return false
		}
	}
	return true
}
