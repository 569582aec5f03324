// Package access says who is asking and whether they may. It knows requests and
// users, not kinds.
package access

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
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

// GetUser and what follows make Attributes those of upstream's authorizers.
func (a *Attributes) GetUser() user.Info { return a.User }

// GetVerb implements authorizer.Attributes.
func (a *Attributes) GetVerb() string { return a.Verb }

// IsReadOnly implements authorizer.Attributes.
func (a *Attributes) IsReadOnly() bool {
	return a.Verb == "get" || a.Verb == "list" || a.Verb == "watch"
}

// GetNamespace implements authorizer.Attributes.
func (a *Attributes) GetNamespace() string { return a.Namespace }

// GetResource implements authorizer.Attributes.
func (a *Attributes) GetResource() string { return a.Plural }

// GetSubresource implements authorizer.Attributes.
func (a *Attributes) GetSubresource() string { return a.Subresource }

// GetName implements authorizer.Attributes.
func (a *Attributes) GetName() string { return a.Name }

// GetAPIGroup implements authorizer.Attributes.
func (a *Attributes) GetAPIGroup() string { return a.Group }

// GetAPIVersion implements authorizer.Attributes.
func (a *Attributes) GetAPIVersion() string { return a.Version }

// IsResourceRequest implements authorizer.Attributes.
func (a *Attributes) IsResourceRequest() bool { return a.Resource }

// GetPath implements authorizer.Attributes.
func (a *Attributes) GetPath() string { return a.Path }

// GetFieldSelector implements authorizer.Attributes. No decision depends on selectors yet.
func (a *Attributes) GetFieldSelector() (fields.Requirements, error) { return nil, nil }

// GetLabelSelector implements authorizer.Attributes.
func (a *Attributes) GetLabelSelector() (labels.Requirements, error) { return nil, nil }

// Loopback is who this process is to its own API.
func Loopback() user.Info {
	return &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
}
