package controllers_test

import (
	"context"
	"reflect"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/trellis-k8s/trellis/testserver"
)

// TestBootstrapRoles checks that a new server has upstream's roles and bindings. (AGG-035 AGG-037 SCD-009 SCD-010
// SCD-026)
func TestBootstrapRoles(t *testing.T) {
	s := testserver.Start(t)
	client := kubernetes.NewForConfigOrDie(s.Config).RbacV1()
	for _, want := range append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...) {
		got, err := client.ClusterRoles().Get(t.Context(), want.Name, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		if want.AggregationRule != nil {
			if len(got.Rules) == 0 {
				t.Errorf("%s has no rules when the server is ready", want.Name)
			}
			want.Rules, got.Rules = nil, nil // these rules are aggregated from the selected roles
		}
		same(t, want.Name, got.Rules, want.Rules)
		same(t, want.Name, got.AggregationRule, want.AggregationRule)
		same(t, want.Name, got.Labels, want.Labels)
		same(t, want.Name, got.Annotations, want.Annotations)
	}
	for _, want := range append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...) {
		got, err := client.ClusterRoleBindings().Get(t.Context(), want.Name, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		same(t, want.Name, got.Subjects, want.Subjects)
		same(t, want.Name, got.RoleRef, want.RoleRef)
	}
	for namespace, roles := range bootstrappolicy.NamespaceRoles() {
		for _, want := range roles {
			got, err := client.Roles(namespace).Get(t.Context(), want.Name, metav1.GetOptions{})
			if err != nil {
				t.Error(err)
				continue
			}
			same(t, want.Name, got.Rules, want.Rules)
		}
	}
	for namespace, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, want := range bindings {
			got, err := client.RoleBindings(namespace).Get(t.Context(), want.Name, metav1.GetOptions{})
			if err != nil {
				t.Error(err)
				continue
			}
			same(t, want.Name, got.Subjects, want.Subjects)
		}
	}
}

func same(t *testing.T, name string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, want %+v", name, got, want)
	}
}

// TestRolesAtRestart checks that the server adds missing default rules at its start, keeps other rules, and does not
// change roles with the annotation autoupdate: "false". (SCD-028 SCD-024)
func TestRolesAtRestart(t *testing.T) {
	s := testserver.Start(t, testserver.OnDisk())
	roles := kubernetes.NewForConfigOrDie(s.Config).RbacV1().ClusterRoles()
	change := func(name string, f func(*rbacv1.ClusterRole)) {
		t.Helper()
		role, err := roles.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f(role)
		if _, err := roles.Update(context.WithoutCancel(t.Context()), role, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	added := rbacv1.PolicyRule{
		Verbs:         []string{"get", "update"},
		APIGroups:     []string{"coordination.k8s.io"},
		Resources:     []string{"leases"},
		ResourceNames: []string{"my-scheduler"},
	}
	change("system:kube-scheduler", func(r *rbacv1.ClusterRole) { r.Rules = append(r.Rules, added) })
	change("system:auth-delegator", func(r *rbacv1.ClusterRole) { r.Rules = r.Rules[1:] })
	change("system:volume-scheduler", func(r *rbacv1.ClusterRole) {
		r.Rules, r.Annotations[rbacv1.AutoUpdateAnnotationKey] = nil, "false"
	})
	if err := roles.Delete(t.Context(), "system:node", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	roles = kubernetes.NewForConfigOrDie(s.Config).RbacV1().ClusterRoles()
	rules := func(name string) []rbacv1.PolicyRule {
		t.Helper()
		role, err := roles.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return role.Rules
	}
	if got := rules("system:kube-scheduler"); !slices.ContainsFunc(
		got, func(r rbacv1.PolicyRule) bool { return reflect.DeepEqual(r, added) },
	) {
		t.Errorf("an added rule was removed: %v", got)
	}
	if got := rules("system:auth-delegator"); len(got) != 2 {
		t.Errorf("a removed rule was not restored: %v", got)
	}
	if got := rules("system:volume-scheduler"); len(got) != 0 {
		t.Errorf("a protected role was changed: %v", got)
	}
	if got := rules("system:node"); len(got) == 0 {
		t.Error("a deleted role was not created again")
	}
}
