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

// Authorize implements authorizer.UnconditionalAuthorizer. It allows, saying by which binding, or has no opinion, saying which roles that
// are bound do not exist.
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

// resourceName is the resource with its subresource, as rules name it.
func resourceName(a authorizer.Attributes) string {
	if sub := a.GetSubresource(); sub != "" {
		return a.GetResource() + "/" + sub
	}
	return a.GetResource()
}

// allows is upstream's rbac.RuleAllows, with what it puts together for each rule put together once.
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

// visit shows what u is granted in the whole cluster and, unless it is "", in a namespace, until see returns false: the rules, or why there are none.
func (x *Index) visit(u user.Info, namespace string, see func(g *grant, rules []rbacv1.PolicyRule, err error) bool) {
	x.Refresh()
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.visitNamespace("", u, see) && namespace != "" {
		x.visitNamespace(namespace, u, see)
	}
}

// visitNamespace is visit for the bindings of one namespace, or those of the cluster.
func (x *Index) visitNamespace(namespace string, u user.Info, see func(g *grant, rules []rbacv1.PolicyRule, err error) bool) bool {
	if !x.visitSubject(subjectKey{namespace: namespace, name: u.GetName()}, u, see) {
		return false
	}
	for _, group := range u.GetGroups() {
		if !x.visitSubject(subjectKey{namespace: namespace, name: group, group: true}, u, see) {
			return false
		}
	}
	return true
}

func (x *Index) visitSubject(s subjectKey, u user.Info, see func(g *grant, rules []rbacv1.PolicyRule, err error) bool) bool {
	for _, g := range x.grants[s] {
		if x.grantedEarlier(g, u) {
			continue
		}
		rules, err := x.rulesOf(g.binding)
		if !see(g, rules, err) {
			return false
		}
	}
	return true
}

// grantedEarlier reports that u has the role by an earlier subject of the same binding, which is then the one that counts.
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

// namedEarlier reports that the binding of g names s before its own subject.
func (x *Index) namedEarlier(g *grant, s subjectKey) bool {
	list := x.grants[s]
	at, ok := slices.BinarySearchFunc(list, g, compareGrants)
	return ok && list[at].index < g.index
}

// rulesOf are those that a binding grants.
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
