package policy

import (
	"context"
	"errors"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
)

// splitByBinding are the hooks of a write that is traced: one for each binding, with an evaluator that tells of itself.
func (x *index[P, B, E]) splitByBinding(hooks []generic.PolicyHook[P, B, E], telling func(name string, h generic.PolicyHook[P, B, E]) E) (all []generic.PolicyHook[P, B, E]) {
	for _, h := range hooks {
		if h.ConfigurationError != nil {
			all = append(all, h)
			continue
		}
		for _, b := range h.Bindings {
			one := h
			one.Bindings = []B{b}
			one.Evaluator = telling(x.policy(h.Policy).GetName()+", binding "+x.binding(b).GetName(), one)
			all = append(all, one)
		}
	}
	return all
}

// tracedStep is a step of a policy, as bound by one of its bindings.
type tracedStep struct {
	request *admission.Request
	name    string
	denies bool // where it finds fault
}

func (t *tracedStep) end(began time.Time, fault error, before, after object.Tree) {
	if !t.denies {
		fault = nil
	}
	t.request.Told(t.name, time.Since(began), fault, before, after)
}

type tracedValidator struct {
	validating.Validator
	tracedStep
}

func tracingValidator(r *admission.Request) func(string, validating.PolicyHook) validating.Validator {
	return func(name string, h validating.PolicyHook) validating.Validator {
		return tracedValidator{h.Evaluator, tracedStep{r, name, slices.Contains(h.Bindings[0].Spec.ValidationActions, admissionregistrationv1.Deny)}}
	}
}

// Validate implements validating.Validator.
func (v tracedValidator) Validate(ctx context.Context, at schema.GroupVersionResource, a *upstream.VersionedAttributes, params runtime.Object, ns *corev1.Namespace, budget int64, authz authorizer.UnconditionalAuthorizer) validating.ValidateResult {
	began := time.Now()
	result := v.Validator.Validate(ctx, at, a, params, ns, budget, authz)
	var fault error
	if i := slices.IndexFunc(result.Decisions, func(d validating.PolicyDecision) bool { return d.Action == validating.ActionDeny }); i >= 0 {
		fault = errors.New(result.Decisions[i].Message)
	}
	v.end(began, fault, nil, nil)
	return result
}

type tracedPatcher struct {
	patch.Patcher
	tracedStep
}

func tracingPatchers(r *admission.Request) func(string, mutating.PolicyHook) mutating.PolicyEvaluator {
	return func(name string, h mutating.PolicyHook) mutating.PolicyEvaluator {
		e := h.Evaluator
		e.Mutators = slices.Clone(e.Mutators)
		for i, m := range e.Mutators {
			e.Mutators[i] = tracedPatcher{m, tracedStep{r, name, ptr.Deref(h.Policy.Spec.FailurePolicy, admissionregistrationv1.Fail) == admissionregistrationv1.Fail}}
		}
		return e
	}
}

// Patch implements patch.Patcher.
func (p tracedPatcher) Patch(ctx context.Context, r patch.Request, budget int64) (runtime.Object, error) {
	began := time.Now()
	after, err := p.Patcher.Patch(ctx, r, budget)
	p.end(began, err, treeOf(r.VersionedAttributes.VersionedObject.Object()), treeOf(after))
	return after, err
}

// treeOf is nil where there is no object.
func treeOf(o runtime.Object) object.Tree {
	switch o := o.(type) {
	case nil:
		return nil
	case *unstructured.Unstructured:
		return o.Object
	}
	t, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil
	}
	return t
}
