package schema

// traits is a set of features that occur at a node or below it. A walk that handles one feature skips all nodes
// without this trait.
type traits uint8

// The traits of nodes.
const (
	Defaults          traits = 1 << iota // default
	ListTypes                            // x-kubernetes-list-type set or map
	EmbeddedResources                    // x-kubernetes-embedded-resource
	withRules                            // x-kubernetes-validations
	Unsupported                          // keywords that cannot be in a structural schema
	Mistyped                             // a type that upstream does not publish
)

// Has reports whether n or a node below it has the trait t. n may be nil.
func (n *Node) Has(t traits) bool { return n != nil && n.Traits&t != 0 }

// ownTraits returns the traits of n itself.
func (n *Node) ownTraits() (own traits) {
	if n.Default != "" {
		own |= Defaults
	}
	if n.ListType == "set" || n.ListType == "map" {
		own |= ListTypes
	}
	if n.Embedded {
		own |= EmbeddedResources
	}
	if n.Rules != "" {
		own |= withRules
	}
	if n.isUnsupported() {
		own |= Unsupported
	}
	if typeNamed(n.Type) == unknownType || n.Embedded && n.WrittenType() == "" && !n.IntOrString {
		own |= Mistyped
	}
	return own
}

var (
	unsupported = SetOf("$ref", "$schema", "additionalItems", "definitions", "dependencies", "id",
		"patternProperties")
	preserveKeyword = SetOf("x-kubernetes-preserve-unknown-fields")
)

// isUnsupported reports whether n itself cannot be a structural schema.
func (n *Node) isUnsupported() bool {
	if n.Set&unsupported != 0 {
		r := n.Rare
		if r.Ref != "" || r.Schema != "" || r.ID != "" || r.AdditionalItems != nil || len(r.Definitions) > 0 ||
			len(r.Dependencies) > 0 || len(r.PatternProperties) > 0 {
			return true
		}
	}
	return n.Set&preserveKeyword != 0 && !n.Preserve || len(n.Others().ItemSchemas) > 0
}
