package access

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// role is one of upstream's bootstrap roles and the groups it is bound to.
type role struct {
	name      string
	groups    []string
	paths     []string // for GET; a trailing * stands for everything below
	creatable []schema.GroupResource
	reasons   []string // why it allows something, for each group
}

// bootstrap are the roles that every cluster has for those who are not in
// system:masters.
var bootstrap = withReasons([]role{
	{
		name:   "system:public-info-viewer",
		groups: []string{user.AllAuthenticated, user.AllUnauthenticated},
		paths:  []string{"/healthz", "/livez", "/readyz", "/version", "/version/"},
	},
	{
		name:   "system:discovery",
		groups: []string{user.AllAuthenticated},
		paths: []string{"/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz",
			"/version", "/version/"},
	},
	{
		name:   "system:basic-user",
		groups: []string{user.AllAuthenticated},
		creatable: []schema.GroupResource{
			{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
			{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
			{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
		},
	},
	{
		name:   "system:monitoring",
		groups: []string{user.MonitoringGroup},
		paths:  []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/metrics/slis", "/readyz", "/readyz/*"},
	},
})

// withReasons words the reasons beforehand, as upstream's RBAC does.
func withReasons(roles []role) []role {
	for i := range roles {
		r := &roles[i]
		for _, g := range r.groups {
			r.reasons = append(r.reasons, fmt.Sprintf("RBAC: allowed by ClusterRoleBinding %q of ClusterRole %q to Group %q", r.name, r.name, g))
		}
	}
	return roles
}

// bound returns which of its groups gives u the role, or -1.
func (r *role) bound(u user.Info) int {
	return slices.IndexFunc(r.groups, func(g string) bool { return slices.Contains(u.GetGroups(), g) })
}

func (r *role) allows(a authorizer.Attributes) bool {
	if a.IsResourceRequest() {
		return a.GetVerb() == "create" && a.GetSubresource() == "" &&
			slices.Contains(r.creatable, schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()})
	}
	path := a.GetPath()
	return a.GetVerb() == "get" && slices.ContainsFunc(r.paths, func(pattern string) bool {
		prefix, below := strings.CutSuffix(pattern, "*")
		return path == pattern || below && strings.HasPrefix(path, prefix)
	})
}

// Bootstrap is the Authorizer of a new cluster: system:masters may do everything, others what upstream's bootstrap roles
// give them. Its zero value is ready.
type Bootstrap struct{}

// Authorize implements Authorizer. The reason says which role allows it; it is empty for system:masters.
func (Bootstrap) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	u := a.GetUser()
	if u == nil {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	for i := range bootstrap {
		r := &bootstrap[i]
		if !r.allows(a) {
			continue
		}
		if by := r.bound(u); by >= 0 {
			return authorizer.DecisionAllow, r.reasons[by], nil
		}
	}
	return authorizer.DecisionNoOpinion, "", nil
}
