package node

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/kubelet/server"
)

// streamPaths are the first segments of those paths of the kubelet that run a command in a container or open a
// connection to a container.
var streamPaths = []string{"attach", "exec", "portForward", "run"}

// streamAuthorization authorizes requests to the kubelet as upstream does, except for commands in a container and
// connections to a container. They require the verb create on nodes/proxy for every HTTP method. Upstream derives the
// verb from the method. A WebSocket starts with a GET, so in upstream, a user with the verb get could run commands.
type streamAuthorization struct{ server.AuthInterface }

// GetRequestAttributes returns the attributes that must be authorized for a request.
func (s streamAuthorization) GetRequestAttributes(ctx context.Context, u user.Info,
	r *http.Request) []authorizer.Attributes {
	attributes := s.AuthInterface.GetRequestAttributes(ctx, u, r)
	first, _, _ := strings.Cut(strings.TrimLeft(r.URL.Path, "/"), "/")
	if slices.Contains(streamPaths, first) {
		for i, a := range attributes {
			attributes[i] = createAttributes{a}
		}
	}
	return attributes
}

// createAttributes are the attributes of a request with the verb changed to create.
type createAttributes struct{ authorizer.Attributes }

// GetVerb returns create.
func (createAttributes) GetVerb() string { return "create" }

// IsReadOnly returns false.
func (createAttributes) IsReadOnly() bool { return false }
