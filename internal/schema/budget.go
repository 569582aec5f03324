package schema

import (
	"regexp/syntax"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxSteps bounds the time of one walk, some ten seconds where every step is a slow one. A step is
// one instruction of a regular expression for one byte, or as much of other work. Who may write a CRD
// could make any write take hours otherwise: 100,000 branches for each of 100,000 values.
const (
	maxSteps      = 1 << 31
	stepsOfSchema = 16
	stepsOfLook   = 1 << 22 // between two looks at the context
)

// spend counts work and reports whether the walk may go on. If not, its verdict does not count.
func (w *walk) spend(steps int) bool {
	before := w.steps
	w.steps += steps
	if before/stepsOfLook != w.steps/stepsOfLook && w.ctx.Err() != nil {
		w.steps = maxSteps + 1
	}
	return w.steps <= maxSteps
}

// tooComplex is the error of a walk that may not go on. Rules are not evaluated after an error
// of its type.
func tooComplex(at *field.Path) *field.Error {
	return field.TypeInvalid(at, "", "was not validated to its end: the schema is too complex for a value of this size")
}

// instructions is about how long the program of a regular expression is.
func instructions(pattern string) int {
	if !strings.Contains(pattern, "{") {
		return len(pattern)
	}
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return len(pattern)
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return len(pattern)
	}
	return len(prog.Inst)
}
