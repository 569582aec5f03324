package policy

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
)

// expressions compiles the expressions of a policy, which share its variables.
type expressions struct {
	*cel.CompositedCompiler
	options cel.OptionalVariableDeclarations
}

func newExpressions(variables []admissionregistrationv1.Variable, params bool) (x expressions, err error) {
	x.options = cel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}
	env := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	if x.CompositedCompiler, err = cel.NewCompositedCompiler(env); err != nil {
		return x, err
	}
	named := make([]cel.NamedExpressionAccessor, len(variables))
	for i, v := range variables {
		named[i] = &validating.Variable{Name: v.Name, Expression: v.Expression}
	}
	x.CompileAndStoreVariables(named, x.options, environment.StoredExpressions)
	return x, nil
}

// conditions compiles n expressions. The function at returns the expression with the given index.
func (x expressions) conditions(
	n int, at func(int) cel.ExpressionAccessor, options cel.OptionalVariableDeclarations,
) cel.ConditionEvaluator {
	all := make([]cel.ExpressionAccessor, n)
	for i := range all {
		all[i] = at(i)
	}
	return x.CompileCondition(all, options, environment.StoredExpressions)
}

// matcher returns a matcher that evaluates the match conditions, or nil if there are no conditions.
func (x expressions) matcher(
	conditions []admissionregistrationv1.MatchCondition, onFailure *admissionregistrationv1.FailurePolicyType,
	name string,
) matchconditions.Matcher {
	if len(conditions) == 0 {
		return nil
	}
	compiled := x.conditions(len(conditions), func(i int) cel.ExpressionAccessor {
		return (*matchconditions.MatchCondition)(&conditions[i])
	}, x.options)
	return matchconditions.NewMatcher(compiled, onFailure, "policy", "validate", name)
}

func compileValidating(p *validating.Policy) validating.Validator {
	s := &p.Spec
	x, err := newExpressions(s.Variables, s.ParamKind != nil)
	if err != nil {
		return validating.NewValidator(nil, nil, nil, nil, s.FailurePolicy, err)
	}
	validations := x.conditions(len(s.Validations), func(i int) cel.ExpressionAccessor {
		v := &s.Validations[i]
		return &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason}
	}, x.options)
	annotations := x.conditions(len(s.AuditAnnotations), func(i int) cel.ExpressionAccessor {
		a := &s.AuditAnnotations[i]
		return &validating.AuditAnnotationCondition{Key: a.Key, ValueExpression: a.ValueExpression}
	}, x.options)
	messageOptions := x.options
	messageOptions.HasAuthorizer = false
	messages := x.conditions(len(s.Validations), func(i int) cel.ExpressionAccessor {
		if e := s.Validations[i].MessageExpression; e != "" {
			return &validating.MessageExpressionCondition{MessageExpression: e}
		}
		return nil
	}, messageOptions)
	matcher := x.matcher(s.MatchConditions, s.FailurePolicy, p.Name)
	return validating.NewValidator(validations, matcher, annotations, messages, s.FailurePolicy, nil)
}

func compileMutating(p *mutating.Policy) (out mutating.PolicyEvaluator) {
	s := &p.Spec
	x, err := newExpressions(s.Variables, s.ParamKind != nil)
	if err != nil {
		return mutating.PolicyEvaluator{Error: err}
	}
	out.CompositedCompiler, out.Matcher = x.CompositedCompiler, x.matcher(s.MatchConditions, s.FailurePolicy, p.Name)
	x.options.HasPatchTypes = true
	for _, m := range s.Mutations {
		switch {
		case m.PatchType == admissionregistrationv1.PatchTypeJSONPatch && m.JSONPatch != nil:
			condition := &patch.JSONPatchCondition{Expression: m.JSONPatch.Expression}
			compiled := x.CompileMutatingEvaluator(condition, x.options, environment.StoredExpressions)
			out.Mutators = append(out.Mutators, patch.NewJSONPatcher(compiled))
		case m.PatchType == admissionregistrationv1.PatchTypeApplyConfiguration && m.ApplyConfiguration != nil:
			condition := &patch.ApplyConfigurationCondition{Expression: m.ApplyConfiguration.Expression}
			compiled := x.CompileMutatingEvaluator(condition, x.options, environment.StoredExpressions)
			out.Mutators = append(out.Mutators, patch.NewApplyConfigurationPatcher(compiled))
		}
	}
	return out
}
