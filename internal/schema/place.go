package schema

import "k8s.io/apimachinery/pkg/util/validation/field"

// place is where a walk is, each step on the stack of the one who took it: a path costs only where there
// is an error to report. A nil place is the root.
type place struct {
	up    *place
	key   string
	index int
	kind  placeKind
}

type placeKind uint8

const (
	atProperty placeKind = iota // .key
	atKey                       // [key]
	atIndex                     // [index]
)

func (p *place) path() *field.Path {
	if p == nil {
		return nil
	}
	return p.from(p.up.path())
}

// from is the last step of p, taken from up.
func (p *place) from(up *field.Path) *field.Path {
	switch p.kind {
	case atKey:
		return up.Key(p.key)
	case atIndex:
		return up.Index(p.index)
	}
	return up.Child(p.key)
}
