package schema

import "k8s.io/apimachinery/pkg/util/validation/field"

// position is the position of a walk in an object. It links to the position of the enclosing value, so a path is
// built only for an error. A nil position is the root.
type position struct {
	parent *position
	key    string
	index  int
	kind   positionKind
}

type positionKind uint8

const (
	atProperty positionKind = iota // .key
	atKey                          // [key]
	atIndex                        // [index]
)

// path returns the field path of p.
func (p *position) path() *field.Path {
	if p == nil {
		return nil
	}
	return p.appendTo(p.parent.path())
}

// appendTo appends the last step of p to the path parent.
func (p *position) appendTo(parent *field.Path) *field.Path {
	switch p.kind {
	case atKey:
		return parent.Key(p.key)
	case atIndex:
		return parent.Index(p.index)
	}
	return parent.Child(p.key)
}
