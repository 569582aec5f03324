package rbac

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
)

var _ validation.AuthorizationRuleResolver = Resolver{}

// Resolver adapts an Index to the interface of upstream's escalation checks.
type Resolver struct{ *Index }

// GetRoleReferenceRules implements validation.AuthorizationRuleResolver. It returns the rules of the role that a
// binding in a namespace refers to.
func (r Resolver) GetRoleReferenceRules(_ context.Context, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule,
	error) {
	key, err := roleKey(ref, namespace)
	if err != nil {
		return nil, err
	}
	r.Refresh()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.rulesOf(&binding{namespace: namespace, roleRef: ref, role: key})
}

// RulesFor implements validation.AuthorizationRuleResolver.
func (r Resolver) RulesFor(_ context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	return r.policyRules(u, namespace)
}

// VisitRulesFor implements validation.AuthorizationRuleResolver.
func (r Resolver) VisitRulesFor(_ context.Context, u user.Info, namespace string,
	visitor func(source fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool) {
	r.visit(u, namespace, func(g *grant, rules []rbacv1.PolicyRule, err error) bool {
		if err != nil {
			return visitor(nil, nil, err)
		}
		for i := range rules {
			if !visitor(source{g}, &rules[i], nil) {
				return false
			}
		}
		return true
	})
}

// source describes the grant that a rule comes from.
type source struct{ *grant }

func (s source) String() string { return s.describe(s.index) }

// policyRules returns all rules of u, and an error that contains the missing roles.
func (x *Index) policyRules(u user.Info, namespace string) (all []rbacv1.PolicyRule, err error) {
	var missing []error
	x.visit(u, namespace, func(_ *grant, rules []rbacv1.PolicyRule, err error) bool {
		if err != nil {
			missing = append(missing, err)
		}
		all = append(all, rules...)
		return true
	})
	return all, utilerrors.NewAggregate(missing)
}

// RulesFor implements authorizer.RuleResolver. It returns the rules of u in a namespace, for a SelfSubjectRulesReview.
func (x *Index) RulesFor(_ context.Context, u user.Info, namespace string) (resources []authorizer.ResourceRuleInfo,
	others []authorizer.NonResourceRuleInfo, incomplete bool, err error) {
	rules, err := x.policyRules(u, namespace)
	for i := range rules {
		r := &rules[i]
		if len(r.Resources) > 0 {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{
				Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames,
			})
		}
		if len(r.NonResourceURLs) > 0 {
			others = append(others, &authorizer.DefaultNonResourceRuleInfo{
				Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs,
			})
		}
	}
	return resources, others, false, err
}
