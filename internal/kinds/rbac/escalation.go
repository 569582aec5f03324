// Package rbac checks that writes of the kinds of RBAC do not escalate privileges.
package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	clusterrolepolicy "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/policybased"
	clusterrolebindingpolicy "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/policybased"
	rolepolicy "k8s.io/kubernetes/pkg/registry/rbac/role/policybased"
	rolebindingpolicy "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/policybased"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"

	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Escalation holds the checks against privilege escalation. They apply to writes of the kinds of RBAC. A user can
// grant only permissions that the user already has, unless the user is authorized for the verb escalate or bind
// (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping).
type Escalation struct{ Role, ClusterRole, RoleBinding, ClusterRoleBinding authorizeFunc }

// authorizeFunc is the type of resource.Strategy.Authorize.
type authorizeFunc = func(ctx context.Context, obj, old resource.Internal) error

// NewEscalation returns the checks for an authorizer and a resolver of the rules of roles.
func NewEscalation(a authorizer.UnconditionalAuthorizer, rules validation.AuthorizationRuleResolver) Escalation {
	rules = ruleResolver{rules}
	return Escalation{
		Role:               authorizeWith(rolepolicy.NewStorage, a, rules),
		ClusterRole:        authorizeWith(clusterrolepolicy.NewStorage, a, rules),
		RoleBinding:        authorizeWith(rolebindingpolicy.NewStorage, a, rules),
		ClusterRoleBinding: authorizeWith(clusterrolebindingpolicy.NewStorage, a, rules),
	}
}

// upstreamStorage is upstream's storage of an RBAC kind, which authorizes each object before it stores the object.
type upstreamStorage interface {
	rest.Creater
	rest.Updater
}

// authorizeWith returns a check that writes the object to upstream's storage. Below that storage is a discardStorage,
// so nothing is stored.
func authorizeWith[S upstreamStorage](
	newStorage func(rest.StandardStorage, authorizer.UnconditionalAuthorizer, validation.AuthorizationRuleResolver) S,
	a authorizer.UnconditionalAuthorizer, rules validation.AuthorizationRuleResolver,
) authorizeFunc {
	return func(ctx context.Context, obj, old resource.Internal) (err error) {
		e := &escalationCost{name: obj.GetName()}
		ctx = context.WithValue(ctx, costKey{}, e)
		if err := e.addRole(obj); err != nil {
			return err
		}
		defer func() {
			if e.err != nil {
				err = e.err
			}
		}()
		s := newStorage(discardStorage{old: old}, a, rules)
		if old == nil {
			_, err = s.Create(ctx, obj, nil, &metav1.CreateOptions{})
		} else {
			_, _, err = s.Update(ctx, obj.GetName(), rest.DefaultUpdatedObjectInfo(obj), nil, nil, false,
				&metav1.UpdateOptions{})
		}
		return err
	}
}

// discardStorage is a storage that stores nothing. Create and Update return the new object.
type discardStorage struct {
	rest.StandardStorage // nil
	old                  resource.Internal
}

// Create implements rest.Creater.
func (discardStorage) Create(_ context.Context, obj runtime.Object, _ rest.ValidateObjectFunc,
	_ *metav1.CreateOptions) (runtime.Object, error) {
	return obj, nil
}

// Update implements rest.Updater.
func (p discardStorage) Update(ctx context.Context, _ string, info rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc,
	_ rest.ValidateObjectUpdateFunc, _ bool, _ *metav1.UpdateOptions) (runtime.Object, bool, error) {
	obj, err := info.UpdatedObject(ctx, p.old)
	return obj, false, err
}

// ruleResolver limits the cost of the check, and returns upstream's errors for invalid roleRefs. These errors contain
// the resource of the request, even if the role is what was not found.
type ruleResolver struct {
	validation.AuthorizationRuleResolver
}

// GetRoleReferenceRules implements validation.AuthorizationRuleResolver.
func (r ruleResolver) GetRoleReferenceRules(ctx context.Context, ref rbacv1.RoleRef,
	namespace string) ([]rbacv1.PolicyRule, error) {
	known := ref.Kind == "Role" || ref.Kind == "ClusterRole"
	if ref.Kind == "Role" && namespace == "" {
		return nil, apierrors.NewBadRequest("Namespace parameter required.")
	}
	if err := define.ValidateName(ref.Name); err != nil && known {
		return nil, err
	}
	rules, err := r.AuthorizationRuleResolver.GetRoleReferenceRules(ctx, ref, namespace)
	if info, ok := apirequest.RequestInfoFrom(ctx); ok && apierrors.IsNotFound(err) {
		err = apierrors.NewNotFound(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, ref.Name)
	}
	if err == nil {
		err = costOf(ctx).addReferencedRules(rules)
	}
	return rules, err
}

// RulesFor implements validation.AuthorizationRuleResolver. It returns an error if the comparison of the granted rules
// with the user's rules is too expensive. Upstream has read the granted rules before it calls RulesFor.
func (r ruleResolver) RulesFor(ctx context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	rules, err := r.AuthorizationRuleResolver.RulesFor(ctx, u, namespace)
	if e := costOf(ctx); !e.affordable(rules) {
		return nil, e.err
	}
	return rules, err
}
