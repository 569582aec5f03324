package access

import (
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Authorizer decides whether a request may go on, for every caller and every request. All of upstream's are Authorizers.
// Allow lets it go on, all else does not, and the reason is told to who is refused; NoOpinion is for those who are asked
// together with others. An error that comes without Allow is answered with a 500.
type Authorizer = authorizer.UnconditionalAuthorizer

// Attributes are what a decision is about.
type Attributes struct {
	User                                                 user.Info
	Verb                                                 string // get, list, watch, create, update, patch, delete, deletecollection; or the lower-case HTTP method
	Resource                                             bool   // a resource request; otherwise only Path counts
	Path                                                 string
	Group, Version, Plural, Subresource, Namespace, Name string
	FieldSelector, LabelSelector                         string // of a list, watch or deletecollection, as sent
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

// GetFieldSelector implements authorizer.Attributes.
func (a *Attributes) GetFieldSelector() (fields.Requirements, error) {
	if a.FieldSelector == "" {
		return nil, nil
	}
	s, err := fields.ParseSelector(a.FieldSelector)
	if err != nil {
		return nil, err
	}
	return s.Requirements(), nil
}

// GetLabelSelector implements authorizer.Attributes.
func (a *Attributes) GetLabelSelector() (labels.Requirements, error) {
	if a.LabelSelector == "" {
		return nil, nil
	}
	s, err := labels.Parse(a.LabelSelector)
	if err != nil {
		return nil, err
	}
	requirements, _ := s.Requirements()
	return requirements, nil
}

var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// Escape keeps an answer from looking like HTML.
func Escape(text string) string { return escape.Replace(text) }

// Forbidden is the 403 StatusError for a refusal, worded as upstream's.
func Forbidden(a authorizer.Attributes, reason string) error {
	name := ""
	if u := a.GetUser(); u != nil {
		name = u.GetName()
	}
	var text string
	switch {
	case !a.IsResourceRequest():
		text = fmt.Sprintf("User %q cannot %s path %q", name, a.GetVerb(), a.GetPath())
	case a.GetNamespace() != "":
		text = fmt.Sprintf("%s in the namespace %q", resourceText(name, a), a.GetNamespace())
	default:
		text = resourceText(name, a) + " at the cluster scope"
	}
	text = Escape(text)
	if reason != "" {
		text += ": " + reason
	}
	gr := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}
	return apierrors.NewForbidden(gr, a.GetName(), errors.New(text))
}

func resourceText(name string, a authorizer.Attributes) string {
	resource := a.GetResource()
	if a.GetSubresource() != "" {
		resource += "/" + a.GetSubresource()
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q", name, a.GetVerb(), resource, a.GetAPIGroup())
}
