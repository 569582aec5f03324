package schema

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/trellis-k8s/trellis/internal/object"
)

const outOfBudget = "validation failed due to running out of cost budget, no further validation rules will be run"

// evaluation runs the rules of a schema over one object.
type evaluation struct {
	ctx    context.Context
	warn   func(text string) // nil: nobody wants to know
	budget int64             // what is left; negative once it is used up
	errs   field.ErrorList
}

// evaluate runs all rules over t, which replaces old if that is not nil. What ratcheting forgives
// is told to warn.
func (s *Schema) evaluate(ctx context.Context, t, old object.Tree, warn func(text string)) field.ErrorList {
	tree := s.rules()
	if tree == nil {
		return nil
	}
	e := evaluation{ctx: ctx, warn: warn, budget: celconfig.RuntimeCELCostBudget}
	root := level{value: t}
	if old != nil {
		root.old, root.correlated = old, true
	}
	e.value(tree, &root)
	if into, ok := ctx.Value(costKey{}).(*int64); ok {
		*into += celconfig.RuntimeCELCostBudget - e.budget
	}
	return e.errs
}

type costKey struct{}

// CountCost returns a context in which into is raised by what the rules of an object cost, in CEL's units.
func CountCost(ctx context.Context, into *int64) context.Context {
	return context.WithValue(ctx, costKey{}, into)
}

// value runs the rules at and below one value. Those of null are its parent's.
func (e *evaluation) value(t *ruleTree, l *level) {
	if l.value == nil {
		return
	}
	l.node = t.node
	e.here(t, l)
	switch v := l.value.(type) {
	case []any:
		e.items(t, l, v)
	case object.Tree:
		old, _ := l.old.(object.Tree)
		if t.additional != nil {
			for _, k := range slices.Sorted(maps.Keys(v)) {
				e.field(t.additional, l, k, atKey, v, old)
			}
		}
		for _, name := range t.names {
			if _, ok := v[name]; ok {
				e.field(t.properties[name], l, name, atProperty, v, old)
			}
		}
	}
}

func (e *evaluation) field(t *ruleTree, up *level, key string, kind placeKind, v, old object.Tree) {
	if e.budget < 0 {
		return
	}
	l := up.below(place{key: key, kind: kind}, v[key])
	l.old, l.correlated = old[key]
	e.value(t, &l)
}

func (e *evaluation) items(t *ruleTree, up *level, v []any) {
	if t.items == nil {
		return
	}
	entries := correlation{old: up.old, n: t.node}
	for i := range v {
		if e.budget < 0 {
			return
		}
		l := up.below(place{index: i, kind: atIndex}, v[i])
		if up.old != nil && t.node.listType == "map" {
			l.old = entries.oldElement(v[i])
		}
		l.correlated = l.old != nil
		e.value(t.items, &l)
	}
}

// here runs the rules that stand on one value.
func (e *evaluation) here(t *ruleTree, l *level) {
	rules, err := t.compiled()
	switch {
	case err != nil:
		e.fail(t, l, "rule compiler initialization error: %v", err)
		return
	case len(rules) == 0:
		return
	case e.budget <= 0:
		e.stop(t, l, outOfBudget)
		return
	}
	vars := newRuleVariables(t, l, rules)
	for i := range rules {
		r := &rules[i]
		switch {
		case r.err != nil:
			e.fail(t, l, "rule compile error: %v", r.err)
		case r.program == nil: // it has no text
		case r.usesOldSelf && l.old == nil && !r.optionalOldSelf:
		case e.holds(t, l, r, vars):
		default:
			e.broken(t, l, r, vars)
		}
		if e.budget < 0 {
			return
		}
	}
}

// holds evaluates a rule. One that cannot be evaluated is reported, and counts as if it held.
func (e *evaluation) holds(t *ruleTree, l *level, r *compiledRule, vars *ruleVariables) bool {
	result, err := e.run(r.program, vars.of(r))
	switch {
	case err == nil:
		return result == types.True
	case err == errBudget:
		e.stop(t, l, outOfBudget)
	case strings.HasPrefix(err.Error(), callLimit):
		e.stop(t, l, "'%v': no further validation rules will be run due to call cost exceeds limit for rule: %v", err, r.shown())
	case strings.HasPrefix(err.Error(), "no such overload"):
		e.fail(t, l, "'%v': call arguments did not match a supported operator, function or macro signature for rule: %v", err, r.shown())
	default:
		e.fail(t, l, "%v evaluating rule: %v", err, r.shown())
	}
	return true
}

