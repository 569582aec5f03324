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

// streamPaths are the first segments of the kubelet's paths that run a command in a container or open a connection to one.
var streamPaths = []string{"attach", "exec", "portForward", "run"}

// streamsAreCreated authorizes requests to the kubelet as upstream does, except those that reach into a container. These
// need create on nodes/proxy for each HTTP method: upstream takes the verb from the method, and a WebSocket begins with a
// GET, so the right to get nodes/proxy would run commands.
type streamsAreCreated struct{ server.AuthInterface }

// GetRequestAttributes returns the rights that a request needs.
func (s streamsAreCreated) GetRequestAttributes(ctx context.Context, u user.Info, r *http.Request) []authorizer.Attributes {
	attributes := s.AuthInterface.GetRequestAttributes(ctx, u, r)
	first, _, _ := strings.Cut(strings.TrimLeft(r.URL.Path, "/"), "/")
	if slices.Contains(streamPaths, first) {
		for i, a := range attributes {
			attributes[i] = creating{a}
		}
	}
	return attributes
}

// creating is a request as one that creates.
type creating struct{ authorizer.Attributes }

// GetVerb returns create.
func (creating) GetVerb() string { return "create" }

// IsReadOnly returns false.
func (creating) IsReadOnly() bool { return false }
