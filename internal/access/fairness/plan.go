package fairness

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

// plan is which requests are of which flow. It never changes.
type plan struct {
	rules    map[subject][]rule // by whom they are about, in the order in which they count
	catchAll *flow
}

// subject is whom a rule is about. A service account stands for all of a namespace; a single one is a user.
type subject struct {
	kind flowcontrolv1.SubjectKind
	name string
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
	p := &plan{rules: map[subject][]rule{}}
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
			r := rule{place, f, &s.Spec.Rules[i]}
			for _, who := range r.Subjects {
				if to, ok := subjectOf(who); ok {
					p.rules[to] = append(p.rules[to], r)
				}
			}
		}
	}
	x.plan.Store(p)
}

func subjectOf(s flowcontrolv1.Subject) (subject, bool) {
	switch {
	case s.Kind == flowcontrolv1.SubjectKindUser && s.User != nil:
		return subject{s.Kind, s.User.Name}, true
	case s.Kind == flowcontrolv1.SubjectKindGroup && s.Group != nil:
		return subject{s.Kind, s.Group.Name}, true
	case s.Kind != flowcontrolv1.SubjectKindServiceAccount || s.ServiceAccount == nil:
		return subject{}, false
	case s.ServiceAccount.Name == flowcontrolv1.NameAll:
		return subject{s.Kind, s.ServiceAccount.Namespace}, true
	}
	return subject{flowcontrolv1.SubjectKindUser, serviceaccount.MakeUsername(s.ServiceAccount.Namespace, s.ServiceAccount.Name)}, true
}

// match is the flow of the first rule that is about a request.
func (p *plan) match(a *access.Attributes) *flow {
	name := a.User.GetName()
	best := p.better(nil, subject{flowcontrolv1.SubjectKindUser, name}, a)
	best = p.better(best, subject{flowcontrolv1.SubjectKindUser, flowcontrolv1.NameAll}, a)
	for _, group := range a.User.GetGroups() {
		best = p.better(best, subject{flowcontrolv1.SubjectKindGroup, group}, a)
	}
	best = p.better(best, subject{flowcontrolv1.SubjectKindGroup, flowcontrolv1.NameAll}, a)
	if account, ok := strings.CutPrefix(name, serviceaccount.ServiceAccountUsernamePrefix); ok {
		if namespace, _, ok := strings.Cut(account, serviceaccount.ServiceAccountUsernameSeparator); ok {
			best = p.better(best, subject{flowcontrolv1.SubjectKindServiceAccount, namespace}, a)
		}
	}
	if best == nil {
		return p.catchAll
	}
	return best.flow
}

// better is the first rule for s that is about a, or best where that comes before.
func (p *plan) better(best *rule, s subject, a *access.Attributes) *rule {
	rules := p.rules[s]
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
	case !slices.ContainsFunc(r.Resources, func(name string) bool {
		return name == flowcontrolv1.ResourceAll || names(name, a.Plural, a.Subresource)
	}):
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

// has takes a list for all where that is what it says.
func has(list []string, s string) bool {
	return slices.Contains(list, s) || len(list) == 1 && list[0] == flowcontrolv1.VerbAll
}
