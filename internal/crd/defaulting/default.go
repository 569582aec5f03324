package defaulting

import (
	"slices"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Default modifies t in place. It drops the nulls of fields that are not nullable and have no default, and fills in
// defaults. Default values are copied, so the caller may change t. If the schema has no defaults, only the search for
// nulls takes time.
func (z *Normalizer) Default(t object.Tree) {
	z.dropNulls(t)
	z.FillDefaults(t)
}

// FillDefaults does the same as Default, except that it drops no nulls. It replaces a null only if the field has a
// default. Upstream's defaulter does this after an apply and after admission.
func (z *Normalizer) FillDefaults(t object.Tree) {
	if root := z.root(); root.Has(schema.Defaults) {
		fill(root, t)
	}
}

// root returns the root node, after it has decoded the defaults. It returns nil if the version has no structural
// schema.
func (z *Normalizer) root() *schema.Node {
	root := z.Schema.StructuralRoot()
	if root.Has(schema.Defaults) {
		z.defaultsOnce.Do(z.readDefaults)
	}
	return root
}

// dropNulls removes the fields of objects that are null but not nullable. Null items of lists remain. The metadata of
// t is skipped, because its Go type handles nulls. Objects of a kind that preserves unknown fields keep all nulls.
func (z *Normalizer) dropNulls(t object.Tree) {
	root := z.root()
	if root == nil || z.Schema.Preserve {
		return
	}
	for k, v := range t {
		if schema.IsTypeOrMeta(k) {
			continue
		}
		if child := root.Child(k); drops(child, v) {
			delete(t, k)
		} else {
			dropNulls(child, v)
		}
	}
}

func dropNulls(n *schema.Node, v any) {
	if n == nil {
		return
	}
	switch v := v.(type) {
	case object.Tree:
		for k, w := range v {
			if child := n.Child(k); drops(child, w) {
				delete(v, k)
			} else {
				dropNulls(child, w)
			}
		}
	case []any:
		for _, w := range v {
			dropNulls(n.Items, w)
		}
	}
}

// drops reports whether v is a null that must be removed.
func drops(n *schema.Node, v any) bool {
	return v == nil && n != nil && !n.Nullable && !defaulted(n)
}

// defaulted reports whether the node has a usable default. readDefaults may have discarded the whole default, because
// a default within embedded metadata can be invalid.
func defaulted(n *schema.Node) bool { return n.Default != "" && !n.Defaults.Discarded }

// fill sets defaults in the fields and items of v.
func fill(n *schema.Node, v any) {
	switch v := v.(type) {
	case object.Tree:
		fillTree(n, v)
	case []any:
		if !n.Items.Has(schema.Defaults) {
			return
		}
		for i, w := range v {
			if w == nil {
				v[i] = fillNull(n.Items)
			} else {
				fill(n.Items, w)
			}
		}
	}
}

func fillTree(n *schema.Node, t object.Tree) {
	if n.Defaults == nil {
		return
	}
	for _, f := range n.Defaults.Properties {
		v, found := t[f.Name]
		switch {
		case defaulted(f.Node) && (!found || v == nil && !f.Node.Nullable):
			t[f.Name] = object.CopyValue(f.Node.Defaults.Value)
		case v != nil:
			fill(f.Node, v)
		}
	}
	if n.Additional == nil || !n.Additional.Schema.Has(schema.Defaults) {
		return
	}
	for k, v := range t {
		if _, known := n.Properties[k]; known {
			continue
		}
		if v == nil {
			t[k] = fillNull(n.Additional.Schema)
		} else {
			fill(n.Additional.Schema, v)
		}
	}
}

// fillNull returns the value that replaces a null item or a null additional property.
func fillNull(n *schema.Node) any {
	if n.Nullable || !defaulted(n) {
		return nil
	}
	return object.CopyValue(n.Defaults.Value)
}

// readDefaults decodes all defaults. It prunes and coerces each default at its position, and fills in the defaults
// below it. A default can then be filled into an object as a copy.
func (z *Normalizer) readDefaults() {
	r := defaultReader{normalizer: z}
	r.read(z.Schema.Root)
}

// defaultReader decodes the defaults of a schema.
type defaultReader struct {
	normalizer *Normalizer
	path       []Step // path from the root to the current node
}

func (r *defaultReader) read(n *schema.Node) {
	if !n.Has(schema.Defaults) {
		return
	}
	n.Defaults = &schema.NodeDefaults{}
	for name, child := range n.Properties {
		if child.Has(schema.Defaults) {
			r.below(Field(name), child)
			n.Defaults.Properties = append(n.Defaults.Properties, schema.DefaultedProperty{Name: name, Node: child})
		}
	}
	if n.Additional != nil {
		r.below(Field("*"), n.Additional.Schema)
	}
	r.below(Item, n.Items)
	if n.Default == "" {
		return
	}
	value, ok := r.normalizedDefault(n)
	if n.Defaults.Discarded = !ok || value == nil; n.Defaults.Discarded {
		return
	}
	fill(n, value)
	n.Defaults.Value = value
}

func (r *defaultReader) below(at Step, n *schema.Node) {
	r.path = append(r.path, at)
	r.read(n)
	r.path = r.path[:len(r.path)-1]
}

// normalizedDefault returns the default of n after it was pruned and coerced inside an object. It returns false if
// nothing remains.
func (r *defaultReader) normalizedDefault(n *schema.Node) (any, bool) {
	value, ok := DecodeDefault(n)
	if !ok {
		return nil, false
	}
	of := r.normalizer.Schema
	if of.Preserve || len(r.path) == 0 || isScalar(value) && !of.Root.Has(schema.EmbeddedResources) {
		return value, true
	}
	t := WrapAtPath(value, r.path)
	c := coercer{drop: true}
	_ = c.children(t, of.Root, nil) // drop is set: no error
	r.normalizer.Prune(t)
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
func at(v any, path []Step) (any, bool) {
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

// DecodeDefault returns the default of n before normalization. It returns false if n has no default.
func DecodeDefault(n *schema.Node) (any, bool) {
	if n.Default == "" {
		return nil, false
	}
	wrapped, _, err := object.DecodeJSON(slices.Concat([]byte(`{"":`), []byte(n.Default), []byte(`}`)))
	return wrapped[""], err == nil
}

// WrapAtPath returns the smallest object that contains v at path. The first step of path must be a field.
func WrapAtPath(v any, path []Step) object.Tree {
	for _, at := range slices.Backward(path) {
		if at.index >= 0 {
			v = []any{v}
		} else {
			v = object.Tree{at.key: v}
		}
	}
	t, _ := v.(object.Tree)
	return t
}

// HasUnprunedDefaults reports whether a default has unknown fields. Pruning removes them when the default is filled in.
func (z *Normalizer) HasUnprunedDefaults() bool {
	if z.Schema.Root == nil {
		return false
	}
	root, without := AsResource(z.Schema.Root), *z.Schema.Root
	without.Default = ""
	if v, ok := DecodeDefault(root); ok {
		kept, isTree := object.CopyValue(v).(object.Tree)
		if !isTree {
			return false // upstream does not check such a schema
		}
		_ = (&coercer{drop: true}).value(kept, root, nil) // drop is set: no error
		z.Prune(kept)
		if !object.Equal(kept, v) {
			return true
		}
	}
	r := defaultReader{normalizer: z}
	return r.anyUnpruned(&without)
}

// AsResource returns a copy of a root that is an embedded resource, because defaults are filled into whole objects.
func AsResource(root *schema.Node) *schema.Node {
	out := *root
	out.Embedded = true
	out.Traits |= schema.EmbeddedResources
	return &out
}

// anyUnpruned reports whether a default at or below n has unknown fields.
func (r *defaultReader) anyUnpruned(n *schema.Node) bool {
	if !n.Has(schema.Defaults) {
		return false
	}
	if written, ok := DecodeDefault(n); ok {
		kept, ok := r.normalizedDefault(n)
		if !ok || !object.Equal(kept, written) {
			return true
		}
	}
	below := func(at Step, child *schema.Node) bool {
		r.path = append(r.path, at)
		defer func() { r.path = r.path[:len(r.path)-1] }()
		return r.anyUnpruned(child)
	}
	for name, child := range n.Properties {
		if below(Field(name), child) {
			return true
		}
	}
	return below(Item, n.Items) || n.Additional != nil && below(Field("*"), n.Additional.Schema)
}
