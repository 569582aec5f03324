package cel

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

// ValueRules evaluates the rules of a schema on single values, such as defaults. All evaluations share one cost budget.
type ValueRules struct {
	compiler *treeCompiler
	budget   int64
}

// NewValueRules returns the rules of the schema root.
func NewValueRules(root *schema.Node) *ValueRules {
	return &ValueRules{newTreeCompiler(root), celconfig.RuntimeCELCostBudget}
}

// Exhausted reports whether the budget is exceeded. The caller should then stop.
func (r *ValueRules) Exhausted() bool { return r.budget < 0 }

// Evaluate evaluates the rules at and below n on the value v twice: once as if v were unchanged and once as if it were
// new. It returns the errors of the first evaluation that fails. isResource is true if v is a whole object.
func (r *ValueRules) Evaluate(ctx context.Context, v any, n *schema.Node, isResource bool,
	path *field.Path) field.ErrorList {
	if !n.HasRules() {
		return nil
	}
	celNode := celNodeOf(n)
	if isResource {
		celNode = asResource(n)
	}
	tree, budget := newRuleTree(n, celNode, r.compiler), r.budget
	if tree == nil { // no rule can be evaluated
		return nil
	}
	for _, old := range []any{v, nil} {
		e := evaluation{ctx: ctx, budget: budget}
		e.value(tree, &valuePair{value: v, old: old, base: path})
		r.budget = min(r.budget, e.budget)
		if len(e.errs) > 0 {
			return e.errs
		}
	}
	return nil
}
