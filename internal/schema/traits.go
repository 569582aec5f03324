package schema

// traits is a set of schema features that occur at a node or below it. A walk that handles one feature skips all
// nodes without this trait.
type traits uint8

const (
	defaults  traits = 1 << iota // default
	listTypes                    // x-kubernetes-list-type set or map
	embedded                     // x-kubernetes-embedded-resource
)

// has reports whether n or a node below it has the trait t. n may be nil.
func (n *node) has(t traits) bool { return n != nil && n.traits&t != 0 }

// collectTraits computes the traits of n and of all nodes below it.
func (n *node) collectTraits() traits {
	if n == nil {
		return 0
	}
	if n.defaultJSON != "" {
		n.traits |= defaults
	}
	if n.listType == "set" || n.listType == "map" {
		n.traits |= listTypes
	}
	if n.embedded {
		n.traits |= embedded
	}
	for _, child := range n.properties {
		n.traits |= child.collectTraits()
	}
	if n.additional != nil {
		n.traits |= n.additional.schema.collectTraits()
	}
	n.traits |= n.items.collectTraits()
	return n.traits
}
