// Package policy implements the plugins ValidatingAdmissionPolicy and MutatingAdmissionPolicy. An index of the policies
// in the store finds the ones that may match a write. Upstream's dispatchers evaluate them.
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
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Config holds the dependencies of the plugins.
type Config struct {
	Head       func() *storage.Snapshot // returns the policies, bindings and Namespaces
	Catalog    func() *catalog.Catalog
	Objects    Objects              // reads params
	Client     kubernetes.Interface // gets a Namespace that Head does not contain
	Authorizer authorizer.UnconditionalAuthorizer

	paramCache *recordCache[*unstructured.Unstructured]
}

// Objects reads the latest stored objects of any kind at any version.
type Objects interface {
	Get(ctx context.Context, v *resource.Version, namespace, name string) (Object, error)
	List(ctx context.Context, v *resource.Version, namespace string, selector labels.Selector) ([]Object, error)
}

// Object is a stored object. Tree decodes it. Record is the same pointer until the object changes.
type Object struct {
	Record *storage.Record
	Tree   func() (object.Tree, error)
}

// Plugins returns the plugins MutatingAdmissionPolicy and ValidatingAdmissionPolicy.
func Plugins(c Config) []admission.Plugin {
	c.paramCache = &recordCache[*unstructured.Unstructured]{}
	matcher := matching.NewMatcher(&namespaceLister{head: c.Head}, c.Client)
	return []admission.Plugin{
		&mutator{Config: c, matcher: matcher, index: newMutating(c)},
		&validator{
			Config:     c,
			dispatcher: validating.NewDispatcher(c.Authorizer, generic.NewPolicyMatcher(matcher)),
			index:      newValidating(c),
		},
	}
}

// exempt reports whether r is exempt from all policies. Policies and their bindings are exempt. Otherwise a policy
// could lock out all users. Reviews, such as TokenReviews, are exempt because a cluster depends on them.
func exempt(r *admission.Request) bool {
	if r.Resource.Group == admissionregistrationv1.GroupName {
		return strings.HasSuffix(r.Resource.Resource, "admissionpolicies") ||
			strings.HasSuffix(r.Resource.Resource, "admissionpolicybindings")
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

// hook adds the informer and the scope of the params to a policy.
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

// Reinvoke returns true: policies may have to be evaluated again after later policies or plugins have changed the
// object.
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
