package schema

// traits say which walks have anything to do at a node or below it.
type traits uint8

const (
	defaults  traits = 1 << iota // default
	listTypes                    // x-kubernetes-list-type set or map
	embedded                     // x-kubernetes-embedded-resource
)

// has reports a trait of n or of anything below; n may be nil.
func (n *node) has(t traits) bool { return n != nil && n.traits&t != 0 }

// gather works out the traits of n and of all below.
func (n *node) gather() traits {
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
		n.traits |= child.gather()
	}
	if n.additional != nil {
		n.traits |= n.additional.schema.gather()
	}
	n.traits |= n.items.gather()
	return n.traits
}
