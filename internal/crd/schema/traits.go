package schema

// Traits is a set of schema features that occur at a node or below it. A walk that handles one feature skips all
// nodes without this trait.
type traits uint8

const (
	Defaults          traits = 1 << iota // default
	ListTypes                            // x-kubernetes-list-type set or map
	EmbeddedResources                    // x-kubernetes-embedded-resource
)

// Has reports whether n or a node below it has the trait t. n may be nil.
func (n *Node) Has(t traits) bool { return n != nil && n.Traits&t != 0 }

// collectTraits computes the traits of n and of all nodes below it.
func (n *Node) collectTraits() traits {
	if n == nil {
		return 0
	}
	if n.Default != "" {
		n.Traits |= Defaults
	}
	if n.ListType == "set" || n.ListType == "map" {
		n.Traits |= ListTypes
	}
	if n.Embedded {
		n.Traits |= EmbeddedResources
	}
	for _, child := range n.Properties {
		n.Traits |= child.collectTraits()
	}
	if n.Additional != nil {
		n.Traits |= n.Additional.Schema.collectTraits()
	}
	n.Traits |= n.Items.collectTraits()
	return n.Traits
}
