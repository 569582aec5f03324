// Package rbac says what roles allow (https://kubernetes.io/docs/reference/access-authn-authz/rbac/), by an index over the
// Roles, ClusterRoles and their bindings in a store. What a rule means is upstream's own code.
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

// Where the objects are stored.
const (
	roles               = "/registry/roles/"
	roleBindings        = "/registry/rolebindings/"
	clusterRoles        = "/registry/clusterroles/"
	clusterRoleBindings = "/registry/clusterrolebindings/"
)

// Index answers by what is stored at the moment of each question: a write that has been answered is in force. It is an
// authorizer.Authorizer, an authorizer.RuleResolver, and what upstream's checks of escalation ask.
type Index struct {
	storage.Follower
	mu       sync.RWMutex
	grants   map[subjectKey][]*grant
	bindings map[string]*binding            // by storage key
	rules    map[string][]rbacv1.PolicyRule // of roles, by storage key
}

// New returns an Index over the state that head returns.
func New(head func() *storage.Snapshot) *Index {
	x := &Index{grants: map[subjectKey][]*grant{}, bindings: map[string]*binding{}, rules: map[string][]rbacv1.PolicyRule{}}
	x.Head, x.Advance = head, x.advance
	return x
}

// binding is a RoleBinding or, without a namespace, a ClusterRoleBinding.
type binding struct {
	namespace, name string
	roleRef         rbacv1.RoleRef
	role            string // its storage key; "" if it is of no known kind
	subjects        []rbacv1.Subject
}

// subjectKey is whom a binding names: a user or a group, in a namespace or in all ("").
type subjectKey struct {
	namespace, name string
	group           bool
}

// grant is that one subject of a binding has its role.
type grant struct {
	*binding
	index  int    // of the subject in the binding
	reason string // of what is allowed by it, as upstream words it
}

func (x *Index) advance(seen, head *storage.Snapshot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for was, is := range head.Since(seen, roles) {
		x.replaceRole(was, is)
	}
	for was, is := range head.Since(seen, clusterRoles) {
		x.replaceRole(was, is)
	}
	for was, is := range head.Since(seen, roleBindings) {
		x.replaceBinding(was, is)
	}
	for was, is := range head.Since(seen, clusterRoleBindings) {
		x.replaceBinding(was, is)
	}
}

func (x *Index) replaceRole(was, is *storage.Record) {
	if is == nil {
		delete(x.rules, was.Key)
		return
	}
	var role rbacv1.ClusterRole // a Role has nothing else that matters
	if err := kjson.UnmarshalCaseSensitivePreserveInts(is.Value, &role); err != nil {
		role.Rules = nil // what cannot be read allows nothing
	}
	if role.Rules == nil {
		role.Rules = []rbacv1.PolicyRule{} // it is there
	}
	x.rules[is.Key] = role.Rules
}

func (x *Index) replaceBinding(was, is *storage.Record) {
	if was != nil && x.bindings[was.Key] != nil {
		x.remove(x.bindings[was.Key])
		delete(x.bindings, was.Key)
	}
	if is == nil {
		return
	}
	var object rbacv1.RoleBinding // a ClusterRoleBinding is the same, but for its namespace
	if err := kjson.UnmarshalCaseSensitivePreserveInts(is.Value, &object); err != nil {
		return // what cannot be read grants nothing
	}
	b := &binding{namespace: object.Namespace, name: object.Name, roleRef: object.RoleRef, subjects: object.Subjects}
	b.role, _ = roleKey(b.roleRef, b.namespace)
	x.bindings[is.Key] = b
	x.add(b)
}

// roleKey is where the role is stored that a binding in a namespace names.
func roleKey(ref rbacv1.RoleRef, namespace string) (string, error) {
	switch ref.Kind {
	case "ClusterRole":
		return clusterRoles + ref.Name, nil
	case "Role":
		return roles + namespace + "/" + ref.Name, nil
	}
	return "", fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
}

// subjectKey is whom a subject of b names; false: nobody.
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
		to, ok := b.subjectKey(&b.subjects[i])
		if !ok {
			continue
		}
		g := &grant{binding: b, index: i, reason: "RBAC: allowed by " + b.describe(i)}
		list := x.grants[to]
		at, named := slices.BinarySearchFunc(list, g, compareGrants)
		if named && list[at].binding == b {
			continue // the binding names the subject once more
		}
		x.grants[to] = slices.Insert(list, at, g)
	}
}

func (x *Index) remove(b *binding) {
	for i := range b.subjects {
		from, ok := b.subjectKey(&b.subjects[i])
		if !ok {
			continue
		}
		list := slices.DeleteFunc(x.grants[from], func(g *grant) bool { return g.binding == b })
		if x.grants[from] = list; len(list) == 0 {
			delete(x.grants, from)
		}
	}
}

// compareGrants orders the grants of a subject by the names of their bindings.
func compareGrants(a, b *grant) int { return strings.Compare(a.name, b.name) }

// describe says how a binding gives its role to one of its subjects, in upstream's words.
func (b *binding) describe(place int) string {
	kind, name := "ClusterRoleBinding", b.name
	if b.namespace != "" {
		kind, name = "RoleBinding", b.name+"/"+b.namespace
	}
	s := &b.subjects[place]
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
