package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/rbac"

	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// maxCombinations is the maximum number of combinations of group, resource, verb and name in the rules of a role.
	// Upstream compares each combination with the caller's rules. A single rule of 6 KiB with 300 groups, 300
	// resources and 300 verbs has 27 million combinations.
	maxCombinations = 50_000
	// maxComparisons is the maximum product of the number of combinations and the number of strings in the caller's
	// rules. A check at this limit takes about half a second.
	maxComparisons = 10_000_000
)

// escalationCost measures the cost of a check against privilege escalation.
type escalationCost struct {
	name         string      // of the written object
	field        *field.Path // the field with the rules or with the reference to them
	combinations float64     // may exceed the range of integers
	err          error       // set when a limit is exceeded
}

type costKey struct{}

// costOf returns the escalationCost of the write that ctx belongs to.
func costOf(ctx context.Context) *escalationCost {
	if e, ok := ctx.Value(costKey{}).(*escalationCost); ok {
		return e
	}
	return &escalationCost{}
}

// addRole adds the rules of a written role. It returns an error if they have too many combinations.
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

// addReferencedRules adds the rules of a binding's role. It returns an error if they have too many combinations.
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

// affordable reports whether the number of comparisons with the caller's rules is within the limit. If it is not,
// affordable sets e.err.
func (e *escalationCost) affordable(rules []rbacv1.PolicyRule) bool {
	weight := 1
	for i := range rules {
		r := &rules[i]
		weight += 1 + len(r.APIGroups) + len(r.Resources) + len(r.Verbs) + len(r.ResourceNames) + len(r.NonResourceURLs)
	}
	e.err = e.check("Role", maxComparisons/weight)
	return e.err == nil
}

// check returns an error if there are more than n combinations.
func (e *escalationCost) check(kind string, n int) error {
	if e.combinations <= float64(n) {
		return nil
	}
	return apierrors.NewInvalid(rbac.Kind(kind), e.name,
		field.ErrorList{field.TooMany(e.field, int(min(e.combinations, 1e15)), n)})
}
