package cel

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/ratchet"
	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

// valuePair is a value with its position and its old value. Ratcheting compares the two values only if there is an
// error to report.
type valuePair struct {
	schema.Position
	parent     *valuePair  // the pair of position.parent
	base       *field.Path // path of the outermost pair
	node       *schema.Node
	value, old any
	correlated bool // there is an old value, which is old and may be null
}

// below returns the pair for a value one step below the value of l.
func (l *valuePair) below(step schema.Position, value any) valuePair {
	if l.parent != nil {
		step.Parent = &l.Position
	}
	return valuePair{Position: step, parent: l, value: value}
}

func (l *valuePair) path() *field.Path {
	if l.parent == nil {
		return l.base
	}
	return l.Position.AppendTo(l.parent.path())
}

// unchanged reports whether ratcheting ignores errors at l (KEP-4008). This is the case if the value equals its old
// value. If the value has no old value, unchanged compares the nearest enclosing value that has an old value.
func (l *valuePair) unchanged() bool {
	nearest := l.nearestCorrelated()
	return nearest != nil && (&ratchet.Correlation{Value: nearest.value, Old: nearest.old, N: nearest.node}).Equal()
}

// nearestCorrelated returns l if it has an old value. Otherwise it returns the nearest enclosing pair that has an old
// value, or nil. apiVersion and kind of the root are never compared, because they differ between versions.
func (l *valuePair) nearestCorrelated() *valuePair {
	switch {
	case l.parent == nil && l.correlated:
		return l
	case l.parent == nil:
		return nil
	}
	n := l.parent.nearestCorrelated()
	switch {
	case n != l.parent: // the parent has no old value, so l has none either
		return n
	case l.parent.parent == nil && l.Kind != schema.AtIndex && (l.Key == "apiVersion" || l.Key == "kind"):
		return nil
	case l.correlated:
		return l
	}
	return n
}
