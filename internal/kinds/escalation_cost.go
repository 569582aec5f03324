package kinds

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/rbac"

	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// maxCombinations limits the combinations of group, resource, verb and name in the rules of a role. Upstream lists all of them to
	// compare each with the rules of the caller: 300 groups, resources and verbs in one rule of 6 KiB are 27 million.
	maxCombinations = 50_000
	// maxComparisons limits the combinations times the number of strings in the caller's rules. They take about half a second.
	maxComparisons = 10_000_000
)

// escalationCost measures what it takes to check that the writer of a role or binding holds the rights that it gives away.
type escalationCost struct {
	name         string
	field        *field.Path
	combinations float64 // which may be more than an integer holds
	err      error
}

type costKey struct{}

// costOf returns the effort of the write that ctx belongs to.
func costOf(ctx context.Context) *escalationCost {
	if e, ok := ctx.Value(costKey{}).(*escalationCost); ok {
		return e
	}
	return &escalationCost{}
}

// addRole refuses a role with too many combinations.
func (e *escalationCost) addRole(obj resource.Internal) error {
	var rules []rbac.PolicyRule
	kind := "Role"
	switch o := obj.(type) {
	case *rbac.Role:
		rules = o.Rules
	case *rbac.ClusterRole:
		rules, kind = o.Rules, "ClusterRole"
	}
	e.field = field.NewPath("rules")
	for i := range rules {
		r := &rules[i]
		e.add(len(r.APIGroups), len(r.Resources), len(r.Verbs), len(r.ResourceNames), len(r.NonResourceURLs))
	}
	return e.check(kind, maxCombinations)
}

// addReferencedRules refuses a binding to a role with too many combinations.
func (e *escalationCost) addReferencedRules(rules []rbacv1.PolicyRule) error {
	e.field = field.NewPath("roleRef")
	for i := range rules {
		r := &rules[i]
		e.add(len(r.APIGroups), len(r.Resources), len(r.Verbs), len(r.ResourceNames), len(r.NonResourceURLs))
	}
	return e.check("RoleBinding", maxCombinations)
}

func (e *escalationCost) add(groups, resources, verbs, names, urls int) {
	e.combinations += float64(verbs) * (float64(groups)*float64(resources)*float64(max(names, 1)) + float64(urls))
}

// affordable reports whether the combinations can be compared with the rules of the caller.
func (e *escalationCost) affordable(rules []rbacv1.PolicyRule) bool {
	weight := 1
	for i := range rules {
		r := &rules[i]
		weight += 1 + len(r.APIGroups) + len(r.Resources) + len(r.Verbs) + len(r.ResourceNames) + len(r.NonResourceURLs)
	}
	e.err = e.check("Role", maxComparisons/weight)
	return e.err == nil
}

// check returns an error if there are more combinations.
func (e *escalationCost) check(kind string, most int) error {
	if e.combinations <= float64(most) {
		return nil
	}
	return apierrors.NewInvalid(rbac.Kind(kind), e.name, field.ErrorList{field.TooMany(e.field, int(min(e.combinations, 1e15)), most)})
}
