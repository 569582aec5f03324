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

// splitByBinding returns the hooks for a traced write. There is one hook for each binding, and its evaluator records a
// step of the trace.
func (x *index[P, B, E]) splitByBinding(
	hooks []generic.PolicyHook[P, B, E], newEvaluator func(name string, h generic.PolicyHook[P, B, E]) E,
) (all []generic.PolicyHook[P, B, E]) {
	for _, h := range hooks {
		if h.ConfigurationError != nil {
			all = append(all, h)
			continue
		}
		for _, b := range h.Bindings {
			hook := h
			hook.Bindings = []B{b}
			hook.Evaluator = newEvaluator(x.policy(h.Policy).GetName()+", binding "+x.binding(b).GetName(), hook)
			all = append(all, hook)
		}
	}
	return all
}

// tracedStep is the evaluation of a policy with one of its bindings, for the trace of a write.
type tracedStep struct {
	request *admission.Request
	name    string
	denies  bool // an error denies the request
}

func (t *tracedStep) end(start time.Time, err error, before, after object.Tree) {
	if !t.denies {
		err = nil
	}
	t.request.RecordStep(t.name, time.Since(start), err, before, after)
}

type tracedValidator struct {
	validating.Validator
	tracedStep
}

func tracingValidator(r *admission.Request) func(string, validating.PolicyHook) validating.Validator {
	return func(name string, h validating.PolicyHook) validating.Validator {
		denies := slices.Contains(h.Bindings[0].Spec.ValidationActions, admissionregistrationv1.Deny)
		return tracedValidator{h.Evaluator, tracedStep{r, name, denies}}
	}
}

// Validate implements validating.Validator.
func (v tracedValidator) Validate(
	ctx context.Context, at schema.GroupVersionResource, a *upstream.VersionedAttributes, params runtime.Object,
	ns *corev1.Namespace, budget int64, authz authorizer.UnconditionalAuthorizer,
) validating.ValidateResult {
	start := time.Now()
	result := v.Validator.Validate(ctx, at, a, params, ns, budget, authz)
	var err error
	i := slices.IndexFunc(result.Decisions, func(d validating.PolicyDecision) bool {
		return d.Action == validating.ActionDeny
	})
	if i >= 0 {
		err = errors.New(result.Decisions[i].Message)
	}
	v.end(start, err, nil, nil)
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
		failurePolicy := ptr.Deref(h.Policy.Spec.FailurePolicy, admissionregistrationv1.Fail)
		for i, m := range e.Mutators {
			e.Mutators[i] = tracedPatcher{m, tracedStep{r, name, failurePolicy == admissionregistrationv1.Fail}}
		}
		return e
	}
}

// Patch implements patch.Patcher.
func (p tracedPatcher) Patch(ctx context.Context, r patch.Request, budget int64) (runtime.Object, error) {
	start := time.Now()
	after, err := p.Patcher.Patch(ctx, r, budget)
	p.end(start, err, treeOf(r.VersionedAttributes.VersionedObject.Object()), treeOf(after))
	return after, err
}

// treeOf returns o as a tree, or nil if o is nil or cannot be converted.
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
