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

// plan is which requests are of which flow: rules by whom they are about, in the order in which they count. It never changes.
type plan struct {
	users, groups map[string][]rule
	accounts      map[string][]rule // all of a namespace
	everyone      []rule
	catchAll      *flow
}

type rule struct {
	place int // of its FlowSchema; what comes first counts
	flow  *flow
	*flowcontrolv1.PolicyRulesWithSubjects
}

// flow is a FlowSchema with its priority level.
type flow struct {
	*level
	schema              string
	by                  flowcontrolv1.FlowDistinguisherMethodType
	schemaUID, levelUID []string // as headers
	*counts
}

// rebuild makes a plan of the objects, and the levels as they say. Those that every cluster has are there even if nobody has stored them.
func (x *Controller) rebuild(now time.Time) {
	x.configure(now)
	schemas := slices.Collect(maps.Values(x.schemas))
	for _, mandatory := range bootstrap.MandatoryFlowSchemas {
		if x.schemas[flowSchemas+mandatory.Name] == nil {
			schemas = append(schemas, mandatory)
		}
	}
	slices.SortFunc(schemas, func(a, b *flowcontrolv1.FlowSchema) int {
		return cmp.Or(cmp.Compare(a.Spec.MatchingPrecedence, b.Spec.MatchingPrecedence), strings.Compare(a.Name, b.Name))
	})
	p := &plan{users: map[string][]rule{}, groups: map[string][]rule{}, accounts: map[string][]rule{}}
	for place, s := range schemas {
		l := x.levels[s.Spec.PriorityLevelConfiguration.Name]
		if l == nil {
			continue
		}
		f := &flow{level: l, schema: s.Name, counts: l.countsOf(s.Name), schemaUID: []string{string(s.UID)}, levelUID: []string{l.uid}}
		if s.Spec.DistinguisherMethod != nil {
			f.by = s.Spec.DistinguisherMethod.Type
		}
		if s.Name == flowcontrolv1.FlowSchemaNameCatchAll {
			p.catchAll = f
		}
		for i := range s.Spec.Rules {
			p.add(rule{place, f, &s.Spec.Rules[i]})
		}
	}
	x.plan.Store(p)
}

func (p *plan) add(r rule) {
	for _, who := range r.Subjects {
		switch {
		case who.User != nil && who.User.Name == flowcontrolv1.NameAll, who.Group != nil && who.Group.Name == flowcontrolv1.NameAll:
			p.everyone = append(p.everyone, r)
		case who.User != nil:
			p.users[who.User.Name] = append(p.users[who.User.Name], r)
		case who.Group != nil:
			p.groups[who.Group.Name] = append(p.groups[who.Group.Name], r)
		case who.ServiceAccount != nil && who.ServiceAccount.Name == flowcontrolv1.NameAll:
			p.accounts[who.ServiceAccount.Namespace] = append(p.accounts[who.ServiceAccount.Namespace], r)
		case who.ServiceAccount != nil:
			name := serviceaccount.MakeUsername(who.ServiceAccount.Namespace, who.ServiceAccount.Name)
			p.users[name] = append(p.users[name], r)
		}
	}
}

// match is the flow of the first rule that is about a request.
func (p *plan) match(a *access.Attributes) *flow {
	name := a.User.GetName()
	best := better(nil, p.users[name], a)
	for _, group := range a.User.GetGroups() {
		best = better(best, p.groups[group], a)
	}
	best = better(best, p.everyone, a)
	if account, ok := strings.CutPrefix(name, serviceaccount.ServiceAccountUsernamePrefix); ok {
		if namespace, _, ok := strings.Cut(account, serviceaccount.ServiceAccountUsernameSeparator); ok {
			best = better(best, p.accounts[namespace], a)
		}
	}
	if best == nil {
		return p.catchAll
	}
	return best.flow
}

// better is the first of the rules that is about a request, or best where that comes before.
func better(best *rule, rules []rule, a *access.Attributes) *rule {
	for i := range rules {
		r := &rules[i]
		if best != nil && best.place <= r.place {
			return best
		}
		if r.covers(a) {
			return r
		}
	}
	return best
}

func (r *rule) covers(a *access.Attributes) bool {
	if a.Resource {
		return slices.ContainsFunc(r.ResourceRules, func(r flowcontrolv1.ResourcePolicyRule) bool { return coversResource(&r, a) })
	}
	for i := range r.NonResourceRules {
		n := &r.NonResourceRules[i]
		if has(n.Verbs, a.Verb) && slices.ContainsFunc(n.NonResourceURLs, func(pattern string) bool { return coversPath(pattern, a.Path) }) {
			return true
		}
	}
	return false
}

func coversResource(r *flowcontrolv1.ResourcePolicyRule, a *access.Attributes) bool {
	switch {
	case !has(r.Verbs, a.Verb) || !has(r.APIGroups, a.Group):
		return false
	case !all(r.Resources) && !slices.ContainsFunc(r.Resources, func(name string) bool { return names(name, a.Plural, a.Subresource) }):
		return false
	case a.Namespace == "":
		return r.ClusterScope
	}
	return has(r.Namespaces, a.Namespace)
}

// names says that a name in a rule is that of a resource, or of its subresource.
func names(name, resource, subresource string) bool {
	rest, ok := strings.CutPrefix(name, resource)
	if subresource == "" {
		return ok && rest == ""
	}
	return ok && strings.HasPrefix(rest, "/") && rest[1:] == subresource
}

// coversPath takes a pattern for a path and all below it, with or without the star.
func coversPath(pattern, path string) bool {
	if pattern == flowcontrolv1.NonResourceAll || pattern == path {
		return true
	}
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(strings.TrimSuffix(pattern, "*"), "/"))
	return ok && strings.HasPrefix(rest, "/")
}

func has(list []string, s string) bool { return all(list) || slices.Contains(list, s) }

// all says that a list stands for everything: of verbs, of groups, of resources or of namespaces.
func all(list []string) bool { return len(list) == 1 && list[0] == flowcontrolv1.VerbAll }
