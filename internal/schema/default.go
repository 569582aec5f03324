package schema

import (
	"github.com/trellis-k8s/trellis/internal/object"
)

// Default modifies t in place. It drops the nulls of fields that are not nullable and have no default, and fills in
// defaults. Default values are copied, so the caller may change t. If the schema has no defaults, only the search for
// nulls takes time.
func (s *Schema) Default(t object.Tree) {
	s.dropNulls(t)
	s.FillDefaults(t)
}

// FillDefaults does the same as Default, except that it drops no nulls. It replaces a null only if the field has a
// default. Upstream's defaulter does this after an apply and after admission.
func (s *Schema) FillDefaults(t object.Tree) {
	if root := s.structuralRoot(); root.has(defaults) {
		root.fill(t)
	}
}

// structuralRoot returns the root node, after it has decoded the defaults. It returns nil if the version has no
// structural schema.
func (s *Schema) structuralRoot() *node {
	if s.nonStructural {
		return nil
	}
	if s.root.has(defaults) {
		s.defaultsOnce.Do(s.readDefaults)
	}
	return s.root
}

// dropNulls removes the fields of objects that are null but not nullable. Null items of lists remain. The metadata of
// t is skipped, because its Go type handles nulls. Objects of a kind that preserves unknown fields keep all nulls.
func (s *Schema) dropNulls(t object.Tree) {
	root := s.structuralRoot()
	if root == nil || s.preserve {
		return
	}
	for k, v := range t {
		if isTypeOrMeta(k) {
			continue
		}
		if child := root.child(k); child.drops(v) {
			delete(t, k)
		} else {
			child.dropNulls(v)
		}
	}
}

func (n *node) dropNulls(v any) {
	if n == nil {
		return
	}
	switch v := v.(type) {
	case object.Tree:
		for k, w := range v {
			if child := n.child(k); child.drops(w) {
				delete(v, k)
			} else {
				child.dropNulls(w)
			}
		}
	case []any:
		for _, w := range v {
			n.items.dropNulls(w)
		}
	}
}

// drops reports whether v is a null that must be removed.
func (n *node) drops(v any) bool {
	return v == nil && n != nil && !n.nullable && !n.defaulted()
}

// defaulted reports whether the node has a usable default. readDefaults may have discarded the whole default, because
// a default within embedded metadata can be invalid.
func (n *node) defaulted() bool { return n.defaultJSON != "" && !n.nodeDefaults.discarded }

// fill sets defaults in the fields and items of v.
func (n *node) fill(v any) {
	switch v := v.(type) {
	case object.Tree:
		n.fillTree(v)
	case []any:
		if !n.items.has(defaults) {
			return
		}
		for i, w := range v {
			if w == nil {
				v[i] = n.items.fillNull()
			} else {
				n.items.fill(w)
			}
		}
	}
}

func (n *node) fillTree(t object.Tree) {
	if n.nodeDefaults == nil {
		return
	}
	for _, f := range n.nodeDefaults.properties {
		v, found := t[f.name]
		switch {
		case f.node.defaulted() && (!found || v == nil && !f.node.nullable):
			t[f.name] = object.CopyValue(f.node.nodeDefaults.value)
		case v != nil:
			f.node.fill(v)
		}
	}
	if n.additional == nil || !n.additional.schema.has(defaults) {
		return
	}
	for k, v := range t {
		if _, known := n.properties[k]; known {
			continue
		}
		if v == nil {
			t[k] = n.additional.schema.fillNull()
		} else {
			n.additional.schema.fill(v)
		}
	}
}

// fillNull returns the value that replaces a null item or a null additional property.
func (n *node) fillNull() any {
	if n.nullable || !n.defaulted() {
		return nil
	}
	return object.CopyValue(n.nodeDefaults.value)
}

// nodeDefaults holds the defaults at and below a node.
type nodeDefaults struct {
	value      any  // the default, after the defaults below it were filled in
	discarded  bool // the default is not used, because normalization removes it completely
	properties []defaultedProperty
}

// defaultedProperty is a property with a default at or below it.
type defaultedProperty struct {
	name string
	node *node
}

// readDefaults decodes all defaults. It prunes and coerces each default at its position, and fills in the defaults
// below it. A default can then be filled into an object as a copy.
func (s *Schema) readDefaults() {
	r := defaultReader{schema: s}
	r.read(s.root)
}

type defaultReader struct {
	schema *Schema
	path   []step // path from the root to the current node
}

func (r *defaultReader) read(n *node) {
	if !n.has(defaults) {
		return
	}
	n.nodeDefaults = &nodeDefaults{}
	for name, child := range n.properties {
		if child.has(defaults) {
			r.below(step{name, -1}, child)
			n.nodeDefaults.properties = append(n.nodeDefaults.properties, defaultedProperty{name, child})
		}
	}
	if n.additional != nil {
		r.below(step{"*", -1}, n.additional.schema)
	}
	r.below(step{index: 0}, n.items)
	if n.defaultJSON == "" {
		return
	}
	value, ok := r.normalizedDefault(n)
	if n.nodeDefaults.discarded = !ok || value == nil; n.nodeDefaults.discarded {
		return
	}
	n.fill(value)
	n.nodeDefaults.value = value
}

func (r *defaultReader) below(at step, n *node) {
	r.path = append(r.path, at)
	r.read(n)
	r.path = r.path[:len(r.path)-1]
}

// normalizedDefault returns the default of n after it was pruned and coerced inside an object. It returns false if
// nothing remains.
func (r *defaultReader) normalizedDefault(n *node) (any, bool) {
	value, ok := decodeDefault(n)
	if !ok {
		return nil, false
	}
	if r.schema.preserve || len(r.path) == 0 || isScalar(value) && !r.schema.root.has(embedded) {
		return value, true
	}
	t := wrapAtPath(value, r.path)
	c := coercer{drop: true}
	_ = c.children(t, r.schema.root, nil) // drop is set: no error
	r.schema.Prune(t)
	return at(t, r.path)
}

func isScalar(v any) bool {
	switch v.(type) {
	case object.Tree, []any:
		return false
	}
	return true
}

// at returns the value at a path.
func at(v any, path []step) (any, bool) {
	for _, s := range path {
		switch parent := v.(type) {
		case object.Tree:
			value, ok := parent[s.key]
			if !ok {
				return nil, false
			}
			v = value
		case []any:
			v = parent[0]
		default:
			return nil, false
		}
	}
	return v, true
}
