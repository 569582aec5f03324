package access

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"
)

// Chain returns an authorizer that calls the given authorizers in order until one allows or denies. It allows all
// requests of system:masters first. If no authorizer allows a request, the reason contains the name and the reason of
// each authorizer. Names must be unique.
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

// Named returns an authorizer with a name, for use in a Chain.
func Named(name string, a Authorizer) union.NamedAuthorizer {
	return union.NamedAuthorizer{AuthorizerName: name, Authorizer: authorizer.AuthorizerFunc(a.Authorize)}
}
