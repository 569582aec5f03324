package access

import (
	"context"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// RulesFor implements authorizer.RuleResolver: all that u may do. No rule depends on the namespace yet.
func (Bootstrap) RulesFor(_ context.Context, u user.Info, _ string) (resources []authorizer.ResourceRuleInfo, others []authorizer.NonResourceRuleInfo, incomplete bool, err error) {
	all := []string{"*"}
	if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		resources = append(resources, &authorizer.DefaultResourceRuleInfo{Verbs: all, APIGroups: all, Resources: all})
		others = append(others, &authorizer.DefaultNonResourceRuleInfo{Verbs: all, NonResourceURLs: all})
	}
	for i := range bootstrap {
		r := &bootstrap[i]
		if r.bound(u) < 0 {
			continue
		}
		for _, gr := range r.creatable {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{
				Verbs: []string{"create"}, APIGroups: []string{gr.Group}, Resources: []string{gr.Resource},
			})
		}
		if len(r.paths) > 0 {
			others = append(others, &authorizer.DefaultNonResourceRuleInfo{Verbs: []string{"get"}, NonResourceURLs: r.paths})
		}
	}
	return resources, others, false, nil
}
