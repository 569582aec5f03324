package schema

import "k8s.io/apimachinery/pkg/util/validation/field"

// valuePair is a value with its position and its old value. Ratcheting compares the two only when there is an
// error to report.
type valuePair struct {
	position
	parent     *valuePair  // the pair of position.parent
	base       *field.Path // path of the outermost pair
	node       *node
	value, old any
	correlated bool // old is the old value of value; it may be null
}

// below returns the pair of a value one step below l.
func (l *valuePair) below(step position, value any) valuePair {
	if l.parent != nil {
		step.parent = &l.position
	}
	return valuePair{position: step, parent: l, value: value}
}

func (l *valuePair) path() *field.Path {
	if l.parent == nil {
		return l.base
	}
	return l.position.appendTo(l.parent.path())
}

// unchanged reports whether ratcheting ignores errors at l. It compares l with its old value. If l has no old
// value, it compares the nearest enclosing value that has one (KEP-4008).
func (l *valuePair) unchanged() bool {
	nearest := l.nearestCorrelated()
	return nearest != nil && (&correlation{value: nearest.value, old: nearest.old, n: nearest.node}).equal()
}

// nearestCorrelated returns the innermost pair, from l outwards, that has an old value, or nil. apiVersion and
// kind of the root differ between versions and are never compared.
func (l *valuePair) nearestCorrelated() *valuePair {
	switch {
	case l.parent == nil && l.correlated:
		return l
	case l.parent == nil:
		return nil
	}
	n := l.parent.nearestCorrelated()
	switch {
	case n != l.parent: // a pair further out has no old value
		return n
	case l.parent.parent == nil && l.kind != atIndex && (l.key == "apiVersion" || l.key == "kind"):
		return nil
	case l.correlated:
		return l
	}
	return n
}
