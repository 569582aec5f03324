package testserver

import (
	"context"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
)

// May returns a rule of a role. verbs are separated by commas, and resource has the form of kubectl, for example
// "crontabs.stable.example.com/status".
func May(verbs, resource string) rbacv1.PolicyRule {
	name, sub, _ := strings.Cut(resource, "/")
	gr := schema.ParseGroupResource(name)
	if sub != "" {
		gr.Resource += "/" + sub
	}
	return rbacv1.PolicyRule{Verbs: strings.Split(verbs, ","), APIGroups: []string{gr.Group},
		Resources: []string{gr.Resource}}
}

// User returns a client configuration of a user. In addition to the permissions of all users, the user has the
// permissions of rules in all namespaces. If name is that of a service account, such as
// "system:serviceaccount:default:robot", the user has the groups of service accounts.
func (s *Server) User(name string, rules ...rbacv1.PolicyRule) *rest.Config {
	s.t.Helper()
	client, ctx := v1.NewForConfigOrDie(s.Config), context.Background()
	meta := metav1.ObjectMeta{Name: "testserver:" + name}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}
	if len(rules) > 0 {
		_, err := client.ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
		if err == nil {
			_, err = client.ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
		}
		if err != nil {
			s.t.Fatalf("testserver: create the role of %s: %v", name, err)
		}
	}
	c := rest.CopyConfig(s.Config)
	c.Impersonate = rest.ImpersonationConfig{UserName: name}
	return c
}
