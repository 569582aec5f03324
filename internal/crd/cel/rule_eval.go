package cel

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
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/crd/ratchet"
	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

const outOfBudget = "validation failed due to running out of cost budget, no further validation rules will be run"

// evaluation runs the rules of a schema on one object.
type evaluation struct {
	ctx    context.Context
	warn   func(text string) // nil means that warnings are discarded
	budget int64             // remaining cost budget; negative when exceeded
	errs   field.ErrorList
}

// Evaluate runs all rules on t. If old is not nil, t replaces old. Evaluate calls warn with each failure that
// ratcheting ignores.
func (r *Rules) Evaluate(ctx context.Context, t, old object.Tree, warn func(text string)) field.ErrorList {
	tree := r.tree()
	if tree == nil {
		return nil
	}
	e := evaluation{ctx: ctx, warn: warn, budget: celconfig.RuntimeCELCostBudget}
	root := valuePair{value: t}
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

// CountCost returns a context for the validation of an object. The validation adds the cost of its rules to *into, in
// CEL's cost units.
func CountCost(ctx context.Context, into *int64) context.Context {
	return context.WithValue(ctx, costKey{}, into)
}

// value runs the rules at and below one value. It skips null, because only the rules of the parent apply to null.
func (e *evaluation) value(t *ruleTree, l *valuePair) {
	if l.value == nil {
		return
	}
	l.node = t.node
	e.runRules(t, l)
	switch v := l.value.(type) {
	case []any:
		e.items(t, l, v)
	case object.Tree:
		old, _ := l.old.(object.Tree)
		if t.additional != nil {
			for _, k := range slices.Sorted(maps.Keys(v)) {
				e.field(t.additional, l, k, schema.AtKey, v, old)
			}
		}
		for _, name := range t.names {
			if _, ok := v[name]; ok {
				e.field(t.properties[name], l, name, schema.AtProperty, v, old)
			}
		}
	}
}

func (e *evaluation) field(t *ruleTree, up *valuePair, key string, kind schema.PositionKind, v, old object.Tree) {
	if e.budget < 0 {
		return
	}
	l := up.below(schema.Position{Key: key, Kind: kind}, v[key])
	l.old, l.correlated = old[key]
	e.value(t, &l)
}

func (e *evaluation) items(t *ruleTree, up *valuePair, v []any) {
	if t.items == nil {
		return
	}
	entries := ratchet.Correlation{Old: up.old, N: t.node}
	for i := range v {
		if e.budget < 0 {
			return
		}
		l := up.below(schema.Position{Index: i, Kind: schema.AtIndex}, v[i])
		if up.old != nil && t.node.ListType == "map" {
			l.old = entries.OldElement(v[i])
		}
		l.correlated = l.old != nil
		e.value(t.items, &l)
	}
}

// runRules runs the rules of one value.
func (e *evaluation) runRules(t *ruleTree, l *valuePair) {
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
		case r.program == nil: // the rule is empty
		case r.usesOldSelf && l.old == nil && !r.IsOldSelfOptional():
		case e.holds(t, l, r, vars):
		default:
			e.reportFailure(t, l, r, vars)
		}
		if e.budget < 0 {
			return
		}
	}
}

// holds evaluates a rule and returns its result. If the rule cannot be evaluated, holds reports an error and returns
// true.
func (e *evaluation) holds(t *ruleTree, l *valuePair, r *compiledRule, vars *ruleVariables) bool {
	result, err := e.run(r.program, vars.of(r))
	switch {
	case err == nil:
		return result == types.True
	case err == errBudget:
		e.stop(t, l, outOfBudget)
	case strings.HasPrefix(err.Error(), callLimit):
		e.stop(t, l, "'%v': no further validation rules will be run due to call cost exceeds limit for rule: %v", err,
			r.displayText())
	case strings.HasPrefix(err.Error(), "no such overload"):
		e.fail(t, l, "'%v': call arguments did not match a supported operator, function or macro signature for "+
			"rule: %v", err, r.displayText())
	default:
		e.fail(t, l, "%v evaluating rule: %v", err, r.displayText())
	}
	return true
}

// callLimit is the prefix of CEL's error for an expression that exceeds the cost limit for one expression.
const callLimit = "operation cancelled: actual cost limit exceeded"

