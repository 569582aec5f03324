package access

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"
)

// Chain asks authorizers in turn until one allows or denies. Before all, system:masters may do everything. Refusals tell
// the reasons of each under its name, which no two may share.
func Chain(authorizers ...union.NamedAuthorizer) (Authorizer, error) {
	all := append([]union.NamedAuthorizer{{
		AuthorizerName: "kubernetes.io/system-privileged-group",
		Authorizer:     authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup),
	}}, authorizers...)
	chain, err := union.New(all...)
	if err != nil {
		return nil, fmt.Errorf("authorizers: %w", err)
	}
	return chain, nil
}

// Named is a as a part of a Chain.
func Named(name string, a Authorizer) union.NamedAuthorizer {
	return union.NamedAuthorizer{AuthorizerName: name, Authorizer: authorizer.AuthorizerFunc(a.Authorize)}
}