// callLimit begins the error of an expression that costs more than one may.
const callLimit = "operation cancelled: actual cost limit exceeded"

var errBudget = errors.New(outOfBudget)

// run evaluates an expression and pays for it.
func (e *evaluation) run(p cel.Program, vars *variables) (ref.Val, error) {
	result, details, err := p.ContextEval(e.ctx, vars)
	if details == nil || details.ActualCost() == nil {
		return nil, errBudget // only an expression that could not be started has no cost
	}
	cost := *details.ActualCost()
	if cost > math.MaxInt64 || int64(cost) > e.budget {
		return nil, errBudget
	}
	e.budget -= int64(cost)
	return result, err
}

func (e *evaluation) fail(t *ruleTree, l *level, format string, args ...any) {
	e.errs = append(e.errs, field.Invalid(l.path(), t.node.typ, fmt.Sprintf(format, args...)))
}

func (e *evaluation) stop(t *ruleTree, l *level, format string, args ...any) {
	e.fail(t, l, format, args...)
	e.budget = -1
}

// broken reports a rule that does not hold.
func (e *evaluation) broken(t *ruleTree, l *level, r *compiledRule, vars *ruleVariables) {
	path := l.path()
	if r.path != "" {
		path = path.Child(r.path)
	}
	detail := r.messageText()
	if r.message != nil {
		text, err := e.message(r, &vars.plain)
		switch {
		case err == nil:
			detail = text
		case e.budget < 0:
			e.report(l, r, field.Invalid(path, t.node.typ, err.Error()))
			return
		default:
			r.messageFails.Do(func() { // clients can make it fail at will
				slog.Warn("messageExpression evaluation failed", "path", path.String(), "rule", r.shown(), "error", err)
			})
		}
	}
	value := l.value
	if t.node.typ == "object" || t.node.typ == "array" {
		value = field.OmitValueType{}
	}
	e.report(l, r, r.fieldError(path, value, detail))
}

// report adds an error, unless ratcheting forgives it.
func (e *evaluation) report(l *level, r *compiledRule, err *field.Error) {
	if r.usesOldSelf || !l.unchanged() {
		e.errs = append(e.errs, err)
	} else if e.warn != nil {
		e.warn(err.Error())
	}
}

// message evaluates messageExpression. Where that uses up the budget, nothing more is run.
func (e *evaluation) message(r *compiledRule, vars *variables) (string, error) {
	result, err := e.run(r.message, vars)
	switch {
	case err == errBudget:
		e.budget = -1
		return "", errors.New("messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run")
	case err != nil && strings.HasPrefix(err.Error(), callLimit):
		e.budget = -1
		return "", fmt.Errorf("no further validation rules will be run due to call cost exceeds limit for messageExpression: %q", r.messageExpression)
	case err != nil:
		return "", fmt.Errorf("messageExpression evaluation failed due to: %w", err)
	}
	text, ok := result.Value().(string)
	text = strings.TrimSpace(text)
	switch {
	case !ok:
		return "", errors.New("messageExpression failed to convert to string")
	case len(text) > celconfig.MaxEvaluatedMessageExpressionSizeBytes:
		return "", fmt.Errorf("messageExpression beyond allowable length of %d", celconfig.MaxEvaluatedMessageExpressionSizeBytes)
	case strings.Contains(text, "\n"):
		return "", errors.New("messageExpression should not contain line breaks")
	case text == "":
		return "", errors.New("messageExpression should evaluate to a non-empty string")
	}
	return text, nil
}

// shown is how errors name a rule.
func (r *compiledRule) shown() string {
	if r.rule.message != "" {
		return strings.TrimSpace(r.rule.message)
	}
	return strings.TrimSpace(r.rule.rule)
}

// messageText is what to say of a rule without messageExpression.
func (r *compiledRule) messageText() string {
	if r.rule.message != "" {
		return strings.TrimSpace(r.rule.message)
	}
	return "failed rule: " + r.shown()
}

func (r *compiledRule) fieldError(path *field.Path, value any, detail string) *field.Error {
	switch r.reason {
	case "FieldValueForbidden":
		return field.Forbidden(path, detail)
	case "FieldValueRequired":
		return field.Required(path, detail)
	case "FieldValueDuplicate":
		return field.Duplicate(path, value)
	}
	return field.Invalid(path, value, detail)
}
