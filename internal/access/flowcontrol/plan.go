package flowcontrol

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/trellis-k8s/trellis/internal/access"
)

// plan assigns requests to flows. It contains the rules by subject, ordered by the precedence of their FlowSchemas. A
// plan is immutable.
type plan struct {
	users, groups map[string][]rule
	accounts      map[string][]rule // rules for all ServiceAccounts of a namespace
	everyone      []rule
	catchAll      *flow
}

type rule struct {
	order int // position of the rule's FlowSchema; the matching rule with the lowest order is used
	flow  *flow
	*flowcontrolv1.PolicyRulesWithSubjects
}

// flow is a FlowSchema with its priority level.
type flow struct {
	*level
	schema              string
	distinguisher       flowcontrolv1.FlowDistinguisherMethodType
	schemaUID, levelUID []string // values of response headers
	*counts
}

// rebuild configures the levels and creates a plan from the objects. Mandatory objects that are not stored have their
// default values.
func (x *Controller) rebuild(now time.Time) {
	x.configure(now)
	schemas := slices.Collect(maps.Values(x.schemas))
	for _, mandatory := range bootstrap.MandatoryFlowSchemas {
		if x.schemas[flowSchemas+mandatory.Name] == nil {
			schemas = append(schemas, mandatory)
		}
	}
	slices.SortFunc(schemas, func(a, b *flowcontrolv1.FlowSchema) int {
		return cmp.Or(cmp.Compare(a.Spec.MatchingPrecedence, b.Spec.MatchingPrecedence),
			strings.Compare(a.Name, b.Name))
	})
	p := &plan{users: map[string][]rule{}, groups: map[string][]rule{}, accounts: map[string][]rule{}}
	for order, s := range schemas {
		l := x.levels[s.Spec.PriorityLevelConfiguration.Name]
		if l == nil {
			continue
		}
		f := &flow{
			level: l, schema: s.Name, counts: l.countsOf(s.Name), schemaUID: []string{string(s.UID)},
			levelUID: []string{l.uid},
		}
		if s.Spec.DistinguisherMethod != nil {
			f.distinguisher = s.Spec.DistinguisherMethod.Type
		}
		if s.Name == flowcontrolv1.FlowSchemaNameCatchAll {
			p.catchAll = f
		}
		for i := range s.Spec.Rules {
			p.add(rule{order, f, &s.Spec.Rules[i]})
		}
	}
	x.plan.Store(p)
}

func (p *plan) add(r rule) {
	for _, s := range r.Subjects {
		switch {
		case s.User != nil && s.User.Name == flowcontrolv1.NameAll, s.Group != nil &&
			s.Group.Name == flowcontrolv1.NameAll:
			p.everyone = append(p.everyone, r)
		case s.User != nil:
			p.users[s.User.Name] = append(p.users[s.User.Name], r)
		case s.Group != nil:
			p.groups[s.Group.Name] = append(p.groups[s.Group.Name], r)
		case s.ServiceAccount != nil && s.ServiceAccount.Name == flowcontrolv1.NameAll:
			p.accounts[s.ServiceAccount.Namespace] = append(p.accounts[s.ServiceAccount.Namespace], r)
		case s.ServiceAccount != nil:
			name := serviceaccount.MakeUsername(s.ServiceAccount.Namespace, s.ServiceAccount.Name)
			p.users[name] = append(p.users[name], r)
		}
	}
}

// match returns the flow of the first rule that matches a request, or the catch-all flow.
func (p *plan) match(a *access.Attributes) *flow {
	name := a.User.GetName()
	best := firstMatch(nil, p.users[name], a)
	for _, group := range a.User.GetGroups() {
		best = firstMatch(best, p.groups[group], a)
	}
	best = firstMatch(best, p.everyone, a)
	if account, ok := strings.CutPrefix(name, serviceaccount.ServiceAccountUsernamePrefix); ok {
		if namespace, _, ok := strings.Cut(account, serviceaccount.ServiceAccountUsernameSeparator); ok {
			best = firstMatch(best, p.accounts[namespace], a)
		}
	}
	if best == nil {
		return p.catchAll
	}
	return best.flow
}

// firstMatch returns the first of the rules that matches a request. It returns best if no rule matches, or if the
// order of best is lower.
func firstMatch(best *rule, rules []rule, a *access.Attributes) *rule {
	for i := range rules {
		r := &rules[i]
		if best != nil && best.order <= r.order {
			return best
		}
		if r.matches(a) {
			return r
		}
	}
	return best
}

func (r *rule) matches(a *access.Attributes) bool {
	if a.Resource {
		return slices.ContainsFunc(r.ResourceRules,
			func(r flowcontrolv1.ResourcePolicyRule) bool { return matchesResource(&r, a) })
	}
	for i := range r.NonResourceRules {
		n := &r.NonResourceRules[i]
		if contains(n.Verbs, a.Verb) && slices.ContainsFunc(n.NonResourceURLs, func(pattern string) bool {
			return matchesPath(pattern, a.Path)
		}) {
			return true
		}
	}
	return false
}

func matchesResource(r *flowcontrolv1.ResourcePolicyRule, a *access.Attributes) bool {
	switch {
	case !contains(r.Verbs, a.Verb) || !contains(r.APIGroups, a.Group):
		return false
	case !isWildcard(r.Resources) && !slices.ContainsFunc(r.Resources, func(name string) bool {
		return matchesName(name, a.Plural, a.Subresource)
	}):
		return false
	case a.Namespace == "":
		return r.ClusterScope
	}
	return contains(r.Namespaces, a.Namespace)
}

// matchesName reports whether the name in a rule names a resource or, if subresource is not "", its subresource. Names
// have the form resource or resource/subresource.
func matchesName(name, resource, subresource string) bool {
	rest, ok := strings.CutPrefix(name, resource)
	if subresource == "" {
		return ok && rest == ""
	}
	return ok && strings.HasPrefix(rest, "/") && rest[1:] == subresource
}

// matchesPath reports whether a pattern matches a path. A pattern matches an equal path, and all paths below the
// pattern. A trailing asterisk is ignored.
func matchesPath(pattern, path string) bool {
	if pattern == flowcontrolv1.NonResourceAll || pattern == path {
		return true
	}
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(strings.TrimSuffix(pattern, "*"), "/"))
	return ok && strings.HasPrefix(rest, "/")
}

func contains(list []string, s string) bool { return isWildcard(list) || slices.Contains(list, s) }

// isWildcard reports whether a list of verbs, groups, resources or namespaces consists of the wildcard.
func isWildcard(list []string) bool { return len(list) == 1 && list[0] == flowcontrolv1.VerbAll }
