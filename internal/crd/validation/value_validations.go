package validation

import (
	"strconv"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

// valueValidations checks the value validations anyOf, oneOf, allOf and not. Ratcheting does not apply below them.
// Schemas contain no references, so each schema is evaluated only once for each value.
func (w *walk) valueValidations(v any, n *schema.Node, at string) bool {
	w.matches += 2
	m := n.Checks
	if m == nil {
		return true
	}
	ok := len(m.AnyOf) == 0 || w.anyOf(v, m.AnyOf, at)
	if len(m.OneOf) > 0 && (ok || !w.quiet) {
		ok = w.oneOf(v, m.OneOf, at) && ok
	}
	if len(m.AllOf) > 0 && (ok || !w.quiet) {
		ok = w.allOf(v, m.AllOf, at) && ok
	}
	if m.Not != nil && (ok || !w.quiet) {
		if _, passed := w.branch(v, m.Not, at); passed {
			ok = w.composite(at, "must not validate the schema (not)")
		}
	}
	return ok
}

// outcome is the result of checking a value against one schema in a value validation.
type outcome struct {
	problems []problem
	matches  int
}

// branch checks v against one schema of a value validation.
func (w *walk) branch(v any, n *schema.Node, at string) (outcome, bool) {
	if w.quiet {
		return outcome{}, w.check(v, n, at, nil)
	}
	b := walk{ctx: w.ctx, root: w.root, steps: w.steps}
	ok := b.check(v, n, at, nil)
	w.steps = b.steps
	return outcome{b.problems, b.matches}, ok
}

// addOutcome adds the problems and matches of o to w.
func (w *walk) addOutcome(o outcome) {
	for _, p := range o.problems {
		w.add(p.message, p.err)
	}
	w.matches += o.matches
}

func (w *walk) anyOf(v any, list []*schema.Node, at string) bool {
	var best outcome
	for i, n := range list {
		o, ok := w.branch(v, n, at)
		if ok {
			w.matches += o.matches
			return true
		}
		if i == 0 || o.matches > best.matches {
			best = o
		}
	}
	w.composite(at, "must validate at least one schema (anyOf)")
	w.addOutcome(best)
	return false
}

func (w *walk) oneOf(v any, list []*schema.Node, at string) bool {
	var best, first outcome
	passed := 0
	for i, n := range list {
		o, ok := w.branch(v, n, at)
		switch {
		case ok && passed == 0:
			first = o
			passed++
		case ok && w.quiet:
			return false
		case ok:
			passed++
		case i == 0 || o.matches > best.matches:
			best = o
		}
	}
	switch passed {
	case 1:
		w.matches += first.matches
		return true
	case 0:
		w.composite(at, "must validate one and only one schema (oneOf). Found none valid")
		w.addOutcome(best)
	default:
		w.composite(at, "must validate one and only one schema (oneOf). Found "+strconv.Itoa(passed)+
			" valid alternatives")
	}
	return false
}

func (w *walk) allOf(v any, list []*schema.Node, at string) bool {
	passed := 0
	for _, n := range list {
		o, ok := w.branch(v, n, at)
		if ok {
			passed++
		} else if w.quiet {
			return false
		}
		w.addOutcome(o)
	}
	switch passed {
	case len(list):
		return true
	case 0:
		w.composite(at, "must validate all the schemas (allOf). None validated")
	default:
		w.composite(at, "must validate all the schemas (allOf)")
	}
	return false
}
