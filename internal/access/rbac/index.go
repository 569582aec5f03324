// Package rbac authorizes requests by the Roles, ClusterRoles and bindings in a store
// (https://kubernetes.io/docs/reference/access-authn-authz/rbac/). It indexes the bindings by subject. Rules are
// evaluated with upstream's code.
package rbac

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Prefixes of storage keys.
const (
	roles               = "/registry/roles/"
	roleBindings        = "/registry/rolebindings/"
	clusterRoles        = "/registry/clusterroles/"
	clusterRoleBindings = "/registry/clusterrolebindings/"
)

// Index authorizes requests by the latest state of the store: a write is in force as soon as it has returned. Index is
// an authorizer.Authorizer and an authorizer.RuleResolver. See Resolver for upstream's escalation checks.
type Index struct {
	storage.Follower
	mu       sync.RWMutex
	grants   map[subjectKey][]*grant
	bindings map[string]*binding            // by storage key
	rules    map[string][]rbacv1.PolicyRule // by storage key of the role
}

// New returns an Index over the state that head returns.
func New(head func() *storage.Snapshot) *Index {
	x := &Index{
		grants: map[subjectKey][]*grant{}, bindings: map[string]*binding{}, rules: map[string][]rbacv1.PolicyRule{},
	}
	x.Head, x.Advance = head, x.advance
	return x
}

// binding is a RoleBinding or, if the namespace is "", a ClusterRoleBinding.
type binding struct {
	namespace, name string
	roleRef         rbacv1.RoleRef
	role            string // storage key of the role; "" if its kind is unknown
	subjects        []rbacv1.Subject
}

// subjectKey identifies a user or a group in the bindings of a namespace, or in ClusterRoleBindings if the namespace
// is "".
type subjectKey struct {
	namespace, name string
	group           bool
}

// grant records that a binding grants its role to one of its subjects.
type grant struct {
	*binding
	index  int    // index of the subject in the binding
	reason string // upstream's reason for a decision based on the grant
}

func (x *Index) advance(seen, head *storage.Snapshot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for oldRec, newRec := range head.Since(seen, roles) {
		x.replaceRole(oldRec, newRec)
	}
	for oldRec, newRec := range head.Since(seen, clusterRoles) {
		x.replaceRole(oldRec, newRec)
	}
	for oldRec, newRec := range head.Since(seen, roleBindings) {
		x.replaceBinding(oldRec, newRec)
	}
	for oldRec, newRec := range head.Since(seen, clusterRoleBindings) {
		x.replaceBinding(oldRec, newRec)
	}
}

func (x *Index) replaceRole(oldRec, newRec *storage.Record) {
	if newRec == nil {
		delete(x.rules, oldRec.Key)
		return
	}
	var role rbacv1.ClusterRole // a Role has the same field for rules
	if err := kjson.UnmarshalCaseSensitivePreserveInts(newRec.Value, &role); err != nil {
		role.Rules = nil // an undecodable role allows nothing
	}
	if role.Rules == nil {
		role.Rules = []rbacv1.PolicyRule{} // nil would mean that the role does not exist
	}
	x.rules[newRec.Key] = role.Rules
}

func (x *Index) replaceBinding(oldRec, newRec *storage.Record) {
	if oldRec != nil && x.bindings[oldRec.Key] != nil {
		x.remove(x.bindings[oldRec.Key])
		delete(x.bindings, oldRec.Key)
	}
	if newRec == nil {
		return
	}
	var object rbacv1.RoleBinding // a ClusterRoleBinding has the same fields and no namespace
	if err := kjson.UnmarshalCaseSensitivePreserveInts(newRec.Value, &object); err != nil {
		return // an undecodable binding grants nothing
	}
	b := &binding{namespace: object.Namespace, name: object.Name, roleRef: object.RoleRef, subjects: object.Subjects}
	b.role, _ = roleKey(b.roleRef, b.namespace)
	x.bindings[newRec.Key] = b
	x.add(b)
}

// roleKey returns the storage key of the role that a binding in a namespace refers to.
func roleKey(ref rbacv1.RoleRef, namespace string) (string, error) {
	switch ref.Kind {
	case "ClusterRole":
		return clusterRoles + ref.Name, nil
	case "Role":
		return roles + namespace + "/" + ref.Name, nil
	}
	return "", fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
}

// subjectKey returns the key of a subject of b. It returns false if the subject's kind is unknown, or if a
// ServiceAccount has no namespace.
func (b *binding) subjectKey(s *rbacv1.Subject) (subjectKey, bool) {
	out := subjectKey{namespace: b.namespace, name: s.Name, group: s.Kind == rbacv1.GroupKind}
	if s.Kind != rbacv1.ServiceAccountKind {
		return out, s.Kind == rbacv1.UserKind || out.group
	}
	namespace := s.Namespace
	if namespace == "" {
		namespace = b.namespace
	}
	out.name = serviceaccount.MakeUsername(namespace, s.Name)
	return out, namespace != ""
}

func (x *Index) add(b *binding) {
	for i := range b.subjects {
		key, ok := b.subjectKey(&b.subjects[i])
		if !ok {
			continue
		}
		g := &grant{binding: b, index: i, reason: "RBAC: allowed by " + b.describe(i)}
		list := x.grants[key]
		at, found := slices.BinarySearchFunc(list, g, compareGrants)
		if found && list[at].binding == b {
			continue // the subject is a duplicate
		}
		x.grants[key] = slices.Insert(list, at, g)
	}
}

func (x *Index) remove(b *binding) {
	for i := range b.subjects {
		key, ok := b.subjectKey(&b.subjects[i])
		if !ok {
			continue
		}
		list := slices.DeleteFunc(x.grants[key], func(g *grant) bool { return g.binding == b })
		if x.grants[key] = list; len(list) == 0 {
			delete(x.grants, key)
		}
	}
}

// compareGrants orders the grants of a subject by the names of their bindings.
func compareGrants(a, b *grant) int { return strings.Compare(a.name, b.name) }

// describe returns upstream's description of the grant to the subject with the given index.
func (b *binding) describe(index int) string {
	kind, name := "ClusterRoleBinding", b.name
	if b.namespace != "" {
		kind, name = "RoleBinding", b.name+"/"+b.namespace
	}
	s := &b.subjects[index]
	to := s.Name
	if s.Kind == rbacv1.ServiceAccountKind {
		namespace := s.Namespace
		if namespace == "" {
			namespace = b.namespace
		}
		to += "/" + namespace
	}
	return fmt.Sprintf("%s %q of %s %q to %s %q", kind, name, b.roleRef.Kind, b.roleRef.Name, s.Kind, to)
}
