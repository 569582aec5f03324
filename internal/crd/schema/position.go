package schema

import "k8s.io/apimachinery/pkg/util/validation/field"

// Limits for the problems that are reported for one value.
const (
	MaxProblems     = 1000
	MaxMessageBytes = 1 << 20 // total size of the messages or paths
)

// Position is the position of a walk in an object. It links to the position of the enclosing value, so a path is
// built only for an error. A nil position is the root.
type Position struct {
	Parent *Position
	Key    string
	Index  int
	Kind   PositionKind
}

// PositionKind is the form of the last step of a Position.
type PositionKind uint8

const (
	AtProperty PositionKind = iota // .key
	AtKey                          // [key]
	AtIndex                        // [index]
)

// Path returns the field path of p.
func (p *Position) Path() *field.Path {
	if p == nil {
		return nil
	}
	return p.AppendTo(p.Parent.Path())
}

// AppendTo appends the last step of p to the path parent.
func (p *Position) AppendTo(parent *field.Path) *field.Path {
	switch p.Kind {
	case AtKey:
		return parent.Key(p.Key)
	case AtIndex:
		return parent.Index(p.Index)
	}
	return parent.Child(p.Key)
}
