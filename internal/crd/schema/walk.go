package schema

import "slices"

// Any reports whether f returns true for n, which may be nil, or for a schema below it.
func (n *Node) Any(f func(*Node) bool) bool {
	return n != nil && (f(n) || n.anyChild(func(child *Node) bool { return child.Any(f) }))
}

// anyChild reports whether f returns true for one of the schemas directly below n.
func (n *Node) anyChild(f func(*Node) bool) bool {
	if n.Items != nil && f(n.Items) || n.Additional != nil && n.Additional.Schema != nil && f(n.Additional.Schema) ||
		anyNamed(n.Properties, f) {
		return true
	}
	if c := n.Checks; c != nil {
		if slices.ContainsFunc(c.AllOf, f) || slices.ContainsFunc(c.AnyOf, f) || slices.ContainsFunc(c.OneOf, f) ||
			c.Not != nil && f(c.Not) {
			return true
		}
	}
	r := n.Rare
	if r == nil {
		return false
	}
	if r.AdditionalItems != nil && r.AdditionalItems.Schema != nil && f(r.AdditionalItems.Schema) ||
		slices.ContainsFunc(r.ItemSchemas, f) || anyNamed(r.PatternProperties, f) || anyNamed(r.Definitions, f) {
		return true
	}
	for _, d := range r.Dependencies {
		if d.Schema != nil && f(d.Schema) {
			return true
		}
	}
	return false
}

func anyNamed(all map[string]*Node, f func(*Node) bool) bool {
	for _, child := range all {
		if f(child) {
			return true
		}
	}
	return false
}
