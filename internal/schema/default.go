package schema

import (
	"github.com/trellis-k8s/trellis/internal/object"
)

// Default drops the nulls of fields that are not nullable and have no default, and fills in defaults, in
// place. The defaults themselves are copied, so that t may be changed at will. A schema without defaults costs
// nothing beyond the look for nulls.
func (s *Schema) Default(t object.Tree) {
	s.dropNulls(t)
	s.FillDefaults(t)
}

// FillDefaults is Default without the look for nulls, as upstream's defaulter does it after an apply and after
// admission: only a null with a default is replaced.
func (s *Schema) FillDefaults(t object.Tree) {
	if root := s.shaping(); root.has(defaults) {
		root.fill(t)
	}
}

// shaping is the tree that prunes, defaults and checks objects, its defaults read; nil where there is none.
func (s *Schema) shaping() *node {
	if s.loose {
		return nil
	}
	if s.root.has(defaults) {
		s.defaultsOnce.Do(s.readDefaults)
	}
	return s.root
}

// dropNulls drops the members of objects that are null but may not be. List items stay, null or not. The
// metadata of t is left to those who know its Go type; a kind that preserves unknown fields keeps all.
func (s *Schema) dropNulls(t object.Tree) {
	root := s.shaping()
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

// drops reports that v is a null that has to go.
func (n *node) drops(v any) bool {
	return v == nil && n != nil && !n.nullable && !n.defaulted()
}

// defaulted reports that the node has a default. Within embedded metadata, the server may know better than
// the schema, which shows when the defaults are read.
func (n *node) defaulted() bool { return n.defaultJSON != "" && !n.filling.voided }

// fill puts defaults into the members and items of v.
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
	if n.filling == nil {
		return
	}
	for _, f := range n.filling.below {
		v, found := t[f.name]
		switch {
		case f.node.defaulted() && (!found || v == nil && !f.node.nullable):
			t[f.name] = object.CopyValue(f.node.filling.value)
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

// fillNull is what a null becomes as an item or an additional property.
func (n *node) fillNull() any {
	if n.nullable || !n.defaulted() {
		return nil
	}
	return object.CopyValue(n.filling.value)
}

// filling is what a node with a default, or with one below it, has to fill in.
type filling struct {
	value  any  // the default, completed by those below it
	voided bool // nothing of the default may stay
	below  []filled
}

// filled is one property that has a default, or one below it.
type filled struct {
	name string
	node *node
}

// readDefaults decodes all defaults. Each is pruned and coerced where it will stand, and completed by the
// defaults below it, so that filling it in later is a copy.
func (s *Schema) readDefaults() {
	r := defaultReader{schema: s}
	r.read(s.root)
}

type defaultReader struct {
	schema *Schema
	path   []step // from the root to the node being read
}

func (r *defaultReader) read(n *node) {
	if !n.has(defaults) {
		return
	}
	n.filling = &filling{}
	for name, child := range n.properties {
		if child.has(defaults) {
			r.below(step{name, -1}, child)
			n.filling.below = append(n.filling.below, filled{name, child})
		}
	}
	if n.additional != nil {
		r.below(step{"*", -1}, n.additional.schema)
	}
	r.below(step{index: 0}, n.items)
	if n.defaultJSON == "" {
		return
	}
	value, ok := r.fitted(n)
	if n.filling.voided = !ok || value == nil; n.filling.voided {
		return
	}
	n.fill(value)
	n.filling.value = value
}

func (r *defaultReader) below(at step, n *node) {
	r.path = append(r.path, at)
	r.read(n)
	r.path = r.path[:len(r.path)-1]
}

// fitted is the default of n as it may stay in an object around it; false where nothing of it may.
func (r *defaultReader) fitted(n *node) (any, bool) {
	value, ok := decodeDefault(n)
	if !ok {
		return nil, false
	}
	if r.schema.preserve || len(r.path) == 0 || isScalar(value) && !r.schema.root.has(embedded) {
		return value, true
	}
	t := surrounding(value, r.path)
	c := coercer{drop: true}
	_ = c.children(t, r.schema.root, nil) // it drops what it cannot coerce
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

// at is the value at a path.
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
