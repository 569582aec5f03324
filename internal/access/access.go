// Package access says who is asking and whether they may. It knows requests and
// users, not kinds.
package access

import "k8s.io/apiserver/pkg/authentication/user"

// Loopback is who this process is to its own API.
func Loopback() user.Info {
	return &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
}

// Where an issuer of tokens has the documents by which others recognize them
// (https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/#service-account-issuer-discovery).
const (
	ConfigurationPath = "/.well-known/openid-configuration"
	KeysPath          = "/openid/v1/jwks"
)
