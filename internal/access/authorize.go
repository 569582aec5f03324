package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
)

// role is one of upstream's bootstrap roles and the groups it is bound to.
type role struct {
	name      string
	groups    []string
	paths     []string // for GET; a trailing * stands for everything below
	creatable []schema.GroupResource
}

// bootstrap are the roles that every cluster has for those who are not in
// system:masters.
var bootstrap = []role{
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
}

// bound returns the group by which u has the role, or "".
func (r *role) bound(u user.Info) string {
	for _, g := range r.groups {
		if slices.Contains(u.GetGroups(), g) {
			return g
		}
	}
	return ""
}

func (r *role) allows(a *Attributes) bool {
	if a.Resource {
		return a.Verb == "create" && a.Subresource == "" &&
			slices.Contains(r.creatable, schema.GroupResource{Group: a.Group, Resource: a.Plural})
	}
	return a.Verb == "get" && slices.ContainsFunc(r.paths, func(pattern string) bool {
		prefix, below := strings.CutSuffix(pattern, "*")
		return a.Path == pattern || below && strings.HasPrefix(a.Path, prefix)
	})
}

// Authorizer decides. Its zero value is ready: system:masters may do everything,
// others what upstream's bootstrap roles give them.
type Authorizer struct{}

// Authorize returns nil, or a 403 StatusError worded as upstream's.
func (z *Authorizer) Authorize(a Attributes) error {
	if allowed, _ := z.Allowed(a); allowed {
		return nil
	}
	return forbidden(&a)
}

// Allowed is the same without building an error. reason says which role allows it,
// as upstream's RBAC does; it is empty for system:masters and for a refusal.
func (z *Authorizer) Allowed(a Attributes) (allowed bool, reason string) {
	if a.User == nil {
		return false, ""
	}
	if slices.Contains(a.User.GetGroups(), user.SystemPrivilegedGroup) {
		return true, ""
	}
	for i := range bootstrap {
		r := &bootstrap[i]
		if !r.allows(&a) {
			continue
		}
		if g := r.bound(a.User); g != "" {
			return true, fmt.Sprintf("RBAC: allowed by ClusterRoleBinding %q of ClusterRole %q to Group %q", r.name, r.name, g)
		}
	}
	return false, ""
}

// escape keeps a refusal from looking like HTML.
var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

func forbidden(a *Attributes) error {
	name := ""
	if a.User != nil {
		name = a.User.GetName()
	}
	var text string
	switch {
	case !a.Resource:
		text = fmt.Sprintf("User %q cannot %s path %q", name, a.Verb, a.Path)
	case a.Namespace != "":
		text = fmt.Sprintf("%s in the namespace %q", resourceText(name, a), a.Namespace)
	default:
		text = resourceText(name, a) + " at the cluster scope"
	}
	gr := schema.GroupResource{Group: a.Group, Resource: a.Plural}
	return apierrors.NewForbidden(gr, a.Name, errors.New(escape.Replace(text)))
}

func resourceText(name string, a *Attributes) string {
	resource := a.Plural
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q", name, a.Verb, resource, a.Group)
}