var errBudget = errors.New(outOfBudget)

// run evaluates an expression and subtracts its cost from the budget.
func (e *evaluation) run(p cel.Program, vars *variables) (ref.Val, error) {
	result, details, err := p.ContextEval(e.ctx, vars)
	if details == nil || details.ActualCost() == nil {
		return nil, errBudget // without a cost, the expression was not started
	}
	cost := *details.ActualCost()
	if cost > math.MaxInt64 || int64(cost) > e.budget {
		return nil, errBudget
	}
	e.budget -= int64(cost)
	return result, err
}

func (e *evaluation) fail(t *ruleTree, l *valuePair, format string, args ...any) {
	e.errs = append(e.errs, field.Invalid(l.path(), t.node.Type, fmt.Sprintf(format, args...)))
}

func (e *evaluation) stop(t *ruleTree, l *valuePair, format string, args ...any) {
	e.fail(t, l, format, args...)
	e.budget = -1
}

// reportFailure reports that a rule evaluates to false.
func (e *evaluation) reportFailure(t *ruleTree, l *valuePair, r *compiledRule, vars *ruleVariables) {
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
			e.report(l, r, field.Invalid(path, t.node.Type, err.Error()))
			return
		default:
			r.messageFails.Do(func() { // log only once, because clients can trigger the failure
				slog.Warn("messageExpression evaluation failed", "path", path.String(), "rule", r.displayText(),
					"error", err)
			})
		}
	}
	value := l.value
	if t.node.Type == "object" || t.node.Type == "array" {
		value = field.OmitValueType{}
	}
	e.report(l, r, r.fieldError(path, value, detail))
}

// report adds an error, or passes it to warn if ratcheting ignores it.
func (e *evaluation) report(l *valuePair, r *compiledRule, err *field.Error) {
	if r.usesOldSelf || !l.unchanged() {
		e.errs = append(e.errs, err)
	} else if e.warn != nil {
		e.warn(err.Error())
	}
}

// message evaluates messageExpression. If this exceeds the budget, no further rules run.
func (e *evaluation) message(r *compiledRule, vars *variables) (string, error) {
	result, err := e.run(r.message, vars)
	switch {
	case err == errBudget:
		e.budget = -1
		return "", errors.New("messageExpression evaluation failed due to running out of cost budget, no further " +
			"validation rules will be run")
	case err != nil && strings.HasPrefix(err.Error(), callLimit):
		e.budget = -1
		return "", fmt.Errorf("no further validation rules will be run due to call cost exceeds limit for "+
			"messageExpression: %q", r.MessageExpression)
	case err != nil:
		return "", fmt.Errorf("messageExpression evaluation failed due to: %w", err)
	}
	text, ok := result.Value().(string)
	text = strings.TrimSpace(text)
	switch {
	case !ok:
		return "", errors.New("messageExpression failed to convert to string")
	case len(text) > celconfig.MaxEvaluatedMessageExpressionSizeBytes:
		return "", fmt.Errorf("messageExpression beyond allowable length of %d",
			celconfig.MaxEvaluatedMessageExpressionSizeBytes)
	case strings.Contains(text, "\n"):
		return "", errors.New("messageExpression should not contain line breaks")
	case text == "":
		return "", errors.New("messageExpression should evaluate to a non-empty string")
	}
	return text, nil
}

// displayText returns the text that identifies a rule in errors.
func (r *compiledRule) displayText() string {
	if r.Rule.Message != "" {
		return strings.TrimSpace(r.Rule.Message)
	}
	return strings.TrimSpace(r.Rule.Rule)
}

// messageText returns the message of a rule without messageExpression.
func (r *compiledRule) messageText() string {
	if r.Rule.Message != "" {
		return strings.TrimSpace(r.Rule.Message)
	}
	return "failed rule: " + r.displayText()
}

func (r *compiledRule) fieldError(path *field.Path, value any, detail string) *field.Error {
	switch ptr.Deref(r.Reason, "") {
	case "FieldValueForbidden":
		return field.Forbidden(path, detail)
	case "FieldValueRequired":
		return field.Required(path, detail)
	case "FieldValueDuplicate":
		return field.Duplicate(path, value)
	}
	return field.Invalid(path, value, detail)
}
