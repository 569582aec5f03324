package rbac

import (
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	rbachelpers "k8s.io/kubernetes/pkg/apis/rbac/v1"
)

// Authorize implements authorizer.UnconditionalAuthorizer. It allows a request, with the binding as the reason, or has
// no opinion, with the missing roles of the user's bindings as the reason.
func (x *Index) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	u := a.GetUser()
	if u == nil {
		return authorizer.DecisionNoOpinion, "", nil
	}
	var (
		reason   string
		allowed  bool
		missing  []error
		resource = resourceName(a)
	)
	x.visit(u, a.GetNamespace(), func(g *grant, rules []rbacv1.PolicyRule, err error) bool {
		if err != nil {
			missing = append(missing, err)
		}
		for i := range rules {
			if allows(&rules[i], a, resource) {
				allowed, reason = true, g.reason
				return false
			}
		}
		return true
	})
	switch {
	case allowed:
		return authorizer.DecisionAllow, reason, nil
	case len(missing) > 0:
		return authorizer.DecisionNoOpinion, fmt.Sprintf("RBAC: %v", utilerrors.NewAggregate(missing)), nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// resourceName returns the resource with its subresource, in the form of rules.
func resourceName(a authorizer.Attributes) string {
	if sub := a.GetSubresource(); sub != "" {
		return a.GetResource() + "/" + sub
	}
	return a.GetResource()
}

// allows is upstream's rbac.RuleAllows, but receives the resource name instead of building it for each rule.
func allows(rule *rbacv1.PolicyRule, a authorizer.Attributes, resource string) bool {
	if !rbachelpers.VerbMatches(rule, a.GetVerb()) {
		return false
	}
	if !a.IsResourceRequest() {
		return rbachelpers.NonResourceURLMatches(rule, a.GetPath())
	}
	return rbachelpers.APIGroupMatches(rule, a.GetAPIGroup()) &&
		rbachelpers.ResourceMatches(rule, resource, a.GetSubresource()) &&
		rbachelpers.ResourceNameMatches(rule, a.GetName())
}

// visitor receives a grant with its rules, or with the error that its role is missing. It returns false to stop.
type visitor func(g *grant, rules []rbacv1.PolicyRule, err error) bool

// visit calls yield with the grants of u in the cluster and, unless namespace is "", in the namespace.
func (x *Index) visit(u user.Info, namespace string, yield visitor) {
	x.Refresh()
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.visitNamespace("", u, yield) && namespace != "" {
		x.visitNamespace(namespace, u, yield)
	}
}

// visitNamespace visits the grants of u by bindings in a namespace, or by ClusterRoleBindings if namespace is "".
func (x *Index) visitNamespace(namespace string, u user.Info, yield visitor) bool {
	if !x.visitSubject(subjectKey{namespace: namespace, name: u.GetName()}, u, yield) {
		return false
	}
	for _, group := range u.GetGroups() {
		if !x.visitSubject(subjectKey{namespace: namespace, name: group, group: true}, u, yield) {
			return false
		}
	}
	return true
}

func (x *Index) visitSubject(s subjectKey, u user.Info, yield visitor) bool {
	for _, g := range x.grants[s] {
		if x.grantedEarlier(g, u) {
			continue
		}
		rules, err := x.rulesOf(g.binding)
		if !yield(g, rules, err) {
			return false
		}
	}
	return true
}

// grantedEarlier reports whether an earlier subject of the same binding also grants the role to u. Only the grant of
// the first such subject is used.
func (x *Index) grantedEarlier(g *grant, u user.Info) bool {
	if g.index == 0 {
		return false
	}
	if x.namedEarlier(g, subjectKey{namespace: g.namespace, name: u.GetName()}) {
		return true
	}
	return slices.ContainsFunc(u.GetGroups(), func(group string) bool {
		return x.namedEarlier(g, subjectKey{namespace: g.namespace, name: group, group: true})
	})
}

// namedEarlier reports whether the binding of g contains s before the subject of g.
func (x *Index) namedEarlier(g *grant, s subjectKey) bool {
	list := x.grants[s]
	at, ok := slices.BinarySearchFunc(list, g, compareGrants)
	return ok && list[at].index < g.index
}

// rulesOf returns the rules that a binding grants.
func (x *Index) rulesOf(b *binding) ([]rbacv1.PolicyRule, error) {
	rules := x.rules[b.role]
	if rules != nil {
		return rules, nil
	}
	switch b.roleRef.Kind {
	case "ClusterRole":
		return nil, apierrors.NewNotFound(rbacv1.Resource("clusterrole"), b.roleRef.Name)
	case "Role":
		return nil, apierrors.NewNotFound(rbacv1.Resource("role"), b.roleRef.Name)
	}
	_, err := roleKey(b.roleRef, b.namespace)
	return nil, err
}
