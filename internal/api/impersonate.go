package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trellis-k8s/trellis/internal/access"
)

// actAs makes the request one of the user of whom the Impersonate headers name the parts, if the caller may
// act as that user and as each of its parts (https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation).
func (q *request) actAs(parts []corev1.ObjectReference) bool {
	if len(parts) == 0 {
		return true
	}
	h := q.r.Header
	if h.Get(authenticationv1.ImpersonateUserHeader) == "" {
		q.fail(apierrors.NewBadRequest(fmt.Sprintf("requested %v without impersonating a user", parts)))
		return false
	}
	u := &user.DefaultInfo{Extra: map[string][]string{}}
	groupsGiven := len(h[authenticationv1.ImpersonateGroupHeader]) > 0
	for _, p := range parts {
		a := impersonation(q.attributes.User, p)
		if decision, reason, err := q.server.config.Authorizer.Authorize(q.r.Context(), &a); err != nil || decision != authorizer.DecisionAllow {
			q.forbid(&a, reason)
			return false
		}
		switch p.Kind {
		case "ServiceAccount":
			u.Name = serviceaccount.MakeUsername(p.Namespace, p.Name)
			if !groupsGiven {
				u.Groups = serviceaccount.MakeGroupNames(p.Namespace)
			}
		case "User":
			u.Name = p.Name
		case "Group":
			u.Groups = append(u.Groups, p.Name)
		case "UserExtra":
			u.Extra[p.FieldPath] = append(u.Extra[p.FieldPath], p.Name)
		case "UID":
			u.UID = p.Name
		}
	}
	u.Groups = withImplied(u.Name, u.Groups)
	if q.server.config.Audit != nil {
		q.note().impersonator = q.attributes.User
	}
	q.attributes.User = u
	return true
}

// impersonation is the permission to act as one part of a user.
func impersonation(caller user.Info, p corev1.ObjectReference) access.Attributes {
	a := access.Attributes{User: caller, Verb: "impersonate", Resource: true, Namespace: p.Namespace, Name: p.Name}
	switch p.Kind {
	case "ServiceAccount":
		a.Version, a.Plural = p.APIVersion, "serviceaccounts"
	case "User":
		a.Plural = "users"
	case "Group":
		a.Plural = "groups"
	case "UserExtra":
		a.Plural, a.Subresource = "userextras", p.FieldPath
	case "UID":
		a.Plural = "uids"
	}
	if p.APIVersion != "" {
		a.Group, a.Version = authenticationv1.GroupName, authenticationv1.SchemeGroupVersion.Version
	}
	return a
}

// withImplied adds the group that says whether a user is known, unless one of them is given.
func withImplied(name string, groups []string) []string {
	if name == user.Anonymous {
		if slices.Contains(groups, user.AllUnauthenticated) {
			return groups
		}
		return append(groups, user.AllUnauthenticated)
	}
	if slices.Contains(groups, user.AllAuthenticated) || slices.Contains(groups, user.AllUnauthenticated) {
		return groups
	}
	return append(groups, user.AllAuthenticated)
}

// impersonationRequests lists the parts of the user that the headers name.
func impersonationRequests(h http.Header) []corev1.ObjectReference {
	var parts []corev1.ObjectReference
	if name := h.Get(authenticationv1.ImpersonateUserHeader); name != "" {
		if namespace, account, err := serviceaccount.SplitUsername(name); err == nil {
			parts = append(parts, corev1.ObjectReference{Kind: "ServiceAccount", Namespace: namespace, Name: account})
		} else {
			parts = append(parts, corev1.ObjectReference{Kind: "User", Name: name})
		}
	}
	for _, g := range h[authenticationv1.ImpersonateGroupHeader] {
		parts = append(parts, corev1.ObjectReference{Kind: "Group", Name: g})
	}
	gv := authenticationv1.SchemeGroupVersion.String()
	for header, values := range h {
		key, ok := strings.CutPrefix(header, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		if decoded, err := url.PathUnescape(key); err == nil {
			key = decoded
		}
		for _, v := range values {
			parts = append(parts, corev1.ObjectReference{Kind: "UserExtra", APIVersion: gv, Name: v, FieldPath: key})
		}
	}
	if uid := h.Get(authenticationv1.ImpersonateUIDHeader); uid != "" {
		parts = append(parts, corev1.ObjectReference{Kind: "UID", APIVersion: gv, Name: uid})
	}
	return parts
}
