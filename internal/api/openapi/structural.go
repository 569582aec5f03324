package openapi

import (
	"encoding/json"
	"regexp/syntax"
)

// What a structural schema may not say at all, and what it may say only outside of
// allOf, anyOf, oneOf and not
// (https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema).
var (
	jsonTypes   = []string{`"string"`, `"number"`, `"integer"`, `"boolean"`, `"array"`, `"object"`}
	unsupported = []string{"id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions"}
	generics    = []string{"title", "description", "x-kubernetes-list-map-keys", "x-kubernetes-list-type",
		"x-kubernetes-map-type", "x-kubernetes-validations"}
)

// place is where in a schema a node stands.
type place int

const (
	root place = iota
	item
	field
)

// structural says whether the schema is one that may be published.
func (n *node) structural() bool { return n.valid(root) && n.complete() }

func (n *node) valid(at place) bool {
	if n.foreign || n.intOrString && (n.preserve || n.embedded) {
		return false
	}
	object := n.typ == `"object"`
	switch {
	case n.typ == `"array"` && n.items == nil,
		at == root && (n.additional != nil || n.allowsMore != ""),
		at == root && n.typ != "" && !object,
		n.embedded && (!object || n.additional != nil || n.allowsMore != ""),
		n.embedded && !n.preserve && len(n.props) == 0,
		n.typ == "" && !n.intOrString && !n.preserve:
		return false
	}
	if (at == root || n.embedded) && !n.validMetadata(at) || !n.validPattern() {
		return false
	}
	return n.validJunctors() && n.children(func(child *node, at place) bool { return child.valid(at) })
}

// children says whether ok holds of everything below n but the junctors.
func (n *node) children(ok func(*node, place) bool) bool {
	if n.items != nil && !ok(n.items, item) || n.additional != nil && !ok(n.additional, field) {
		return false
	}
	for _, p := range n.props {
		if !ok(p.schema, field) {
			return false
		}
	}
	return true
}

func (n *node) property(name string) *node {
	for _, p := range n.props {
		if p.name == name {
			return p.schema
		}
	}
	return nil
}

// validMetadata looks at the fields that every object has.
func (n *node) validMetadata(at place) bool {
	for _, name := range []string{"kind", "apiVersion"} {
		if p := n.property(name); p != nil && p.typ != `"string"` {
			return false
		}
	}
	m := n.property("metadata")
	if m == nil {
		return true
	}
	if m.typ != `"object"` {
		return false
	}
	return at != root || m.restrictsNamesOnly()
}

// restrictsNamesOnly says whether a schema of metadata tells nothing but of name and generateName.
func (n *node) restrictsNamesOnly() bool {
	for _, p := range n.props {
		if s := p.name; s != "name" && s != "generateName" {
			return false
		}
	}
	for _, m := range n.plain {
		if m.key != "default" {
			return false
		}
	}
	j := n.junctors
	return n.items == nil && n.additional == nil && n.allowsMore == "" && len(n.required) == 0 && !n.nullable &&
		!n.preserve && !n.embedded && !n.intOrString && j.not == nil && len(j.allOf)+len(j.anyOf)+len(j.oneOf) == 0
}

func (n *node) validPattern() bool {
	for _, m := range n.plain {
		if m.key == "pattern" {
			var p string
			if err := json.Unmarshal([]byte(m.value), &p); err != nil {
				return false
			}
			if _, err := syntax.Parse(p, syntax.Perl); err != nil {
				return false
			}
		}
	}
	return true
}

// isIntOrString says whether nodes are the two types of x-kubernetes-int-or-string.
func isIntOrString(nodes []*node) bool {
	return len(nodes) == 2 && nodes[0].isType(`"integer"`) && nodes[1].isType(`"string"`)
}

// isType says whether n says its type and nothing else.
func (n *node) isType(typ string) bool {
	j := n.junctors
	return n.typ == typ && len(n.plain) == 0 && len(n.props) == 0 && len(n.required) == 0 && !n.hasGenerics &&
		n.items == nil && j.not == nil && len(j.allOf)+len(j.anyOf)+len(j.oneOf) == 0
}

// folded says whether the junctors already tell that n is an integer or a string.
func (n *node) folded() bool {
	return isIntOrString(n.junctors.anyOf) || n.foldedInAllOf()
}

func (n *node) foldedInAllOf() bool {
	return len(n.junctors.allOf) > 0 && isIntOrString(n.junctors.allOf[0].junctors.anyOf)
}

// validJunctors looks below allOf, anyOf, oneOf and not, which may only narrow. n itself
// may be below one.
func (n *node) validJunctors() bool {
	j := n.junctors
	if !isIntOrString(j.anyOf) && !allNarrow(j.anyOf) || !allNarrow(j.oneOf) {
		return false
	}
	for i, a := range j.allOf {
		if i == 0 && n.foldedInAllOf() {
			rest := *a
			rest.junctors.anyOf = nil
			a = &rest
		}
		if !a.narrows() {
			return false
		}
	}
	return j.not == nil || j.not.narrows()
}

func allNarrow(nodes []*node) bool {
	for _, n := range nodes {
		if !n.narrows() {
			return false
		}
	}
	return true
}

// narrows says whether n, which stands below a junctor, keeps to value validations.
func (n *node) narrows() bool {
	if n.foreign || n.hasGenerics || n.typ != "" || n.property("metadata") != nil || !n.validPattern() {
		return false
	}
	j := n.junctors
	return allNarrow(j.anyOf) && allNarrow(j.allOf) && allNarrow(j.oneOf) && (j.not == nil || j.not.narrows()) &&
		n.children(func(child *node, _ place) bool { return child.narrows() })
}

// complete says whether every field and item that the junctors at the root speak of is
// declared outside of them. Those further down are not looked at, as upstream has it.
func (n *node) complete() bool {
	rest := *n
	rest.props, rest.items = nil, nil
	return rest.declaredIn(n)
}

func (n *node) declaredIn(skeleton *node) bool {
	if skeleton == nil || n.items != nil && !n.items.declaredIn(skeleton.items) {
		return false
	}
	for _, p := range n.props {
		declared := skeleton.property(p.name)
		if declared == nil || !p.schema.declaredIn(declared) {
			return false
		}
	}
	j := n.junctors
	for _, nodes := range [][]*node{j.allOf, j.anyOf, j.oneOf, {j.not}} {
		for _, v := range nodes {
			if v != nil && !v.declaredIn(skeleton) {
				return false
			}
		}
	}
	return true
}
