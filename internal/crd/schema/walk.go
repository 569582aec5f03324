package schema

import (
	"iter"
	"maps"
	"slices"
)

// Any reports whether f returns true for n, which may be nil, or for a schema below it.
func (n *Node) Any(f func(*Node) bool) bool {
	w := walk{yield: func(n *Node) bool { return !f(n) }, keys: maps.Keys[map[string]*Node]}
	return !w.node(n)
}

// All yields n and all schemas below it. Properties are in the order of their names.
func (n *Node) All() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		w := walk{yield: yield, keys: func(named map[string]*Node) iter.Seq[string] {
			return slices.Values(slices.Sorted(maps.Keys(named)))
		}}
		w.node(n)
	}
}

// walk visits schemas until yield returns false. Its methods return false then.
type walk struct {
	yield func(*Node) bool
	keys  func(map[string]*Node) iter.Seq[string] // returns the keys in the order of the visits
}

func (w walk) node(n *Node) bool {
	if n == nil {
		return true
	}
	return w.yield(n) && w.node(n.Items) && w.validations(n.Checked()) && w.additional(n.Additional) &&
		w.named(n.Properties) && w.others(n.Others())
}

func (w walk) validations(c *Checks) bool {
	return w.list(c.AllOf) && w.list(c.AnyOf) && w.list(c.OneOf) && w.node(c.Not)
}

func (w walk) others(r *Rare) bool {
	for _, name := range slices.Sorted(maps.Keys(r.Dependencies)) {
		if !w.node(r.Dependencies[name].Schema) {
			return false
		}
	}
	return w.list(r.ItemSchemas) && w.additional(r.AdditionalItems) && w.named(r.PatternProperties) &&
		w.named(r.Definitions)
}

func (w walk) additional(a *AdditionalProperties) bool { return a == nil || w.node(a.Schema) }

func (w walk) list(list []*Node) bool {
	for _, n := range list {
		if !w.node(n) {
			return false
		}
	}
	return true
}

func (w walk) named(named map[string]*Node) bool {
	for name := range w.keys(named) {
		if !w.node(named[name]) {
			return false
		}
	}
	return true
}
