package access

import (
	"context"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Review answers SelfSubjectAccessReviews: would z let u do what spec says? Exactly one of
// the attributes of spec is set.
func Review(z Authorizer) func(context.Context, user.Info, *authorizationv1.SelfSubjectAccessReviewSpec) (allowed bool, reason string) {
	return func(ctx context.Context, u user.Info, spec *authorizationv1.SelfSubjectAccessReviewSpec) (bool, string) {
		a := Attributes{User: u}
		if r := spec.ResourceAttributes; r != nil {
			a.Resource, a.Verb = true, r.Verb
			a.Group, a.Version, a.Plural, a.Subresource = r.Group, r.Version, r.Resource, r.Subresource
			a.Namespace, a.Name = r.Namespace, r.Name
		} else if n := spec.NonResourceAttributes; n != nil {
			a.Verb, a.Path = n.Verb, n.Path
		}
		decision, reason, err := z.Authorize(ctx, &a)
		if err != nil && reason == "" {
			reason = err.Error()
		}
		return decision == authorizer.DecisionAllow, reason
	}
}

// Rules answers a SelfSubjectRulesReview: all that u may do. No rule depends on the
// namespace yet.
func (Bootstrap) Rules(_ context.Context, u user.Info, _ string) authorizationv1.SubjectRulesReviewStatus {
	// Clients expect lists, not null.
	status := authorizationv1.SubjectRulesReviewStatus{
		ResourceRules:    []authorizationv1.ResourceRule{},
		NonResourceRules: []authorizationv1.NonResourceRule{},
	}
	all := []string{"*"}
	if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{Verbs: all, APIGroups: all, Resources: all})
		status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{Verbs: all, NonResourceURLs: all})
	}
	for i := range bootstrap {
		r := &bootstrap[i]
		if r.bound(u) < 0 {
			continue
		}
		for _, gr := range r.creatable {
			status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{
				Verbs: []string{"create"}, APIGroups: []string{gr.Group}, Resources: []string{gr.Resource},
			})
		}
		if len(r.paths) > 0 {
			status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{
				Verbs: []string{"get"}, NonResourceURLs: r.paths,
			})
		}
	}
	return status
}
