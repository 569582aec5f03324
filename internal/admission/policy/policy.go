// Package policy judges and changes writes by the ValidatingAdmissionPolicies and MutatingAdmissionPolicies of a cluster. What they mean
// is upstream's dispatchers; which of them are in force is an index over the store.
package policy

import (
	"context"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/matching"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Config is what policies are read from, and what they may ask.
type Config struct {
	Head       func() *storage.Snapshot // where the policies and Namespaces are
	Catalog    func() *resource.Catalog
	Objects    Objects              // params
	Client     kubernetes.Interface // is asked for a namespace that is not at the head
	Authorizer authorizer.UnconditionalAuthorizer

	paramCache *recordCache[*unstructured.Unstructured] // params
}

// Objects are the stored objects of any kind, at any version of it, as they are at the moment.
type Objects interface {
	Get(ctx context.Context, v *resource.Version, namespace, name string) (Object, error)
	List(ctx context.Context, v *resource.Version, namespace string, selector labels.Selector) ([]Object, error)
}

// Object is one of them, which Tree decodes. As long as it does not change, its record is the same.
type Object struct {
	Record *storage.Record
	Tree   func() (object.Tree, error)
}

// Plugins are MutatingAdmissionPolicy and ValidatingAdmissionPolicy.
func Plugins(c Config) []admission.Plugin {
	c.paramCache = &recordCache[*unstructured.Unstructured]{}
	matcher := matching.NewMatcher(&namespaceLister{head: c.Head}, c.Client)
	return []admission.Plugin{
		&mutator{Config: c, matcher: matcher, index: newMutating(c)},
		&validator{Config: c, dispatcher: validating.NewDispatcher(c.Authorizer, generic.NewPolicyMatcher(matcher)), index: newValidating(c)},
	}
}

// exempt says that no policy is asked about r: so that nobody can lock himself out, and of questions that a cluster lives by.
func exempt(r *admission.Request) bool {
	if r.Resource.Group == admissionregistrationv1.GroupName {
		return strings.HasSuffix(r.Resource.Resource, "admissionpolicies") || strings.HasSuffix(r.Resource.Resource, "admissionpolicybindings")
	}
	return r.Version.Definition.Behavior.Review != nil
}

type validator struct {
	Config
	dispatcher generic.Dispatcher[validating.PolicyHook]
	index      *index[*validating.Policy, *validating.PolicyBinding, validating.Validator]
}

// Name implements admission.Plugin.
func (*validator) Name() string { return validating.PluginName }

// Handles implements admission.Plugin.
func (p *validator) Handles(r *admission.Request) bool { return !exempt(r) && p.index.mayMatch(r) }

// Admit implements admission.Plugin.
func (*validator) Admit(context.Context, *admission.Request) error { return nil }

// Validate implements admission.Plugin.
func (p *validator) Validate(ctx context.Context, r *admission.Request) error {
	a, err := unstructuredAttributes(ctx, r)
	if err != nil {
		return err
	}
	hooks := p.index.hooks(ctx, r, p.hook)
	if r.Traced() {
		hooks = p.index.splitByBinding(hooks, tracingValidator(r))
	}
	return p.dispatcher.Dispatch(warning.WithWarningRecorder(ctx, a), a, a, hooks)
}

// hook is a policy with what it is given of params.
func (p *validator) hook(ctx context.Context, h validating.PolicyHook) validating.PolicyHook {
	h.ParamInformer, h.ParamScope, h.ConfigurationError = p.params(ctx, h.Policy.Spec.ParamKind, false)
	return h
}

type mutator struct {
	Config
	matcher *matching.Matcher
	index   *index[*mutating.Policy, *mutating.PolicyBinding, mutating.PolicyEvaluator]
}

// Name implements admission.Plugin.
func (*mutator) Name() string { return mutating.PluginName }

// Handles implements admission.Plugin.
func (p *mutator) Handles(r *admission.Request) bool {
	return r.Operation != admission.Delete && !exempt(r) && p.index.mayMatch(r)
}

// Reinvoke says that policies may want to see what later plugins, or policies, have made of the object.
func (*mutator) Reinvoke() bool { return true }

// Admit implements admission.Plugin.
func (p *mutator) Admit(ctx context.Context, r *admission.Request) error {
	a, err := internalAttributes(ctx, r)
	if err != nil {
		return err
	}
	hooks := p.index.hooks(ctx, r, p.hook)
	if r.Traced() {
		hooks = p.index.splitByBinding(hooks, tracingPatchers(r))
	}
	dispatcher := mutating.NewDispatcher(p.Authorizer, p.matcher, schemaTypes{r.Version.Definition})
	if err := dispatcher.Dispatch(warning.WithWarningRecorder(ctx, a), a, a, hooks); err != nil || !a.changed {
		return err
	}
	t, err := r.New(ctx, r.Version)
	if err != nil {
		return err
	}
	return r.Replace(ctx, t, r.Version)
}

// Validate implements admission.Plugin.
func (*mutator) Validate(context.Context, *admission.Request) error { return nil }

func (p *mutator) hook(ctx context.Context, h mutating.PolicyHook) mutating.PolicyHook {
	h.ParamInformer, h.ParamScope, h.ConfigurationError = p.params(ctx, h.Policy.Spec.ParamKind, true)
	return h
}
