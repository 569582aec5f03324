package schema

import "k8s.io/apimachinery/pkg/util/validation/field"

// level is a place with its value and what that was before. Ratcheting costs only where there is an error
// to report.
type level struct {
	place
	outer      *level      // that of place.up
	at         *field.Path // where the outermost level lies
	node       *node
	value, old any
	correlated bool // old is the old value of value, though it may be null
}

// below is the level of a value one step down.
func (l *level) below(step place, value any) level {
	if l.outer != nil {
		step.up = &l.place
	}
	return level{place: step, outer: l, value: value}
}

func (l *level) path() *field.Path {
	if l.outer == nil {
		return l.at
	}
	return l.place.from(l.outer.path())
}

// unchanged reports whether errors at l are to be ratcheted: l is as it was, or, where it cannot be
// compared, the nearest value around it that can be (KEP-4008).
func (l *level) unchanged() bool {
	nearest := l.nearest()
	return nearest != nil && (&correlation{value: nearest.value, old: nearest.old, n: nearest.node}).equal()
}

// nearest is the innermost level from l outwards that can be compared with its old value; nil if there
// is none. Versions differ in apiVersion and kind, so that those of the root never can.
func (l *level) nearest() *level {
	switch {
	case l.outer == nil && l.correlated:
		return l
	case l.outer == nil:
		return nil
	}
	n := l.outer.nearest()
	switch {
	case n != l.outer: // lost further out
		return n
	case l.outer.outer == nil && l.kind != atIndex && (l.key == "apiVersion" || l.key == "kind"):
		return nil
	case l.correlated:
		return l
	}
	return n
}
