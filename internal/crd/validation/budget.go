package validation

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxSteps limits the time of one walk to about ten seconds in the worst case. A step is one regular expression
// instruction for one byte, or a similar amount of other work. Without the limit, a write of 100,000 values could
// take hours if the CRD has 100,000 schemas under anyOf.
const (
	maxSteps             = 1 << 31
	stepsPerNode         = 16
	stepsPerContextCheck = 1 << 22 // steps between two checks of the context
)

// spend counts steps and reports whether the walk may continue. If it may not, the result of the walk must be
// discarded.
func (w *walk) spend(steps int) bool {
	before := w.steps
	w.steps += steps
	if before/stepsPerContextCheck != w.steps/stepsPerContextCheck && w.ctx.Err() != nil {
		w.steps = maxSteps + 1
	}
	return w.steps <= maxSteps
}

// tooComplex returns the error of a walk that exceeded maxSteps or whose context ended. Rules are not evaluated
// after an error of this type.
func tooComplex(at *field.Path) *field.Error {
	return field.TypeInvalid(at, "", "validation was not completed: the schema is too complex for a value of this size")
}
