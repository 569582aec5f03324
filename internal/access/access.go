// Package access authenticates callers and authorizes their requests. It must not import packages that implement kinds
// of objects.
package access

import "k8s.io/apiserver/pkg/authentication/user"

// Loopback returns the identity of this process in requests to its own API.
func Loopback() user.Info {
	return &user.DefaultInfo{
		Name:   user.APIServerUser,
		Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated},
	}
}

// Paths of the documents with which clients verify tokens of the service account issuer. See
// https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/#service-account-issuer-discovery.
const (
	ConfigurationPath = "/.well-known/openid-configuration"
	KeysPath          = "/openid/v1/jwks"
)
