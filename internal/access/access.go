// Package access says who is asking and whether they may. It knows requests and
// users, not kinds.
package access

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
)

// Attributes are what a decision is about.
type Attributes struct {
	User                                                 user.Info
	Verb                                                 string // get, list, watch, create, update, patch, delete, deletecollection; or the lower-case HTTP method
	Resource                                             bool   // a resource request; otherwise only Path counts
	Path                                                 string
	Group, Version, Plural, Subresource, Namespace, Name string
}

// Authenticator finds out who sent a request.
type Authenticator struct{}

// Authenticate returns the user, or a 401 StatusError. The identity of a client
// certificate is computed once a connection.
func (a *Authenticator) Authenticate(r *http.Request) (user.Info, error) {
	panic("access: Authenticate")
}

// Authorizer decides.
type Authorizer struct{}

// Authorize returns nil, or a 403 StatusError worded as upstream's.
func (z *Authorizer) Authorize(a Attributes) error { panic("access: Authorize") }

// Allowed is the same without building an error.
func (z *Authorizer) Allowed(a Attributes) (allowed bool, reason string) { panic("access: Allowed") }
