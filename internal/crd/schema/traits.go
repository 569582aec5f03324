package schema

// traits is a set of features that occur at a node or below it. A walk that handles one feature skips all nodes
// without this trait.
type traits uint8

// The traits of nodes.
const (
	Defaults          traits = 1 << iota // default
	ListTypes                            // x-kubernetes-list-type set or map
	EmbeddedResources                    // x-kubernetes-embedded-resource
	Unsupported                          // keywords that cannot be in a structural schema
)

// Has reports whether n or a node below it has the trait t. n may be nil.
func (n *Node) Has(t traits) bool { return n != nil && n.Traits&t != 0 }

// collectTraits computes the traits of n from its keywords and from the traits of the nodes below it.
func (n *Node) collectTraits() {
	if n.Default != "" {
		n.Traits |= Defaults
	}
	if n.ListType == "set" || n.ListType == "map" {
		n.Traits |= ListTypes
	}
	if n.Embedded {
		n.Traits |= EmbeddedResources
	}
	n.AnyRules = n.Rules != ""
	add := func(child *Node) {
		if child != nil {
			n.Traits |= child.Traits
			n.AnyRules = n.AnyRules || child.AnyRules
		}
	}
	add(n.Items)
	if n.Additional != nil {
		add(n.Additional.Schema)
	}
	for _, child := range n.Properties {
		add(child)
	}
	if n.isUnsupported() {
		n.Traits |= Unsupported
	}
}

var (
	unsupported = SetOf("$ref", "$schema", "additionalItems", "definitions", "dependencies", "id",
		"patternProperties")
	preserveKeyword = SetOf("x-kubernetes-preserve-unknown-fields")
)

// isUnsupported reports whether n itself, or a schema in its value validations, cannot be a structural schema.
func (n *Node) isUnsupported() bool {
	if n.Set&unsupported != 0 {
		r := n.Rare
		if r.Ref != "" || r.Schema != "" || r.ID != "" || r.AdditionalItems != nil || len(r.Definitions) > 0 ||
			len(r.Dependencies) > 0 || len(r.PatternProperties) > 0 {
			return true
		}
	}
	if n.Set&preserveKeyword != 0 && !n.Preserve || len(n.Others().ItemSchemas) > 0 {
		return true
	}
	if n.Checks == nil {
		return false
	}
	for _, list := range [][]*Node{n.Checks.AllOf, n.Checks.AnyOf, n.Checks.OneOf} {
		for _, child := range list {
			if child.Has(Unsupported) {
				return true
			}
		}
	}
	return n.Checks.Not.Has(Unsupported)
}
