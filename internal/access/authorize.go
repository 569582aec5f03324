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

// Authorizer authorizes the requests of all callers. All of upstream's authorizers implement it. A request is allowed
// only by DecisionAllow. Otherwise the client receives the reason, or a 500 if there is an error. After
// DecisionNoOpinion, a Chain calls its next authorizer.
type Authorizer = authorizer.UnconditionalAuthorizer

// Attributes are the properties of a request on which its authorization depends.
type Attributes struct {
	User user.Info
	// Verb is get, list, watch, create, update, patch, delete or deletecollection, or the HTTP method in lower case.
	Verb                                                 string
	Resource                                             bool // false if only Path is evaluated
	Path                                                 string
	Group, Version, Plural, Subresource, Namespace, Name string
	FieldSelector, LabelSelector                         string // selectors of a list, watch or deletecollection
}

// GetUser implements authorizer.Attributes.
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

// Escape returns text with &, < and > escaped, so that a response cannot be interpreted as HTML.
func Escape(text string) string { return escape.Replace(text) }

// Forbidden returns the 403 StatusError of an unauthorized request, with upstream's wording.
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
