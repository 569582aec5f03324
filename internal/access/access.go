// Package access says who is asking and whether they may. It knows requests and
// users, not kinds.
package access

import (
	"context"

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

type userKey struct{}

// WithUser hands in the identity of a caller inside this process. Only requests that
// never came over a connection may carry it: it stands above every credential.
func WithUser(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, userKey{}, u)
}

// Loopback is who this process is to its own API.
func Loopback() user.Info {
	return &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
}
